"""Guarantees of finite passes: each sample once over all ranks, as a DistributedSampler shares them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from pilekit.shards.random_access.document_reader import StoredDocument
from pilekit.stream import PileStream
from tests.process_groups import ProcessGroups
from tests.stream.collecting import ALL, STEP, batches_of, in_group, no_brown_fox, run
from tests.stream.conftest import PACKINGS, Corpora, Settings
from tests.stream.corpora import Made, made
from tests.stream.reference import Encoder, Plan, Row, finite_pass, lane_documents


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


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_finite_pass_is_the_references(
    corpora: Corpora, settings: Settings, encode: Encoder, packing: Any, drop_last: bool
) -> None:
    corpus = corpora["uneven"]
    for world_size, grad_accum, workers in [(1, 1, 0), (2, 1, 3), (3, 2, 0)]:
        size = 4 * world_size * grad_accum
        steps = finite_pass(corpus.lines, plan_of(corpus, size, packing=packing), encode, range(1), drop_last=drop_last)
        given = finite(
            settings, packing=packing, drop_last=drop_last, world_size=world_size, grad_accum=grad_accum, batch_size=4
        )
        for rank in range(world_size):
            found, _ = run(corpus.folder, {**given, "rank": rank}, "loader" if workers else "iter", workers)
            assert found == share_of(steps, rank, world_size * grad_accum, grad_accum)


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_token_once_and_less_than_a_step_of_padding(
    corpora: Corpora, settings: Settings, encode: Encoder, packing: str
) -> None:
    """Counted without the reference, over three ranks."""
    corpus = corpora["uneven"]
    given = finite(settings, packing=packing, world_size=3)
    ranks = [run(corpus.folder, {**given, "rank": rank})[0] for rank in range(3)]
    assert len({len(batches) for batches in ranks}) == 1
    rows: list[Row] = [row for batches in ranks for batch in batches for row in batch]
    assert sum(not row.documents for row in rows) < 12
    tokens: Counter[tuple[str, int]] = Counter()
    for row in rows:
        for doc_id, document in enumerate(row.documents):
            tokens[document] += row.doc_ids.count(doc_id)
    assert tokens == {(line.shard, line.number): len(encode(line.text)) for line in corpus.lines}


def test_several_epochs_repeats_and_a_filter(corpora: Corpora, settings: Settings, encode: Encoder) -> None:
    corpus = corpora["mixed"]
    plan = plan_of(corpus, 16, repeats={"ArXiv": 1.5}, keep=lambda line: "brown" not in line.text)
    steps = finite_pass(corpus.lines, plan, encode, range(3, 5))
    given = finite(settings, epochs=2, batch_size=16, repeats={"ArXiv": 1.5}, filters=[no_brown_fox], outputs=ALL)
    stream = PileStream(corpus.folder, **given)
    stream.set_epoch(3)
    documents = [batch.documents() for batch in stream]
    assert documents == [[list(row.documents) for row in step] for step in steps]


@pytest.mark.parametrize("workers", [0, 2])
def test_stopping_inside_and_at_the_end_of_a_pass(corpora: Corpora, settings: Settings, workers: int) -> None:
    given = finite(settings, rank=1, world_size=2)
    folder = corpora["uneven"].folder
    whole, after = run(folder, given)
    found, state = run(folder, given, "loader", workers, 3)
    assert found == whole[:3]
    assert run(folder, given, "loader", workers, state=state)[0] == whole[3:]
    _, last = run(folder, given, "loader", workers, len(whole))
    assert run(folder, given, "loader", workers, state=last)[0] == [], "on the last batch: nothing is left"
    assert run(folder, given, "loader", workers, state=after)[0] == whole, "after the end: a whole pass"


def test_a_pass_goes_on_with_other_ranks(corpora: Corpora, settings: Settings, encode: Encoder) -> None:
    corpus = corpora["uneven"]
    steps = finite_pass(corpus.lines, plan_of(corpus, 8), encode, range(1))
    halves = [finite(settings, rank=rank, world_size=2) for rank in range(2)]
    states = [run(corpus.folder, given, "loader", 2, 5)[1] for given in halves]
    assert run(corpus.folder, finite(settings, batch_size=8), state=states)[0] == steps[5:]


def test_two_ranks_share_a_finite_pass(process_group: ProcessGroups, corpora: Corpora, settings: Settings) -> None:
    given = finite(settings)
    ranks, _ = in_group(process_group, 2, corpora["uneven"].folder, given, "loader", 1)
    alone = [run(corpora["uneven"].folder, {**given, "rank": rank, "world_size": 2})[0] for rank in range(2)]
    assert ranks == alone


def test_epochs_are_reordered_as_a_distributed_sampler_does(corpora: Corpora, settings: Settings) -> None:
    def pass_of(epoch: int, rank: int) -> list[tuple[str, int]]:
        given = finite(settings, packing="none", rank=rank, num_replicas=2)
        stream = PileStream(corpora["uneven"].folder, **given)
        stream.set_epoch(epoch)
        return [document for batch in stream for documents in batch.documents() for document in documents]

    first = [pass_of(0, rank) for rank in (0, 1)]
    second = [pass_of(1, rank) for rank in (0, 1)]
    assert first == [pass_of(0, rank) for rank in (0, 1)]
    assert first != second
    assert Counter(first[0] + first[1]) == Counter(second[0] + second[1])


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_raw_documents_are_shared_as_a_distributed_sampler_does(
    corpora: Corpora, encode: Encoder, world_size: int, drop_last: bool
) -> None:
    """Ranks get what DistributedSampler would pick from the pass's order, padding and dropping included."""
    corpus = corpora["uneven"]
    text = {(line.shard, line.number): (line.text, line.subset) for line in corpus.lines}
    plan = plan_of(corpus, world_size)
    order = [one.line for one in lane_documents(corpus.lines, plan, encode, 0, range(1))]
    assert sorted((line.shard, line.number) for line in order) == sorted(text)
    for rank in range(world_size):
        sampler: DistributedSampler[Any] = DistributedSampler(
            order,  # type: ignore[arg-type]
            num_replicas=world_size,
            rank=rank,
            shuffle=False,
            drop_last=drop_last,
        )
        stream = PileStream(
            corpus.folder, tokenizer=None, epochs=1, rank=rank, num_replicas=world_size, drop_last=drop_last
        )
        found = list(batches_of(stream, "loader" if rank else "iter", rank))
        assert all(isinstance(document, StoredDocument) for document in found)
        assert [(one.shard, one.number, one.text, one.subset) for one in found] == [  # type: ignore[attr-defined]
            (line.shard, line.number, line.text, line.subset) for line in (order[index] for index in sampler)
        ]


def test_repeats_are_exact_and_fractions_are_fair(tmp_path: Path, settings: Settings) -> None:
    """A finite pass uses each document floor or ceil of its factor; how often ceil: within 4 standard deviations."""
    corpus = made(tmp_path, [1000, 1000], text_of=lambda rng: rng.choice("abc"))
    factors = {"ArXiv": 2.0, "Github": 0.0, "Pile-CC": 0.25, "Wikipedia (en)": 1.5}
    stream = PileStream(corpus.folder, **finite(settings, repeats=factors, packing="none"))
    passes = []
    for epoch in range(2):
        stream.set_epoch(epoch)
        passes.append(
            Counter(itertools.chain.from_iterable(documents for batch in stream for documents in batch.documents()))
        )
    for used in passes:
        for subset, factor in factors.items():
            counts = Counter(used[line.shard, line.number] for line in corpus.of(subset))
            more = factor - math.floor(factor)
            assert set(counts) <= {math.floor(factor), math.ceil(factor)}
            n = len(corpus.of(subset))
            assert abs(counts[math.floor(factor)] - (1 - more) * n) <= 4 * math.sqrt(n * more * (1 - more))
    assert passes[0] != passes[1], "which documents get the one more differs by epoch"
