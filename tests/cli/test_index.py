"""`pilekit index` as it is used: a table, JSON, what is skipped and what a long frame costs, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilekit.cli.index import command
from pilekit.corpus import shard_of
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_of
from pilekit.shards.index.format import load_index
from tests.shards.making import record, some_lines, zstd_frame
from tests.small_disk import small_disk


def index(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(some_lines(300)))
    (tmp_path / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\n") * 12)
    return tmp_path


def test_the_table_and_what_is_kept(corpus: Path) -> None:
    result = index(corpus)
    assert result.exit_code == 0
    assert result.stdout.split("\n")[0].split() == ["Shard", "Documents", "Text", "Frames", "Bad", "lines", "Index"]
    rows = [line.split() for line in result.stdout.splitlines()[2:]]
    assert rows == [
        ["a.jsonl", "300", "82.5", "KiB", "1", "0", "built"],
        ["b.jsonl", "12", "12", "B", "12", "0", "built"],
    ]
    (corpus / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\n") * 13)
    again = [line.split() for line in index(corpus).stdout.splitlines()[2:]]
    assert [row[-1] for row in again] == ["kept", "built"]
    assert again[1][1] == "13"


def test_json(corpus: Path) -> None:
    shards = json.loads(index(corpus, "--json", "--jobs", 2).stdout)["shards"]
    assert [shard["shard"] for shard in shards] == ["a.jsonl", "b.jsonl"]
    for shard in shards:
        header = load_index(shard["index"]).header
        for name in ("documents", "text_bytes", "lines", "skipped", "content_bytes", "content_hash"):
            assert shard[name] == getattr(header, name)
        assert shard["built"] is True
    assert shards[1]["frames"] == 12


def test_bad_lines_stop_it_or_are_told(corpus: Path) -> None:
    (corpus / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\nbad\x1b\n" * 15))
    result = index(corpus)
    assert isinstance(result.exception, PilekitError)
    assert "b.jsonl.zst, line 2: is not JSON" in str(result.exception)
    assert (corpus / "a.jsonl.index.parquet").exists(), "the others are done"
    assert not (corpus / "b.jsonl.zst.index.parquet").exists()
    result = index(corpus, "--on-error", "skip")
    assert result.exit_code == 0
    assert result.stderr.count("skipped: ") == 11
    assert "skipped: 5 lines more" in result.stderr
    assert "\x1b" not in result.output
    again = index(corpus)
    assert again.exit_code == 0, "an index that is there needs no decision"
    assert again.stderr == ""


def test_a_long_frame_is_told_with_the_remedy(tmp_path: Path) -> None:
    text = (record("x" * 1_000_000) + b"\n") * 70
    (tmp_path / "a.jsonl.zst").write_bytes(zstd_frame(text))
    (tmp_path / "b.jsonl").write_bytes(text)
    shown = " ".join(index(tmp_path).stdout.split())
    assert "a.jsonl has 66.8 MiB in one frame: to read one of its documents" in shown
    assert "pilekit reframe" in shown
    assert "b.jsonl has" not in shown


def test_an_index_in_the_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path))
    with fsspec.open("memory://told/a.jsonl", "wb") as file:
        file.write(record("a"))
    result = index("memory://told/a.jsonl", "--jobs", 2)
    assert result.exit_code == 0
    (made,) = tmp_path.rglob("*.index.parquet")
    assert str(made) in result.stdout.replace("\n", "")


def test_hostile_names_are_made_visible(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31m[bold]red.jsonl").write_bytes(record("a"))
    shown = index(tmp_path).stdout
    assert "\x1b" not in shown
    assert "[bold]red" in shown


def test_wrong_usage(tmp_path: Path) -> None:
    assert index(tmp_path, "--jobs", 0).exit_code == 2
    assert index(tmp_path, "--on-error", "ignore").exit_code == 2
    assert isinstance(index(tmp_path).exception, PilekitError), "no shards"
    assert isinstance(index("-").exception, PilekitError)


FULL = """
import sys
from pilekit.corpus import shard_of
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_of
try: index_of(shard_of(sys.argv[1]))
except PilekitError as error: print(error)
"""


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 1 << 19) as disk:
        path = disk.path / "a.jsonl.zst"
        path.write_bytes(zstd_frame(b"".join(record(str(i)) + b"\n" for i in range(100_000))))
        assert path.stat().st_size < 1 << 19, "smaller than the 800,000 bytes of its texts' hashes"
        result = subprocess.run(
            [sys.executable, "-c", FULL, str(path)],
            check=True,
            capture_output=True,
            text=True,
            preexec_fn=disk.limit,
            env={**os.environ, "PILEKIT_CACHE": str(disk.path)},
        )
        assert result.stdout.startswith(f"{path}.index.parquet: cannot be written: ")
        assert result.stdout.count("\n") == 1
        assert [entry.name for entry in disk.path.iterdir()] == ["a.jsonl.zst"]
        disk.grow()
        assert index_of(shard_of(str(path))).header.documents == 100_000
