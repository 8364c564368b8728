"""`TokenizedLane`: a lane's documents, read from its source and tokenized as windows ask for them."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pilekit.errors import PilekitError, visible
from pilekit.stream.order.shuffle import mix
from pilekit.stream.pack.window import Layout, TokenizedDocuments
from pilekit.stream.read.lane_documents import LaneDocuments, LaneSource
from pilekit.tokenize import Tokenizer
from pilekit.tokenize.tokenizer import UnencodableTextError


@dataclass(frozen=True)
class Encoding(Layout):
    """How documents become tokens, and these become rows; the same for all lanes of a stream.

    subset_ids    by subset name; names that it lacks get `other_subset`
    shard_names   what a document's shard indexes
    """

    tokenizer: Tokenizer
    seed: int
    subset_ids: Mapping[str, int]
    other_subset: int
    shard_names: Sequence[str]


class TokenizedLane:
    """The documents of lane `lane` of `source` from (position, document) on; `close` it when done."""

    def __init__(self, source: LaneSource, lane: int, position: int, document: int, encoding: Encoding) -> None:
        self._source, self._lane, self._encoding = source, lane, encoding
        self._begin = position, document
        self._pieces: Iterator[LaneDocuments] | None = None
        self._waiting: LaneDocuments | None = None  # read, but not tokenized
        self._skipped = 0  # bad lines that no document has followed yet

    def close(self) -> None:
        """Close what the source has opened for this lane."""
        if isinstance(self._pieces, Generator):
            self._pieces.close()

    def next(self, documents: int, tokens: int) -> TokenizedDocuments | None:
        """Some next documents: at most `documents`, of about `tokens` characters; None where the source has ended.

        A character is seldom more than a token, so hardly any are tokenized that the window does not take.
        """
        encoding = self._encoding
        pieces: list[LaneDocuments] = []
        while documents > 0 and tokens > 0 and (piece := self._next_piece()) is not None:
            sizes = np.fromiter(map(len, piece.texts), np.int64, len(piece)) + encoding.append_eod
            count = min(documents, int(np.searchsorted(np.cumsum(sizes) - sizes, tokens)))
            if count < len(piece):
                self._waiting = piece.part(count, len(piece))
                piece = piece.part(0, count)
            pieces.append(piece)
            documents, tokens = documents - count, tokens - int(sizes[:count].sum())
        if not pieces:
            return None
        texts = [text for piece in pieces for text in piece.texts]
        lengths = [len(piece) for piece in pieces]
        shards = np.concatenate([piece.shards for piece in pieces])
        numbers = np.concatenate([piece.numbers for piece in pieces])
        positions = np.repeat([piece.position for piece in pieces], lengths)
        orders = np.concatenate([piece.order for piece in pieces])
        skipped = np.zeros(len(texts), np.int64)
        skipped[np.cumsum([0, *lengths[:-1]])] = [piece.skipped for piece in pieces]
        try:
            ids, offsets = encoding.tokenizer.encode_batch(texts)
        except UnencodableTextError as error:
            raise PilekitError(
                f"{visible(encoding.shard_names[shards[error.index]])}: document {numbers[error.index]} holds a lone "
                "surrogate, which no UTF-8 can express; drop the document or repair its text in a filter"
            ) from error
        names = (name for piece in pieces for name in piece.subsets)
        subset_ids = np.array([encoding.subset_ids.get(name, encoding.other_subset) for name in names], np.int64)
        keys = mix(encoding.seed, self._lane, positions, orders)
        return TokenizedDocuments(ids, offsets, subset_ids, shards, numbers, keys, positions, orders, skipped)

    def _next_piece(self) -> LaneDocuments | None:
        """The next documents to tokenize, at least one; None where the source has ended."""
        if self._waiting is not None:
            piece, self._waiting = self._waiting, None
            return piece
        if self._pieces is None:
            self._pieces = self._source.documents(self._lane, *self._begin)
        for piece in self._pieces:
            if len(piece):
                skipped, self._skipped = self._skipped + piece.skipped, 0
                return replace(piece, skipped=skipped) if skipped != piece.skipped else piece
            self._skipped += piece.skipped
        return None
