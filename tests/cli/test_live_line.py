"""The live line: short, right, and nothing of it where no terminal is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.cli.live_line import duration, line_of, short_count
from pilekit.train.log.metrics import StepMetrics


def metrics(step: int, **others: Any) -> StepMetrics:
    figures: dict[str, Any] = {
        "loss": 3.21456,
        "lr": 2.5e-4,
        "grad_norm": 1.5,
        "tokens_per_second": 12345.6,
        "data_wait": 0.0123,
    }
    figures |= {"step_seconds": 2.0, **others}
    return StepMetrics(step=step, tokens=step * 100, loss_by_subset={"ArXiv": 3.0}, **figures)


def test_the_line() -> None:
    line = line_of(metrics(900), 1000, 2.0)
    assert line == "step 900/1000  loss 3.215  lr 2.5e-04  12.3k tokens/s  wait 1%  3 min left"
    assert line_of(metrics(1000), 1000, 2.0).endswith("  0 s left")
    assert line_of(metrics(900), 1000, 2.0, 9.0, 1.23456) == line
    assert line_of(metrics(900), 1000, 2.0, 9.0, 1.23456, 90) == f"{line}  bpb 1.2346"
    assert line_of(metrics(1001), 1000, 2.0).endswith("  0 s left")


def test_a_step_that_was_skipped() -> None:
    skipped = metrics(90, loss=None, grad_norm=None, skipped=3)
    assert line_of(skipped, 100, 2.0, 4.5).startswith("step 90/100  loss 4.500  lr 2.5e-04  ")
    assert line_of(skipped, 100, 2.0).startswith("step 90/100  no loss  lr 2.5e-04  ")
    assert line_of(skipped, 100, 2.0).endswith("  20 s left  skipped 3")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.6, "1 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (5969, "99 min"),
        (5971, "1.7 h"),
        (7200, "2.0 h"),
        (172_799, "48.0 h"),
        (172_800, "2.0 d"),
        (1e6, "11.6 d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(seconds=st.floats(min_value=0, max_value=1e9))
def test_a_duration_is_right_but_for_rounding(seconds: float) -> None:
    number, unit = duration(seconds).split()
    told = float(number) * {"s": 1, "min": 60, "h": 3600, "d": 86400}[unit]
    assert abs(told - seconds) <= max(0.51, (0.3 if seconds < 120 else 0.2 if seconds < 600 else 0.05) * seconds)


@given(
    step=st.integers(min_value=1, max_value=99_999),
    loss=st.floats(min_value=0, max_value=9.999),
    lr=st.floats(min_value=1e-12, max_value=1),
    rate=st.floats(min_value=0, max_value=9e11),
    wait=st.floats(min_value=0, max_value=0.99),
    seconds=st.floats(min_value=0, max_value=50),
    skipped=st.integers(min_value=0, max_value=99_999),
    bpb=st.none() | st.floats(min_value=0, max_value=99),
)
def test_the_line_fits_the_terminal(
    step: int, loss: float, lr: float, rate: float, wait: float, seconds: float, skipped: int, bpb: float | None
) -> None:
    figures = metrics(step, loss=loss, lr=lr, tokens_per_second=rate, data_wait=wait, skipped=skipped)
    assert len(line_of(figures, 99_999, seconds, bpb=bpb)) <= 80


@given(number=st.floats(min_value=0, max_value=9e11))
def test_a_short_count_is_right_to_three_digits(number: float) -> None:
    text = short_count(number)
    assert len(text) <= 5
    told = float(text.rstrip("kMG")) * {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1)
    assert abs(told - number) <= max(0.5, 0.0051 * number)


PROGRAM = """\
import sys
from pilekit.cli.live_line import live_line
from msgspec import UNSET
from pilekit.train.log.metrics import StepBitsPerByte, StepMetrics
with live_line(3) as show:
    for step in (1, 2, 3):
        show(StepMetrics(step=step, loss=None if step == 3 else 2.5, loss_by_subset={}, lr=0.1, grad_norm=1.0,
                         tokens=step, tokens_per_second=1e6, data_wait=0.5, step_seconds=float(step),
                         bpb=StepBitsPerByte(overall=1.5, subsets={}) if step == 1 else UNSET))
print("done")
"""


def test_it_is_silent_without_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def read_on(terminal: int) -> str:
    """What comes next; nothing when all is read."""
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # nobody has its other end any more
        return ""


def test_on_a_terminal_it_shows_the_last_step_and_vanishes() -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
            check=True,
        )
        os.close(theirs)
        shown = "".join(iter(lambda: read_on(ours), ""))
    finally:
        os.close(ours)
    assert done.stdout == b"done\n"
    assert "step 3/3  loss 2.500  lr 1.0e-01  1.00M tokens/s  wait 50%  0 s left  bpb 1.5000" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # its last act is to clear the line
