"""Tokenized documents, and their scores by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.score.batching import Scoring, TokenizedDocument, score_rows
from pilekit.evaluate.score.causal_nll import causal_scoring
from pilekit.models.causal import CausalLM


def ignore(_: int) -> None:
    """Do nothing."""


def document(ids: list[int], number: int = 0, shard: str = "a.jsonl") -> TokenizedDocument:
    return TokenizedDocument(shard, number, 7 * number, "Github", 4 * len(ids), np.array(ids, dtype=np.uint32))


def documents(lengths: list[int], vocabulary: int = 320, seed: int = 0) -> list[TokenizedDocument]:
    rng = np.random.default_rng(seed)
    return [document(rng.integers(0, vocabulary, size=n).tolist(), number) for number, n in enumerate(lengths)]


def score_documents(
    lm: CausalLM, given: Iterable[TokenizedDocument], scored: Callable[[int], None] = ignore, **settings: Any
) -> Iterator[ScoredDocument]:
    """The documents as they are scored."""
    scoring = causal_scoring(lm, **{"prefix": 0, "max_length": 32, **settings})
    yield from records(given, scoring, scored)


def records(
    given: Iterable[TokenizedDocument], scoring: Scoring, scored: Callable[[int], None] = ignore
) -> Iterator[ScoredDocument]:
    """The records of the documents as they are scored."""
    for batch in score_rows(map(replace, given), scoring):
        scored(batch.tokens)
        for one in batch.documents:
            yield one.record(one.nll())


def scored(lm: CausalLM, given: list[TokenizedDocument], **settings: Any) -> list[ScoredDocument]:
    """One score per document, in the order of the documents' numbers."""
    found = sorted(score_documents(lm, given, **settings), key=lambda one: one.number)
    assert [one.number for one in found] == [one.number for one in given]
    return found


def note_shapes(lm: CausalLM) -> list[tuple[int, int]]:
    """The shapes of all later batches of the model."""
    shapes: list[tuple[int, int]] = []

    def note(_module: Any, _given: Any, named: dict[str, Any]) -> None:
        shapes.append(tuple(named["input_ids"].shape))

    lm.trunk.register_forward_pre_hook(note, with_kwargs=True)
    return shapes
