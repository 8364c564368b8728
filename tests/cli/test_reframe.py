from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import xxhash
from rich.console import Console

from pilekit import PilekitError
from pilekit.cli import reframe
from pilekit.shards.write.reframe import Reframed
from tests.cli.running import cells, run, run_json
from tests.shards import making


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [b"bad", *making.some_lines(3000)]
    (folder / "00.jsonl.zst").write_bytes(making.zstd_frame(b"\n".join(lines)))
    (folder / "[b]01.jsonl").write_bytes(making.record("é€") + b"\n\n")
    return folder


def test_json_says_what_was_read_and_written(corpus: Path, tmp_path: Path) -> None:
    found = run_json("reframe", corpus, "--out", tmp_path / "out", "--frame", "100KiB")["shards"]
    assert [shard["shard"] for shard in found] == ["00.jsonl", "[b]01.jsonl"]
    text = making.unzstd(corpus / "00.jsonl.zst")
    assert found[0] == {
        "shard": "00.jsonl",
        "documents": 3000,
        "bad_lines": 1,
        "text_bytes": sum(len(json.loads(line)["text"]) for line in text.split(b"\n")[1:]),
        "content_bytes": len(text),
        "content_hash": xxhash.xxh3_128_hexdigest(text),
        "stored_before": (corpus / "00.jsonl.zst").stat().st_size,
        "stored_bytes": (tmp_path / "out" / "00.jsonl.zst").stat().st_size,
        "frames": len(text) // (100 << 10) + 1,
    }
    assert run_json("reframe", corpus, "--out", tmp_path / "out", "--frame", "102400")["shards"] == found
    with pytest.raises(PilekitError, match="frame_bytes is 102400 there, 4096 here"):
        run("reframe", corpus, "--out", tmp_path / "out", "--frame", "4KiB")


def test_the_table(corpus: Path, tmp_path: Path) -> None:
    result = run("reframe", corpus, "--out", tmp_path / "out")
    rows = cells(result.stdout)
    assert rows[0] == ["Shard", "Documents", "Text", "Before", "After", "%", "Frames", "Bad", "lines"]
    assert [*rows[2][:2], rows[2][-1]] == ["00.jsonl", "3,000", "1"]
    assert [*rows[3][:4], rows[3][-1]] == ["[b]01.jsonl", "1", "5", "B", "0"]
    assert [*rows[5][:2], rows[5][-1]] == ["Total", "3,001", "1"]
    assert result.stdout.splitlines()[-1] == f"2 shards in {tmp_path / 'out'}"
    one = run("reframe", corpus / "[b]01.jsonl", "--out", tmp_path / "one").stdout
    assert "Total" not in one
    assert "Bad" not in one


def test_in_a_narrow_terminal_columns_go_and_no_number_is_cut() -> None:
    sizes = {"text_bytes": 43_300 << 20, "content_bytes": 45 << 30, "stored_before": 15_300 << 20}
    shard = Reframed("00.jsonl", 7_021_438, 123_456, content_hash="", stored_bytes=15 << 30, frames=43_812, **sizes)
    for width in (40, 60, 80):
        written = io.StringIO()
        Console(file=written, width=width).print(reframe._table([shard, shard]))
        titles, _, *rows, _, total = [" ".join(line.split()) for line in written.getvalue().splitlines()]
        assert max(map(len, written.getvalue().splitlines())) <= width
        for row in rows:
            assert "15.0 GiB +0.4" in row
            assert row.endswith("123,456")
            assert ("7,021,438" in row) == ("Documents" in titles)
        assert total.endswith("246,912")


def test_wrong_usage(corpus: Path, tmp_path: Path) -> None:
    for wrong in (["--frame", "2KiB"], ["--frame", "much"], ["--level", "23"]):
        result = run("reframe", corpus, "--out", tmp_path / "out", *wrong, exit_code=2)
        assert wrong[0] in result.stderr
    assert not (tmp_path / "out").exists()
