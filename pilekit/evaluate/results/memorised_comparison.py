"""`compare_memorised`: which sequences a further model has memorised newly, and which it has forgotten.

    two sequences.parquet, row by row -> counts per subset and over all, and McNemar's test

Two shares with their intervals say little about their difference, because both models had the same sequences. So each
sequence is paired with itself. If memorising and forgetting were equally likely, the newly memorised among the
sequences that changed would be as many as heads among tosses of a coin: McNemar's test is exact, by the binomial
distribution. It takes sequences as independent, as the interval of a share does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pilekit.display.fitted_table import DASH, SHORTEN, Column, FittedTable, percentage
from pilekit.display.table_result import Result, TableResult
from pilekit.errors import PilekitError, counted, shortened
from pilekit.evaluate.results.compare import protocol_cautions
from pilekit.evaluate.results.intervals import holm
from pilekit.evaluate.results.memorised_result import SequencesFile, opened_sequences
from pilekit.evaluate.results.scores import model_path

_IDENTITY = ("shard", "number", "text", "place")
_STATES = ("neither", "new", "forgotten", "both")
"""What a sequence is by 2 * (memorised by A) + (memorised by B)."""


@dataclass(frozen=True, slots=True)
class MemorisedChange(Result):
    """The same sequences under two models, A and B.

    both         memorised by both
    new          memorised by B and not by A
    forgotten    memorised by A and not by B
    neither      memorised by none
    adjusted_p   `p` by Holm's method for the subsets that are compared at once; otherwise `p`
    """

    FIGURES: ClassVar[tuple[str, ...]] = (
        *("sequences", "both", "new", "forgotten", "neither"),
        *("shares", "difference", "p", "adjusted_p"),
    )

    both: int = 0
    new: int = 0
    forgotten: int = 0
    neither: int = 0
    adjusted_p: float = 1.0

    @property
    def sequences(self) -> int:
        """All of them."""
        return self.both + self.new + self.forgotten + self.neither

    @property
    def shares(self) -> tuple[float, float] | None:
        """The shares that A and B have memorised; None without sequences."""
        if not self.sequences:
            return None
        return (self.both + self.forgotten) / self.sequences, (self.both + self.new) / self.sequences

    @property
    def difference(self) -> float | None:
        """B's share minus A's; None without sequences."""
        return (self.new - self.forgotten) / self.sequences if self.sequences else None

    @property
    def p(self) -> float:
        """McNemar's exact two-sided p-value: that a sequence is as likely to be newly memorised as forgotten."""
        return mcnemar(self.new, self.forgotten)


@dataclass(frozen=True, slots=True)
class MemorisedComparison(TableResult):
    """The result of `compare_memorised`. `result["ArXiv"]` is the `MemorisedChange` of a subset.

    models     the path of A's and of B's model, each with the folder of its result
    cautions   differences between the protocols that alone move a figure, a sentence each
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("overall", "subsets", "models", "cautions")

    overall: MemorisedChange
    subsets: dict[str, MemorisedChange]
    models: tuple[str, str] = field(repr=False)
    cautions: tuple[str, ...] = field(repr=False)

    def _rows(self) -> dict[str, MemorisedChange]:
        """The counts of each subset."""
        return self.subsets

    def __repr__(self) -> str:
        overall = self.overall
        return f"MemorisedComparison(new={overall.new:,}, forgotten={overall.forgotten:,}, p={overall.p:.2g})"

    def table(self) -> FittedTable[tuple[str, MemorisedChange]]:
        """A row per subset, and the total."""

        def count(title: str, name: str) -> Column[tuple[str, MemorisedChange]]:
            return Column(title, lambda row: f"{getattr(row[1], name):,}")

        def share(title: str, model: int) -> Column[tuple[str, MemorisedChange]]:
            return Column(title, lambda row: DASH if row[1].shares is None else percentage(row[1].shares[model]))

        columns = [
            Column[tuple[str, MemorisedChange]]("Subset", lambda row: row[0]),
            count("Sequences", "sequences"),
            share("A %", 0),
            share("B %", 1),
            count("Both", "both"),
            count("New", "new"),
            count("Forgotten", "forgotten"),
            count("Neither", "neither"),
            Column("p", lambda row: _p(row[1].p)),
            Column("Adjusted\np", lambda row: _p(row[1].adjusted_p)),
        ]
        priority = [SHORTEN, "Neither", "p", "Sequences", "Both"]
        return FittedTable(list(self.subsets.items()), columns, [("Overall", self.overall)], priority)


def compare_memorised(first: str | Path, second: str | Path) -> MemorisedComparison:
    """Compare the sequences that two models have memorised, each sequence with itself.

    first, second   folders that `memorised(..., out=folder)` finished, of the models A and B, on the same sequences

    Memory does not grow with the sequences. PilekitError if a folder has no finished result or a damaged one, and if
    tokenizer, prompt, continuation, places or documents differ.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(opened_sequences(folder)) for folder in (first, second)]
        protocols = [file.protocol for file in files]
        _check_protocols(second, *protocols)
        counts: dict[str, Any] = {}
        for subsets, states in _paired(second, *files):
            for name in pc.unique(subsets).to_pylist():
                here = np.bincount(states[pc.equal(subsets, name).to_numpy(zero_copy_only=False)], minlength=4)
                counts[name] = counts.get(name, 0) + here
        order = [name for name in files[0].subsets if name in counts]
    changes = {name: _change(counts[name]) for name in order}
    adjusted = holm([change.p for change in changes.values()])
    subsets = {name: replace(change, adjusted_p=p) for (name, change), p in zip(changes.items(), adjusted, strict=True)}
    overall = _change(sum(counts.values(), np.zeros(4, np.int64)))
    named = [f"{model_path(protocol)} ({path})" for protocol, path in zip(protocols, (first, second), strict=True)]
    return MemorisedComparison(
        replace(overall, adjusted_p=overall.p), subsets, (named[0], named[1]), tuple(protocol_cautions(protocols))
    )


def mcnemar(new: int, forgotten: int) -> float:
    """The exact two-sided p-value: twice the chance of at most min(new, forgotten) heads in new + forgotten tosses."""
    tosses, heads = new + forgotten, min(new, forgotten)
    # Relative to the term of `heads`, the terms below it fall ever faster, so few of millions count.
    total, term = 0.0, 1.0
    for below in range(heads, -1, -1):
        total += term
        term *= below / (tosses - below + 1)
        if term < total * 1e-17:
            break
    log_term = math.lgamma(tosses + 1) - math.lgamma(heads + 1) - math.lgamma(tosses - heads + 1)
    return min(1.0, 2 * total * math.exp(log_term - tosses * math.log(2)))


def _change(counts: Any) -> MemorisedChange:
    return MemorisedChange(**dict(zip(_STATES, map(int, counts), strict=True)))


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-300 else "<1e-300"


def _check_protocols(second: str | Path, *protocols: dict[str, Any]) -> None:
    """PilekitError unless sequences of the two protocols are the same numbers of the same tokens."""
    one, other = protocols
    if one["tokenizer"]["fingerprint"] != other["tokenizer"]["fingerprint"]:
        raise PilekitError(f"{second}: its model has another tokenizer than A's, so its sequences are others")
    for name, value in one["sequences"].items():
        if other["sequences"][name] != value:
            raise PilekitError(
                f"{second}: its --{name} is {other['sequences'][name]}, but A's is {value}; score both with the same"
            )


def _paired(second: str | Path, *files: SequencesFile) -> Iterator[tuple[Any, Any]]:
    """(subset, state) of some sequences at a time; PilekitError unless both files have the same sequences in order."""
    one, other = (file.rows.metadata for file in files)
    if one.num_rows != other.num_rows:
        raise PilekitError(
            f"{second}: has {counted(other.num_rows, 'sequence')}, but A has {one.num_rows:,}; score both on the same "
            "PATHs, with the same --subsets and limits"
        )
    continuation = files[0].protocol["sequences"]["continuation"]
    for tables in zip(*(file.tables("subset", *_IDENTITY, "run") for file in files), strict=True):
        for name in _IDENTITY:
            if not tables[0][name].equals(tables[1][name]):
                _refuse_others(second, *tables)
        memorised = [table["run"].to_numpy() == continuation for table in tables]
        yield tables[0]["subset"], 2 * memorised[0] + memorised[1]


def _refuse_others(second: str | Path, *tables: pa.Table) -> None:
    """PilekitError about the first sequence that the tables do not share."""
    for rows in zip(*(table.select(_IDENTITY).to_pylist() for table in tables), strict=True):
        if rows[0] != rows[1]:
            document = f"{shortened(rows[1]['shard'], 200)}, document {rows[1]['number']:,}, token {rows[1]['place']:,}"
            why = "A has another sequence there; score both on the same PATHs, with the same --subsets and limits"
            if all(rows[0][name] == rows[1][name] for name in ("shard", "number")):
                why = "A has scored another text there, so the corpus has changed; score both on the same one"
            raise PilekitError(f"{second}: {document}: {why}")
