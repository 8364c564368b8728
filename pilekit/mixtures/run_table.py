"""Tables of runs: the weights of the subsets in each run's data, and the loss of its model on each subset.

    weight.ArXiv  weight.Github  loss.ArXiv  loss.Github
    0.30          0.70           1.91        1.02

A row is a run. Columns are found by patterns, in which `*` stands for the name of a subset: those of this example, or
those of RegMix's published tables (`train_*`, `metric/*_val_loss`), or others that a caller gives. The other columns of
a table do not count. If weights and losses are in files of their own, the columns that all files have besides, such as
`index`, say which rows belong together.

The runs of a design have a sealed table of the form above, whose header holds the corpus's shares and the caps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pilekit.artifacts.checked import reason_of_damage
from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.corpus.sidecar_files import RUNS_FILE
from pilekit.errors import PilekitError, shortened

Float64 = npt.NDArray[np.float64]

PATTERNS = (("weight.*", "loss.*"), ("train_*", "metric/*_val_loss"))
"""Of weights and losses: pilekit's own, and RegMix's."""

ROUNDING = 0.05
"""Weights are scaled to the sum 1. A sum that is farther from 1 is a mistake, such as percentages."""

RUNS = SealedKind("a table of mixture runs", 1, "remove it, and `pilekit mix run` collects the runs again")

_LARGEST_FILE = 1 << 30
"""Bytes. A table of runs has some thousands of rows; a shard given by mistake must not be read whole."""


@dataclass(frozen=True, slots=True, eq=False)
class RunTable:
    """The runs of a table.

    source      the names of its files, for messages
    subsets     names of the columns of `weights`
    evaluated   names of the columns of `losses`; they may be others
    weights     float64 [runs, subsets], each row with the sum 1
    losses      float64 [runs, evaluated], above 0
    shares      the corpus's own shares by subset, if they are known
    caps        the largest weight that a subset may have, if it is known
    """

    source: str
    subsets: tuple[str, ...]
    evaluated: tuple[str, ...]
    weights: Float64
    losses: Float64
    shares: Mapping[str, float] | None = None
    caps: Mapping[str, float] | None = None


def read_runs(
    paths: Sequence[str | Path], weight_columns: str | None = None, loss_columns: str | None = None
) -> RunTable:
    """The runs in one .csv or .parquet file, in several that are joined, or in the folder of a design.

    weight_columns, loss_columns   patterns such as `train_*`; None: the first of `PATTERNS` that fit

    PilekitError names the file, the row (from 1, without the head) and the column of a value that is no number, of a
    negative weight, of weights that do not sum to 1, and of a loss that is not above 0.
    """
    if len(paths) == 1 and Path(paths[0]).is_dir():
        return read_table_of_design(Path(paths[0], RUNS_FILE))
    source = ", ".join(map(str, paths))
    tables = [_read(path) for path in paths]
    names = [name for table in tables for name in table.column_names]
    weighed, measured = _patterns(source, names, weight_columns, loss_columns)
    weights, losses = _matching(weighed, names), _matching(measured, names)
    others = [set(table.column_names) - {*weights.values(), *losses.values()} for table in tables]
    keys = sorted(set.intersection(*others)) if len(tables) > 1 else []
    if len(tables) > 1 and not keys:
        raise PilekitError(
            f"{source}: have no column in common that says which rows belong together; give each a column such as index"
        )
    orders = _orders(source, tables, keys)

    def matrix(columns: Iterable[str]) -> Float64:
        numbers = []
        for column in columns:
            place = next(place for place, table in enumerate(tables) if column in table.column_names)
            numbers.append(_numbers(paths[place], tables[place], column)[orders[place]])
        return np.stack(numbers, axis=1)

    shares, figures = matrix(weights.values()), matrix(losses.values())
    sums = shares.sum(axis=1)
    _check(source, shares, shares >= 0, list(weights.values()), "is a negative weight; give shares from 0 to 1")
    if len(wrong := np.flatnonzero(abs(sums - 1) > ROUNDING)):
        raise PilekitError(
            f"{source}: the weights of row {wrong[0] + 1:,} sum to {sums[wrong[0]]:.4g}, not to 1; give each subset's "
            "share of the run's data"
        )
    _check(source, figures, figures > 0, list(losses.values()), "is no loss; leave out runs that have none")
    return RunTable(source, tuple(weights), tuple(losses), shares / sums[:, None], figures)


class _Header(SealedHeader, frozen=True, kw_only=True):
    """The header of runs.parquet."""

    format: int = RUNS.format
    shares: dict[str, float]
    caps: dict[str, float]
    evaluated: list[str]


def write_runs(path: Path, table: RunTable, names: Sequence[str]) -> None:
    """Write a sealed table of these runs, with the names of this module's docstring."""
    columns: dict[str, Any] = {"run": list(names)}
    columns |= {f"weight.{name}": column for name, column in zip(table.subsets, table.weights.T, strict=True)}
    columns |= {f"loss.{name}": column for name, column in zip(table.evaluated, table.losses.T, strict=True)}
    rows = pa.table(columns)
    header = _Header(shares=dict(table.shares or {}), caps=dict(table.caps or {}), evaluated=list(table.evaluated))
    with RUNS.writing_table(path, rows.schema, header) as writer:
        writer.write_table(rows)


def read_table_of_design(path: Path) -> RunTable:
    """The runs that `write_runs` wrote."""
    with RUNS.open_table(path, _Header) as (header, file):
        rows = file.read()
        weights, losses = (
            np.stack([rows.column(f"{kind}.{name}").to_numpy() for name in names], axis=1)
            for kind, names in (("weight", header.shares), ("loss", header.evaluated))
        )
    names = tuple(header.shares), tuple(header.evaluated)
    return RunTable(str(path), *names, weights / weights.sum(axis=1)[:, None], losses, header.shares, header.caps)


def _read(path: str | Path) -> pa.Table:
    """The table in a file."""
    try:
        if (size := Path(path).stat().st_size) > _LARGEST_FILE:
            raise PilekitError(f"{path}: has {size:,} bytes, too many for a table of runs")
        match Path(path).suffix.lower():
            case ".csv":
                options = pyarrow.csv.ParseOptions(newlines_in_values=True)  # a subset's name may hold anything
                table = pyarrow.csv.read_csv(path, parse_options=options)
            case ".parquet":
                table = pq.read_table(path, partitioning=None)
            case _:
                raise PilekitError(f"{path}: is no table of runs; give a .csv or .parquet file")
    except (OSError, ValueError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or reason_of_damage(error)
        raise PilekitError(f"{path}: cannot be read as a table of runs: {why}") from error
    twice = [name for name in table.column_names if table.column_names.count(name) > 1]
    if twice or not len(table):
        why = f"two columns are called {shortened(twice[0], 60)}" if twice else "it has no rows"
        raise PilekitError(f"{path}: is no table of runs: {why}")
    return table


def _patterns(source: str, names: Sequence[str], weighed: str | None, measured: str | None) -> tuple[str, str]:
    """The patterns of weights and of losses that fit the columns."""
    for weights, losses in PATTERNS:
        pair = weighed or weights, measured or losses
        if len(_matching(pair[0], names)) > 1 and _matching(pair[1], names):
            return pair
    wanted = f"{weighed or PATTERNS[0][0]} of two subsets or more and {measured or PATTERNS[0][1]}"
    raise PilekitError(
        f"{source}: lacks columns {wanted}; rename its columns, or give the patterns of their names with "
        f"--weight-columns and --loss-columns; there are {shortened(', '.join(names), 300)}"
    )


def _matching(pattern: str, names: Iterable[str]) -> dict[str, str]:
    """The columns that fit a pattern, by the names of the subsets."""
    begin, star, end = pattern.partition("*")
    if not star or "*" in end or not (begin or end):
        raise PilekitError(f"{shortened(pattern, 80)}: is no pattern; write * where the subset's name is: weight.*")
    return {
        name[len(begin) : len(name) - len(end)]: name
        for name in names
        if name.startswith(begin) and name.endswith(end) and len(name) > len(begin) + len(end)
    }


def _orders(source: str, tables: Sequence[pa.Table], keys: Sequence[str]) -> list[list[int]]:
    """The row of each table for each run, in the order of the first table."""
    if not keys:
        return [list(range(len(tables[0])))]
    rows: list[dict[Any, int]] = []
    for table in tables:
        values = list(zip(*(table.column(key).to_pylist() for key in keys), strict=True))
        rows.append({value: row for row, value in enumerate(values)})
        if len(rows[-1]) < len(values) or rows[-1].keys() != rows[0].keys():
            repeated = next((value for value in values if values.count(value) > 1), None)
            odd = repeated or next(iter(rows[-1].keys() ^ rows[0].keys()))
            shown = ", ".join(f"{key} {shortened(value, 60)}" for key, value in zip(keys, odd, strict=True))
            raise PilekitError(f"{source}: {shown} must be in each file once; leave that run out of all")
    return [[row[value] for value in rows[0]] for row in rows]


def _numbers(path: str | Path, table: pa.Table, column: str) -> Float64:
    """A column as float64; nothing but finite numbers."""
    try:
        values = table.column(column).cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowException, ValueError) as error:
        raise PilekitError(f"{path}: column {shortened(column, 80)}: {reason_of_damage(error)}") from error
    numbers = np.asarray(values, np.float64)
    _check(str(path), numbers[:, None], np.isfinite(numbers)[:, None], [column], "is no number; leave that run out")
    return numbers


def _check(source: str, values: Float64, right: npt.NDArray[np.bool_], columns: Sequence[str], why: str) -> None:
    """PilekitError for the first value that is not right."""
    if not right.all():
        row, column = (int(place) for place in np.argwhere(~right)[0])
        value = values[row, column]
        raise PilekitError(
            f"{source}: row {row + 1:,}, column {shortened(columns[column], 80)}: "
            f"{'nothing' if np.isnan(value) else format(value, 'g')} {why}"
        )
