"""`--part I/N`: what each part does and prints, and that parts and the run after them make the files of one run."""

from __future__ import annotations

import hashlib
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pilekit import Corpus, PilekitError, ShardWriter, reframe_corpus
from pilekit.workers import Ray
from tests.cli.running import PILEKIT, refused, run, run_json
from tests.shards.making import LABELS, record, some_lines
from tests.stopping import kill, partial_files, stop_when, tree
from tests.tokenize.making import byte_level_bpe, saved


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five shards, the first as large as the next two."""
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    for number, lines in enumerate((200, 100, 100, 60, 40)):
        with ShardWriter(tmp_path / "data" / f"{number:02}.jsonl.zst") as writer:
            writer.write_lines(some_lines(lines))
    return tmp_path / "data"


def test_parts_tell_of_their_shards_and_a_run_without_finishes(data: Path, tmp_path: Path) -> None:
    shards = [[shard.name for shard in Corpus(data).part((number, 3))] for number in (1, 2, 3)]
    out = tmp_path / "reframed"
    line = run("reframe", data, "--out", out, "--part", "1/3", exit_code=0).stdout
    assert line.startswith(f"part 1 of 3: {len(shards[0])} of 5 shards done; ")
    told = run_json("reframe", data, "--out", out, "--part", "2/3")
    assert (told["part"], [shard["shard"] for shard in told["shards"]]) == ([2, 3], shards[1])
    assert run_json("reframe", data, "--out", out, "--part", "6/6")["shards"] == []
    whole = run_json("reframe", data, "--out", out)
    assert "part" not in whole
    assert run_json("reframe", data, "--out", out, "--part", "1/3")["shards"] == [
        shard for shard in whole["shards"] if shard["shard"] in shards[0]
    ]
    assert [shard["shard"] for shard in run_json("index", data, "--part", "3/3")["shards"]] == shards[2]
    assert [shard["built"] for shard in run_json("index", data)["shards"]].count(False) == len(shards[2])
    few: tuple[Any, ...] = ("select", data, "--min-bytes", 1 << 30, "--out", tmp_path / "few")
    assert run_json(*few, "--part", "1/1")["documents"] == 0  # Another part may find some.
    refused("nothing is selected", *few)


def test_the_parts_of_verify_find_together_what_one_run_finds(data: Path) -> None:
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in data.iterdir()]
    (data / "SHA256SUMS").write_text("".join(sums))
    (data / "01.jsonl.zst").write_bytes(b"damaged")
    (data / "04.jsonl.zst").unlink()
    parts = [run_json("verify", data, "--part", f"{part}/3", exit_code=None) for part in (1, 2, 3)]
    assert [part["ok"] for part in parts].count(False) in (1, 2)
    whole = run_json("verify", data, exit_code=1)["findings"]
    assert len(whole) >= 2
    assert sorted(map(str, whole)) == sorted(str(finding) for part in parts for finding in part["findings"])
    assert "part 2 of 3: " in run("verify", data, "--part", "2/3").stdout
    refused("leave out --part", "verify", data, "--part", "2/3", "--write-sums")


def test_wrong_parts_and_commands_without_parts(data: Path, tmp_path: Path) -> None:
    for wrong in ("0/3", "4/3", "x", "1/0", "1/2/3", "-1/3", "1.5/3", ""):
        told = run("reframe", data, "--out", tmp_path / "out", "--part", wrong, exit_code=2).stderr
        assert "is not I/N, I from 1 to N, such as 1/30" in told
    told = run("stats", data, "--scratch", tmp_path, exit_code=2).stderr
    assert "--scratch is for a cluster: give --cluster too" in told
    told = run("index", data, "--cluster", "127.0.0.1:9", "--part", "1/2", exit_code=2).stderr
    assert "a cluster does all parts: leave out --part, or --cluster" in told
    refused("127.0.0.1:9: no Ray cluster answers there", "stats", data, "--cluster", "127.0.0.1:9")
    refused("divided into parts", "select", "-", "--sample", 1, "--out", tmp_path / "out", "--part", "1/2")
    with pytest.raises(PilekitError, match="a cluster does all parts: leave out part, or cluster"):
        reframe_corpus(data, tmp_path / "out", part=(1, 2), cluster=Ray("127.0.0.1:9"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_parts_at_once_one_of_them_killed_and_a_last_run_make_the_files_of_one_run(tmp_path: Path) -> None:
    rng, data = random.Random(5), tmp_path / "data"
    for number in range(7):
        with ShardWriter(data / f"{number:02}.jsonl.zst") as writer:
            texts = (" ".join(rng.choices(WORDS, k=400)) for _ in range(600 + 200 * number))
            writer.write_lines(record(text, rng.choice(LABELS)) for text in texts)
    saved(byte_level_bpe(300), tmp_path / "tokenizer.json")
    killed = Corpus(data).part((2, 3))
    for name, options in (
        ("reframe", ["--level", "6"]),
        ("tokenize", ["--tokenizer", str(tmp_path / "tokenizer.json")]),
    ):
        command = [*PILEKIT, name, str(data), *options, "--jobs", "1", "--out"]
        whole, out = tmp_path / name / "whole", tmp_path / name / "parts"
        subprocess.run([*command, str(whole / "x")], check=True, capture_output=True)
        others = [subprocess.Popen([*command, str(out / "x"), "--part", f"{part}/3"]) for part in (1, 3)]

        def second_shard_is_being_written(out: Path = out) -> bool:
            stem = killed.shards[1].name.removesuffix(".jsonl")
            return any(file.name.startswith(f"{stem}.") for file in partial_files(out))

        code, _ = stop_when([*command, str(out / "x"), "--part", "2/3"], second_shard_is_being_written, kill)
        assert code == -9
        assert partial_files(out)
        assert [other.wait(240) for other in others] == [0, 0]
        assert tree(out) != tree(whole)
        subprocess.run([*command, str(out / "x")], check=True, capture_output=True)
        assert tree(out) == tree(whole)


WORDS = ["".join(random.Random(seed).choices("abcdefghij", k=2 + seed % 9)) for seed in range(3000)]
