"""PileStream itself: recording, sizes, peek, stats, explain, errors. Its guarantees are in test_guarantees*.py."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from itertools import chain, islice, product
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from pilekit.errors import PilekitError
from pilekit.pipeline.pipeline import DocumentStage
from pilekit.stream.batch.batch import Batch
from pilekit.stream.order.topology import rank_of_world
from pilekit.stream.pile_stream import PileStream
from tests.refusing import refused
from tests.stream.collecting import ALL, no_brown_fox, rows_of, run
from tests.stream.conftest import Corpora, Settings
from tests.stream.reference import Encoder


@pytest.fixture
def stream(corpora: Corpora, settings: Settings) -> PileStream:
    return PileStream(corpora["mixed"].folder, **settings, batch_size=16, outputs=ALL)


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(one[name], other[name]) for name in ALL) and one.documents() == other.documents()


def test_streams_and_batches_are_shown_in_a_line(stream: PileStream) -> None:
    shown = repr(stream)
    assert shown.startswith("PileStream(Corpus(")
    assert shown.endswith(f"batches of 16, rows of {stream.seq_len} tokens)")
    batch = next(iter(stream))
    batch["note"] = "of a user"  # type: ignore[assignment]
    assert f"input_ids=int64[16, {stream.seq_len}], " in repr(batch)
    assert repr(batch).endswith("note='of a user')")


# What is recorded


def test_iterating_records_and_advance_says_otherwise_for_each_batch_once_in_order(stream: PileStream) -> None:
    """A consumer that looks a batch ahead calls `advance` for each batch used; otherwise every batch given counts."""
    first, second, third = islice(stream, 3)
    assert stream.state_dict()["step"] == 3
    fresh = pickle.loads(pickle.dumps(stream))
    fresh.load_state_dict(stream.state_dict())
    given = {"stream_state": first["stream_state"]}
    refused("given batch 0 of this run, but batch 3 is the next", fresh.advance, given)
    stream.advance(first)
    assert stream.state_dict()["step"] == 1
    assert "stream_state" not in first
    refused("stream_state", stream.advance, first)
    refused("given batch 2 of this run, but batch 1 is the next", stream.advance, third)
    refused("stream_state", stream.advance, {"input_ids": second["input_ids"]})
    stream.advance(dict(second))
    assert stream.state_dict()["step"] == 2
    again = next(iter(stream))
    assert same(again, third)
    assert again["stream_state"][0] == third["stream_state"][0] == 2
    ahead = iter(stream)
    fourth, _ = next(ahead), next(ahead)
    stream.advance(fourth)
    next(ahead)
    assert stream.state_dict()["step"] == 4, "a batch that was only looked at does not count"


def test_a_state_can_be_loaded_between_iter_and_the_first_batch(stream: PileStream) -> None:
    state = stream.state_dict()
    first = next(iter(stream))
    iterator = iter(stream)
    stream.load_state_dict(state)
    assert same(next(iterator), first)
    loaded = iter(stream.loader())
    stream.load_state_dict(state)
    assert same(next(loaded), first)


@pytest.mark.parametrize("how", ["state", "iteration", "loader"])
def test_an_iterator_that_was_left_behind_says_so(stream: PileStream, how: str) -> None:
    """Its batches would be trained on, and no state would count them."""
    state, old = stream.state_dict(), iter(stream)
    first, second = next(old), next(old)
    if how == "state":
        stream.load_state_dict(state)
    else:
        assert not same(next(iter(stream if how == "iteration" else stream.loader())), second)
    refused("resume with a new iter", next, old)
    if how == "state":
        assert same(next(iter(stream)), first)


def test_a_stream_can_be_pickled_and_its_state_is_a_copy(stream: PileStream) -> None:
    next(iter(stream))
    stream.state_dict()["fingerprint"]["seed"] = 9
    other = pickle.loads(pickle.dumps(stream))
    assert other.state_dict() == stream.state_dict()
    assert same(next(iter(other)), next(iter(stream)))


# Sizes that follow from the state


def test_what_is_not_given_follows_from_the_states_batch(corpora: Corpora, settings: Settings) -> None:
    small = {"batch_size": 4, "grad_accum": 4}
    for first, then, sizes in (
        ({"batch_size": 16}, {"batch_size": 4, "world_size": 2}, (4, 2)),
        (small, {**small, "world_size": 2}, (2, 4)),
        (small, {"grad_accum": 2, "world_size": 2}, (4, 2)),
        (small, {"world_size": 4}, (4, 1)),
        ({"batch_size": 16}, {"global_batch_size": 16, "world_size": 4}, (4, 1)),
    ):
        _, state = run(corpora["few"].folder, {**settings, **first}, batches=4)
        stream = PileStream(corpora["few"].folder, **{**settings, "rank": 1, **then})
        stream.load_state_dict(json.loads(state))
        assert (stream.batch_size, stream.grad_accum, stream.global_batch_size) == (*sizes, 16)
        assert len(next(iter(stream))["input_ids"]) == sizes[0]


def test_lanes_and_unit_come_from_the_state(corpora: Corpora, settings: Settings) -> None:
    del (auto := dict(settings))["lanes"]
    whole, _ = run(corpora["mixed"].folder, {**settings, "batch_size": 16}, batches=6)
    _, state = run(corpora["mixed"].folder, {**settings, "batch_size": 16}, batches=4)
    found, _ = run(corpora["mixed"].folder, {**auto, "batch_size": 16}, batches=2, state=state)
    assert found == whole[4:]


def test_another_ranks_state_alone_is_refused(corpora: Corpora, settings: Settings) -> None:
    first, other = (
        PileStream(corpora["few"].folder, **settings, batch_size=4, world_size=4, rank=rank) for rank in range(2)
    )
    message = r"that of rank 1 of 4, and this is rank 0 of 4; .* states of all 4 ranks"
    refused(message, first.load_state_dict, other.state_dict())


# peek, stats, explain


def test_peek_names_the_documents_of_each_step(corpora: Corpora, settings: Settings) -> None:
    given = {**settings, "packing": "concat", "batch_size": 8, "world_size": 2}
    ranks = [PileStream(corpora["uneven"].folder, **given, rank=rank) for rank in range(2)]
    both = zip(*(islice(rank, 10) for rank in ranks), strict=True)
    steps = [sorted(one.documents() + other.documents()) for one, other in both]
    state = ranks[0].state_dict()
    for step in (9, 0, 3):
        assert sorted(ranks[1].peek(step)) == steps[step]
        assert sorted(ranks[1].peek_batch(step).documents()) == steps[step]
    assert ranks[0].state_dict() == state, "looking changes nothing"
    ahead = ranks[0].peek(12)
    nexts = [list(islice(rank, 3))[-1].documents() for rank in ranks]
    assert sorted(ahead) == sorted(chain.from_iterable(nexts))
    # A merged state is enough to look ahead, for all ranks.
    fresh = PileStream(corpora["uneven"].folder, **{**settings, "packing": "concat", "batch_size": 16})
    fresh.load_state_dict([rank.state_dict() for rank in ranks])
    assert sorted(fresh.peek(12)) == sorted(ahead)
    refused("step = -1: must be a whole number from 0 to ", ranks[0].peek, -1)


def test_stats_count_what_was_handed_out(corpora: Corpora, settings: Settings, encode: Encoder) -> None:
    given = {**settings, "batch_size": 8, "grad_accum": 2, "packing": "concat"}
    stream = PileStream(corpora["mixed"].folder, **given, outputs=ALL)
    counts = ("rows", "documents", "tokens", "fill", "padding", "skipped")
    assert stream.stats() == {**dict.fromkeys(counts, 0), "subsets": {}}
    documents: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for batch in islice(stream.loader(), 20):
        names = [stream.subset_names[i] for i in batch["subset_ids"].flatten().tolist() if i >= 0]
        tokens.update(names)
        for row in rows_of(batch, stream.subset_names):
            documents.update(
                name for name, label in zip(row.subsets, row.labels, strict=True) if name is not None and label == -100
            )
    told = stream.stats()
    assert told["subsets"] == {name: {"documents": documents[name], "tokens": tokens[name]} for name in told["subsets"]}
    assert set(told["subsets"]) == set(tokens)
    assert (told["rows"], told["tokens"], told["fill"], told["padding"]) == (160, 160 * 64, 1.0, 0.0)
    assert told["documents"] == sum(documents.values())
    other = PileStream(corpora["mixed"].folder, **given)
    other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert other.stats() == told


def test_bad_lines_are_counted_and_told(corpora: Corpora, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    corpus = corpora["with_bad_lines"]
    refused(r"00\.jsonl.*line", PileStream, corpus.folder, **settings)
    stream = PileStream(corpus.folder, **settings, on_error="skip")
    assert stream.stats()["skipped"] == len(corpus.bad)
    assert "bad lines left out, the first: line " in caplog.text


def test_explain_tells_what_fits(stream: PileStream, corpora: Corpora, settings: Settings) -> None:
    told = stream.explain()
    assert json.loads(json.dumps(told)).keys() == told.keys()
    assert (told["plan"], told["rows"], told["columns"], told["lanes"]) == ("random", 8, 2, 16)
    assert told["documents"] == len(corpora["mixed"].lines)
    text = str(told)
    assert "world sizes    1, 2, 4, 8" in text
    assert "workers        1, 2" in text
    for world_size, grad_accum in product((1, 3, 4, 8), (1, 2, 3)):
        fits = grad_accum in told["accumulations"].get(world_size, [])
        given = {**settings, "global_batch_size": 16, "grad_accum": grad_accum, "world_size": world_size, "rank": 0}
        if fits:
            found = PileStream(corpora["mixed"].folder, **given).explain()
            assert found["restore_documents"] == 16 // world_size * 16
        else:
            with pytest.raises(PilekitError):
                PileStream(corpora["mixed"].folder, **given)


# What is refused


def test_wrong_arguments(corpora: Corpora, settings: Settings) -> None:
    for change, message in (
        ({"tokenizer": None, "objective": "mlm"}, 'objective="mlm" masks tokens'),
        ({"objective": "mlm"}, 'no mask token, which objective="mlm" needs'),
        ({"seq_len": 0}, "seq_len = 0: must be a whole number from 1 to 16,777,216"),
        ({"lanes": (8, 10**9)}, "more than 1,048,576; give fewer"),
        ({"tokenizer": 5}, "a tokenizer is a tokenizer.json, a folder with one, .*, not 5"),
        ({"outputs": ["input_ids", "tokens"]}, "outputs names what a batch holds"),
        ({"subsets": []}, "subsets is empty"),
        ({"subsets": ["ArXif"]}, "unknown subset .*ArXiv"),
        ({"repeats": {"ArXiv": math.nan}}, "nan is no factor"),
        ({"rank": 0, "world_size": 2, "num_replicas": 4}, "world_size=2 and num_replicas=4"),
        ({"filters": [no_brown_fox, 5]}, "is no stage"),
        ({"filters": [_Remembering()]}, "run `pilekit dedup` and give dedup=FOLDER"),
        ({"epochs": 1}, "1 epoch and lanes exclude each other"),
    ):
        refused(message, PileStream, corpora["few"].folder, **{**settings, **change})
    refused("a corpus is a path, glob or URL, or a list of them, not 5", PileStream, 5, **settings)


class _Remembering(DocumentStage):
    """A stage whose answers depend on what it saw."""

    stateful = True

    def __call__(self, batches: Any) -> Any:
        return batches


def test_the_rank_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)  # a Trainer of another test may have joined
    assert rank_of_world(None, None) == (0, 1)
    assert rank_of_world(1, 4) == rank_of_world(1, None, 4) == rank_of_world(1, 4, 4) == (1, 4)
    refused(r"\$RANK is not set", rank_of_world, None, 4)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_of_world(None, None) == (3, 4)
    assert rank_of_world(0, 1) == rank_of_world(None, 1) == (0, 1)
    for size, told in ((None, "not set"), ("1", "1")):
        monkeypatch.delenv("WORLD_SIZE") if size is None else monkeypatch.setenv("WORLD_SIZE", size)
        refused(rf"\$RANK is 3, but \$WORLD_SIZE is {told}; start the job with torchrun", rank_of_world, None, None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("rank = 3: must be a whole number of at least 0 and under 2", rank_of_world, None, None)
    monkeypatch.setenv("WORLD_SIZE", "four")
    refused(r"\$WORLD_SIZE is 'four'", rank_of_world, None, None)


# In workers


def test_persistent_workers_are_refused(corpora: Corpora, settings: Settings) -> None:
    given = {name: value for name, value in settings.items() if name != "lanes"}
    stream = PileStream(corpora["few"].folder, **given, epochs=1, batch_size=8)
    loader = DataLoader(stream, batch_size=None, num_workers=1, persistent_workers=True)
    assert len(list(loader)) > 0
    with pytest.raises(PilekitError, match="set persistent_workers=False"):
        list(loader)
