"""PileStream over raw single-frame shards: the reference's steps on any ranks and workers, from inside a shard on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.stream import PileStream
from pilekit.stream.read import plan
from pilekit.tokenize import load_tokenizer
from tests.stream import reference
from tests.stream.collecting import counted, run, steps_of
from tests.stream.corpora import Made, made
from tests.stream.reference import Encoder

STEPS = 20


@pytest.fixture(autouse=True)
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are read in turn, however short they are."""
    monkeypatch.setattr(plan, "HELD_BYTES", 0)
    monkeypatch.setattr(plan, "MOST_DECODED", 0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("raw"), [60, 1, 200, 45, 80], form="single")


@pytest.fixture(scope="module")
def settings(tokenizer_file: Path) -> dict[str, Any]:
    return {"tokenizer": load_tokenizer(tokenizer_file), "seq_len": 64, "window": 16, "lanes": (2, 2), "seed": 2}


def expected(corpus: Made, encode: Encoder, packing: str, **changes: Any) -> list[Any]:
    of = reference.Plan(
        corpus.shards,
        **{"rows": 2, "columns": 2, "global_batch_size": 8, "seq_len": 64, "window": 16, "seed": 2, **changes},
        packing=packing,  # type: ignore[arg-type]
    )
    steps = reference.optimizer_steps(
        of, lambda lane: reference.sequential_documents(corpus.lines, of, encode, lane), encode.pad_id, STEPS
    )
    return counted(steps)


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_ranks_workers_and_accumulation(corpus: Made, settings: dict[str, Any], encode: Encoder, packing: str) -> None:
    steps = expected(corpus, encode, packing)
    for world_size, grad_accum, workers in ((1, 1, 2), (2, 1, 0), (2, 1, 2), (1, 4, 0)):
        given = {**settings, "packing": packing, "grad_accum": grad_accum, "world_size": world_size}
        given["batch_size"] = 8 // (world_size * grad_accum)
        ranks = [
            run(corpus.folder, {**given, "rank": rank}, "loader", workers, STEPS * grad_accum)[0]
            for rank in range(world_size)
        ]
        assert steps_of(ranks, grad_accum) == steps


def test_going_on_inside_a_shard_on_other_ranks(corpus: Made, settings: dict[str, Any], encode: Encoder) -> None:
    steps = expected(corpus, encode, "best_fit")
    given = {**settings, "batch_size": 4, "world_size": 2}
    ranks = [run(corpus.folder, {**given, "rank": rank}, "loader", 2, 7) for rank in range(2)]
    first, states = zip(*ranks, strict=True)
    assert steps_of(first, 1) == steps[:7]
    rest, state = run(corpus.folder, {**settings, "batch_size": 8}, state=states, batches=6)
    assert steps_of([rest], 1) == steps[7:13]
    rest, _ = run(corpus.folder, {**settings, "batch_size": 2, "grad_accum": 4}, "loader", 2, 4 * 7, state)
    assert steps_of([rest], 4) == steps[13:]


def test_what_the_plan_says_and_what_fits_it(corpus: Made, settings: dict[str, Any]) -> None:
    alone = {name: value for name, value in settings.items() if name != "lanes"}
    explained = PileStream(corpus.folder, **alone).explain()
    assert (explained["plan"], explained["rows"], explained["columns"]) == ("sequential", 1, 5)
    assert "must be decoded from the beginning" in explained["reason"]
    explained = PileStream(corpus.folder, **alone, rank=0, world_size=2).explain()
    assert (explained["rows"], explained["columns"], explained["worker_counts"]) == (2, 2, [1, 2])
    with pytest.raises(PilekitError, match=r"6 ranks cannot share 5 shards .*at most 5 ranks.*pilekit reframe"):
        PileStream(corpus.folder, **alone, rank=0, world_size=6)
    with pytest.raises(PilekitError, match=r"6 lanes cannot share 5 shards .*pilekit reframe"):
        PileStream(corpus.folder, **{**settings, "lanes": (2, 3)})


def test_a_state_of_the_other_plan_is_refused(
    corpus: Made, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = PileStream(corpus.folder, **settings)
    state = json.loads(json.dumps(stream.state_dict()))
    monkeypatch.undo()
    other = PileStream(corpus.folder, **settings)
    assert other.explain()["plan"] == "random"
    with pytest.raises(PilekitError, match="state does not fit"):
        other.load_state_dict(state)
