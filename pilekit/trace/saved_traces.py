"""`SavedTraces`: a finished file of `pilekit trace`, of which only the texts that are asked for are read.

The file has row groups of few texts, so memory does not depend on the number of texts, but for a few figures of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pilekit.errors import PilekitError
from pilekit.trace.result_file import reading_rows, result_header
from pilekit.trace.traced_passages import TextTraces

Row = dict[str, Any]
_FIGURES = ["number", "words", "covered", "coverage"]
_PASSAGES = "passages.list.element.words"
"""A column of each passage, which is enough to count them."""


class SavedTraces:
    """The rows of a finished file of `pilekit trace`; PilekitError for any other file.

    header     the parameters, and the fingerprints of the shards that were searched
    summary    that of `TextTraces`
    figures    `number`, `words`, `covered` and `coverage` of each text, and the number of its `passages`
    """

    def __init__(self, path: Path):
        header = result_header(TextTraces, path)
        if header is None:
            raise PilekitError(f"{path}: is no result of pilekit trace; name a file that `pilekit trace --out` wrote")
        self.path, self.header = path, header
        with reading_rows(TextTraces, path) as file:
            self.summary: dict[str, Any] = header.results["summary"]
            groups = range(file.num_row_groups)
            self._ends = np.cumsum([file.metadata.row_group(group).num_rows for group in groups], dtype=np.int64)
            self.figures = pa.concat_tables(
                [_figures(file.read_row_group(group, [*_FIGURES, _PASSAGES])) for group in groups]
                or [_figures(file.schema_arrow.empty_table())]
            )

    def text(self, number: int) -> Row:
        """The row of a text; PilekitError if there is none."""
        if not 0 <= number < len(self.figures):
            raise PilekitError(f"{self.path}: has no text {number}")
        group = int(np.searchsorted(self._ends, number, "right"))
        with reading_rows(TextTraces, self.path) as file:
            rows = file.read_row_group(group)
            row: Row = rows.slice(number - int(self._ends[group]) + len(rows), 1).to_pylist()[0]
        return row

    def beginnings(self, numbers: list[int], characters: int) -> list[str]:
        """The first characters of these texts."""
        groups = np.searchsorted(self._ends, numbers, "right")
        texts = dict[int, str]()
        with reading_rows(TextTraces, self.path) as file:
            for group in np.unique(groups).tolist():
                column = file.read_row_group(group, ["text"])["text"]
                first = int(self._ends[group]) - len(column)
                for number in np.array(numbers)[groups == group].tolist():
                    texts[number] = column[number - first].as_py()[:characters]
        return [texts[number] for number in numbers]

    def __iter__(self) -> Iterator[Row]:
        """All rows, in the order of the texts."""
        with reading_rows(TextTraces, self.path) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group).to_pylist()


def _figures(rows: pa.Table) -> pa.Table:
    return rows.select(_FIGURES).append_column("passages", pc.list_value_length(rows["passages"]))
