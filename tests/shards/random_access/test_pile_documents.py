"""A corpus as a list: documents by position equal those of reading, in any process; chosen lines by rank."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from pilekit.corpus import Corpus, shard_of
from pilekit.documents import Document
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_corpus, index_of
from pilekit.shards.random_access.document_reader import OPEN_SHARDS
from pilekit.shards.random_access.pile_documents import PileDocuments
from pilekit.shards.random_access.selected_lines import Int64, LineBitmap, lines_of_subsets
from pilekit.shards.read.reader import read_corpus
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import LABELS, lines, record, zstd_frame


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, stored in three ways, of several frames; 301 documents."""
    folder = tmp_path_factory.mktemp("corpus")
    for number, suffix in enumerate(("zst", "gz", "zst")):
        with ShardWriter(folder / "train" / f"{number:02}.jsonl.{suffix}", frame_bytes=1500) as writer:
            writer.write_lines(
                record(f"{number}.{i} " + "é" * (i % 90), LABELS[i % 3]) for i in range(100 + (number == 1))
            )
    return folder


def identities(documents: Sequence[Document]) -> list[tuple[str, int]]:
    return [(document.shard, document.number) for document in documents]


def slow_corpus(data: Path | list[Path]) -> list[tuple[str, int, str, str]]:
    """(shard, number, text, label) of every document, by reading."""
    found = []
    for batch in read_corpus(Corpus(data), on_error="skip"):
        rows = zip(batch.numbers.tolist(), batch.texts, batch.subsets, strict=True)
        found += [(batch.shard, *row) for row in rows]
    return found


def fast_corpus(documents: Sequence[Document]) -> list[tuple[str, int, str, str]]:
    return [(document.shard, document.number, document.text, document.subset) for document in documents]


def test_it_is_the_list_of_all_documents(corpus: Path) -> None:
    documents, every = PileDocuments(corpus), slow_corpus(corpus)
    assert len(documents) == len(every) == 301
    assert fast_corpus(documents[:]) == fast_corpus(list(documents)) == every
    for place in (0, 99, 100, 200, 201, 300, -1, -301, np.int64(5), torch.tensor(7)):
        assert fast_corpus([documents[place]]) == [every[place]]  # type: ignore[index]
    for part in (slice(95, 105), slice(None, None, -7), slice(-3, None), slice(5, 2), slice(290, 1000)):
        assert fast_corpus(documents[part]) == every[part]
    for place in (301, -302, 10**20):
        with pytest.raises(IndexError, match=f"there is no document {place}, there are 301"):
            documents[place]
    with pytest.raises(TypeError):
        documents["0"]  # type: ignore[call-overload]
    assert documents[0].meta == {"pile_set_name": LABELS[0]}
    assert repr(documents).endswith(", 301 documents)")
    assert all(not index.built for index in index_corpus(Corpus(corpus))), "existing indexes are used"


@given(st.lists(st.lists(lines(), min_size=1, max_size=12), min_size=1, max_size=3), st.data())
def test_blank_and_bad_lines_and_subsets(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[bytes]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    for number, some in enumerate(shards):
        bad = data.draw(st.lists(st.integers(0, len(some)), max_size=3))
        for place in sorted(bad, reverse=True):
            some.insert(place, data.draw(st.sampled_from([b"{", b"", b'{"text": 0}'])))
        (folder / f"{number}.jsonl.zst").write_bytes(zstd_frame(b"\n".join(some) + b"\n"))
    every = slow_corpus(folder)
    subsets = data.draw(st.none() | st.lists(st.sampled_from(["ArXiv", "github", "(none)"]), min_size=1))
    if subsets is not None:
        exact = {"ArXiv": "ArXiv", "github": "Github", "(none)": "(none)"}
        every = [row for row in every if row[3] in {exact[name] for name in subsets}]
    documents = PileDocuments(folder, subsets=subsets)
    assert len(documents) == len(every)
    assert fast_corpus(documents[:]) == every
    order = data.draw(st.permutations(range(len(every))))
    assert fast_corpus([documents[place] for place in order]) == [every[place] for place in order]


def test_bad_lines_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([record("a"), b"{\x1b[31m", b"", b'{"text": 1}', record("b")]))
    assert [document.text for document in PileDocuments(path)] == ["a", "b"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert "a.jsonl: 2 bad lines left out, the first: line 2: is not JSON" in told


def test_arguments(corpus: Path) -> None:
    arxiv = [row for row in slow_corpus(corpus) if row[3] == "ArXiv"]
    for name in ("ArXiv", ["pile_arxiv"], ("arxiv", "ARXIV")):
        assert fast_corpus(PileDocuments(corpus, subsets=name)[:]) == arxiv
    assert len(PileDocuments(corpus, subsets=["Enron Emails"])) == 0
    shards = [corpus / "train" / "02.jsonl.zst", corpus / "train" / "00.jsonl.zst"]
    assert identities(PileDocuments(shards)[::100]) == [("00.jsonl", 0), ("02.jsonl", 0)]
    assert len(PileDocuments(Corpus(corpus))) == len(PileDocuments(corpus, manifest="pile-uncopyrighted")) == 301
    for data, options, why in (
        (corpus, {"subsets": ["arxif"]}, "ArXiv"),
        (corpus, {"subsets": []}, "subsets is empty"),
        ("-", {}, "standard input"),
    ):
        with pytest.raises(PilekitError, match=why):
            PileDocuments(data, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_stock_data_loader(corpus: Path, start: str) -> None:
    documents, every = PileDocuments(corpus), slow_corpus(corpus)
    documents[17]  # A file is open, and a frame is held, when the workers start.
    batches = list(DataLoader(documents, batch_size=8, num_workers=2, multiprocessing_context=start))
    assert isinstance(batches[0], Document)
    assert batches[0].meta == {"pile_set_name": [LABELS[i % 3] for i in range(8)]}
    found = [
        (shard, int(number), text, subset)
        for batch in batches
        for shard, number, text, subset in zip(batch.shard, batch.number, batch.text, batch.subset, strict=True)  # type: ignore[call-overload]
    ]
    assert found == every


def read_slowly(documents: PileDocuments, places: list[int], results: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    results.put(identities([documents[place] for place in places]))


def test_forked_processes_do_not_move_each_others_files(corpus: Path) -> None:
    documents, every = PileDocuments(corpus), [row[:2] for row in slow_corpus(corpus)]
    order = np.random.default_rng(0).permutation(len(documents)).tolist() * 3
    documents[0]
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    children = [fork.Process(target=read_slowly, args=(documents, order, results)) for _ in range(3)]
    for child in children:
        child.start()
    own = identities([documents[place] for place in order])
    found = [results.get(timeout=240) for _ in children]
    for child in children:
        child.join()
    assert [own, *found] == [[every[place] for place in order]] * 4


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_files_are_bounded_and_closed_and_no_pickle_holds_them(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number:02}.jsonl").write_bytes(record(f"{number}") + b"\n" + record("x") + b"\n")
    before = open_files()
    with PileDocuments(tmp_path) as documents:
        unused = len(pickle.dumps(documents))
        assert [document.text for document in documents[::2]] == [str(number) for number in range(60)]
        assert before < open_files() <= before + OPEN_SHARDS
        pickled = pickle.dumps(documents)
        assert len(pickled) == unused
    assert open_files() <= before  # garbage of earlier tests may close a file meanwhile
    assert documents[-2].text == "59"
    documents.close()
    assert open_files() <= before  # garbage of earlier tests may close a file meanwhile
    with pickle.loads(pickled) as copy:
        assert copy[:] == documents[:]


@st.composite
def chosen(draw: st.DrawFn) -> tuple[int, list[int]]:
    """(lines, some of their numbers): dense, sparse, none, all, in runs."""
    lines = draw(st.integers(0, 20_000))
    share = draw(st.sampled_from([0.0, 0.0005, 0.02, 0.5, 0.98, 1.0]))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    keep = random.random(lines) < share
    for _ in range(draw(st.integers(0, 3))):
        begin, end = sorted(random.integers(0, lines + 1, 2).tolist())
        keep[begin:end] = draw(st.booleans())
    return lines, np.flatnonzero(keep).tolist()


def parts_of(numbers: list[int], data: st.DataObject) -> list[Int64]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=4)))
    borders = zip([0, *cuts], [*cuts, len(numbers)], strict=True)
    return [np.array(numbers[begin:end], dtype=np.int64) for begin, end in borders]


def check(selected: LineBitmap, expected: list[int], data: st.DataObject) -> None:
    assert len(selected) == len(expected)
    for _ in range(5):
        begin = data.draw(st.integers(0, len(expected)))
        end = data.draw(st.integers(begin, len(expected)) | st.integers(begin, min(begin + 3, len(expected))))
        found = selected.numbers(begin, end)
        assert found.dtype == np.int64
        assert found.tolist() == expected[begin:end]


@given(chosen(), chosen(), st.data())
def test_ranks_of_any_choice_and_of_masked_choices(
    choice: tuple[int, list[int]], other: tuple[int, list[int]], data: st.DataObject
) -> None:
    lines, numbers = choice
    selected = LineBitmap.where(lines, parts_of(numbers, data))
    check(selected, numbers, data)
    mask = np.zeros(lines, dtype=bool)
    mask[[number for number in other[1] if number < lines]] = True
    bits = np.packbits(mask, bitorder="little")
    check(selected.and_bits(bits), [number for number in numbers if mask[number]], data)
    check(LineBitmap(lines).and_bits(bits), np.flatnonzero(mask).tolist(), data)


def test_all_lines_are_arithmetic() -> None:
    selected = LineBitmap(10**12)
    assert (len(selected), selected.bits) == (10**12, None)
    assert selected.numbers(10**11, 10**11 + 3).tolist() == [10**11, 10**11 + 1, 10**11 + 2]


def test_lines_of_subsets(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(record(str(i), LABELS[i % 3]) if i % 7 else b"" for i in range(100)))
    index = index_of(shard_of(str(path)))
    documents = [i for i in range(100) if i % 7]
    assert lines_of_subsets(index, None).numbers(0, len(documents)).tolist() == documents
    for label in LABELS[:4]:
        expected = [i for i in documents if LABELS[i % 3] == label]
        selected = lines_of_subsets(index, label.__eq__)
        assert selected.numbers(0, len(selected)).tolist() == expected
    with pytest.raises(PilekitError, match=r"its shard has 100 lines, more than can be chosen from \(99\)"):
        lines_of_subsets(index, None, most_lines=99)
