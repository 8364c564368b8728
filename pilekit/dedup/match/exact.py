"""Exact copies: documents of equal text, found by the 128-bit hashes in their sketches.

Of each text, the first document in keeper order stands for all its copies, and only this document is matched further.
A text that occurs a million times costs a million rows here and one document afterwards. With 210 million documents,
two different texts share a hash with probability 10^-22.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pilekit.artifacts.external_sort import RowSort, Table, with_first
from pilekit.dedup.match.population import Population
from pilekit.dedup.match.repeated import may_be_repeated, note_values, repeated_bytes, repeated_table


def find_exact(population: Population, folder: Path, memory: int) -> Iterator[Table]:
    """All copies, as tables of (rank of the document that stands for the text, rank of the copy).

    Copies within earlier runs are included: they take no part in matching, but are not removed.
    """
    with RowSort(folder, 3, memory // 2) as texts:
        table = repeated_table(min(repeated_bytes(population.documents), memory // 4))
        for _, columns in population.chunks(["hash_low"]):
            note_values(table, columns["hash_low"])
        for ranks, columns in population.chunks(["hash_high", "hash_low"]):
            some = may_be_repeated(table, columns["hash_low"])
            texts.add(np.stack([columns["hash_high"][some], columns["hash_low"][some], ranks[some]]))
        del table
        for rows, first in with_first(texts.chunks(), 2):
            yield np.stack([first[2], rows[2]])[:, first[2] != rows[2]]
