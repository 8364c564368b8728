"""Results: data that a function returns, with one way to a dict, and to tables in terminals and in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pilekit.display.fitted_table import OTHERS, Column, FittedTable, count_columns, rounded_bytes
from pilekit.display.wrong_names import NearestNames, nearest

if TYPE_CHECKING:
    import pyarrow as pa


class Result(NearestNames):
    """The base of results and of their parts, which are frozen dataclasses."""

    __slots__ = ()

    FIGURES: ClassVar[tuple[str, ...]] = ()
    """The keys of `to_dict` in its order: fields and properties, or `key=property`. Empty: all fields."""

    def to_dict(self) -> dict[str, Any]:
        """All figures, as `--json` prints them."""
        keys = self.FIGURES or [field.name for field in fields(self)]  # type: ignore[arg-type]
        pairs = (key.partition("=") for key in keys)
        return {key: as_json(attrgetter(name or key)(self)) for key, _, name in pairs}


def as_json(value: Any) -> Any:
    """A value of a result in JSON types."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    return [as_json(part) for part in value] if isinstance(value, tuple | list) else msgspec.to_builtins(value)


class TableResult(Result):
    """The base of results that print as a table: that of `summary`, unless the result overrides `table`."""

    __slots__ = ()

    summary: dict[str, Any]

    ROWS: ClassVar[tuple[str, str]] = ("subset", "subsets")
    """The column of `to_arrow` that names each row, and the field of `to_dict` that holds the rows."""

    def table(self) -> FittedTable[Any]:
        """The result as a table for people: a row per subset, one for subsets outside the selection, and the total."""
        summary, (title, field) = self.to_dict(), self.ROWS
        rows = list(summary[field].items())
        names = list(rows[0][1]) if rows else []
        if passed := summary.get("others"):
            rows.append((OTHERS, {**dict.fromkeys(names, 0), "read": passed}))
            summary = {**summary, "read": summary["read"] + passed}
        columns = count_columns(title.capitalize(), *names)
        if "bytes" in names:
            columns[1 + names.index("bytes")] = Column("Text", lambda row: rounded_bytes(row[1]["bytes"]))
        return FittedTable(rows, columns, [("Total", summary)])

    def to_dict(self) -> dict[str, Any]:
        """All figures, as `--json` prints them."""
        return super().to_dict() if self.FIGURES else self.summary

    def _rows(self) -> Mapping[str, Any]:
        """The values of `result[name]`, by name."""
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
