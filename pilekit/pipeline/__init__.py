"""Document stages: each maps an iterator of batches to an iterator of batches, and `Pipeline` chains them.

    from pilekit import Match, MinBytes, Pipeline, Select, document_filter, read

    @document_filter
    def mostly_ascii(document):
        return document.text.isascii()

    pipeline = Pipeline([Select("ArXiv", "Github"), MinBytes(200), mostly_ascii])
    for batch in pipeline(read("00.jsonl.zst")):
        ...

stages.py has the stages of this package, rules/ published rules of quality, a file for each source. functions.py makes
stages from functions of one document, and selecting.py writes the documents that pass as a new corpus. A stage has no
state that could change its results between runs, ranks or workers: random choices are hashes of the seed and the
document's identity. (Only `NearDuplicates` has state, and declares it with `stateful`.)
"""
