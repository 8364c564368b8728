"""Tokenizing a lane's documents, or keeping them whole for a stream without a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.errors import PilekitError, visible
from pilekit.shuffle import Int64
from pilekit.stream.pack.window import TokenizedDocuments, gathered
from pilekit.stream.read.lane_documents import NUMBER, SHARD, LaneDocuments
from pilekit.stream.read.token_files import TokenIndex
from pilekit.tokenize import Tokenizer
from pilekit.tokenize.tokenizer import Encoded


def encoded(
    pieces: Iterable[LaneDocuments], window: int, tokenizer: Tokenizer | None, token_files: Sequence[TokenIndex] = ()
) -> Iterator[TokenizedDocuments]:
    """The documents of `pieces`, encoded, in parts of at most `window`.

    tokenizer     None: documents are not tokenized. With an EOD, seq_len 1 and packing "concat", each becomes one row
    token_files   by a document's shard number, if documents come from token files
    """
    if tokenizer is None:
        nothing = np.zeros(0, np.uint32)
        for piece in pieces:
            if len(piece):
                yield TokenizedDocuments(nothing, np.zeros(len(piece) + 1, np.int64), piece.table, piece.texts)
        return
    for parts in gathered(pieces, _characters, window):
        made = [_tokenized(parts, tokenizer, token_files)]
        parts.clear()
        yield made.pop()


def _characters(piece: LaneDocuments) -> Int64:
    """The characters or ids of each document + 1, a bound on its tokens that seldom fails."""
    return np.fromiter(map(len, piece.texts), np.int64, len(piece)) + 1


def _tokenized(
    parts: list[LaneDocuments], tokenizer: Tokenizer, token_files: Sequence[TokenIndex]
) -> TokenizedDocuments:
    table = np.concatenate([part.table for part in parts])
    texts = [text for part in parts for text in part.texts]
    ids, offsets = _joined(texts) if token_files else tokenizer.encode_batch(texts)
    if token_files and len(ids) and ids.max() >= tokenizer.vocab_size:
        at = int(np.argmax(ids >= tokenizer.vocab_size))
        shard, number = table[np.searchsorted(offsets, at, side="right") - 1, [SHARD, NUMBER]].tolist()
        path, document = token_files[shard].place(number)
        raise PilekitError(
            f"{visible(path)}: document {document:,} has the id {ids[at]:,}, but "
            f"{visible(tokenizer.path)} has {tokenizer.vocab_size:,} ids; give the tokenizer that made the file"
        )
    return TokenizedDocuments(ids, offsets, table)


def _joined(texts: Sequence[npt.NDArray[Any]]) -> Encoded:
    """The ids of all documents, as a tokenizer gives them."""
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return np.concatenate(texts, dtype=np.uint32, casting="unsafe"), offsets
