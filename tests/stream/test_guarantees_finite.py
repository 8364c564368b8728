"""Guarantees of finite passes: each sample once over all ranks, workers and accumulation; interrupted and resumed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from pilekit.stream.pile_stream import PileStream
from tests.refusing import refused
from tests.stream.collecting import STEP, Way, batches_of, no_brown_fox, read_in_turn, run, run_ranks
from tests.stream.conftest import PACKINGS, Corpora, Settings
from tests.stream.corpora import Made, made
from tests.stream.reference import Encoder, Plan, finite_pass, lane_documents


def finite(settings: Settings, **changes: Any) -> Settings:
    without_lanes = {name: value for name, value in settings.items() if name != "lanes"}
    return {**without_lanes, "epochs": 1, "batch_size": 4, **changes}


def plan_of(corpus: Made, global_batch_size: int, **changes: Any) -> Plan:
    return Plan(corpus.shards, 1, 1, global_batch_size, 64, window=16, **changes)


def share_of(steps: list[STEP], rank: int, parts: int, grad_accum: int) -> list[STEP]:
    """The batches of a rank: the slices of its micro-batches, of `parts` equal slices of each step."""
    size = len(steps[0]) // parts
    first = rank * grad_accum
    return [step[part * size : (part + 1) * size] for step in steps for part in range(first, first + grad_accum)]


@pytest.mark.parametrize(
    ("drop_last", "packing"),
    [
        *[(False, packing) for packing in PACKINGS],
        *[pytest.param(True, packing, marks=[pytest.mark.slow] * (packing != "best_fit")) for packing in PACKINGS],
    ],
)
def test_a_finite_pass_is_the_references(
    corpora: Corpora, settings: Settings, encode: Encoder, packing: Any, drop_last: bool
) -> None:
    corpus = corpora["uneven"]
    for world_size, grad_accum, workers in [(1, 1, 0), (2, 1, 3), (3, 2, 0)]:
        size = 4 * world_size * grad_accum
        steps = finite_pass(corpus.lines, plan_of(corpus, size, packing=packing), encode, range(1), drop_last=drop_last)
        given = finite(settings, packing=packing, drop_last=drop_last, grad_accum=grad_accum)
        ranks, _ = run_ranks(world_size, corpus.folder, given, "loader", workers)
        parts = world_size * grad_accum
        assert ranks == [share_of(steps, rank, parts, grad_accum) for rank in range(world_size)]


@pytest.mark.parametrize("in_turn", [False, True])
def test_several_epochs_repeats_and_a_filter(
    tmp_path: Path, settings: Settings, encode: Encoder, in_turn: bool
) -> None:
    corpus = made(tmp_path, [40, 0, 90, 1], form="single")
    for shuffle in (True, False):
        changes = {"repeats": {"ArXiv": 1.5}, "shuffle": shuffle}
        plan = plan_of(corpus, 16, keep=lambda line: "brown" not in line.text, in_turn=in_turn, **changes)
        steps = finite_pass(corpus.lines, plan, encode, range(3, 5))
        with read_in_turn(in_turn):
            stream = PileStream(
                tmp_path, **finite(settings, epochs=2, batch_size=16, filters=[no_brown_fox], **changes)
            )
        assert stream.explain()["plan"] == ("sequential" if in_turn else "random")
        stream.set_epoch(3)
        assert [batch.documents() for batch in stream] == [[list(row.documents) for row in step] for step in steps]


@pytest.mark.parametrize(
    ("workers", "packing"),
    [(0, "best_fit"), (0, "concat"), (2, "best_fit"), pytest.param(2, "concat", marks=pytest.mark.slow)],
)
def test_a_pass_resumes_after_every_batch(corpora: Corpora, settings: Settings, packing: str, workers: int) -> None:
    """Chained: each batch from a new stream, which resumes from the state after the batch before."""
    given = finite(settings, packing=packing, batch_size=3, grad_accum=2, rank=1, world_size=2, drop_last=workers == 0)
    folder = corpora["few"].folder if workers else corpora["uneven"].folder
    given["seq_len"] = 16 if workers else 64
    whole, after = run(folder, given)
    assert len(whole) > 2
    state = None
    number, at_once = 0, 1 if workers else 11
    while number < len(whole):
        found, state = run(folder, given, "loader", workers, min(at_once, len(whole) - number), state)
        assert found == whole[number : number + at_once]
        number += len(found)
    assert run(folder, given, "loader", workers, state=state)[0] == [], "on the last batch: nothing is left"
    assert run(folder, given, "loader", workers, state=after)[0] == whole, "after the end: a whole pass"


def test_a_pass_resumes_with_other_ranks_and_accumulation(
    corpora: Corpora, settings: Settings, encode: Encoder
) -> None:
    corpus = corpora["mixed"]
    steps = finite_pass(corpus.lines, plan_of(corpus, 12), encode, range(1))
    two = finite(settings, batch_size=3, grad_accum=2)
    _, states = run_ranks(2, corpus.folder, two, "loader", 2, 10)
    assert run(corpus.folder, finite(settings, batch_size=12), state=states)[0] == steps[5:]
    ranks, _ = run_ranks(4, corpus.folder, finite(settings, batch_size=3), "iter", 0, None, states)
    assert ranks == [share_of(steps[5:], rank, 4, 1) for rank in range(4)]
    # Inside a step, only as it was.
    _, inside = run_ranks(2, corpus.folder, two, "iter", 0, 5)
    refused("inside step 2, after 1 of 2 batches", run, corpus.folder, finite(settings, batch_size=12), state=inside)


@pytest.mark.parametrize(
    ("way", "workers"), [("loader", 0), ("loader", 2), pytest.param("stock", 2, marks=pytest.mark.slow)]
)
def test_passes_follow_each_other(corpora: Corpora, settings: Settings, way: Way, workers: int) -> None:
    """As with a DistributedSampler: the same pass again, unless `set_epoch` chooses another."""
    stream = PileStream(corpora["few"].folder, **finite(settings, batch_size=2, seq_len=16))

    def one() -> list[Any]:
        return [batch.documents() for batch in batches_of(stream, way, workers)]

    first = one()
    assert one() == first
    stream.set_epoch(1)
    assert one() != first
    stream.set_epoch(0)
    assert one() == first
    # An interrupted pass begins again after set_epoch, and resumes without it.
    next(batches_of(stream, way, workers))
    stream.set_epoch(0)
    assert one() == first
    next(batches_of(stream, way, workers))
    assert one() == first[1:]
    # After loading a state at the last batch, nothing is left.
    list(itertools.islice(batches_of(stream, way, workers), len(first)))
    stream.load_state_dict(stream.state_dict())
    assert one() == []


def test_set_epoch_of_a_loaded_pass_resumes(corpora: Corpora, settings: Settings) -> None:
    """Trainers call it at the beginning of each epoch, also of an epoch that they resume."""
    given = finite(settings, batch_size=2, seq_len=16)
    stream = PileStream(corpora["few"].folder, **given)
    stream.set_epoch(3)
    whole = [batch.documents() for batch in stream]
    next(iter(stream))
    for epoch, rest in ((3, whole[1:]), (4, None)):
        again = PileStream(corpora["few"].folder, **given)
        again.load_state_dict(stream.state_dict())
        again.set_epoch(epoch)
        found = [batch.documents() for batch in again]
        assert found == rest or (rest is None and len(found) >= len(whole) - 1 and found != whole)


def test_peek_and_stats(corpora: Corpora, settings: Settings, encode: Encoder) -> None:
    corpus = corpora["mixed"]
    streams = [PileStream(corpus.folder, **finite(settings, world_size=2, rank=rank)) for rank in range(2)]
    steps = finite_pass(corpus.lines, plan_of(corpus, 8), encode, range(1))
    for batches in (0, 3):
        list(itertools.islice(iter(streams[1]), batches))
        for step in (5, 1):
            assert [tuple(documents) for documents in streams[1].peek(step)] == [row.documents for row in steps[step]]
    for stream in streams:
        list(stream)
    stats = [stream.stats() for stream in streams]
    assert sum(one["documents"] for one in stats) == len(corpus.lines)
    assert sum(one["tokens"] for one in stats) == sum(len(encode(line.text)) for line in corpus.lines)
    assert sum(one["rows"] for one in stats) == sum(bool(row.documents) for step in steps for row in step)


@pytest.mark.parametrize("world_size", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_raw_documents_are_shared_as_a_distributed_sampler_does(
    corpora: Corpora, world_size: int, drop_last: bool
) -> None:
    """Ranks get what DistributedSampler would pick from the pass's order, padding and dropping included."""
    corpus = corpora["uneven"]
    uses = lane_documents(corpus.lines, plan_of(corpus, world_size), lambda text: [], 0, range(1))
    order: Any = [use.line for use in uses]
    assert sorted(order, key=corpus.lines.index) == list(corpus.lines)
    for rank in range(world_size):
        sampler: DistributedSampler[Any] = DistributedSampler(
            order, num_replicas=world_size, rank=rank, shuffle=False, drop_last=drop_last
        )
        stream = PileStream(
            corpus.folder, tokenizer=None, epochs=1, rank=rank, num_replicas=world_size, drop_last=drop_last
        )
        found: list[Any] = list(batches_of(stream, "loader" if rank else "iter", rank))
        assert [(one.shard, one.number, one.text, one.subset) for one in found] == [
            (line.shard, line.number, line.text, line.subset) for line in (order[index] for index in sampler)
        ]


def test_fewer_documents_than_ranks(tmp_path: Path, settings: Settings) -> None:
    made(tmp_path, [1], form="single", text_of=lambda rng: "abc")
    found, _ = run_ranks(5, tmp_path, finite(settings, batch_size=2))
    assert [len(batches) for batches in found] == [1] * 5
    assert sum(bool(row.documents) for batches in found for batch in batches for row in batch) == 1


def test_states_of_other_passes_are_refused(corpora: Corpora, settings: Settings) -> None:
    folder = corpora["few"].folder
    stream = PileStream(folder, **finite(settings))
    for epoch in (-1, 1 << 62):
        refused("epoch = .*: must be a whole number", stream.set_epoch, epoch)
    for name, value in (("epochs", 2), ("drop_last", True), ("epochs", None)):
        other = PileStream(folder, **finite(settings, **{name: value}))
        refused(f"its {name} is", other.load_state_dict, stream.state_dict())
