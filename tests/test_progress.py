"""The progress line appears late, is right, vanishes at the end, and is silent without a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pilekit import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_at(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> Terminal:
    """A terminal as standard error, and this clock."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


def test_progress_appears_late_and_never_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock() -> float:
        return now

    for total in (None, 10_000_000):
        now = 0.0
        terminal = terminal_at(monkeypatch, clock)
        with progress.byte_progress("counting [red]", total) as advance:
            now = 0.4
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


def test_a_count_appears_late_and_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    terminal = terminal_at(monkeypatch, lambda: now)
    with progress.count_progress("looking") as reached:
        now = 0.4
        reached(1, 1000)
        assert terminal.getvalue() == ""
        now = 2.5
        reached(777, 1000)
    assert "777/1000" in terminal.getvalue()
    assert "elapsed," in terminal.getvalue()


def test_waiting_is_shown_at_once_and_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_at(monkeypatch, lambda: 0.0)
    with progress.waiting("loading torch"):
        assert "loading torch" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith("\x1b[2K"), "the line is erased"


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
