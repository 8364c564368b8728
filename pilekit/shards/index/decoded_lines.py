"""What an index says of a shard's documents, by decoding them; `LineScanner` (scanned_lines.py) says the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.documents import DocumentBatch
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import Line, LineBlock


class DocumentRows(NamedTuple):
    """What an index says of some documents, [documents] each, in the order of their numbers."""

    numbers: npt.NDArray[np.int64]
    subsets: list[str]
    text_bytes: npt.NDArray[np.int64]
    text_hashes: npt.NDArray[np.uint64]


def rows_of(batch: DocumentBatch) -> DocumentRows:
    """What it says of the documents of a batch."""
    return DocumentRows(batch.numbers, batch.subsets, *batch.text_hashes())


class LineDecoder:
    """Takes the blocks of a shard, each with `pass_block` and then `rows`."""

    def __init__(self, parser: LineParser):
        self.parser = parser
        self.lines: list[Line] = []

    def pass_block(self, block: LineBlock) -> int:
        """Take the next block; returns how many lines it has."""
        self.lines = block.lines()
        return len(self.lines)

    def rows(self, first: int) -> DocumentRows:
        """The documents of that block, whose first line has this number."""
        return rows_of(self.parser.parse(self.lines, np.arange(first, first + len(self.lines))))
