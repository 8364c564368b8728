"""Tokenizing a lane's documents, or keeping them whole for a stream without a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.errors import PilekitError, visible
from pilekit.shuffle import Int64
from pilekit.stream.pack.window import Layout, TokenizedDocuments, gathered
from pilekit.stream.read.lane_documents import NUMBER, SHARD, SUBSET, LaneDocuments
from pilekit.stream.read.token_files import TokenIndex
from pilekit.tokenize import Tokenizer
from pilekit.tokenize.tokenizer import Encoded


@dataclass(frozen=True)
class Encoding:
    """The settings with which all lanes of a stream encode documents.

    tokenizer     None: documents are not tokenized
    subset_ids    by subset name; other names get `other_subset`
    shard_names   by a document's shard number
    token_files   by a document's shard number, if documents come from token files
    """

    layout: Layout
    tokenizer: Tokenizer | None
    subset_ids: Mapping[str, int]
    other_subset: int
    shard_names: Sequence[str]
    token_files: Sequence[TokenIndex] = ()

    def ids_of(self, subsets: Iterable[str]) -> Int64:
        """The ids of these subsets."""
        return np.array([self.subset_ids.get(name, self.other_subset) for name in subsets], np.int64)


def encoded(pieces: Iterable[LaneDocuments], encoding: Encoding) -> Iterator[TokenizedDocuments]:
    """The documents of `pieces`, encoded, in parts of at most a window."""
    if encoding.tokenizer is None:
        yield from (_as_stored(piece, encoding) for piece in pieces if len(piece))
        return
    for parts in gathered(pieces, _characters, encoding.layout.window):
        made = [_tokenized(parts, encoding, encoding.tokenizer)]
        parts.clear()
        yield made.pop()


def _characters(piece: LaneDocuments) -> Int64:
    """The characters or ids of each document + 1, a bound on its tokens that seldom fails."""
    return np.fromiter(map(len, piece.texts), np.int64, len(piece)) + 1


def _tokenized(parts: list[LaneDocuments], encoding: Encoding, tokenizer: Tokenizer) -> TokenizedDocuments:
    table = np.concatenate([part.table for part in parts])
    texts = [text for part in parts for text in part.texts]
    ids, offsets = _joined(texts) if encoding.token_files else tokenizer.encode_batch(texts)
    if encoding.token_files and len(ids) and ids.max() >= tokenizer.vocab_size:
        at = int(np.argmax(ids >= tokenizer.vocab_size))
        shard, number = table[np.searchsorted(offsets, at, side="right") - 1, [SHARD, NUMBER]].tolist()
        path, document = encoding.token_files[shard].place(number)
        raise PilekitError(
            f"{visible(path)}: document {document:,} has the id {ids[at]:,}, but "
            f"{visible(tokenizer.path)} has {tokenizer.vocab_size:,} ids; give the tokenizer that made the file"
        )
    table[:, SUBSET] = encoding.ids_of(name for part in parts for name in part.subsets)
    return TokenizedDocuments(ids, offsets, table)


def _joined(texts: Sequence[npt.NDArray[Any]]) -> Encoded:
    """The ids of all documents, as a tokenizer gives them."""
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return np.concatenate(texts, dtype=np.uint32, casting="unsafe"), offsets


def _as_stored(piece: LaneDocuments, encoding: Encoding) -> TokenizedDocuments:
    """Documents without tokens. With an EOD, seq_len 1 and packing "concat", each becomes one row."""
    table = piece.table.copy()
    table[:, SUBSET] = encoding.ids_of(piece.subsets)
    return TokenizedDocuments(np.zeros(0, np.uint32), np.zeros(len(piece) + 1, np.int64), table, piece.texts)
