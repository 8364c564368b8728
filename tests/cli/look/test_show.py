"""`pilekit show`: one document, exact for a program and harmless for a terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pilekit.corpus import shard_of
from pilekit.shards.index.build import index_of
from pilekit.shards.random_access.document_reader import read_documents
from tests.cli.running import PILEKIT, on_terminal, refused, run, run_json
from tests.shards.making import record, zstd_frame

TEXTS = ["first", "two\nlines\n", "bell \x07 red \x1b[31m tab\t back\r\n and \u202e é日本", "", "no newline"]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "00.jsonl.zst"
    path.write_bytes(zstd_frame(b"\n".join([*map(record, TEXTS), b"", b"{", b'{"text": "bare", "url": "u"}']) + b"\n"))
    return path


def test_a_program_gets_the_text_exactly_and_a_terminal_no_control_characters(shard: Path) -> None:
    for number, text in enumerate(TEXTS):
        assert run("show", shard, number).stdout_bytes == text.encode()
    done = subprocess.run([*PILEKIT, "show", "-", "2"], input=shard.read_bytes(), capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (TEXTS[2].encode(), b"")
    assert not list(shard.parent.glob("*.index.parquet")), "no index is made for one document"
    assert on_terminal("show", shard, 2) == "bell \\x07 red \\x1b[31m tab\t back\\x0d\n and \\u202e é日本\n"
    assert on_terminal("show", shard, 0, "--meta").splitlines()[1:] == ["first"]


def test_meta_and_json(shard: Path, tmp_path: Path) -> None:
    meta, text = run("show", shard, 1, "--meta").stdout_bytes.split(b"\n", 1)
    expected = {"shard": "00.jsonl", "number": 1, "subset": "Github", "meta": {"pile_set_name": "Github"}}
    assert json.loads(meta) == expected
    assert text == TEXTS[1].encode()
    output = run("show", shard, 2, "--json").stdout
    assert output.isascii()
    assert json.loads(output) == {**expected, "number": 2, "text": TEXTS[2]}
    bare = run_json("show", shard, 7)
    assert (bare["subset"], bare["meta"]) == ("(none)", {"url": "u"})
    scores = {"pile_set_name": "ArXiv", "score": float("nan"), "all": [float("inf"), 1.5]}
    pq.write_table(pa.Table.from_pylist([{"text": "abc", "meta": scores}]), tmp_path / "a.parquet")
    assert run_json("show", tmp_path / "a.parquet", 0)["meta"] == {**scores, "score": None, "all": [None, 1.5]}


def test_integers_past_64_bits_stay_integers(tmp_path: Path) -> None:
    numbers = [2**63, -(2**63) - 1, 2**64, 10**19 + 1, -(10**30) - 7, 1e30, 1.5]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "abc", "meta": {"pile_set_name": "ArXiv", "id": numbers}}) + "\n")
    for _ in range(2):
        found = run_json("show", path, 0)["meta"]["id"]
        assert list(map(repr, found)) == list(map(repr, numbers))
        index_of(shard_of(str(path)))
    [document] = read_documents(path, [0])
    assert list(map(repr, document.meta["id"])) == list(map(repr, numbers))


def test_numbers_without_a_document_and_wrong_paths(shard: Path) -> None:
    wrong = {
        5: "number 5 is no document: line 6 is blank",
        6: "number 6 is no document: line 7 is not JSON",
        8: "has no document 8: its numbers go from 0 to 7",
    }
    for _ in range(2):
        for number, why in wrong.items():
            assert str(shard) in refused(why, "show", shard, number)
        index_of(shard_of(str(shard)), on_error="skip")
    for arguments in ((shard,), (shard, "x"), (shard, "--", "-1")):
        run("show", *arguments, exit_code=2)
    refused("is a folder, not a shard; name a file in it", "show", shard.parent, 0)


def test_a_manifest_names_the_field_of_the_text(tmp_path: Path) -> None:
    path, about = tmp_path / "a.jsonl", tmp_path / "other.toml"
    path.write_bytes(b'{"content": "here", "kind": "web"}\n')
    about.write_text('name = "other"\ntext_field = "content"\nlabel_path = "kind"\n')
    assert run_json("show", path, 0, "--manifest", about)["subset"] == "web"
    refused('has no "text" field', "show", path, 0)
