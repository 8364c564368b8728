"""The progress line appears late, is right, vanishes at the end, and is silent without a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pilekit import PileStream, progress
from pilekit.cli.main import pilekit
from tests.tiny import tiny_tokenizer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


def test_progress_appears_late_and_never_after_the_end(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    for total in (None, 10_000_000):
        terminal.truncate(terminal.seek(0))
        now = 0.0
        with progress.byte_progress("counting [red]", total) as advance:
            now = 1.9
            advance(1000)
            assert terminal.getvalue() == ""
            now = 3.0
            advance(4_000_000)
            assert "counting [red]" in terminal.getvalue()
        assert "4.0" in terminal.getvalue()
        assert terminal.getvalue().rstrip().endswith("\x1b[2K"), "the line is erased"
        shown = len(terminal.getvalue())
        advance(1)
        assert len(terminal.getvalue()) == shown


def test_without_a_terminal_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0)
    with progress.byte_progress("counting", 10) as advance, progress.count_progress("looking") as reached:
        advance(5)
        reached(5, 10)
    assert stderr.getvalue() == ""


@pytest.fixture
def hasty(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal; three seconds pass between two looks at the clock."""
    clock = iter(range(0, 10**9, 3))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    return terminal


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "corpus" / "a.jsonl"
    path.parent.mkdir()
    lines = [json.dumps({"text": f"{number} words", "meta": {}}) for number in range(300)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_indexes_that_a_stream_makes(
    shard: Path, hasty: Terminal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 shows a line on a terminal and logs the number; other ranks show nothing."""
    tokenizer = tiny_tokenizer(tmp_path)
    with caplog.at_level(logging.INFO):
        PileStream(shard, tokenizer=tokenizer, batch_size=1)
    assert "indexing 1 of 1 shards" in caplog.text
    assert "indexing" in hasty.getvalue()
    for index in shard.parent.glob("*"):
        if index != shard:
            index.unlink()
    hasty.truncate(0)
    PileStream(shard, tokenizer=tokenizer, batch_size=1, rank=1, world_size=2)
    assert hasty.getvalue() == ""
    caplog.clear()
    PileStream(shard, tokenizer=tokenizer, batch_size=1)
    assert "indexing" not in caplog.text


def test_a_step_far_ahead_shows_how_far_it_is(
    shard: Path, hasty: Terminal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "stream",
        str(shard),
        "--tokenizer",
        str(tiny_tokenizer(tmp_path)),
        "--seq-len",
        "16",
        "--batch-size",
        "2",
        "--json",
    ]
    pilekit.main([*arguments, "--peek", "4000"], standalone_mode=False)
    assert "looking for step 4,000" in hasty.getvalue()
    assert "/2000" in hasty.getvalue(), "of four columns, so a thousand visits of two rows"
    assert {document["row"] for document in json.loads(capsys.readouterr().out)} == {0, 1}
