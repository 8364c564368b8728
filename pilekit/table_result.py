"""`TableResult`: a function's result that prints as a table, in terminals and in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa

    from pilekit.fitted_table import FittedTable


class TableResult:
    """The base of results. A result defines `table` and `to_dict`."""

    __slots__ = ()

    ROWS: ClassVar[tuple[str, str]] = ("subset", "subsets")
    """The column of `to_arrow` that names each row, and the field of `to_dict` that holds the rows."""

    def table(self) -> FittedTable[Any]:
        """The result as a table for people."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """All figures, as `--json` prints them."""
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        """A row per subset with the figures of `to_dict`, for pandas, polars and plots."""
        import pyarrow as pa

        row, field = self.ROWS
        return pa.Table.from_pylist([{row: name, **figures} for name, figures in self.to_dict()[field].items()])

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
