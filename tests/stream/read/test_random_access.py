"""Random access: each lane's documents, from any place on, equal the reference document for document."""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.corpus import Corpus
from pilekit.dedup.run import deduplicate
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.pipeline import Document as Read
from pilekit.pipeline import Stage, document_filter, document_map
from pilekit.shards.keep_mask import read_mask
from pilekit.shards.random_access import lines_by_number, open_readers
from pilekit.shards.read.zstd_frames import decompress_whole
from pilekit.stream.order import repeats
from pilekit.stream.order.selection import Selection, indexes_of
from pilekit.stream.order.unit_sequence import Sequence as Units
from pilekit.stream.read.random_access import RandomAccess
from tests.stream.corpora import (
    SUBSETS,
    Form,
    Made,
    few,
    made,
    mixed,
    record,
    text,
    uneven,
    with_bad_lines,
    write_shard,
)
from tests.stream.reference import Document, Line, Plan, lane_documents, selected, unit_of
from tests.web_server import serving

FORMS: list[tuple[Callable[[Path, Form], Made], Form]] = [
    (mixed, "frames"),
    (uneven, "frames"),
    (few, "plain"),
    (with_bad_lines, "single"),
    (mixed, "plain"),
]

FEW = 250
"""The number of documents of a lane that are compared."""


class Found(NamedTuple):
    """One use of a document."""

    position: int
    order: int
    shard: str
    number: int
    subset: str
    text: str


def found_of(document: Document) -> Found:
    line = document.line
    return Found(document.position, document.order, line.shard, line.number, line.subset, line.text)


@dataclass(frozen=True)
class Asked:
    """The settings of a stream that random access uses."""

    lanes: int
    seed: int = 0
    unit: int | None = None
    subsets: tuple[str, ...] | None = None
    repeats: dict[str, float] = field(default_factory=dict)
    shuffle: bool = True

    def plan(self, shards: Sequence[str] = ()) -> Plan:
        return Plan(
            tuple(shards), self.lanes, 1, self.lanes, 8, self.seed,
            unit=self.unit, subsets=self.subsets, repeats=self.repeats, shuffle=self.shuffle,
        )  # fmt: skip

    def expected(self, lines: Sequence[Line], shards: Sequence[str], lane: int) -> Iterator[Found]:
        return map(found_of, lane_documents(lines, self.plan(shards), lambda _: [], lane))  # type: ignore[arg-type]

    def is_barren(self, lines: Sequence[Line], lane: int) -> bool:
        """Whether the lane, unshuffled, only ever reads copies of units in which no document has that many repeats."""
        if self.shuffle:
            return False
        documents = selected(lines, self.plan())
        unit = self.unit or unit_of(len(documents), self.lanes)
        units = [documents[begin : begin + unit] for begin in range(0, len(documents), unit)]
        per_epoch = len(units) * repeats.copies(self.repeats, self.subsets)
        places = {position % per_epoch for position in range(lane, lane + per_epoch * self.lanes, self.lanes)}
        return not any(
            self.repeats.get(line.subset, 1.0) > place // len(units)
            for place in places
            for line in units[place % len(units)]
        )

    def source(self, data: Any, filters: Sequence[Stage] = (), dedup: Path | None = None) -> RandomAccess:
        corpus = data if isinstance(data, Corpus) else Corpus(data)
        dropped = {label for label, factor in self.repeats.items() if factor == 0}
        selection = Selection.of(corpus, indexes_of(corpus, "skip"), self.subsets, dropped, dedup)
        unit = self.unit or unit_of(len(selection), self.lanes)
        copies = repeats.copies(self.repeats, self.subsets)
        sequence = Units(len(selection), unit, copies, self.seed, self.lanes, self.shuffle)
        return RandomAccess(selection, sequence, self.repeats, filters)


def read(source: RandomAccess, lane: int, position: int | None = None, document: int = 0) -> Iterator[Found]:
    """A lane's documents; also checks the form of the pieces in which they come."""
    expected = position = lane if position is None else position
    for piece in source.documents(lane, position, document):
        assert piece.position == expected, "each of the lane's units comes, if only as an empty piece"
        expected += source.sequence.lanes
        assert piece.orders.dtype == piece.shards.dtype == piece.numbers.dtype == np.int64
        assert not piece.skipped.any()
        assert (np.diff(piece.orders) > 0).all()
        names = [source.selection.corpus.shards[shard].name for shard in piece.shards.tolist()]
        rows = (piece.orders.tolist(), names, piece.numbers.tolist(), piece.subsets, piece.texts)
        for row in zip(*rows, strict=True):
            yield Found(piece.position, *row)


def names(folder: Path) -> list[str]:
    return [shard.name for shard in Corpus(folder).shards]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    folder = tmp_path_factory.mktemp("corpora")
    found = [make(folder / f"{number}", form) for number, (make, form) in enumerate(FORMS)]
    return [*found, made(folder / "whole", [150, 150, 150], blank=0)]


@settings(max_examples=25)
@given(
    st.integers(0, 5),
    st.sampled_from([1, 3, 8, 40]),
    st.integers(0, 1 << 63),
    st.none() | st.integers(1, 50),
    st.none() | st.lists(st.sampled_from(SUBSETS), min_size=2, unique=True).map(tuple),
    st.dictionaries(st.sampled_from(SUBSETS), st.sampled_from([0.0, 0.3, 0.5, 2.0, 2.75, 4.0]), max_size=3),
    st.booleans(),
    st.data(),
)
def test_each_lane_reads_what_the_reference_does_from_any_place_on(
    corpora: list[Made],
    which: int,
    lanes: int,
    seed: int,
    unit: int | None,
    subsets: tuple[str, ...] | None,
    repeats: dict[str, float],
    shuffle: bool,
    data: st.DataObject,
) -> None:
    if subsets is not None:
        repeats = {label: factor for label, factor in repeats.items() if label in subsets}
        if all(repeats.get(label) == 0 for label in subsets):
            repeats = {}
    asked, corpus = Asked(lanes, seed, unit, subsets, repeats, shuffle), corpora[which]
    if not any((subsets is None or line.subset in subsets) and repeats.get(line.subset) != 0 for line in corpus.lines):
        return
    source = asked.source(corpus.folder)
    for lane in {0, lanes - 1, data.draw(st.integers(0, lanes - 1))}:
        if asked.is_barren(corpus.lines, lane):
            with pytest.raises(PilekitError, match=f"no document stays in lane {lane}"):
                list(islice(read(source, lane), FEW))
            continue
        expected = list(islice(asked.expected(corpus.lines, names(corpus.folder), lane), FEW + 50))
        assert list(islice(read(source, lane), FEW + 50)) == expected
        for _ in range(3):
            place = data.draw(st.integers(0, FEW - 1))
            # From the place after the document before, which may be far away, and from the document's own place.
            behind = expected[place - 1] if place else Found(lane, -1, "", 0, "", "")
            at = expected[place]
            for position, document in ((behind.position, behind.order + 1), (at.position, at.order)):
                assert list(islice(read(source, lane, position, document), 50)) == expected[place : place + 50]
    source.close()


def test_an_unshuffled_lane_that_would_never_get_a_document_says_so(tmp_path: Path) -> None:
    """Eight documents on sixteen lanes, twice each: a lane has one place, and the second copies are of one subset."""
    corpus = made(tmp_path / "corpus", [8], blank=0)
    label = corpus.lines[3].subset
    asked = Asked(16, unit=1, repeats={label: 2.0}, shuffle=False)
    source = asked.source(corpus.folder)
    barren = [lane for lane in range(16) if lane >= 8 and corpus.lines[lane - 8].subset != label]
    assert barren
    assert barren == [lane for lane in range(16) if asked.is_barren(corpus.lines, lane)]
    for lane in range(16):
        if lane in barren:
            with pytest.raises(PilekitError, match=rf"no document stays in lane {lane}: .*; loosen them, or shuffle"):
                next(read(source, lane))
        else:
            assert next(read(source, lane)).number == lane % 8
    source.close()
    source = Asked(16, unit=1, repeats={label: 2.0}).source(corpus.folder)
    assert all(next(read(source, lane)) for lane in range(16))  # shuffled, every lane gets every document in time
    source.close()


@document_filter
def short(document: Read) -> bool:
    return len(document.text) < 40


@document_map
def loud(document: Read) -> str:
    return document.text.upper() + document.subset


def in_two_parts(batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    for batch in batches:
        half = len(batch) // 2
        yield batch.take(range(half))
        yield batch.take(range(half, len(batch)))


def test_filters(corpora: list[Made]) -> None:
    corpus, asked = corpora[0], Asked(3, repeats={"ArXiv": 2.0})
    expected = [
        replaced._replace(text=replaced.text.upper() + replaced.subset)
        for replaced in islice(asked.expected(corpus.lines, names(corpus.folder), 1), FEW)
        if len(replaced.text) < 40
    ]
    source = asked.source(corpus.folder, [short, in_two_parts, loud])
    assert list(islice(read(source, 1), len(expected))) == expected
    for place in (3, len(expected) // 2):
        last = expected[place - 1]
        assert list(islice(read(source, 1, last.position, last.order + 1), 40)) == expected[place : place + 40]


def twice(batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    for batch in batches:
        yield batch
        yield batch.take([len(batch) - 1])


def renumbered(batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    for batch in batches:
        yield replace(batch, numbers=batch.numbers + 1_000_000)


@pytest.mark.parametrize("stage", [twice, renumbered])
def test_a_stage_that_makes_documents_up(corpora: list[Made], stage: Stage) -> None:
    with pytest.raises(PilekitError, match=r"the filters \(.*\) give documents that they were not given, or one twice"):
        next(Asked(2).source(corpora[0].folder, [stage]).documents(0, 0, 0))


@document_filter
def none(document: Read) -> bool:
    return False


def test_filters_that_leave_nothing_raise(corpora: list[Made]) -> None:
    source = Asked(8).source(corpora[2].folder, [none])
    with pytest.raises(PilekitError, match=r"no document stays in lane 0: .* drop all of [\d,]+ in a row"):
        list(source.documents(0, 0, 0))


@pytest.mark.parametrize("end", [0, 1, 40])
def test_a_finite_pass_ends_there_and_may_be_empty(corpora: list[Made], end: int) -> None:
    asked = Asked(3, unit=20)
    source = asked.source(corpora[0].folder)
    finite = RandomAccess(source.selection, source.sequence, end=end)
    nothing = RandomAccess(source.selection, source.sequence, filters=[none], end=200)
    for lane in range(3):
        expected = list(takewhile(lambda each: each.position < end, read(source, lane)))
        assert list(read(finite, lane)) == expected
        if len(expected) > 3:
            place = expected[-3]
            assert list(read(finite, lane, place.position, place.order)) == expected[-3:]
        assert list(read(nothing, lane)) == []


def store(folder: Path, form: str, documents: Sequence[tuple[str, str]]) -> None:
    folder.mkdir(parents=True)
    lines = [record(text, label) for text, label in documents]
    if form == "parquet":
        metas = [{"pile_set_name": label} for _, label in documents]
        table = pa.table({"text": [text for text, _ in documents], "meta": metas})
        pq.write_table(table, folder / "a.parquet", row_group_size=30)
    elif form == "gz":
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    else:
        write_shard(folder / "a", lines, form)  # type: ignore[arg-type]


def test_however_it_is_stored_and_wherever(tmp_path: Path) -> None:
    rng = random.Random(5)
    documents = [(text(rng, rng.randrange(40)), rng.choice(SUBSETS)) for _ in range(200)]
    asked, read_as = Asked(2, repeats={"ArXiv": 2.0, "Github": 0.5}), {}
    for form in ("frames", "single", "plain", "gz", "parquet"):
        store(tmp_path / form, form, documents)
        found = islice(read(asked.source(tmp_path / form), 1), 300)
        # A Parquet file has another name, which does not matter here.
        read_as[form] = [each._replace(shard="") for each in found]
    with serving(tmp_path / "frames") as server:
        shard = next(path for path in (tmp_path / "frames").iterdir() if path.name.endswith(".zst"))
        read_as["url"] = [
            each._replace(shard="") for each in islice(read(asked.source(f"{server.url}{shard.name}"), 1), 300)
        ]
    lines = [Line("", number, label, content) for number, (content, label) in enumerate(documents)]
    expected = list(islice(asked.expected(lines, [""], 1), 300))
    assert all(found == expected for found in read_as.values()), [
        form for form, found in read_as.items() if found != expected
    ]


def test_a_small_corpus_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, [400, 100], subsets=["ArXiv", "Github"])
    decoded = 0

    def counting(data: memoryview, size: int) -> bytes | None:
        nonlocal decoded
        decoded += 1
        return decompress_whole(data, size)

    monkeypatch.setattr(lines_by_number, "decompress_whole", counting)
    for small in (True, False):
        if not small:
            monkeypatch.setattr(open_readers, "WHOLE_BYTES", 1000)
        source = Asked(1, unit=5).source(tmp_path)
        frames = sum(len(index.frames) for index in source.selection.indexes)
        decoded = 0
        for unit in range(2 * source.sequence.units):
            next(source.documents(0, unit, 0))
        assert (decoded <= frames) if small else (decoded > 2 * frames)


@pytest.fixture(scope="module")
def deduplicated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("deduplicated")
    rng = random.Random(8)
    repeated = [text(rng, 60) for _ in range(5)]
    made(folder / "corpus", [80, 80], text_of=lambda rng: rng.choice(repeated) if rng.random() < 0.3 else text(rng, 60))
    deduplicate(Corpus(folder / "corpus"), out=folder / "dedup", write=False)
    return folder / "corpus", folder / "dedup"


def read_epoch(source: RandomAccess, lane: int) -> list[Found]:
    found: list[Found] = []
    for each in read(source, lane):
        if each.position >= source.sequence.per_epoch:
            return found
        found.append(each)
    raise AssertionError("a lane has no end")


def test_another_shard_of_the_same_name_and_length_is_not_what_was_deduplicated(
    deduplicated: tuple[Path, Path], tmp_path: Path
) -> None:
    corpus, dedup = deduplicated
    shutil.copytree(corpus, tmp_path / "corpus")
    for place in (tmp_path / "corpus").glob("01*"):
        place.unlink()
    lines = read_mask(dedup / "masks" / "01.jsonl.mask").header.lines
    write_shard(tmp_path / "corpus" / "01", [record(f"another {i}", "ArXiv") for i in range(lines)], "frames")
    with pytest.raises(PilekitError, match=r"01\.jsonl: document \d+ is not the one that was deduplicated in"):
        Asked(1, unit=5).source(tmp_path / "corpus", dedup=dedup)


def test_what_was_changed_meanwhile_is_told(tmp_path: Path) -> None:
    documents = [record(f"{i:04}" + "x" * 200, "ArXiv") for i in range(100)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(documents))
    source = Asked(1, unit=10, subsets=("ArXiv", "Github")).source(tmp_path)
    only = Asked(1, unit=10, subsets=("ArXiv",)).source(tmp_path)
    for changed, which, why in (
        (
            [*documents[:50], b" " * len(documents[50]), *documents[51:]],
            source,
            r"a\.jsonl, line 51: is blank; .*",
        ),
        ([*documents[:50], b"{" + documents[50][1:-1] + b"]", *documents[51:]], source, r"a\.jsonl, line 51: is not J"),
        ([line.replace(b"ArXiv", b"Githu") for line in documents], only, "documents have other subsets.*pilekit index"),
        (documents[:50], source, "does not fit|cut off|another size"),
    ):
        path.write_bytes(b"\n".join(changed))
        which.close()
        with pytest.raises(PilekitError, match=why) as raised:
            read_epoch(which, 0)
        assert "\n" not in str(raised.value)
