"""`pilekit count` and `count_phrases` against the reference: files of phrases, kills, parts, jobs and bad lines."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PhraseCounts, PilekitError, ShardWriter, count_phrases
from pilekit.cli.look.count import command
from pilekit.cutting.words import compacted, compacted_all
from pilekit.trace.phrases import Phrases
from tests.cli.running import refused, run, run_json
from tests.cutting.reference import words_of
from tests.cutting.test_ngrams import odd
from tests.kills import left_at_each_renaming
from tests.shards.making import record
from tests.trace import reference

RNG = random.Random(4)
WORDS = ["the", "of", "House", "and—", "naïve", "漢字", "x" * 30, '"quoted"', "a\\b", "line\n", "Ⓐ"]
LABELS = ["ArXiv", "Github", "Pile-CC"]
DOCUMENTS = [(RNG.choice(LABELS), " ".join(RNG.choices(WORDS, k=RNG.randrange(60)))) for _ in range(200)]
PHRASES = [
    "the",
    "the of",
    "e",
    "of the",
    "House",
    "x" * 12,
    "x" * 31,
    "the the the",
    "漢",
    "\\",
    "absent",
    "naïve 漢字",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of unequal size, in two folders."""
    folder = tmp_path_factory.mktemp("count") / "data"
    for number, (begin, end) in enumerate([(0, 100), (100, 110), (110, 190), (190, 200)]):
        with ShardWriter(folder / f"{'ab'[number % 2]}" / f"{number:02}.jsonl.zst") as writer:
            writer.write_lines(record(text, label) for label, text in DOCUMENTS[begin:end])
    return folder


def plain(counts: PhraseCounts) -> dict[str, reference.Counts]:
    rows = counts.to_dict()["counts"]
    for row in rows.values():
        in_subsets = row["subsets"].values()
        assert row["occurrences"] == sum(one["occurrences"] for one in in_subsets)
        assert row["documents"] == sum(one["documents"] for one in in_subsets)
    return {
        phrase: {name: (one["occurrences"], one["documents"]) for name, one in row["subsets"].items()}
        for phrase, row in rows.items()
    }


@pytest.mark.parametrize("words", [False, True])
def test_a_corpus_is_counted_as_the_reference_counts_it(data: Path, words: bool) -> None:
    expected = reference.counts(DOCUMENTS, PHRASES[:9] if words else PHRASES, words)
    for jobs in (1, 3):
        counts = count_phrases(data, list(expected), words=words, jobs=jobs)
        assert plain(counts) == expected
    assert sum(map(bool, expected.values())) == counts.summary["found"] >= 5
    assert counts.summary["subsets"] == Counter(label for label, _ in DOCUMENTS)
    some = count_phrases(data, list(expected), words=words, subsets=["arxiv"])
    assert plain(some) == {
        phrase: {name: pair for name, pair in by_subset.items() if name == "ArXiv"}
        for phrase, by_subset in expected.items()
    }
    assert (some.summary["documents"], some.summary["others"]) == (
        counts.summary["subsets"]["ArXiv"],
        len(DOCUMENTS) - counts.summary["subsets"]["ArXiv"],
    )


def test_the_result_is_a_table_in_either_order(data: Path) -> None:
    counts = count_phrases(data, PHRASES)
    assert counts["House"]["documents"] == counts.to_dict()["counts"]["House"]["documents"]
    rows = counts.to_arrow().to_pylist()
    assert [row["occurrences"] for row in rows] == sorted((row["occurrences"] for row in rows), reverse=True)
    assert str(counts).splitlines()[2].split()[:2] == [rows[0]["phrase"], f"{rows[0]['occurrences']:,}"]
    assert "10 of 12 phrases found in 200 documents" in str(counts)
    assert "phrases=12, found=10, duplicates=0" in repr(counts)
    assert "<table" in counts._repr_html_()
    given_order = count_phrases(data, PHRASES, sort="given")
    assert given_order.to_arrow()["phrase"].to_pylist() == PHRASES
    assert sorted(map(str, rows)) == sorted(map(str, given_order.to_arrow().to_pylist()))
    with pytest.raises(PilekitError, match='sort is "count" or "given"'):
        count_phrases(data, PHRASES, sort="size")  # type: ignore[arg-type]


def test_files_of_phrases_give_the_same_counts(data: Path, tmp_path: Path) -> None:
    phrases = [phrase for phrase in PHRASES if "\n" not in phrase]
    expected = run_json("count", *(part for phrase in phrases for part in ("--phrase", phrase)), data)
    lines = "\n".join(phrases).encode()
    (tmp_path / "a.txt").write_bytes(lines)
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n") + b"\r\n")
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in phrases))
    pq.write_table(pa.table({"question": phrases}), tmp_path / "d.parquet")
    for name, options in (("a.txt", ()), ("b.txt", ()), ("c.jsonl", ()), ("d.parquet", ("--field", "question"))):
        assert run_json("count", tmp_path / name, data, *options) == expected


def test_equal_phrases_count_once_and_are_told(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "phrases.txt"
    path.write_text("the\nof\nof\nThe\nthe\n")
    counts = count_phrases(data, path)
    assert (counts.summary["phrases"], counts.summary["duplicates"]) == (3, 2)
    assert "phrases.txt, line 3: was given before; equal phrases count once (2 left out)" in caplog.text
    by_words = count_phrases(data, path, words=True, sort="given")
    assert by_words.to_arrow()["phrase"].to_pylist() == ["the", "of"]
    assert "phrases.txt, line 3: was given before; equal phrases count once (3 left out)" in caplog.text


def test_wrong_phrases_are_refused_with_their_line(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "phrases.txt"
    for content, match in (
        (b"a\n\nb\n", r"phrases\.txt, line 2: is empty; remove it"),
        (b"a\n\r\n", r"phrases\.txt, line 2: is empty; remove it"),
        (b"a\nb\n\xff\n", r"phrases\.txt, line 3: is not UTF-8"),
        (b"a\nb\xe6\xbc", r"phrases\.txt, line 2: is not UTF-8"),
        (b"", r"phrases\.txt: holds no phrase"),
    ):
        path.write_bytes(content)
        refused(match, "count", path, data)
    path.write_bytes(b"word\n--\n")
    refused(r"phrases\.txt, line 2: has no word; remove it", "count", path, data, "--words")
    refused(r"has a phrase a line and no fields; leave out --field", "count", path, data, "--field", "text")
    refused(r"phrase 1: is empty", "count", "--phrase", "", data)
    refused(r"missing\.txt", "count", tmp_path / "missing.txt", data)
    records = tmp_path / "phrases.jsonl"
    for lines, match in (
        ('{"text": "a"}\n\n{"text": ""}\n', "line 3: is empty"),
        ('{"text": "a"}\n{"text": 1}\n', "line 2: is no text but 1"),
        ('{"text": "a"}\n{"other": "b"}\n', "line 2: has no field text; name the field of the phrase with --field"),
        ('{"text": "a"}\n{\n', r"phrases\.jsonl, line 2: "),
    ):
        records.write_text(lines)
        refused(match, "count", records, data)
    with pytest.raises(PilekitError, match="phrase 2: holds half of a surrogate pair"):
        count_phrases(data, ["a", "\ud800"])
    with pytest.raises(PilekitError, match="phrase 1: is no text but 3"):
        count_phrases(data, [3])  # type: ignore[list-item]
    assert "name a file of phrases, or give --phrase TEXT" in run("count", exit_code=2).stderr
    refused("cannot be both the phrases and the corpus", "count", "-", "-")


def test_a_file_keeps_the_counts_and_is_no_file_of_other_phrases(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "counts.parquet"
    counts = count_phrases(data, PHRASES, out)
    assert [path.name for path in tmp_path.iterdir()] == ["counts.parquet"]
    assert pq.read_table(out).to_pylist() == counts.to_arrow().to_pylist()
    before = out.read_bytes()
    again = count_phrases(data, PHRASES, out)
    assert (again.to_dict(), again.skipped) == (counts.to_dict(), counts.skipped)
    assert "already done" in caplog.text
    for change, match in (
        ({"phrases": ["other"]}, "made with other settings: phrases is"),
        ({"words": True}, "made with other settings: words is false there, true here"),
        ({"corpus": data / "a"}, "made from other shards"),
    ):
        arguments: dict[str, Any] = {"corpus": data, "phrases": PHRASES, **change}
        with pytest.raises(PilekitError, match=match):
            count_phrases(out=out, **arguments)
    assert out.read_bytes() == before
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    (tmp_path / "text").write_text("text")
    for name in ("other.parquet", "text"):
        refused("exists, and is no result of pilekit count", "count", "--phrase", "a", data, "--out", tmp_path / name)
    assert run("count", "--phrase", "a", data, "--out", tmp_path / "b.parquet").stdout.endswith("b.parquet\n")


def test_a_result_reads_its_rows_when_they_are_asked_for(data: Path, tmp_path: Path) -> None:
    out, many = tmp_path / "counts.parquet", [*PHRASES, *(f"absent {number}" for number in range(300))]
    counts, unnamed = count_phrases(data, many, out), count_phrases(data, many)
    content = out.read_bytes()
    out.unlink()
    assert "(112 more)" in str(counts)
    assert "rows" not in vars(counts)
    assert counts.first_rows(3).equals(counts.to_arrow()[:3])
    there = pickle.loads(pickle.dumps(counts))
    assert counts == unnamed == there
    assert str(there) == str(counts)
    assert counts != count_phrases(data, PHRASES)
    damaged = bytearray(content)
    damaged[200:300] = bytes(100)
    out.write_bytes(damaged)
    with pytest.raises(PilekitError, match=r"counts\.parquet: is damaged .*; remove it, and run `pilekit count` again"):
        count_phrases(data, many, out)


def test_a_killed_run_ends_with_the_same_file_and_counts_no_shard_twice(data: Path, tmp_path: Path) -> None:
    moments, left = left_at_each_renaming(
        tmp_path, lambda out: count_phrases(data, PHRASES, out / "counts.parquet", jobs=1)
    )
    assert moments > 20
    assert "counts.parquet.unfinished/counts/a/00.jsonl.npy" in left


def test_parts_and_a_run_after_them_give_the_counts_of_one_run(data: Path, tmp_path: Path) -> None:
    out, common = tmp_path / "parts.parquet", ("count", *(x for one in PHRASES for x in ("--phrase", one)), data)
    sums: Counter[str] = Counter()
    for part in ("1/2", "2/2"):
        told = run_json(*common, "--out", out, "--part", part)
        sums.update({phrase: row["occurrences"] for phrase, row in told["counts"].items()})
    assert re.match(r"part 1 of 2: \d of 4 shards done; ", run(*common, "--out", out, "--part", "1/2").stdout)
    assert not out.exists()
    whole = run_json(*common, "--out", out)
    assert sums == {phrase: row["occurrences"] for phrase, row in whole["counts"].items()}
    assert plain(count_phrases(data, PHRASES, out)) == reference.counts(DOCUMENTS, PHRASES)
    assert "--part needs --out" in run(*common, "--part", "1/2", exit_code=2).stderr
    with pytest.raises(PilekitError, match="name it with out"):
        count_phrases(data, PHRASES, part=(1, 2))


def test_bad_lines_are_errors_unless_they_are_to_be_skipped_and_errors_again(tmp_path: Path) -> None:
    shard, out = tmp_path / "00.jsonl", tmp_path / "counts.parquet"
    shard.write_bytes(b'{"text": "aa"}\nbad\n{"text": "a\\ud800"}\n{"text": "a"}\n')
    match = re.escape("00.jsonl, line 2: ")
    with pytest.raises(PilekitError, match=match):
        count_phrases(shard, ["a"], out)
    for _ in range(2):
        counts = count_phrases(shard, ["a"], out, on_error="skip")
        assert (counts["a"]["occurrences"], counts["a"]["documents"]) == (3, 2)
        assert (counts.summary["skipped"], [bad.line for bad in counts.skipped.examples]) == (2, [2, 3])
    with pytest.raises(PilekitError, match=match):
        count_phrases(shard, ["a"], out)


@pytest.mark.parametrize("command", ["count", "trace"])
def test_there_may_be_more_shards_than_files_may_be_open(tmp_path: Path, command: str) -> None:
    (tmp_path / "data").mkdir()
    for number in range(80):
        (tmp_path / f"data/{number:02}.jsonl").write_bytes(record("one two three four five six seven eight", "A"))
    (tmp_path / "text.txt").write_text("one two three four five six seven eight")
    options = [tmp_path / "text.txt", tmp_path / "data", "--jobs", "1", "--json"]
    argv = ["pilekit", command, *map(str, options)]
    script = f"import resource, sys; from pilekit.cli.main import main; sys.argv = {argv}\n"
    script += "resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60)); main()"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rows = [*told["counts"].values()] if command == "count" else told["traces"][0]["passages"]
    assert [row["documents"] for row in rows] == [80]


def test_standard_input_is_counted(data: Path) -> None:
    lines = b"".join(record(text, label) + b"\n" for label, text in DOCUMENTS)
    told = CliRunner().invoke(command, ["--phrase", "the", "-", "--json"], input=lines)
    assert json.loads(told.stdout)["counts"] == run_json("count", "--phrase", "the", data)["counts"]


plain_text = st.text(st.sampled_from("aZ09 \n-@[`{/:\x10\x19\x1f\x7f"), max_size=60) | st.text(
    st.sampled_from("abc XYZ  789é"), max_size=60
)


@given(st.lists(odd | plain_text, min_size=1, max_size=6), st.integers(1, 7))
def test_words_of_several_texts_are_those_of_each(texts: list[str], at_a_time: int) -> None:
    words, offsets = compacted_all(texts)
    pieces = [words[begin:end].tobytes() for begin, end in pairwise(offsets)]
    assert (words[0], pieces) == (32, [compacted(text)[0] for text in texts])
    for text, piece in zip(texts, pieces, strict=True):
        expected = [word for word, _, _ in words_of(text)]
        assert piece.decode().split(" ")[:-1] == expected
        assert compacted(text)[1] == len(expected)
    if all(pieces):
        phrases = Phrases.read(texts).words(at_a_time)
        assert phrases.texts(range(len(texts))) == [piece.decode() for piece in pieces]
