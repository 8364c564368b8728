"""`head`, `sample` and `grep` against plain loops over the same shards."""

from __future__ import annotations

import io
import json
import os
import random
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import xxhash

from pilekit import Corpus, corpus_stats, read
from pilekit.errors import PilekitError
from pilekit.pipeline.find_text import Counts, find_text
from pilekit.pipeline.sample_documents import sample_documents
from pilekit.shards.corpus_job import TINY_BYTES
from tests.cli.running import invoked, on_terminal, refused, run, run_json
from tests.dedup.checking import write_corpus
from tests.shards import making

Place = tuple[str, int, str, str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shards = {
        f"{shard:02}": [
            making.record(f"shard {shard}\nline {number} of a long\ttext é \x1b[31m\n" * (number % 4), subset)
            for number, subset in enumerate(["ArXiv", "Github", "Enron Emails"] * 40)
        ]
        for shard in range(3)
    }
    return write_corpus(tmp_path_factory.mktemp("look") / "data", shards)


def documents(data: Path) -> list[Place]:
    """(shard, number, subset, text) of all documents, by a plain loop."""
    return [
        (batch.shard, int(number), subset, text)
        for shard in Corpus(data).shards
        for batch in read(shard)
        for number, subset, text in zip(batch.numbers, batch.subsets, batch.texts, strict=True)
    ]


def places(jsonl: str) -> list[Place]:
    records = map(json.loads, jsonl.splitlines())
    return [(record["shard"], record["number"], record["subset"], record["text"]) for record in records]


def test_nothing_found_is_said_on_stderr(data: Path) -> None:
    for command in ("head", "sample"):
        for options in ([], ["--json"]):
            found = run(command, data, "--match", "not in any text", *options)
            assert (found.stdout, found.stderr) == ("", "no document passes all conditions\n")


def test_head_prints_the_first_documents_and_its_json_is_a_shard(data: Path, tmp_path: Path) -> None:
    everything = documents(data)
    assert places(run("head", data, "--json").stdout) == everything[:10]
    options = ("--subsets", "github,arxiv", "--match", "line .*1 of", "--min-bytes", "60", "-n", "7", "--json")
    found = run("head", data, *options).stdout
    passing = [
        one
        for one in everything
        if one[2] != "Enron Emails" and len(one[3].encode()) >= 60 and re.search("line .*1 of", one[3])
    ]
    assert places(found) == passing[:7]
    (tmp_path / "again.jsonl").write_text(found)
    stats = corpus_stats(tmp_path / "again.jsonl").to_dict()
    assert (stats["documents"], set(stats["subsets"])) == (7, {"ArXiv", "Github"})
    assert places(run("head", data, "-n", "1000000", "--json").stdout) == everything


def test_a_terminal_gets_the_beginning_of_a_long_text_and_a_file_all_of_it(tmp_path: Path) -> None:
    texts = ["short\n", "w" * 2000, "x" * 1999 + "\ny", "é z\n" * 25_000]
    making.write_shard(tmp_path / "00.jsonl.zst", [making.record(text, "ArXiv") for text in texts])
    for command in ("head", "sample"):
        cut = on_terminal(command, tmp_path)
        printed = [part.split("<==\n")[1] for part in cut.split("==> ")[1:]]
        assert printed == [
            "short\n",
            "w" * 2000 + "\n",
            "x" * 1999 + "\n[1 character more; --full prints them]\n",
            "é z\n" * 500 + "[98,000 characters more; --full prints them]\n",
        ]
        assert on_terminal(command, tmp_path, "--full").count("é z\n") == 25_000
        piped = run(command, tmp_path).stdout
        assert [part.split("<==\n")[1] for part in piped.split("==> ")[1:]] == [
            text if text.endswith("\n") else text + "\n" for text in texts
        ]
        assert len(places(on_terminal(command, tmp_path, "--json"))[3][3]) == 100_000


def test_json_lines_hold_the_record_byte_for_byte(tmp_path: Path) -> None:
    rest = r'"text": 1, "uuid":296336254116318163954371823645001234567, "text" :"a\/\u00e9",  "shard": "old" } '
    (tmp_path / "00.jsonl").write_text(f" {{ {rest}\n")
    for command in ("head", "sample"):
        found = run(command, tmp_path / "00.jsonl", "--json").stdout
        assert found == f'{{"number":0,"subset":"(none)", {rest}\n'
        (tmp_path / "again.jsonl").write_text(found)
        assert run(command, tmp_path / "again.jsonl", "--json").stdout == found


def test_text_is_exact_below_a_heading(data: Path) -> None:
    shown = run("head", data, "-n", "2").stdout
    _, (shard, number, subset, text) = documents(data)[:2]
    first = f"==> {shard} 0 | ArXiv | 0 bytes <==\n\n"
    assert shown == f"{first}==> {shard} {number} | {subset} | {len(text.encode())} bytes <==\n{text}"
    assert "\x1b" in shown


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sample_is_the_documents_of_the_lowest_hashes_in_order(data: Path, jobs: int) -> None:
    def rank(one: Place) -> int:
        return xxhash.xxh3_64_intdigest(f"5\0{one[0]}\0{one[1]}".encode())

    everything = [one for one in documents(data) if one[2] == "ArXiv" and one[3]]
    for count in (1, 20, 1000):
        lowest = sorted(everything, key=rank)[:count]
        options = ("--subsets", "arxiv", "--min-bytes", "1", "--seed", "5", "--jobs", jobs, "--json")
        assert places(run("sample", data, "-n", count, *options).stdout) == sorted(lowest)


def test_a_sample_of_many_shards_flushes_no_file_and_takes_no_step_for_each_shard_and_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may take 10 ms to flush a file: 11 minutes for 65,600 shards."""

    def steps_of(shards: int) -> int:
        """The lines of Python that a sample of all documents runs."""
        lines = {f"{number:03}": [making.record("a")] * 2 for number in range(shards)}
        corpus, steps = Corpus(write_corpus(tmp_path / str(shards), lines)), [0]

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            steps[0] += event == "line"
            return trace

        earlier = sys.gettrace()
        sys.settrace(trace)
        try:
            batches, _ = sample_documents(corpus, 10**6, jobs=1)
        finally:
            sys.settrace(earlier)
        assert len(batches) == 2 * shards
        return steps[0]

    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    few, many = steps_of(50), steps_of(800)
    assert many < 16 * 1.1 * few
    assert not flushed


def test_tiny_shards_are_read_without_a_thread_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a thread for each of many tiny shards takes longer than reading them."""
    write_corpus(tmp_path / "tiny", {f"{number:02}": [making.record("a b")] for number in range(20)})
    noise = random.Random(0)
    write_corpus(tmp_path / "large", {"00": [making.record(noise.randbytes(TINY_BYTES).hex())]})
    started, start = [0], threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started[0] += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    for command in (["sample"], ["grep", "a"], ["stats"]):
        for folder, threads in (("tiny", 0), ("large", 1)):
            started[0] = 0
            run(*command, tmp_path / folder, "--jobs", 1)
            assert started[0] == threads, (command, folder)


@pytest.mark.parametrize("jobs", [1, 2])
def test_grep_finds_what_a_loop_finds_and_counts_it(data: Path, jobs: int) -> None:
    everything = documents(data)
    for pattern, options in (("(1|3). of A? ?long", ()), ("LINE 7", ("-i",)), ("^shard 2$", ()), ("\x1b", ())):
        expected = []
        for shard, number, subset, text in everything:
            match = re.search(pattern, text, re.IGNORECASE if options else re.NOFLAG)
            if match:
                start = text.rfind("\n", 0, match.start()) + 1
                line = text[start:].split("\n")[0]
                expected.append((shard, number, subset, match.start(), match[0], line))
        found = run("grep", pattern, data, *options, "--jobs", jobs, "--json", exit_code=0 if expected else 1)
        rows = [json.loads(line) for line in found.stdout.splitlines()]
        assert [
            (*(row[name] for name in ("shard", "number", "subset", "start", "match")), line)
            for row in rows
            for line in [row["before"] + row["match"] + row["after"]]
        ] == expected
        counted = run_json("grep", pattern, data, *options, "--jobs", jobs, "--count", exit_code=0 if expected else 1)
        assert (counted["found"], counted["documents"]) == (len(expected), len(everything))
        for subset, row in counted["subsets"].items():
            assert row["found"] == sum(one[2] == subset for one in expected)
    assert len(run("grep", "line", data, "-n", "3").stdout.splitlines()) == 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_grep_by_size_and_with_flags_of_its_own(data: Path, jobs: int) -> None:
    large = [one for one in documents(data) if len(one[3].encode()) >= 80]
    counted = run_json("grep", "-i", "(?s)LINE 3.*", data, "--min-bytes", "80", "--jobs", jobs, "--count")
    assert (counted["found"], counted["documents"]) == (sum("line 3" in one[3] for one in large), len(large))


def test_ignored_case_is_that_of_python(tmp_path: Path) -> None:
    texts = ["STRASSE", "straße", "\u017ftra\u017f\u017fe", "\u212a and k", "\u212a", "K"]
    texts += ["İi", "I", "ı", "no", "kein", ""]
    (tmp_path / "00.jsonl").write_bytes(b"".join(making.record(text) + b"\n" for text in texts))
    for pattern in ("strasse", "K", "i", "Ei", "a n", "\u212a", "k|no", "\u017f"):
        found = [document.number for document in find_text(Corpus(tmp_path), f"(?i){pattern}", Counts())]
        assert found == [number for number, text in enumerate(texts) if re.search(pattern, text, re.IGNORECASE)]


def test_grep_prints_no_control_character_and_cuts_long_lines(tmp_path: Path) -> None:
    (tmp_path / "00.jsonl").write_bytes(making.record("x" * 5000 + "\x1b[31mneedle" + "y" * 5000) + b"\n")
    shown = run("grep", "needle", tmp_path).stdout
    assert shown.startswith("00.jsonl 0 Github: xxx")
    assert "\\x1b[31mneedleyyy" in shown
    assert len(shown) < 500
    assert len(run("grep", "x.*", tmp_path).stdout) < 500


def test_nothing_found_is_exit_1_and_wrong_patterns_are_named(data: Path) -> None:
    result = run("grep", "no such text", data, exit_code=1)
    assert (result.stdout, result.stderr) == ("", "not found in 360 documents\n")
    for options in ((), ("-i",)):
        refused(r"^'(\(\?i\))?\(' is no regular expression", "grep", *options, "(", data)
    assert "--count counts all documents" in run("grep", "a", data, "--count", "-n", "1", exit_code=2).stderr


def test_a_search_that_is_left_early_leaves_no_file(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = find_text(Corpus(data), "line", Counts(), jobs=2)
    assert next(found).shard == "00.jsonl"
    assert len(list(tmp_path.glob("pilekit-*"))) == 1  # Python's own folder for processes may be there too.
    found.close()
    assert not list(tmp_path.glob("pilekit-*"))


def test_fields_of_a_corpus_without_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "00.jsonl").write_text('{"content": "one two", "source": {"name": "cc"}}\n')
    options = ("--text-field", "content", "--label", "source.name")
    assert places(run("head", tmp_path, *options, "--json").stdout.replace("content", "text")) == [
        ("00.jsonl", 0, "cc", "one two")
    ]
    assert run_json("stats", tmp_path, *options)["subsets"]["cc"]["bytes"] == 7
    assert run("show", tmp_path / "00.jsonl", "0", *options[:2]).stdout == "one two"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert "leave out --text-field" in run("stats", tmp_path, *options, "--manifest", "demo", exit_code=2).stderr
    assert (
        '--label = "a..b": must be the path of a field' in run("stats", tmp_path, "--label", "a..b", exit_code=2).stderr
    )


def test_head_does_not_read_past_its_lines(tmp_path: Path) -> None:
    good = b'{"text": "%d", "meta": {"pile_set_name": "ArXiv"}}\n'
    for name, bad in (("a.jsonl", b"{}\n"), ("b.jsonl", b"no JSON\n"), ("c.jsonl", b'{"text": 1}\n')):
        path = tmp_path / name
        path.write_bytes(b"".join(good % number for number in range(3)) + bad + good % 4)
        for count in (1, 3):
            assert len(run("head", path, "-n", count, "--json").stdout.splitlines()) == count
        stopped = invoked("head", path, "-n", 4, "--json")
        assert len(stopped.stdout.splitlines()) == 3
        assert re.search(rf"{name}, line 4: ", str(stopped.exception))
        with read(path) as reader, pytest.raises(PilekitError, match="line 4"):
            texts = []
            for batch in reader:
                texts += batch.texts
        assert texts == ["0", "1", "2"]
        assert len(run("head", path, "-n", "9", "--json", "--on-error", "skip").stdout.splitlines()) == 4


def test_a_bad_line_is_told_without_python(tmp_path: Path) -> None:
    (tmp_path / "00.jsonl").write_text('{"text": 3}\n')
    refused(r"not a string; mend the line, or read with --on-error skip$", "head", tmp_path)
