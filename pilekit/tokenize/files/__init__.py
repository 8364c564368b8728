"""Token files: the ids of a corpus as other trainers read them, with a table of the documents.

tokenize_corpus    shards -> ids and records of each shard -> joined files -> table of documents -> indexes -> names
formats            the names, the item and the index of each format; every format has the same ids
token_documents    where files are cut; the records of documents and their table
growing_output     the output while it grows, in the job folder
publish            the life of an output until it is published
token_file         `TokenFile`: a checked view of `.bin` and `.idx`
"""
