"""Raw mode: the documents themselves, in a stream's order, over ranks and workers, with state."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pilekit.errors import PilekitError
from pilekit.shards.random_access.document_reader import StoredDocument
from pilekit.stream import PileStream
from pilekit.stream.read import plan
from tests.stream import reference
from tests.stream.conftest import Corpora
from tests.stream.corpora import Made, made, write_shard

Identity = tuple[str, int]


def identity(document: Any) -> Identity:
    return document.shard, document.number


def pass_of(corpus: Made, world_size: int, *, workers: int = 0, **settings: Any) -> list[list[Identity]]:
    """The documents of each rank in a finite pass."""
    streams = [
        PileStream(corpus.folder, tokenizer=None, epochs=1, rank=rank, world_size=world_size, **settings)
        for rank in range(world_size)
    ]
    return [[identity(document) for document in stream.loader(num_workers=workers)] for stream in streams]


def test_documents_are_what_the_shards_say(tmp_path: Path) -> None:
    lines = [
        {"text": "one", "meta": {"pile_set_name": "ArXiv", "page": 3}},
        {"text": "two", "meta": {}},
        {"text": "three", "title": "no meta"},
    ]
    write_shard(tmp_path / "00", [json.dumps(line).encode() for line in lines], "frames")
    found: list[Any] = list(PileStream(tmp_path, tokenizer=None, epochs=1, shuffle=False))
    assert found == [
        StoredDocument("one", {"pile_set_name": "ArXiv", "page": 3}, "ArXiv", 0, "00.jsonl"),
        StoredDocument("two", {}, "(none)", 1, "00.jsonl"),
        StoredDocument("three", {"title": "no meta"}, "(none)", 2, "00.jsonl"),
    ]
    assert all(isinstance(document, StoredDocument) for document in found)


@pytest.mark.parametrize("whole", [False, True])
def test_endless_lanes_give_what_the_reference_does(
    corpora: Corpora, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if whole:
        monkeypatch.setattr(plan, "HELD_BYTES", 0)
        monkeypatch.setattr(plan, "MOST_DECODED", 0)
    corpus = corpora["mixed"]
    of = reference.Plan(corpus.shards, rows=2, columns=2, global_batch_size=8, seq_len=64, seed=4)
    read = reference.sequential_documents if whole else reference.lane_documents
    lanes = [read(corpus.lines, of, lambda text: [], lane) for lane in range(4)]  # type: ignore[arg-type]
    expected = [
        Counter(
            (use.line.shard, use.line.number)
            for row in range(2)
            for use in itertools.islice(lanes[2 * row + step % 2], 4)
        )
        for step in range(400)
    ]
    for world_size, grad_accum, workers in ((1, 1, 0), (2, 1, 2), (1, 2, 0)):
        batch_size = 8 // (world_size * grad_accum)
        given: dict[str, Any] = {"lanes": (2, 2), "seed": 4, "batch_size": batch_size, "grad_accum": grad_accum}
        steps = [Counter[Identity]() for _ in expected]
        for rank in range(world_size):
            stream = PileStream(corpus.folder, tokenizer=None, rank=rank, world_size=world_size, **given)
            assert stream.explain()["plan"] == ("sequential" if whole else "random")
            batches = stream.loader(num_workers=workers)
            for number, batch in enumerate(itertools.islice(batches, 400 * grad_accum)):
                documents: list[Any] = list(batch)
                assert len(documents) == batch_size
                steps[number // grad_accum].update(map(identity, documents))
        assert steps == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_after_any_document(corpora: Corpora, workers: int) -> None:
    given: dict[str, Any] = {"tokenizer": None, "lanes": (1, 2), "seed": 1}
    folder = corpora["few"].folder
    whole = [identity(one) for one in itertools.islice(PileStream(folder, **given), 24)]
    state = None
    for number in range(0, 24, 3):
        stream = PileStream(folder, **given)
        if state is not None:
            stream.load_state_dict(json.loads(state))
        loader = stream.loader(num_workers=workers)
        assert [identity(one) for one in itertools.islice(loader, 3)] == whole[number : number + 3]
        state = json.dumps(stream.state_dict())


def test_workers_accumulation_and_stops_change_nothing_of_a_pass(corpora: Corpora) -> None:
    corpus = corpora["few"]
    (order,) = pass_of(corpus, 1)
    (with_workers,) = pass_of(corpus, 1, workers=2)
    assert with_workers == order
    given: dict[str, Any] = {"tokenizer": None, "epochs": 1, "grad_accum": 4, "world_size": 2, "rank": 1}
    stream = PileStream(corpus.folder, **given)
    whole = [identity(document) for document in stream]
    assert len(whole) == 4
    for number in range(len(whole) + 1):
        stream = PileStream(corpus.folder, **given)
        batches = iter(stream)
        for _ in range(number):
            next(batches)
        again = PileStream(corpus.folder, **given)
        again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert [identity(document) for document in again] == whole[number:]


def test_set_epoch_and_peek(corpora: Corpora) -> None:
    corpus = corpora["few"]
    stream = PileStream(corpus.folder, tokenizer=None, epochs=1)
    orders = []
    for epoch in range(6):
        stream.set_epoch(epoch)
        peeked = [stream.peek(step) for step in range(len(corpus.lines))]
        orders.append([identity(document) for document in stream])
        assert peeked == [[[one]] for one in orders[-1]]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert any(order != orders[0] for order in orders)
    stats = stream.stats()
    assert (stats["documents"], stats["rows"], stats["tokens"]) == (6 * len(corpus.lines), 6 * len(corpus.lines), 0)


def test_a_stock_loader_and_the_state(corpora: Corpora) -> None:
    folder = corpora["few"].folder
    stream = PileStream(folder, tokenizer=None, batch_size=2, lanes=(1, 2))
    batches = iter(DataLoader(stream, batch_size=None, num_workers=2))
    first = next(batches)
    stream.advance(first)
    assert stream.state_dict()["step"] == 1
    with pytest.raises(PilekitError, match="call it once for each batch"):
        stream.advance(first)
    # A DataLoader that collates loses a single document's state.
    single = PileStream(folder, tokenizer=None)
    with pytest.raises(PilekitError, match="collate_fn"):
        single.advance(next(iter(DataLoader(single, batch_size=None))))
    kept = PileStream(folder, tokenizer=None)
    kept.advance(next(iter(DataLoader(kept, batch_size=None, collate_fn=lambda document: document))))
    assert kept.state_dict()["step"] == 1


def test_bad_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "HELD_BYTES", 0)
    monkeypatch.setattr(plan, "MOST_DECODED", 0)
    corpus = made(tmp_path, [40, 40], form="single", bad=0.1)
    stream = PileStream(tmp_path, tokenizer=None, epochs=1, on_error="skip")
    found = [identity(document) for document in stream]
    assert Counter(found) == Counter((line.shard, line.number) for line in corpus.lines)
    last = [number for shard, number in corpus.bad if shard == found[-1][0] and number > found[-1][1]]
    assert stream.stats()["skipped"] == len(corpus.bad) - len(last)


def test_what_raw_mode_has_not(corpora: Corpora) -> None:
    with pytest.raises(PilekitError, match='objective="mlm" masks tokens'):
        PileStream(corpora["few"].folder, tokenizer=None, objective="mlm")
    stream = PileStream(corpora["few"].folder, tokenizer=None)
    with pytest.raises(PilekitError, match="has no tokenizer"):
        _ = stream.tokenizer
    with pytest.raises(PilekitError, match="its seed is 0, here it is 1"):
        PileStream(corpora["few"].folder, tokenizer=None, seed=1).load_state_dict(stream.state_dict())
