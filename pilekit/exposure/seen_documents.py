"""`seen`: in which steps of a run some documents were, and how often.

The answer is complete: all pieces of all steps of the run are looked at, and for a text all documents of the run's data
are searched. The result says so, with the steps, and with what was scanned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pilekit.corpus import Corpus, subsets_or_all
from pilekit.display.fitted_table import DASH, Column, FittedTable
from pilekit.display.table_result import TableResult
from pilekit.errors import PilekitError, counted, message_logger
from pilekit.exposure.asked_documents import Copy, Place, copies_of, documents_with, listed_documents, traced_documents
from pilekit.exposure.run_documents import RunDocuments
from pilekit.shards.work import Work, takes
from pilekit.stream.read.token_files import TokenCorpus, corpus_of
from pilekit.train.config.check import manifest_of
from pilekit.train.log.document_log import SCHEMA, in_order

logger = message_logger(__name__)

SHOWN_STEPS = 4
"""The most steps in a cell of the table."""

_PLACE = pa.struct({"shard": pa.string(), "number": pa.int64()})
_ROWS = pa.schema(
    {"shard": pa.string(), "number": pa.int64(), "subset": pa.string()}
    | {"steps": pa.list_(pa.int64()), "times": pa.int64(), "tokens": pa.int64()}
    | {"copy_of": _PLACE, "similarity": pa.float64(), "reason": pa.string()}
)


@dataclass(frozen=True, repr=False)
class SeenDocuments(TableResult):
    """The steps in which a run has seen documents.

    rows      a row per document: `shard`, `number`, its `subset` (null if it was in no step), the `steps` in which any
              of its tokens were, how many `times` it began in a row, and the `tokens` trained on, its EOD counted. A
              copy of another document also has `copy_of`, `similarity` and `reason`
    summary   the `run`, its first and last of `steps`, those that were `replayed` because the log lacks them, the
              number of `documents`, of those `seen`, and of their `tokens`; for a text what was `scanned`
    """

    ROWS: ClassVar[tuple[str, str]] = ("document", "rows")

    rows: pa.Table = field(repr=False)
    summary: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The summary, and the `rows`."""
        return {**self.summary, "rows": self.rows.to_pylist()}

    def _rows(self) -> Mapping[Any, Any]:
        return {f"{row['shard']} {row['number']}": row for row in self.rows.to_pylist()}

    def to_arrow(self) -> pa.Table:
        """The rows."""
        return self.rows

    def table(self) -> FittedTable[dict[str, Any]]:
        """A row per document, and sentences about what was looked at."""
        columns = [
            Column[dict[str, Any]]("Document", lambda row: f"{row['shard']} {row['number']}"),
            Column("Subset", lambda row: DASH if row["subset"] is None else row["subset"], justify="left"),
            Column("Times", lambda row: f"{row['times']:,}"),
            Column("Tokens", lambda row: f"{row['tokens']:,}"),
            Column("Steps", lambda row: _listed(row["steps"]), justify="left"),
        ]
        rows = self.rows.to_pylist()
        if any(row["copy_of"] for row in rows):
            columns.append(Column("Similarity", lambda row: DASH if row["copy_of"] is None else _similarity(row)))
        return FittedTable(rows, columns, priority=("Subset", "Times", "Tokens"), notes=self._notes())

    def _notes(self) -> list[str]:
        summary = self.summary
        first, last = summary["steps"]
        in_none = summary["documents"] - summary["seen"]
        notes = [f"{summary['seen']:,} of {counted(summary['documents'])} seen in steps {first:,} to {last:,}"]
        if in_none:
            notes.append(f"{counted(in_none)} in no step: all pieces of all these steps were looked at")
        if summary["replayed"]:
            notes.append(f"{counted(sum(b - a + 1 for a, b in summary['replayed']), 'step')} replayed from the stream")
        if first > 1:
            notes.append(f"steps 1 to {first - 1:,} are those of the run that {summary['began_from']} is of")
        if scanned := summary.get("scanned"):
            skipped = f", {counted(scanned['skipped'], 'bad line')} skipped" if scanned["skipped"] else ""
            notes.append(
                f"scanned {counted(scanned['documents'])} in {counted(scanned['shards'], 'shard')} "
                f"({counted(scanned['stored_bytes'], 'stored byte')}{skipped})"
            )
        return notes


def _listed(steps: Sequence[int]) -> str:
    if not steps:
        return "in no step"
    more = f" … ({len(steps):,})" if len(steps) > SHOWN_STEPS else ""
    return ", ".join(f"{step:,}" for step in steps[:SHOWN_STEPS]) + more


def _similarity(row: Mapping[str, Any]) -> str:
    return "exact" if row["reason"] == "exact" else f"{row['similarity']:.3f}"


@takes(Work)
def seen(
    run: str | Path,
    documents: str | Path | Iterable[Place] | None = None,
    *,
    text: str | None = None,
    trace: str | Path | None = None,
    subset: str | None = None,
    copies: str | Path | None = None,
    **work: Unpack[Work],
) -> SeenDocuments:
    """Tell in which steps a training run has seen documents, how often, and how many of their tokens.

    run        the run's folder
    documents  (shard, number) of each; or a file of them: .parquet or .jsonl with `shard` and `number`, or lines of
               `pilekit grep`
    text       the documents that hold this text, character for character; all shards of the run's data are read
    trace      the documents that a file of `pilekit trace` names
    subset     the documents of this subset, in any spelling, that were in a step
    copies     the folder of a finished `pilekit dedup` of the run's data: also exact and near copies of the documents
    work       jobs, advance, cluster: see `Work`; they are for a text

    Give one of documents, text, trace and subset. Steps are counted from 1, as in metrics.jsonl. Those that the run's
    log lacks are replayed from its data, with a warning. PilekitError if that is not where the run found it.
    """
    questions = {"documents": documents, "text": text, "trace": trace, "subset": subset}
    asked = [name for name, value in questions.items() if value is not None]
    if len(asked) != 1:
        raise PilekitError(f"give one of documents, text, trace and subset, not {' and '.join(asked) or 'none'}")
    if subset is not None and copies is not None:
        raise PilekitError("copies are those of documents, a text or a trace; leave out subset or copies")
    of_run = RunDocuments.of(run)
    scanned: dict[str, Any] = {}
    places: list[Place] | None = None
    if documents is not None:
        places = listed_documents(documents)
    elif trace is not None:
        places = traced_documents(trace)
    elif text is not None:
        work.setdefault("on_error", of_run.config.data.on_error)
        places, scanned["scanned"] = documents_with(text, _data_of(of_run), **work)
    copy_of = {} if copies is None or places is None else copies_of(places, copies)
    wanted = None if places is None else list(dict.fromkeys([*places, *copy_of]))
    names = None if subset is None else subsets_or_all([subset], manifest_of(of_run.config.data))
    pieces = in_order(_chosen(table, wanted, names) for table in of_run.tables())
    rows = _document_rows(pieces, wanted, copy_of)
    steps = of_run.steps
    summary = {
        "run": str(run),
        "steps": [steps.start, steps.stop - 1],
        "replayed": [[span.start, span.stop - 1] for span in of_run.replayed],
        "documents": len(rows),
        "seen": len(rows) - rows["subset"].null_count,
        "tokens": pc.sum(rows["tokens"]).as_py() or 0,
        **({"began_from": of_run.config.checkpoint.resume} if steps.start > 1 else {}),
        **scanned,
    }
    return SeenDocuments(rows, summary)


def _data_of(of_run: RunDocuments) -> Corpus:
    """The shards that the run reads. PilekitError for token files, which hold no text."""
    data = of_run.config.data
    corpus = corpus_of(data.path, manifest_of(data))
    if isinstance(corpus, TokenCorpus):
        raise PilekitError(f"{of_run.run.path}: was trained on token files, which hold no text; give documents")
    return corpus


def _chosen(table: pa.Table, wanted: Collection[Place] | None, subsets: Sequence[str] | None) -> pa.Table:
    """The pieces of the documents that are wanted, or of these subsets."""
    if wanted is None:
        return table.filter(pc.is_in(table["subset"].cast(pa.string()), pa.array(subsets, pa.string())))
    by_shard: dict[str, list[int]] = {}
    for shard, number in wanted:
        by_shard.setdefault(shard, []).append(number)
    shards = table["shard"].unify_dictionaries().combine_chunks()
    numbers = table["number"].to_numpy()
    codes = np.asarray(shards.indices)
    is_chosen = np.zeros(len(table), bool)
    for code, shard in enumerate(shards.dictionary.to_pylist()):
        if shard in by_shard:
            is_chosen |= (codes == code) & np.isin(numbers, by_shard[shard])
    return table.filter(pa.array(is_chosen))


def _document_rows(pieces: pa.Table, wanted: Sequence[Place] | None, copy_of: Mapping[Place, Copy]) -> pa.Table:
    """A row per document: in the order in which they are wanted, else in that of their first steps."""
    found: dict[Place, dict[str, Any]] = {}
    columns = (pieces[name].to_pylist() for name in SCHEMA.names)
    for step, _, shard, number, subset, first, last in zip(*columns, strict=True):
        blank = {"shard": shard, "number": number, "subset": subset, "steps": [], "times": 0, "tokens": 0}
        row = found.setdefault((shard, number), blank)
        if row["steps"][-1:] != [step]:
            row["steps"].append(step)
        row["times"] += first == 0
        row["tokens"] += last - first + 1
    rows = []
    for place in found if wanted is None else wanted:
        row = found.get(place) or dict(zip(_ROWS.names, (*place, None, [], 0, 0), strict=False))
        if (copy := copy_of.get(place)) is not None:
            of = dict(zip(("shard", "number"), copy.of, strict=True))
            row |= {"copy_of": of, "similarity": copy.similarity, "reason": copy.reason}
        rows.append(row)
    return pa.Table.from_pylist(rows, _ROWS)
