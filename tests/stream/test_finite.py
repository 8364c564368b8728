"""Finite passes: every sample once, over any ranks, workers and accumulation; interrupted and resumed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pilekit.errors import PilekitError
from pilekit.stream import PileStream
from pilekit.stream.read import plan
from pilekit.tokenize import load_tokenizer
from tests.stream import reference
from tests.stream.collecting import ALL, STEP, run
from tests.stream.conftest import SETTINGS, Corpora, Settings
from tests.stream.corpora import Made, made
from tests.stream.reference import (
    Encoder,
    Plan,
    Row,
    columns,
    lane_documents,
    lane_rows,
    sequential_documents,
)


@pytest.fixture(scope="module")
def settings(tokenizer_file: Path) -> Settings:
    """The settings of the guarantee tests, with a tokenizer that is loaded once."""
    return {**SETTINGS, "tokenizer": load_tokenizer(tokenizer_file)}


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are read in turn, however short they are."""
    monkeypatch.setattr(plan, "HELD_BYTES", 0)
    monkeypatch.setattr(plan, "MOST_DECODED", 0)


def rows_of_pass(
    corpus: Made,
    encode: Encoder,
    *,
    packing: str = "best_fit",
    epoch: int = 0,
    epochs: int = 1,
    shuffle: bool = True,
    whole: bool = False,
) -> list[Row]:
    """The single lane, by the reference; `whole`: under the sequential plan."""
    of = Plan(corpus.shards, 1, 1, 4, 64, window=16, packing=packing, shuffle=shuffle)  # type: ignore[arg-type]
    read = sequential_documents if whole else lane_documents
    unit = max(1, min(256, len(corpus.lines) // 16))
    per_epoch = len(corpus.shards) if whole else -(-len(corpus.lines) // unit)

    def of_pass() -> Any:
        found = itertools.dropwhile(lambda use: use.position < epoch * per_epoch, read(corpus.lines, of, encode, 0))
        return itertools.takewhile(lambda use: use.position < (epoch + epochs) * per_epoch, found)

    uses: list[reference.Document] = list(of_pass())
    return [columns(row, 64, encode.pad_id) for row in lane_rows(iter(uses), of)]


def finite(settings: Settings, **changes: Any) -> Settings:
    return {**{name: value for name, value in settings.items() if name != "lanes"}, "epochs": 1, **changes}


def empty_row(encode: Encoder) -> Row:
    return columns([], 64, encode.pad_id)


def in_order(ranks: Sequence[Sequence[STEP]], grad_accum: int) -> list[Row]:
    """The rows of all ranks' batches in the order of samples: steps, then ranks, then micro-batches."""
    firsts = range(0, len(ranks[0]), grad_accum)
    parts = [batches[first : first + grad_accum] for first in firsts for batches in ranks]
    return [row for batches in parts for batch in batches for row in batch]


@pytest.mark.parametrize("shuffle", [True, False])
def test_shards_in_turn(tmp_path: Path, settings: Settings, encode: Encoder, in_turn: None, shuffle: bool) -> None:
    corpus = made(tmp_path, [40, 0, 90, 1], form="single")
    given = finite(settings, batch_size=4, shuffle=shuffle)
    for epoch in (0, 1):
        stream = PileStream(corpus.folder, outputs=ALL, **given)
        assert stream.explain()["plan"] == "sequential"
        expected = rows_of_pass(corpus, encode, epoch=epoch, shuffle=shuffle, whole=True)
        stream.set_epoch(epoch)
        found = [row for batch in stream for row in batch.documents()]
        assert [tuple(row) for row in found if row] == [row.documents for row in expected]


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_goes_on_after_every_batch(corpora: Corpora, settings: Settings, packing: str, workers: int) -> None:
    """Chained: each batch from a new stream, which resumes from the state after the batch before."""
    given = finite(settings, packing=packing, batch_size=3, grad_accum=2, rank=1, world_size=2, drop_last=workers == 0)
    folder = corpora["few"].folder if workers else corpora["uneven"].folder
    given["seq_len"] = 16 if workers else 64
    whole, _ = run(folder, given)
    assert len(whole) > 2
    state = None
    number, at_once = 0, 1 if workers else 11
    while number < len(whole):
        found, state = run(folder, given, "loader", workers, min(at_once, len(whole) - number), state)
        assert found == whole[number : number + at_once]
        number += len(found)
    assert run(folder, given, "loader", workers, state=state)[0] == []


def test_a_pass_goes_on_with_other_ranks_and_accumulation(
    corpora: Corpora, settings: Settings, encode: Encoder
) -> None:
    corpus = corpora["mixed"]
    expected = rows_of_pass(corpus, encode)
    steps = 5
    two = finite(settings, batch_size=3, grad_accum=2, world_size=2)
    parts = [run(corpus.folder, {**two, "rank": rank}, batches=2 * steps) for rank in range(2)]
    assert in_order([found for found, _ in parts], 2) == expected[: 12 * steps]
    states = [state for _, state in parts]
    rest = expected[12 * steps :] + [empty_row(encode)] * (-len(expected) % 12)
    one = finite(settings, batch_size=12, world_size=1)
    assert in_order([run(corpus.folder, one, state=states)[0]], 1) == rest
    four = finite(settings, batch_size=3, world_size=4)
    found = [run(corpus.folder, {**four, "rank": rank}, state=states)[0] for rank in range(4)]
    assert in_order(found, 1) == rest
    # Inside a step, only as it was.
    inside = [run(corpus.folder, {**two, "rank": rank}, batches=5)[1] for rank in range(2)]
    with pytest.raises(PilekitError, match="inside step 2, after 1 of 2 batches"):
        run(corpus.folder, one, state=inside)


def test_restoring_tokenizes_what_lies_in_open_windows_only(
    corpora: Corpora, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = finite(settings, batch_size=4)
    whole, _ = run(corpora["mixed"].folder, given)
    stream = PileStream(corpora["mixed"].folder, outputs=ALL, **given)
    _, state = run(corpora["mixed"].folder, given, batches=len(whole) - 4)
    stream.load_state_dict(json.loads(state))
    encoded = 0
    plainly = stream.tokenizer.encode_batch

    def counted(texts: list[str]) -> Any:
        nonlocal encoded
        encoded += len(texts)
        return plainly(texts)

    monkeypatch.setattr(stream.tokenizer, "encode_batch", counted)
    next(iter(stream))
    assert 0 < encoded <= 3 * given["window"]


@pytest.mark.parametrize("workers", [0, 2])
def test_passes_follow_each_other(corpora: Corpora, settings: Settings, workers: int) -> None:
    """As with a DistributedSampler: the same pass again, unless `set_epoch` chooses another."""
    stream = PileStream(corpora["few"].folder, **finite(settings, batch_size=2, seq_len=16))
    loader = stream.loader(num_workers=workers)

    def one() -> list[Any]:
        return [batch.documents() for batch in loader]

    first = one()
    assert one() == first
    stream.set_epoch(1)
    second = one()
    assert second != first
    stream.set_epoch(0)
    assert one() == first
    # An interrupted pass begins again after set_epoch, and resumes without it.
    next(iter(loader))
    stream.set_epoch(0)
    assert one() == first
    next(iter(loader))
    assert one() == first[1:]


def test_set_epoch_of_a_loaded_pass_goes_on(corpora: Corpora, settings: Settings) -> None:
    """Trainers call it at the beginning of each epoch, also of an epoch that they resume."""
    given = finite(settings, batch_size=2, seq_len=16)
    stream = PileStream(corpora["few"].folder, **given)
    stream.set_epoch(3)
    whole = [batch.documents() for batch in stream]
    batches = iter(stream)
    next(batches)
    state = stream.state_dict()
    for epoch, rest in ((3, whole[1:]), (4, None)):
        again = PileStream(corpora["few"].folder, **given)
        again.load_state_dict(state)
        again.set_epoch(epoch)
        found = [batch.documents() for batch in again]
        assert found == rest or (rest is None and len(found) >= len(whole) - 1 and found != whole)


def test_a_stock_loader_with_workers_begins_a_whole_pass(corpora: Corpora, settings: Settings) -> None:
    stream = PileStream(corpora["few"].folder, **finite(settings, batch_size=2, seq_len=16))
    passes = []
    for _ in range(2):
        found = []
        for batch in DataLoader(stream, batch_size=None, num_workers=2):
            stream.advance(batch)
            found.append(batch.documents())
        passes.append(found)
    assert passes[0] == passes[1] != []
    # But after loading a state at the last batch, nothing is left.
    state = stream.state_dict()
    stream.load_state_dict(state)
    assert list(DataLoader(stream, batch_size=None, num_workers=2)) == []


def test_peek_and_stats(corpora: Corpora, settings: Settings, encode: Encoder) -> None:
    corpus = corpora["mixed"]
    given = finite(settings, batch_size=4, world_size=2, rank=1)
    stream = PileStream(corpus.folder, **given)
    expected = rows_of_pass(corpus, encode)
    for batches in (0, 3):
        list(itertools.islice(iter(stream), batches))
        for step in (5, 1):
            found = [tuple(documents) for documents in stream.peek(step)]
            assert found == [row.documents for row in expected[8 * step : 8 * step + 8]]
    both = [PileStream(corpus.folder, **{**given, "rank": rank}) for rank in range(2)]
    for one in both:
        list(one)
    stats = [one.stats() for one in both]
    assert sum(one["documents"] for one in stats) == len(corpus.lines)
    assert sum(one["tokens"] for one in stats) == sum(len(encode(line.text)) for line in corpus.lines)
    assert sum(one["rows"] for one in stats) == len(expected)


def test_what_cannot_be(corpora: Corpora, settings: Settings) -> None:
    folder = corpora["few"].folder
    wrong: list[tuple[Settings, str]] = [
        ({"epochs": 0}, "epochs is a whole number from 1 on"),
        ({"epochs": 1.5}, "epochs is a whole number from 1 on"),
        ({"epochs": 1, "lanes": (2, 2)}, r"epochs=1 and lanes=\(2, 2\) exclude each other"),
    ]
    for changes, words in wrong:
        with pytest.raises(PilekitError, match=words):
            PileStream(folder, **{**finite(settings), **changes})
    stream = PileStream(folder, **finite(settings))
    with pytest.raises(PilekitError, match="epoch is a whole number"):
        stream.set_epoch(-1)
    state = stream.state_dict()
    others: list[Settings] = [{"epochs": 2}, {"drop_last": True}, {"epochs": None}]
    for changes, field in zip(others, ("epochs", "drop_last", "epochs"), strict=True):
        with pytest.raises(PilekitError, match=f"its {field} is"):
            PileStream(folder, **{**finite(settings), **changes}).load_state_dict(state)


def test_fewer_documents_than_ranks(tmp_path: Path, settings: Settings) -> None:
    made(tmp_path, [1], form="single", text_of=lambda rng: "abc")
    found = [run(tmp_path, finite(settings, batch_size=2, rank=rank, world_size=5))[0] for rank in range(5)]
    assert [len(batches) for batches in found] == [1] * 5
    assert sum(bool(row.documents) for batches in found for batch in batches for row in batch) == 1
