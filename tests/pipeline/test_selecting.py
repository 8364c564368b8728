"""Selecting part of a corpus: against a slow reference, after failures, and after an interrupt."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, corpus_stats
from pilekit.pipeline.selecting import select_corpus
from tests.cli.running import PILEKIT
from tests.memory_limit import value_and_peak
from tests.shards import making
from tests.stopping import interrupt, is_sound, stop_when, tree


def shards_of(folder: Path, **contents: bytes) -> Path:
    """A corpus of `train/<name>.jsonl.zst` files, each of one frame."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / "train" / f"{name}.jsonl.zst").write_bytes(making.zstd_frame(content))
    return folder


def shards_in(folder: Path) -> dict[str, bytes]:
    """The decompressed bytes of every output shard."""
    return {
        path.relative_to(folder).as_posix(): making.unzstd(path) if path.suffix == ".zst" else path.read_bytes()
        for path in sorted(folder.rglob("*.jsonl*"))
    }


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three shards: 200 documents of two subsets, 200 of one, 100 of another."""

    def lines(shard: str, labels: Sequence[str], count: int) -> bytes:
        records = (
            making.record(f"{shard} {number} " + "x" * (number % 50), labels[number % len(labels)])
            for number in range(count)
        )
        return b"".join(line + b"\n" for line in records)

    return shards_of(
        tmp_path / "data",
        a=lines("a", ["ArXiv", "Github"], 200),
        b=lines("b", ["Github"], 200),
        c=lines("c", ["Enron Emails"], 100),
    )


conditions = st.fixed_dictionaries(
    {},
    optional={
        "subsets": st.lists(st.sampled_from(["Github", "ArXiv", "Pile-CC", "Gutenberg (PG-19)"]), min_size=1),
        "sample": st.floats(0, 1),
        "seed": st.integers(0, 3),
        "match": st.sampled_from(["a", "[0-9]", "^$", "(?i)PILE", "\\S"]),
        "min_bytes": st.integers(0, 30),
    },
)


def reference(data: bytes, shard: str, wanted: dict[str, Any]) -> list[tuple[bytes, str, str]]:
    """(line, text, label) of every selected document, found without pilekit."""
    kept = []
    lines = data.split(b"\n")
    for number, text, label in making.slow_documents(data):
        identity = f"{wanted.get('seed', 0)}\0{shard}\0{number}".encode()
        if (
            ("subsets" not in wanted or label in wanted["subsets"])
            and xxhash.xxh3_64_intdigest(identity) < int(wanted.get("sample", 1) * 2**64)
            and re.search(wanted.get("match", ""), text)
            and len(text.encode()) >= wanted.get("min_bytes", 0)
        ):
            kept.append((lines[number], text, label))
    return kept


@given(st.lists(st.lists(making.lines(), min_size=1, max_size=12), min_size=1, max_size=3), conditions, st.data())
def test_a_selection_is_that_of_a_slow_reference(
    tmp_path_factory: pytest.TempPathFactory, contents: list[list[bytes]], wanted: dict[str, Any], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("select")
    format = data.draw(st.sampled_from(["zst", "jsonl", "parquet"]))
    shards = {f"s{number}": b"\n".join(lines) for number, lines in enumerate(contents)}
    shards_of(folder / "data", **shards)
    expected = {name: reference(content, f"train/{name}.jsonl", wanted) for name, content in shards.items()}
    out = folder / "out"
    try:
        selected = select_corpus(folder / "data", out, format=format, jobs=1, **wanted)
    except PilekitError as error:
        assert "nothing is selected" in str(error) or "no label" in str(error)
        assert not any(expected.values())
        assert not out.exists()
        return
    suffix = {"zst": ".jsonl.zst", "jsonl": ".jsonl", "parquet": ".parquet"}[format]
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert written == {"pilekit.json", *(f"train/{name}{suffix}" for name, kept in expected.items() if kept)}
    assert selected.summary["empty"] == [f"train/{name}.jsonl" for name, kept in expected.items() if not kept]
    for name, kept in expected.items():
        path = out / "train" / f"{name}{suffix}"
        if kept and format == "parquet":
            rows = [(row["text"], row["meta"]["pile_set_name"] or "(none)") for row in pq.read_table(path).to_pylist()]
            assert rows == [(text, label) for _, text, label in kept]
        elif kept:
            content = making.unzstd(path) if format == "zst" else path.read_bytes()
            assert content == b"".join(line + b"\n" for line, _, _ in kept)
    every = [document for kept in expected.values() for document in kept]
    of_subsets = {"subsets": wanted["subsets"]} if "subsets" in wanted else {}
    read = [one for name, content in shards.items() for one in reference(content, f"train/{name}.jsonl", of_subsets)]

    def counts(label: str | None = None) -> dict[str, int]:
        sizes = [len(text.encode()) for _, text, other in every if label in (None, other)]
        documents = sum(label in (None, other) for *_, other in read)
        return {"read": documents, "documents": len(sizes), "bytes": sum(sizes)}

    assert selected.summary.items() >= counts().items()
    assert selected.summary["subsets"] == {label: counts(label) for label in {label for _, _, label in read}}


def test_real_text_agrees_with_its_stats(tmp_path: Path, real_corpus: Path) -> None:
    shards = [real_corpus / "minipile-00.jsonl.zst", real_corpus / "minipile-01.jsonl.zst"]
    expected = corpus_stats(shards, subsets=["ArXiv"]).to_dict()
    assert expected.pop("selected") == ["ArXiv"]
    for format in ("zst", "parquet", "jsonl"):
        select_corpus(shards, tmp_path / format, subsets=["ArXiv"], format=format)  # type: ignore[arg-type]
        assert corpus_stats(tmp_path / format).to_dict() == expected
    label = b'{"pile_set_name":"ArXiv"}'
    for shard in shards:
        lines = [line for line in making.unzstd(shard).split(b"\n") if line.replace(b" ", b"").endswith(label + b"}")]
        assert lines
        assert making.unzstd(tmp_path / "zst" / shard.name) == b"".join(line + b"\n" for line in lines)


def test_another_selection_needs_another_folder(tmp_path: Path, corpus: Path) -> None:
    out, told = tmp_path / "out", list[int]()
    first = select_corpus(corpus, out, sample=0.5, jobs=1)
    assert select_corpus(corpus, out, sample=0.5, jobs=1, advance=told.append) == first
    assert sum(told) == Corpus(corpus).size
    content = tree(out)
    for changed, message in (
        ({"sample": 0.2}, r"sample is 0\.5 there, 0\.2 here"),
        ({"seed": 1}, 'seed is "0" there, "1" here'),
        ({"subsets": ["ArXiv"]}, r'subsets is not given there, \["ArXiv"\] here'),
        ({"format": "jsonl"}, 'format is "zst" there, "jsonl" here'),
    ):
        with pytest.raises(PilekitError, match=f"out: .*{message}; name another folder with --out"):
            select_corpus(corpus, out, jobs=1, **({"sample": 0.5} | changed))  # type: ignore[arg-type]
    assert tree(out) == content


def test_an_output_inside_the_corpus_is_not_read_and_no_shard_is_written_twice(tmp_path: Path, corpus: Path) -> None:
    before = tree(corpus)
    with pytest.raises(PilekitError, match="which is to be read"):
        select_corpus(corpus, corpus / "train", sample=0.5)
    for _ in range(2):
        select_corpus(corpus, corpus / "part", sample=0.5, jobs=1)  # corpus searches skip this folder
    assert {name: content for name, content in tree(corpus).items() if not name.startswith("part/")} == before
    (corpus / "train/a.json.zst").write_bytes(making.zstd_frame(making.record("text") + b"\n"))
    with pytest.raises(PilekitError, match=r"a\.json\.zst and .*a\.jsonl\.zst would both be written to train/a"):
        select_corpus(corpus, tmp_path / "out", sample=1)
    assert not (tmp_path / "out").exists()


def test_where_nothing_is_selected_nothing_is_left(tmp_path: Path, corpus: Path) -> None:
    many = b"".join(making.record("text", f"https://example.org/{number}") + b"\n" for number in range(5000))
    with pytest.raises(PilekitError, match="more than 4,096 different subset labels"):
        select_corpus(shards_of(tmp_path / "many", a=many), tmp_path / "out", sample=1, jobs=1)
    with pytest.raises(PilekitError, match="the shards hold no documents"):
        select_corpus(shards_of(tmp_path / "blank", a=b"\n"), tmp_path / "out", sample=1, jobs=1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"subsets": ["Books3"]}, "there are no documents of Books3; `pilekit stats` shows which"),
        ({"match": "nowhere"}, "none of the 500 documents read passes"),
        ({"subsets": ["Arxif"]}, 'unknown subset "Arxif".*did you mean ArXiv'),
        ({"format": "csv"}, "format is "),
    ]
    (tmp_path / "empty").mkdir()
    for wanted, message in cases:
        for out in (tmp_path / "out", tmp_path / "empty"):
            with pytest.raises(PilekitError, match=message):
                select_corpus(corpus, out, jobs=1, **wanted)
        assert not (tmp_path / "out").exists()
        assert not list((tmp_path / "empty").iterdir())


def test_shards_in_memory_are_read_in_this_process(tmp_path: Path) -> None:
    for name in ("00", "01"):
        fsspec.filesystem("memory").pipe(
            f"/selecting/{name}.jsonl.zst", making.zstd_frame(making.record(name, "ArXiv") + b"\n")
        )
    select_corpus("memory://selecting", tmp_path / "out", subsets=["ArXiv"], jobs=2)
    assert shards_in(tmp_path / "out") == {
        f"{name}.jsonl.zst": making.record(name, "ArXiv") + b"\n" for name in ("00", "01")
    }


SELECT = """
import sys
from pilekit.pipeline.selecting import select_corpus
print(select_corpus(sys.argv[1], sys.argv[2], sample=0.002, format=sys.argv[3], jobs=1).summary["documents"])
"""


@pytest.mark.parametrize("format", ["zst", pytest.param("parquet", marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_documents_that_are_passed_over(tmp_path: Path, format: str) -> None:
    """One or two documents of each piece of 2 MiB are kept; they must not keep the whole piece in memory."""
    line = making.record("lorem ipsum " * 250) + b"\n"
    frame = zstandard.compress(line * 4000)  # 12 MB of text
    peaks = []
    for frames in (2, 30):
        data = tmp_path / f"{frames}.jsonl.zst"
        data.write_bytes(frame * frames)
        selected, peak = value_and_peak(SELECT, data, tmp_path / f"out-{frames}", format)
        assert 0 < selected < 400
        peaks.append(peak)
    assert peaks[1] < peaks[0] + (100 << 20)


def test_an_interrupted_run_says_so_in_a_line_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """Eight shards of 2 MB of text that is slow to compress."""
    rng, data, out = random.Random(0), tmp_path / "data", tmp_path / "out"
    text = "".join(rng.choices("abcdefghij   \n", k=500_000))
    for shard in range(8):
        begins = [rng.randrange(len(text) - 4000) for _ in range(500)]
        lines = [making.record(text[begin : begin + 4000]) for begin in begins]
        shards_of(data, **{f"{shard:02}": b"".join(line + b"\n" for line in lines)})
    select_corpus(data, tmp_path / "whole", sample=0.9, jobs=1)
    expected = tree(tmp_path / "whole")
    command = [*PILEKIT, "select", str(data), "--out", str(out), "--sample", "0.9", "--jobs", "2"]
    for _ in range(10):
        code, errors = stop_when(command, lambda: any((out / "train").glob("*.zst")), interrupt)
        if code == 130 and is_sound(out, expected):
            break
        shutil.rmtree(out, ignore_errors=True)
    else:
        pytest.fail("was never stopped in the middle")
    assert errors.strip() == "interrupted; the same command resumes"
    assert not [name for name in tree(out) if name.endswith((".partial", ".lock"))]
    select_corpus(data, out, sample=0.9, jobs=1)
    assert tree(out) == expected
