"""When a training run has seen a document: the answer from the run's log, or from its stream.

run_documents has the pieces of documents that a run trained on, asked_documents the documents that are asked for, and
seen_documents the question and its result.
"""
