"""Exact copies: documents of equal text, found by the 128-bit hashes in their sketches.

Of each text the document that comes first in the keeper order stands for all; only it takes part in near matching. So
a text that occurs a million times costs a million rows here, and one document afterwards.

Copies of a text within the earlier run (`against`) are left out of matching too, but are not listed: nothing of the
earlier run is removed. With 210 million documents two different texts share a hash with a probability of 10^-22.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pilekit.dedup.bits import Bits, no_bits, read_bits, set_bit, write_bits
from pilekit.dedup.match.external_sort import RowSort
from pilekit.dedup.match.population import Population
from pilekit.dedup.match.repeated import Repeated
from pilekit.dedup.match.rows import Rows, Table, write_rows
from pilekit.dedup.sketch.shingles import UInt64
from pilekit.kernels import compiled


@dataclass(frozen=True)
class ExactCopies:
    """The exact copies among the documents, on disk."""

    folder: Path
    documents: int

    @property
    def pairs(self) -> Rows:
        """(rank of the document that stands for the text, rank of the copy), ascending."""
        return Rows(self.folder / "copies.rows", 2)

    def bits(self) -> Bits:
        """A bit for each document, set for those that take no part in near matching; by id."""
        return read_bits(self.folder / "copies.bits", self.documents)


def find_exact(population: Population, folder: Path, memory: int) -> ExactCopies:
    """Find all documents whose text another one has, and write them into `folder`.

    memory    bytes that may be used, beside a bit for each document

    Files of the same population that are complete are taken as they are.
    """
    copies = ExactCopies(folder, population.documents)
    if copies.pairs.path.exists():
        return copies
    folder.mkdir(parents=True, exist_ok=True)
    bits = no_bits(population.documents)
    with RowSort(folder, 3, memory // 2) as texts, RowSort(folder, 2, memory // 4) as pairs:
        repeated = Repeated(population.documents, memory // 4)
        for _, columns in population.chunks(["hash_low"]):
            repeated.note(columns["hash_low"])
        for ranks, columns in population.chunks(["hash_high", "hash_low"]):
            some = repeated.among(columns["hash_low"])
            texts.add(np.stack([columns["hash_high"][some], columns["hash_low"][some], ranks[some]]))
        del repeated
        for table in _copies(texts.chunks(), bits):
            pairs.add(table)
        write_bits(folder / "copies.bits", bits)
        write_rows(copies.pairs.path, 2, pairs.chunks())
    return copies


def _copies(texts: Iterator[Table], bits: Bits) -> Iterator[Table]:
    """(keeper, copy) of all copies in tables of (hash, hash, rank), ascending; their bits are set."""
    state = np.zeros(4, dtype=np.uint64)
    for table in texts:
        out = np.empty((2, table.shape[1]), dtype=np.uint64)
        high, low, ranks = table
        yield out[:, : _take_copies(high, low, ranks, state, bits, out)]


@compiled()
def _take_copies(high: UInt64, low: UInt64, ranks: UInt64, state: UInt64, bits: Bits, out: Table) -> int:
    """`state` goes from call to call: the hash (two numbers) of the last row, its keeper, whether there was one."""
    count = 0
    for i in range(len(ranks)):
        rank = ranks[i]
        if state[3] != np.uint64(0) and high[i] == state[0] and low[i] == state[1]:
            set_bit(bits, np.uint32(rank & np.uint64(0xFFFFFFFF)))
            if rank >> np.uint64(63):
                out[0, count], out[1, count] = state[2], rank
                count += 1
        else:
            state[0], state[1], state[2], state[3] = high[i], low[i], rank, np.uint64(1)
    return count
