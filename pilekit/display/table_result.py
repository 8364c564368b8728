"""`TableResult`: a function's result that prints as a table, in terminals and in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pilekit.display.wrong_names import NearestNames, nearest

if TYPE_CHECKING:
    import pyarrow as pa

    from pilekit.display.fitted_table import FittedTable


class TableResult(NearestNames):
    """The base of results. A result has a `summary` or defines `to_dict`; `table` if it needs other columns."""

    __slots__ = ()

    summary: dict[str, Any]

    ROWS: ClassVar[tuple[str, str]] = ("subset", "subsets")
    """The column of `to_arrow` that names each row, and the field of `to_dict` that holds the rows."""

    def table(self) -> FittedTable[Any]:
        """The result as a table for people: a row per subset, one for subsets not asked for, and the total."""
        from pilekit.display.fitted_table import OTHERS, Column, FittedTable, count_columns, rounded_bytes

        (first, field), told = self.ROWS, self.to_dict()
        rows = list(told[field].items())
        names = list(rows[0][1]) if rows else []
        if others := told.get("others"):
            rows.append((OTHERS, {**dict.fromkeys(names, 0), "read": others}))
            told = {**told, "read": told["read"] + others}
        columns = count_columns(first.capitalize(), *names)
        if "bytes" in names:
            columns[1 + names.index("bytes")] = Column("Text", lambda row: rounded_bytes(row[1]["bytes"]))
        return FittedTable(rows, columns, [("Total", told)])

    def to_dict(self) -> dict[str, Any]:
        """All figures, as `--json` prints them."""
        return self.summary

    def _rows(self) -> Mapping[str, Any]:
        """What `result[name]` gives, by name."""
        rows: dict[str, Any] = self.to_dict()[self.ROWS[1]]
        return rows

    def __getitem__(self, name: str) -> Any:
        rows = self._rows()
        if name not in rows:
            raise KeyError(f"there is no {self.ROWS[0]} {name!r}{nearest(str(name), rows)}")
        return rows[name]

    def to_arrow(self) -> pa.Table:
        """A row per subset with the figures of `to_dict`, for pandas, polars and plots."""
        import pyarrow as pa

        row, field = self.ROWS
        return pa.Table.from_pylist([{row: name, **figures} for name, figures in self.to_dict()[field].items()])

    def __repr__(self) -> str:
        counts = (f"{name}={count:,}" for name, count in self.to_dict().items() if type(count) is int)
        return f"{type(self).__name__}({', '.join(counts)})"

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
