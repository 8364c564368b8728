"""A population made from lists, for tests of later steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt


class ListedPopulation:
    """Documents 0, 1, ... with the columns of their sketches, yielded as by a `Population`.

    ranks     of each document, its id in the low 32 bits
    absent    documents that are never yielded, like those that an earlier run removed
    """

    def __init__(
        self,
        ranks: Sequence[int],
        columns: dict[str, Sequence[int]],
        *,
        absent: frozenset[int] = frozenset(),
        at_a_time: int = 7,
    ):
        assert [rank & 0xFFFFFFFF for rank in ranks] == list(range(len(ranks)))
        self.documents = len(ranks)
        self._given = [document for document in range(len(ranks)) if document not in absent]
        self._at_a_time = at_a_time
        self._ranks = np.array(ranks, dtype=np.uint64)
        self._columns = {name: np.array(values, dtype=np.uint64) for name, values in columns.items()}

    def chunks(
        self, names: Sequence[str]
    ) -> Iterator[tuple[npt.NDArray[np.uint64], dict[str, npt.NDArray[np.uint64]]]]:
        for begin in range(0, len(self._given), self._at_a_time):
            some = self._given[begin : begin + self._at_a_time]
            yield self._ranks[some], {name: self._columns[name][some] for name in names}


OWN = 1 << 63


def ranks_of(lengths: Sequence[int], against: int = 0) -> list[int]:
    """The ranks of documents of these lengths in the order of `--keep longest`; the first few are of an earlier run."""
    return [
        (OWN if document >= against else 0) | ((1 << 31) - 1 - length) << 32 | document
        for document, length in enumerate(lengths)
    ]
