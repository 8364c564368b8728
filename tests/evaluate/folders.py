"""Helpers: read a folder of results, note the scored documents, compare two results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pilekit.corpus.sidecar_files import SEQUENCES_FILE
from pilekit.evaluate import scoring_run as module
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.score.batching import ScoredBatch, Scoring, TokenizedDocument, score_rows


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted((out / "records").glob("*/*.jsonl")) for line in file.open()]


def figures_in(out: Path) -> dict[str, Any]:
    """`to_dict()` of the result in a folder: result.json without the fields that seal it."""
    content: dict[str, Any] = json.loads((out / "result.json").read_text())
    seal = ("sum", "kind", "format", "pilekit", "manifest")
    assert list(content)[: len(seal) - 1] == list(seal[:-1])
    return {name: value for name, value in content.items() if name not in seal}


def only_file(out: Path) -> Path:
    [file] = (out / "records").glob("*/*.jsonl")
    return file


def same(one: BitsPerByte, other: BitsPerByte) -> None:
    """Assert that two results are equal, except for rounding in sums made in another order."""
    assert list(one.subsets) == list(other.subsets)
    for name, score in (("", one.overall), *one.subsets.items()):
        of = other.subsets[name] if name else other.overall
        assert (score.documents, score.bytes, score.tokens) == (of.documents, of.bytes, of.tokens)
        assert score.nll == pytest.approx(of.nll, rel=1e-7)
        assert score.interval == (None if of.interval is None else pytest.approx(of.interval, rel=1e-7))


def note_scored(patch: pytest.MonkeyPatch, begun: list[tuple[str, int]]) -> None:
    """Append each document to `begun` when any evaluation begins to score it."""

    def noting(documents: Iterable[TokenizedDocument], scoring: Scoring) -> Iterator[ScoredBatch]:
        def passing() -> Iterator[TokenizedDocument]:
            for document in documents:
                begun.append((document.shard, document.number))
                yield document

        return score_rows(passing(), scoring)

    patch.setattr(module, "score_rows", noting)


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of sequences.parquet."""
    rows: list[dict[str, Any]] = pq.read_table(out / SEQUENCES_FILE).to_pylist()
    return rows


def without_bits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "bits"} for row in rows]
