"""The progress line appears after a moment, is right, vanishes at the end, and is silent without a terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest

from pilekit.display.progress import byte_progress, count_progress, score_progress, step_progress, waiting
from tests.stopping import wait_for

SOON, NEVER = 0.01, 3600.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def is_erased(self) -> bool:
        return self.getvalue().rstrip().endswith("\x1b[2K")


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as standard error. No fixture may do this: pytest sets its own between set-up and test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


@pytest.mark.parametrize("total", [None, 10_000_000])
def test_progress_never_appears_after_the_end(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    terminal = stand_in(monkeypatch)
    with byte_progress("counting [red]", total, SOON) as advance:
        advance(4_001_000)
        wait_for(lambda: "counting [red]" in terminal.getvalue())
    assert "4.0" in terminal.getvalue()
    assert terminal.is_erased
    printed = terminal.getvalue()
    advance(1)
    assert terminal.getvalue() == printed


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stand_in(monkeypatch)
    with byte_progress("counting", 10, NEVER) as advance, count_progress("looking", NEVER) as reached:
        advance(5)
        reached(5, 10)
    with step_progress(NEVER) as report:
        report("matching", 5, 10)
    assert terminal.getvalue().strip() == ""


def test_work_that_reports_nothing_is_shown_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stand_in(monkeypatch)
    with byte_progress("counting", 10, SOON):
        wait_for(lambda: "counting" in terminal.getvalue())
    with step_progress(SOON) as report:
        wait_for(lambda: "starting" in terminal.getvalue())
        report("matching", 0, 10)
        wait_for(lambda: "matching" in terminal.getvalue())
        assert "starting" not in terminal.getvalue().rpartition("matching")[2]
    assert terminal.is_erased


def test_a_narrow_line_cuts_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stand_in(monkeypatch)
    monkeypatch.setenv("COLUMNS", "60")
    with byte_progress("counting", 50_000_000_000, SOON) as advance:
        advance(2_000_000_000)
        wait_for(lambda: "2.0/50.0 GB" in terminal.getvalue())
    with score_progress("scoring", "bits per byte so far", SOON) as scored:
        scored(138_500, 238_300, 3.2345)
        wait_for(lambda: "scoring: 3.2345" in terminal.getvalue())
    assert "138.5/238.3 kB" in terminal.getvalue()
    assert "…" not in terminal.getvalue()
    lines = [line for line in re.split("[\r\n]", terminal.getvalue()) if "ing" in line]
    assert all(line.endswith("left") for line in lines)


def test_a_count_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stand_in(monkeypatch)
    with count_progress("looking", SOON) as reached:

        def is_shown() -> bool:
            reached(777, 1000)  # at most ten updates a second are shown
            return "777/1000" in terminal.getvalue()

        wait_for(is_shown)
    assert "elapsed," in terminal.getvalue()


def test_only_the_inner_of_two_lines_is_shown_and_waiting_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stand_in(monkeypatch)
    with waiting("outer"):
        assert "outer" in terminal.getvalue()
        with byte_progress("inner", 10, SOON):
            assert terminal.is_erased
            before = len(terminal.getvalue())
            wait_for(lambda: "inner" in terminal.getvalue())
            assert "outer" not in terminal.getvalue()[before:]
        assert "outer" in terminal.getvalue().rpartition("inner")[2], "it is back"
    assert terminal.is_erased


def test_without_a_terminal_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with byte_progress("counting", 10, 0) as advance, count_progress("looking", 0) as reached, waiting("loading"):
        advance(5)
        reached(5, 10)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
