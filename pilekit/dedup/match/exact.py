"""Exact copies: documents of equal text, found by the 128-bit hashes in their sketches.

Of each text, the first document in keeper order stands for all its copies, and only this document is matched further.
A text that occurs a million times costs a million rows here and one document afterwards. With 210 million documents,
two different texts share a hash with probability 10^-22.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pilekit.artifacts.external_sort import Table, with_first
from pilekit.dedup.match.document_table import DocumentTable, Ranks
from pilekit.dedup.match.repeated import repeated_rows
from pilekit.dedup.sketch.shingles import UInt64


def find_exact(
    document_table: DocumentTable, folder: Path, memory: int, part: tuple[int, int] = (0, 1)
) -> Iterator[Table]:
    """All copies, as tables of (rank of the document that stands for the text, rank of the copy).

    Copies among fixed documents are included: they take no part in matching, but are not removed.

    part   (i, n): only texts whose hash is in the i-th of n equal ranges, counted from 0
    """

    def chunks(columns: Sequence[str]) -> Iterator[tuple[Ranks, dict[str, UInt64]]]:
        for ranks, found in document_table.chunks(columns):
            some = (found["hash_low"] >> np.uint64(32)) * np.uint64(part[1]) >> np.uint64(32) == part[0]
            yield ranks[some], {name: column[some] for name, column in found.items()}

    columns, memory = [["hash_low", "hash_high"]], 3 * memory // 4
    given, documents = document_table.chunks if part[1] == 1 else chunks, -(-document_table.documents // part[1])
    for tables in repeated_rows(given, columns, documents, folder, memory):
        for rows, first in with_first(tables, 2):
            yield np.stack([first[2], rows[2]])[:, first[2] != rows[2]]
