"""Document stages: each maps an iterator of batches to an iterator of batches, and `Pipeline` chains them.

    from pilekit import Match, MinBytes, Pipeline, Select, document_filter, read

    @document_filter
    def mostly_ascii(document):
        return document.text.isascii()

    pipeline = Pipeline([Select("ArXiv", "Github"), MinBytes(200), mostly_ascii])
    for batch in pipeline(read("00.jsonl.zst")):
        ...

A stage has no state that could change its results between runs, ranks or workers (`NearDuplicates` alone has, and says
so by its `stateful`): what is random is a hash of the seed and the document's identity.
"""

from __future__ import annotations

from pilekit.pipeline.functions import Document, DocumentFilter, DocumentMap, document_filter, document_map
from pilekit.pipeline.match import Match
from pilekit.pipeline.min_bytes import MinBytes
from pilekit.pipeline.pipeline import Pipeline, Stage
from pilekit.pipeline.sample import Sample, document_hashes
from pilekit.pipeline.select import Select
from pilekit.pipeline.write import Write

__all__ = [
    "Document",
    "DocumentFilter",
    "DocumentMap",
    "Match",
    "MinBytes",
    "Pipeline",
    "Sample",
    "Select",
    "Stage",
    "Write",
    "document_filter",
    "document_hashes",
    "document_map",
]
