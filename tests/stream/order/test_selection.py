"""The documents of a selection, against plain lists; where selecting is free, nothing may be read."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus
from pilekit.dedup.run import deduplicate
from pilekit.errors import PilekitError
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.keep_mask import read_mask
from pilekit.stream.order.selection import Selection, indexes_of
from tests.stream.corpora import SUBSETS, Made, made, record, write_shard
from tests.stream.reference import Line

LABELS = [*SUBSETS, "Recipes", "(none)"]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    """Shards of many sizes, an empty one among them, with blank and bad lines or only documents."""
    folder = tmp_path_factory.mktemp("corpora")
    labels = [*SUBSETS, "Recipes", None]
    ragged = made(folder / "0", [40, 1, 300, 2, 0, 77], subsets=labels, bad=0.05)
    write_shard(folder / "0" / "04", [b"", b" "], "frames")
    return [ragged, made(folder / "1", [50, 90], subsets=labels, blank=0), made(folder / "2", [5], form="single")]


@pytest.fixture
def rows_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: ShardIndex, names: object = None) -> Iterator[object]:
        raise AssertionError("no row of an index is needed")

    monkeypatch.setattr(ShardIndex, "row_groups", never)


def select(folder: Path, **options: object) -> Selection:
    corpus = Corpus(folder)
    return Selection.of(corpus, indexes_of(corpus, "skip"), **options)  # type: ignore[arg-type]


def located(selection: Selection, begin: int, end: int) -> list[tuple[str, int]]:
    found = selection.locate(begin, end)
    shards = [shard for shard, _ in found]
    assert shards == sorted(set(shards))
    assert all(len(numbers) and numbers.dtype == np.int64 for _, numbers in found)
    return [(selection.corpus.shards[shard].name, number) for shard, numbers in found for number in numbers.tolist()]


def identities(lines: list[Line]) -> list[tuple[str, int]]:
    return [(line.shard, line.number) for line in lines]


@given(
    st.integers(0, 2),
    st.none() | st.sets(st.sampled_from(LABELS), min_size=1),
    st.sets(st.sampled_from(LABELS), max_size=3),
    st.data(),
)
def test_of_any_subsets(
    corpora: list[Made], which: int, subsets: set[str] | None, dropped: set[str], data: st.DataObject
) -> None:
    corpus = corpora[which]
    expected = [
        line for line in corpus.lines if (subsets is None or line.subset in subsets) and line.subset not in dropped
    ]
    if not expected:
        with pytest.raises(PilekitError, match="no document is selected by"):
            select(corpus.folder, subsets=subsets, dropped=dropped)
        return
    selection = select(corpus.folder, subsets=subsets, dropped=dropped)
    assert len(selection) == len(expected)
    assert selection.skipped == len(corpus.bad)
    assert {label for label in LABELS if selection.selects(label)} == (subsets or set(LABELS)) - dropped
    assert located(selection, 0, len(expected)) == identities(expected)
    for _ in range(5):
        begin = data.draw(st.integers(0, len(expected)))
        end = data.draw(st.integers(begin, len(expected)))
        assert located(selection, begin, end) == identities(expected)[begin:end]


@pytest.mark.usefixtures("rows_are_not_read")
def test_all_documents_are_arithmetic(tmp_path: Path) -> None:
    corpus = made(tmp_path, [30, 50, 1], blank=0)
    selection = select(tmp_path)
    assert located(selection, 0, 81) == identities(list(corpus.lines))
    assert located(selection, 29, 31) == identities(list(corpus.lines))[29:31]


def test_bad_lines_raise_whoever_made_the_index(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([record("a", None), b"{\x1b", record("b", None)]))
    corpus = Corpus(tmp_path)
    for _ in range(2):
        with pytest.raises(PilekitError, match=r"a\.jsonl, line 2: is not JSON.*on_error=\"skip\"") as raised:
            indexes_of(corpus)
        assert "\x1b" not in str(raised.value)
        assert [index.header.skipped for index in indexes_of(corpus, "skip")] == [1]
    assert len(Selection.of(corpus, indexes_of(corpus, "skip"))) == 2


def test_recompressing_changes_nothing(tmp_path: Path) -> None:
    texts = [record(f"document {i}", "ArXiv") for i in range(50)]
    data = b"\n".join(texts) + b"\n"
    stored = {
        "a.jsonl": data,
        "a.jsonl.gz": gzip.compress(data),
        "a.jsonl.zst": b"".join(map(zstandard.compress, (data[:99], data[99:]))),
    }
    fingerprints = set()
    for name, content in stored.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(content)
        fingerprints.add(select(tmp_path / name).fingerprint)
        fingerprints.add(select(tmp_path / name, subsets=["ArXiv"]).fingerprint)
    assert len(fingerprints) == 1
    others = {
        "other": {"a.jsonl": data.replace(b"document 7", b"document 8")},
        "renamed": {"b.jsonl": data},
        "longer": {"a.jsonl": data + texts[0] + b"\n"},
        "more": {"a.jsonl": data, "b.jsonl": data},
    }
    for folder, files in others.items():
        (tmp_path / folder).mkdir()
        for name, content in files.items():
            (tmp_path / folder / name).write_bytes(content)
        assert select(tmp_path / folder).fingerprint not in fingerprints


def test_damage_in_the_rows_of_an_index_is_told(tmp_path: Path) -> None:
    made(tmp_path, [200])
    indexes_of(Corpus(tmp_path))
    (place,) = tmp_path.glob("*.index.parquet")
    column = pq.ParquetFile(place).metadata.row_group(0).column(0)
    data = bytearray(place.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 5] ^= 1
    place.write_bytes(data)
    with pytest.raises(PilekitError, match=r"index\.parquet: is damaged .* make it again with `pilekit index`"):
        select(tmp_path, subsets=["ArXiv"])


@pytest.fixture(scope="module")
def deduplicated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[tuple[str, int, str]]]:
    """(a corpus, its dedup, the documents kept: shard, number, label)."""
    folder = tmp_path_factory.mktemp("deduplicated")
    documents = []
    for shard in range(3):
        lines = []
        for i in range(60):
            words = " ".join(f"w{(i if i % 4 else 0) * 997 + k}" for k in range(40))
            if i % 10 == 9:
                lines.append(b"")
            documents.append((f"{shard:02}.jsonl", len(lines), LABELS[i % 3]))
            lines.append(record(words if i % 4 == 0 else f"{shard} {words} {shard}x{i}", LABELS[i % 3]))
        write_shard(folder / "corpus" / f"{shard:02}", lines, "frames")
    deduplicate(Corpus(folder / "corpus"), out=folder / "dedup")
    masks = {
        f"{shard:02}.jsonl": read_mask(folder / "dedup" / "masks" / f"{shard:02}.jsonl.mask") for shard in range(3)
    }
    kept = [each for each in documents if masks[each[0]].keeps(np.array([each[1]]))[0]]
    assert 0 < len(kept) < len(documents)
    return folder / "corpus", folder / "dedup", kept


def test_of_a_dedup(deduplicated: tuple[Path, Path, list[tuple[str, int, str]]]) -> None:
    corpus, dedup, kept = deduplicated
    for subsets in (None, {LABELS[0]}, {LABELS[1], LABELS[2]}):
        expected = [(shard, number) for shard, number, label in kept if subsets is None or label in subsets]
        selection = select(corpus, subsets=subsets, dedup=dedup)
        assert located(selection, 0, len(selection)) == expected


def test_a_dedup_of_other_shards(deduplicated: tuple[Path, Path, list[tuple[str, int, str]]], tmp_path: Path) -> None:
    _, dedup, _ = deduplicated
    write_shard(tmp_path / "a" / "00", [record("x", None)] * 5, "plain")
    with pytest.raises(PilekitError, match=r"00\.jsonl: has 5 lines, but what was deduplicated in .* has 66; run"):
        select(tmp_path / "a", dedup=dedup)
    write_shard(tmp_path / "b" / "07", [record("x", None)] * 5, "plain")
    with pytest.raises(PilekitError, match=r"07\.jsonl: was not deduplicated in"):
        select(tmp_path / "b", dedup=dedup)
    with pytest.raises(PilekitError, match="nowhere"):
        select(tmp_path / "a", dedup=tmp_path / "nowhere")
