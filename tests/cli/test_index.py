"""`pilekit index`: table, JSON, skipped lines and notes."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from pilekit.errors import PilekitError
from pilekit.shards.index.format import load_index
from tests.cli.running import cells, run, run_json
from tests.shards.making import record, some_lines, zstd_frame


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(some_lines(300)))
    (tmp_path / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\n") * 12)
    return tmp_path


def test_the_table_and_which_indexes_are_kept(corpus: Path) -> None:
    (corpus / "\x1b[31m[bold].jsonl").write_bytes(record("a"))
    rows = cells(run("index", corpus, exit_code=0).stdout)
    assert rows[0] == ["Shard", "Documents", "Text", "Frames", "Bad", "lines", "Index"]
    assert rows[2:] == [
        ["\\x1b[31m[bold].jsonl", "1", "1", "B", "1", "0", "built"],
        ["a.jsonl", "300", "82.5", "KiB", "1", "0", "built"],
        ["b.jsonl", "12", "12", "B", "12", "0", "built"],
    ]
    (corpus / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\n") * 13)
    assert [row[-1] for row in cells(run("index", corpus).stdout)[2:]] == ["kept", "kept", "built"]


def test_json(corpus: Path) -> None:
    shards = run_json("index", corpus, "--jobs", 2)["shards"]
    assert [shard["shard"] for shard in shards] == ["a.jsonl", "b.jsonl"]
    for shard in shards:
        header = load_index(shard["index"]).header
        for name in ("documents", "text_bytes", "lines", "skipped", "content_bytes", "content_hash"):
            assert shard[name] == getattr(header, name)
        assert shard["built"] is True
    assert shards[1]["frames"] == 12


def test_bad_lines_stop_it_or_are_listed(corpus: Path) -> None:
    (corpus / "b.jsonl.zst").write_bytes(zstd_frame(record("b") + b"\nbad\x1b\n" * 15))
    with pytest.raises(PilekitError, match=r"b\.jsonl\.zst, line 2: is not JSON"):
        run("index", corpus)
    assert (corpus / "a.jsonl.index.parquet").exists(), "the others are done"
    assert not (corpus / "b.jsonl.zst.index.parquet").exists()
    result = run("index", corpus, "--on-error", "skip", exit_code=0)
    assert result.stderr.count("skipped: ") == 11
    assert "skipped: 5 lines more" in result.stderr
    assert "\x1b" not in result.output
    assert run("index", corpus, exit_code=0).stderr == "", "an index that is there needs no decision"


def test_notes_on_long_frames_and_indexes_in_the_cache(tmp_path: Path) -> None:
    text = (record("x" * 1_000_000) + b"\n") * 70
    (tmp_path / "a.jsonl.zst").write_bytes(zstd_frame(text))
    (tmp_path / "b.jsonl").write_bytes(text)
    shown = " ".join(run("index", tmp_path).stdout.split())
    assert "a.jsonl has 66.8 MiB in one frame: to read one of its documents" in shown
    assert "`pilekit reframe` makes smaller frames" in shown
    assert "b.jsonl has" not in shown
    with fsspec.open("memory://cached/a.jsonl", "wb") as file:
        file.write(record("a"))
    result = run("index", "memory://cached/a.jsonl", "--jobs", 2, PILEKIT_CACHE=str(tmp_path / "cache"))
    (made,) = (tmp_path / "cache").rglob("*.index.parquet")
    assert str(made) in result.stdout.replace("\n", "")


def test_wrong_usage(tmp_path: Path) -> None:
    run("index", tmp_path, "--jobs", 0, exit_code=2)
    for place in (tmp_path, "-"):
        with pytest.raises(PilekitError):
            run("index", place)
