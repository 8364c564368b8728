"""The sequential plan against its plain form: every document in order, from every place, on every kind of shard."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.pipeline import Document, document_filter, document_map
from pilekit.shards.read.reader import read
from pilekit.stream.read.sequential import Sequential, default_grid
from tests.stream import corpora, reference
from tests.stream.corpora import Made
from tests.stream.reference import Line
from tests.web_server import serving


class Use(NamedTuple):
    """One use of a document."""

    position: int
    order: int
    line: Line


def uses(source: Sequential, lane: int, position: int = 0, document: int = 0) -> Iterator[Use]:
    """The lane's documents one by one; also checks each piece's invariants."""
    names = [shard.name for shard in source.corpus.shards]
    for piece in source.documents(lane, position, document):
        assert piece.orders.dtype == piece.numbers.dtype == piece.shards.dtype == np.int64
        assert (np.diff(piece.orders) > 0).all()
        columns = (piece.orders.tolist(), piece.texts, piece.subsets, piece.shards.tolist(), piece.numbers.tolist())
        for order, text, subset, shard, number in zip(*columns, strict=True):
            yield Use(piece.position, order, Line(names[shard], number, subset, text))


def expected(made: Made, source: Sequential, lane: int, **also: Any) -> Iterator[Use]:
    plan = reference.Plan(
        tuple(shard.name for shard in source.corpus.shards),
        rows=source.lanes,
        columns=1,
        global_batch_size=source.lanes,
        seq_len=8,
        seed=source.seed,
        subsets=source.subsets,
        repeats=source.repeats,
        shuffle=source.shuffle,
        **also,
    )
    for found in reference.sequential_documents(made.lines, plan, lambda text: [], lane):  # type: ignore[arg-type]
        yield Use(found.position, found.order, found.line)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("mixed")
    return corpora.made(folder, [40, 2, 60, 25, 0, 31, 30], form="single", subsets=[*corpora.SUBSETS, "Recipes", None])


@given(data=st.data())
def test_each_lane_reads_its_shards_in_every_epoch(mixed: Made, data: st.DataObject) -> None:
    subsets = data.draw(st.none() | st.sets(st.sampled_from(corpora.SUBSETS), min_size=1).map(tuple))
    factors = st.sampled_from([0.0, 0.3, 1.5, 2.0, 3.25])
    repeats = data.draw(st.dictionaries(st.sampled_from(subsets or corpora.SUBSETS), factors))
    if subsets is not None and all(repeats.get(name) == 0 for name in subsets):
        repeats = {}
    source = Sequential(
        Corpus(mixed.folder),
        lanes=data.draw(st.integers(1, 3)),
        seed=data.draw(st.integers(0, 2**63)),
        subsets=subsets,
        repeats=repeats,
        shuffle=data.draw(st.booleans()),
    )
    lane = data.draw(st.integers(0, source.lanes - 1))
    shards = {source.corpus.shards[index].name for index in source.shards_of(lane)}
    chosen = {line.subset for line in mixed.lines if line.shard in shards and (not subsets or line.subset in subsets)}
    if not any(repeats.get(name, 1) for name in chosen):
        with pytest.raises(PilekitError, match="no documents"):
            next(uses(source, lane))
        return
    plain = list(islice(expected(mixed, source, lane), 300))
    assert list(islice(uses(source, lane), 300)) == plain
    # From every place that a state could name: after each document.
    behind = data.draw(st.integers(0, 250))
    place = plain[behind]
    assert list(islice(uses(source, lane, place.position, place.order + 1), 40)) == plain[behind + 1 : behind + 41]


def test_an_epoch_of_all_lanes_is_every_document(mixed: Made) -> None:
    repeats = {"ArXiv": 2.0, "Github": 0.0}
    source = Sequential(Corpus(mixed.folder), lanes=2, seed=5, repeats=repeats)
    for epoch in range(2):
        read_lines: Counter[Line] = Counter()
        for lane in range(2):
            per_epoch = source.per_epoch(lane)
            assert per_epoch == 2 * len(source.shards_of(lane))
            lines = uses(replace(source, end=(epoch + 1) * per_epoch), lane, epoch * per_epoch)
            read_lines.update(use.line for use in lines)
        times = {line: int(repeats.get(line.subset, 1)) for line in mixed.lines}
        assert read_lines == Counter({line: count for line, count in times.items() if count})


def test_filters_and_maps(mixed: Made) -> None:
    @document_filter
    def short(document: Document) -> bool:
        return len(document.text) < 40

    @document_map
    def louder(document: Document) -> str:
        return document.text.upper()

    source = Sequential(Corpus(mixed.folder), lanes=2, seed=0, stages=(short, louder))
    plain = expected(mixed, source, 1, keep=lambda line: len(line.text) < 40)
    for found, line in zip(islice(uses(source, 1), 200), plain, strict=False):
        assert found == line._replace(line=replace(line.line, text=line.line.text.upper()))


def test_a_stage_that_reorders_is_refused(mixed: Made) -> None:
    def twice(batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        for batch in batches:
            yield batch
            yield batch

    with pytest.raises(PilekitError, match=r"06\.jsonl: a stage of filters= gives its documents in another order"):
        list(uses(Sequential(Corpus(mixed.folder / "06.jsonl.zst"), 1, 0, stages=(twice,), end=1), 0))


@pytest.fixture(scope="module")
def with_bad_lines(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return corpora.made(tmp_path_factory.mktemp("bad"), [70, 1, 60], form="single", seed=3, bad=0.1)


def test_a_bad_line_is_an_error_with_its_place(with_bad_lines: Made) -> None:
    shard, number = with_bad_lines.bad[0]
    with pytest.raises(PilekitError, match=rf"{shard}\.zst, line {number + 1}: "):
        list(uses(Sequential(Corpus(with_bad_lines.folder), 1, 0, shuffle=False, end=3), 0))


def test_skipped_lines_are_counted_once_wherever_reading_began_anew(with_bad_lines: Made) -> None:
    source = Sequential(Corpus(with_bad_lines.folder), 1, seed=7, on_error="skip", end=3)
    places: list[tuple[int, int, int]] = [(0, 0, 0)]
    count = 0
    for piece in source.documents(0, 0, 0):
        for order, skipped in zip(piece.orders.tolist(), piece.skipped.tolist(), strict=True):
            count += skipped
            places.append((piece.position, order + 1, count))
    # No document follows the bad lines after the lane's last document.
    assert len(with_bad_lines.bad) - 10 < count <= len(with_bad_lines.bad) > 10
    assert len(places) == len(with_bad_lines.lines) + 1
    for number, (position, document, before) in enumerate(places):
        rest = list(source.documents(0, position, document))
        assert before + sum(int(piece.skipped.sum()) for piece in rest) == count
        assert sum(map(len, rest)) + number == len(with_bad_lines.lines)


def test_more_bad_lines_at_once_than_are_listed(tmp_path: Path) -> None:
    record = corpora.record("x", "ArXiv")
    corpora.write_shard(tmp_path / "00", [b"bad"] * 350 + [record] + [b"bad"] * 20 + [record], "single")
    source = Sequential(Corpus(tmp_path), 1, seed=0, on_error="skip", end=1)
    (piece,) = source.documents(0, 0, 0)
    # Only a hundred bad lines of one piece of 2 MiB have places; the total is right nevertheless.
    assert piece.numbers.tolist() == [350, 371]
    assert piece.skipped.sum() == 370


def test_blank_lines_and_nothing_else(tmp_path: Path, mixed: Made) -> None:
    corpora.write_shard(tmp_path / "00", [b"", b" "], "single")
    corpora.write_shard(tmp_path / "01", [corpora.record("x", "ArXiv")], "single")
    corpora.write_shard(tmp_path / "02", [b""], "single")
    with pytest.raises(PilekitError, match=r"no documents at all are left in 00\.jsonl, 02\.jsonl, .* lane 0 of 2"):
        next(uses(Sequential(Corpus(tmp_path), 2, 0), 0))
    assert len(list(islice(uses(Sequential(Corpus(tmp_path), 2, 0), 1), 10))) == 10
    with pytest.raises(PilekitError, match=r"no documents of Books3 are left in 00\.jsonl, .* and 2 more, all"):
        next(uses(Sequential(Corpus(mixed.folder), 1, 0, subsets=("Books3",)), 0))


def test_a_lane_that_begins_inside_an_epoch_looks_at_a_whole_one(tmp_path: Path) -> None:
    """The rest of an epoch can be empty without an error."""
    corpora.write_shard(tmp_path / "00", [corpora.record("x", "ArXiv")], "single")
    corpora.write_shard(tmp_path / "01", [b""] * 5, "single")
    source = Sequential(Corpus(tmp_path), 1, 0, shuffle=False)
    assert [use.position for use in islice(uses(source, 0, 1, 0), 3)] == [2, 4, 6]
    assert [use.position for use in islice(uses(source, 0, 0, 1), 3)] == [2, 4, 6]


def test_more_lanes_than_shards(mixed: Made) -> None:
    with pytest.raises(PilekitError, match=r"8 lanes cannot share 7 shards .*lanes=\(rows, columns\).*pilekit reframe"):
        Sequential(Corpus(mixed.folder), lanes=8, seed=0)


@pytest.mark.parametrize(
    ("shards", "world_size", "grid"),
    [(30, 1, (1, 8)), (30, 2, (2, 8)), (30, 8, (8, 3)), (30, 30, (30, 1)), (1, 1, (1, 1))],
)
def test_the_default_grid_gives_each_lane_a_shard(shards: int, world_size: int, grid: tuple[int, int]) -> None:
    assert default_grid(shards, world_size) == grid


def test_fewer_shards_than_ranks() -> None:
    with pytest.raises(PilekitError, match=r"64 ranks cannot share 30 shards .*at most 30 ranks.*`pilekit reframe`"):
        default_grid(30, 64)


def test_gzip_parquet_plain_and_urls(mixed: Made, tmp_path: Path) -> None:
    source = Sequential(Corpus(mixed.folder), lanes=2, seed=0, subsets=("ArXiv", "Github"), end=4)
    plain = {lane: list(uses(source, lane)) for lane in range(2)}
    with serving(mixed.folder) as server:
        of_url = replace(source, corpus=Corpus([f"{server.url}{index:02d}.jsonl.zst" for index in range(7)]))
        assert {lane: list(uses(of_url, lane)) for lane in range(2)} == plain
    for shard in Corpus(mixed.folder).shards:
        with read(shard) as reader:
            batches = list(reader)
        raw = [line for batch in batches for line in batch.raw_lines()]
        number = int(shard.name[:2])
        if number % 2:
            # Numbers are those of lines, blank ones included.
            lines = [b""] * (1 + max((int(batch.numbers[-1]) for batch in batches), default=0))
            for batch in batches:
                for at, line in zip(batch.numbers.tolist(), batch.raw_lines(), strict=True):
                    lines[at] = bytes(line)
            (tmp_path / f"{shard.name}.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
        else:
            assert len(raw) == sum(map(len, batches))
            texts = [text for batch in batches for text in batch.texts]
            labels = [label for batch in batches for label in batch.subsets]
            columns = {"text": pa.array(texts, pa.string()), "meta.pile_set_name": pa.array(labels, pa.string())}
            table = pa.table(columns)
            pq.write_table(table, tmp_path / f"{number:02d}.parquet")
    other = replace(source, corpus=Corpus(tmp_path))
    for lane in range(2):
        found = [(use.position, use.line.text) for use in uses(other, lane)]
        assert found == [(use.position, use.line.text) for use in plain[lane]]


def test_closing_a_lane_ends_its_thread(tmp_path: Path) -> None:
    corpora.made(tmp_path, [30], form="single", text_of=lambda rng: "x" * 1_000_000)
    before = set(threading.enumerate())
    lane = Sequential(Corpus(tmp_path), 1, 0).documents(0, 0, 0)
    next(lane)
    started = set(threading.enumerate()) - before
    assert started
    lane.close()
    for thread in started:
        thread.join(60)
    assert not started & set(threading.enumerate())
