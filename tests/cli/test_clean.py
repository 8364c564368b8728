"""`pilekit clean`: its tables, its JSON, the documents it shows, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import cells, refused, run, run_json
from tests.dedup.checking import write_corpus
from tests.shards import making


@pytest.fixture
def data(tmp_path: Path) -> Path:
    good = "\n".join(f"Line {number} of {number * 7919} is here, and {number * 104729} too." for number in range(20))
    lines = [
        making.record(good, "Pile-CC"),
        making.record(good + "\n{\x1b[31m", "Pile-CC"),
        making.record("Some badgers.", "Pile-CC"),
        making.record(good.replace("too", "badger"), "Pile-CC"),
        making.record("x = {}  # ask me@some.org", "Github"),
        making.record(good.replace("too", "and so on"), "ArXiv"),
    ]
    return write_corpus(tmp_path / "data", {"00": lines})


def of_rules(*counts: tuple[int, int]) -> list[list[str]]:
    """The rows of C4's rules: documents that fail, and that fail this rule alone."""
    rules = ("c4.lorem_ipsum", "c4.curly_bracket", "c4.sentences")
    return [[rule, str(fail), str(alone)] for rule, (fail, alone) in zip(rules, counts, strict=True)]


def test_the_tables_the_json_and_the_folder(data: Path, tmp_path: Path) -> None:
    rows = cells(run("clean", data, "--report", "--rules", "c4", exit_code=0).stdout)
    assert rows[0] == ["Dropped", "by", "Documents", "Alone", "Bytes", "Of", "docs", "%"]
    assert [row[:3] for row in rows[2:14]] == [
        *(["Pile-CC", "2", "–"], *of_rules((0, 0), (1, 1), (1, 1))),
        *(["ArXiv", "0", "–"], *of_rules((0, 0), (0, 0), (0, 0))),
        *(["Github", "1", "–"], *of_rules((0, 0), (1, 0), (1, 0))),
    ]
    assert [row[:3] for row in rows[15:-1]] == [["All", "subsets", "3"], *of_rules((0, 0), (2, 1), (2, 1))]
    assert rows[-1] == ["6", "read", "=", "3", "kept", "+", "3", "dropped"]
    options = ("--subsets", "Pile-CC", "--only", "--rules", "gopher-quality,c4", "--set", "gopher-quality.letters=0.1")
    out = tmp_path / "out"
    printed = run("clean", data, *options, "--out", out, exit_code=0).stdout.splitlines()
    assert printed[-2:] == ["6 read = 2 kept + 2 dropped + 2 left out", f"shards and dropped.parquet in {out}"]
    found = run_json("clean", data, *options, "--report")
    assert found == json.loads((out / "summary.json").read_bytes())
    assert list(found) == ["read", "kept", "dropped", "skipped", "left_out", "edited", "bytes", "rules", "subsets"]
    printed = run("clean", data, "--report", "--pii", "email", exit_code=0).stdout.splitlines()
    assert printed == ["6 read = 6 kept + 0 dropped", "1 of the kept ones changed: Github 1"]
    (tmp_path / "bad.txt").write_text("\ufeffBadger\n\n")
    found = run_json("clean", data, "--rules", "c4-fineweb", "--bad-words", tmp_path / "bad.txt", "--report")
    assert found["rules"]["c4-fineweb.bad_word"]["documents"] == 1


def test_documents_are_shown_with_the_value_that_failed(data: Path) -> None:
    shown = run("clean", data, "--rules", "c4", "--show", "c4.curly_bracket", exit_code=0).stdout
    assert shown.startswith("==> 00.jsonl 1 | Pile-CC | c4.curly_bracket = 1 <==\nLine 0 of 0 is here")
    assert "characters)" in shown
    (document,) = run_json("clean", data, "--rules", "c4", "--show", "c4.sentences", "-n", "1")["shown"]
    assert document == {"shard": "00.jsonl", "number": 2, "subset": "Pile-CC", "value": 0, "text": "Some badgers."}
    thirds = "A fine line of words here.\nAnother line without an end to it\nA third line that is like the second"
    (data.parent / "thirds.jsonl").write_text(json.dumps({"text": thirds}))
    rules = ("--rules", "fineweb", "--set", "fineweb.line_punctuation=0.5", "--show", "fineweb.line_punctuation")
    (document,) = run_json("clean", data.parent / "thirds.jsonl", *rules)["shown"]
    assert document["value"] == 1 / 3
    printed = run("clean", data, "--report", "--rules", "c4", "--show", "c4.lorem_ipsum").stdout
    assert printed.splitlines()[-1] == "no document fails c4.lorem_ipsum alone"


def test_what_is_wrong_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for options, message in (
        (["--out", out, "--pii", "email", "--set", "c4.sentences=3"], "the chosen sets are none"),
        (["--report", "--rules", "gopher", "--bad-words", data], "choose c4 or c4-fineweb"),
        (["--report", "--set", "gopher-quality.word=3"], "there is no such limit; there are gopher-quality.words, "),
        (["--report", "--show", "words"], "there is no such rule; write SET.rule"),
        (["--report", "--bad-words", tmp_path / "none"], "none: cannot be read"),
        (["--report", "--subsets", "Books3"], "there are no documents of Books3"),
    ):
        refused(message, "clean", data, *options)
    for options, message in (
        ([], "say what to do: --report, --show RULE, or --out DIR"),
        (["--report", "--out", out], "--report writes nothing"),
        (["--report", "--only"], "--only needs --subsets"),
    ):
        assert message in run("clean", data, *options, exit_code=2).stderr
    assert not out.exists()
