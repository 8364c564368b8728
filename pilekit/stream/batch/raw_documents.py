"""The items of a stream without a tokenizer: untokenized documents, with the state of the stream after them."""

from __future__ import annotations

from pilekit.shards.random_access.document_reader import StoredDocument
from pilekit.stream.order.shuffle import Int64


class RawDocument(StoredDocument):
    """A `StoredDocument` with its `stream_state`: int64, for `PileStream.advance`."""

    stream_state: Int64 | None = None


class RawBatch(list[StoredDocument]):
    """Several documents with their `stream_state`."""

    stream_state: Int64 | None = None
