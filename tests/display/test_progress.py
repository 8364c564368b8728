"""The progress line appears after a moment, is right, vanishes at the end, and is silent without a terminal."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest

from pilekit.display import progress
from tests.stopping import wait_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def quiet_terminal(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as standard error, whose lines appear after so many seconds."""
    found = Terminal()
    monkeypatch.setattr(progress, "QUIET_SECONDS", seconds)
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


def is_erased(terminal: Terminal) -> bool:
    return terminal.getvalue().rstrip().endswith("\x1b[2K")


@pytest.mark.parametrize("total", [None, 10_000_000])
def test_progress_never_appears_after_the_end(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    terminal = quiet_terminal(0.01, monkeypatch)
    with progress.byte_progress("counting [red]", total) as advance:
        advance(4_001_000)
        wait_for(lambda: "counting [red]" in terminal.getvalue())
    assert "4.0" in terminal.getvalue()
    assert is_erased(terminal)
    shown = len(terminal.getvalue())
    advance(1)
    assert len(terminal.getvalue()) == shown


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = quiet_terminal(3600, monkeypatch)
    with progress.byte_progress("counting", 10) as advance, progress.count_progress("looking") as reached:
        advance(5)
        reached(5, 10)
    with progress.step_progress() as report:
        report("matching", 5, 10)
    assert "counting" not in terminal.getvalue()
    assert "looking" not in terminal.getvalue()
    assert "matching" not in terminal.getvalue()


def test_work_that_reports_nothing_is_shown_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = quiet_terminal(0.01, monkeypatch)
    with progress.byte_progress("counting", 10):
        wait_for(lambda: "counting" in terminal.getvalue())
    with progress.count_progress("looking"):
        wait_for(lambda: "looking" in terminal.getvalue())
    with progress.step_progress() as report:
        wait_for(lambda: "starting" in terminal.getvalue())
        report("matching", 0, 10)
        wait_for(lambda: "matching" in terminal.getvalue())
        assert "starting" not in terminal.getvalue().rpartition("matching")[2]
    assert is_erased(terminal)


def test_a_narrow_line_cuts_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = quiet_terminal(0.01, monkeypatch)
    monkeypatch.setenv("COLUMNS", "60")
    with progress.byte_progress("counting", 50_000_000_000) as advance:
        advance(2_000_000_000)
        wait_for(lambda: "2.0/50.0 GB" in terminal.getvalue())
    with progress.score_progress("scoring", "bits per byte so far") as scored:
        scored(138_500, 238_300, 3.2345)
        wait_for(lambda: "scoring: 3.2345" in terminal.getvalue())
    assert "138.5/238.3 kB" in terminal.getvalue()
    assert "…" not in terminal.getvalue()
    lines = [line for line in re.split("[\r\n]", terminal.getvalue()) if "ing" in line]
    assert all(line.endswith("left") for line in lines)


def test_a_count_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = quiet_terminal(0.01, monkeypatch)
    now = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    with progress.count_progress("looking") as reached:
        now = 2.5
        reached(777, 1000)
        wait_for(lambda: "777/1000" in terminal.getvalue())
    assert "elapsed," in terminal.getvalue()


def test_waiting_is_shown_at_once_and_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = quiet_terminal(3600, monkeypatch)
    with progress.waiting("loading torch"):
        assert "loading torch" in terminal.getvalue()
    assert is_erased(terminal)


def test_only_the_inner_of_two_lines_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = quiet_terminal(0.01, monkeypatch)
    with progress.waiting("outer"):
        with progress.byte_progress("inner", 10):
            assert is_erased(terminal)
            before = len(terminal.getvalue())
            wait_for(lambda: "inner" in terminal.getvalue())
            assert "outer" not in terminal.getvalue()[before:]
        after = terminal.getvalue().rpartition("inner")[2]
        assert "outer" in after, "it is back"
    assert is_erased(terminal)


def test_without_a_terminal_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with (
        progress.byte_progress("counting", 10) as advance,
        progress.count_progress("looking") as reached,
        progress.waiting("loading"),
    ):
        advance(5)
        reached(5, 10)
    assert stderr.getvalue() == ""
