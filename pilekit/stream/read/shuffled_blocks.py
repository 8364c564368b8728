"""`shuffled_blocks`: the documents of a shard that is read in order, permuted inside blocks of consecutive ones.

A shard without random access can only be read from its beginning, so its documents are shuffled as far as memory
reaches. Block k holds the documents of lines k n .. (k + 1) n - 1. A block whose texts reach `MOST_CHARACTERS` is given
out at once, and another block begins inside the same lines.

The j-th document given of a block takes the j-th smallest line number as its order. So orders increase, and a place
names its block without a search: reading resumes at the first of the n lines around it, and gives the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.stream.read.lane_documents import NUMBER, ORDER, SHARD, SUBSET, LaneDocuments

MOST_CHARACTERS = 32 << 20
"""The most characters in a block, up to a document: a lane's memory, 32 MB or a few times that."""


def shuffled_blocks(
    pieces: Iterable[LaneDocuments], lines: int, permute: Callable[[int, int], Int64], most: int = MOST_CHARACTERS
) -> Iterator[LaneDocuments]:
    """The documents of one shard, whose orders are line numbers, block after block.

    pieces    from the first line of a block on
    lines     lines in a block
    permute   (documents, order of the first) -> the order in which a block's documents are given, int64 [documents]
    most      characters at which a block ends
    """
    block_pieces: list[LaneDocuments] = []
    characters, block = 0, -1
    for piece in pieces:
        orders = piece.table[:, ORDER]
        sizes = np.cumsum(np.fromiter(map(_characters, piece.texts), np.int64, len(piece)))
        begin = passed = 0
        while begin < len(piece):
            if block_pieces and orders[begin] // lines != block:
                yield _permuted(block_pieces, permute)
                characters = 0
            block = orders[begin] // lines
            full = np.searchsorted(sizes, passed + most - characters) + 1  # with the document that reaches `most`
            end = int(min(np.searchsorted(orders, (block + 1) * lines), full))
            block_pieces.append(piece.part(begin, end))
            characters += int(sizes[end - 1]) - passed
            begin, passed = end, int(sizes[end - 1])
            if characters >= most:
                yield _permuted(block_pieces, permute)
                characters = 0
    if block_pieces:
        yield _permuted(block_pieces, permute)


def _permuted(pieces: list[LaneDocuments], permute: Callable[[int, int], Int64]) -> LaneDocuments:
    """The documents held, which are no longer held. Positions, orders and skipped lines belong to the places."""
    table = np.concatenate([piece.table for piece in pieces])
    texts = [text for piece in pieces for text in piece.texts]
    pieces.clear()
    order = permute(len(texts), int(table[0, ORDER]))
    identity = [SHARD, NUMBER, SUBSET]
    table[:, identity] = table[order][:, identity]
    return LaneDocuments(table, [texts[place] for place in order.tolist()])


def _characters(document: object) -> int:
    """Of a text, or of a `Document`."""
    return len(document if isinstance(document, str) else document.text)  # type: ignore[attr-defined]
