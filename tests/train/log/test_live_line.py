"""The live line of training: short, right, and silent without a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pilekit.cli.display.live_line import line_of
from pilekit.train.log.metrics import StepMetrics
from tests.train.log.test_metrics import metrics as logged


def metrics(step: int, **others: Any) -> StepMetrics:
    figures: dict[str, Any] = {"loss": 3.21456, "lr": 2.5e-4, "tokens_per_second": 12345.6, "data_wait": 0.0123}
    return logged(step, **figures | others)


def test_the_line() -> None:
    line = line_of(metrics(900), 1000, 2.0, 3.21456, None, 80)
    assert line == "step 900/1000  loss 3.215  lr 2.5e-04  12.3k tokens/s  wait 1%  3 min left"
    assert line_of(metrics(900), 1000, 2.0, 3.21456, 1.23456, 80) == line
    assert line_of(metrics(900), 1000, 2.0, 3.21456, 1.23456, 90) == f"{line}  bpb 1.2346"
    assert line_of(metrics(1001), 1000, 2.0, 3.2, None, 80).endswith("  0 s left")
    skipped = metrics(90, loss=None, grad_norm=None, skipped=3)
    assert line_of(skipped, 100, 2.0, None, None, 80).startswith("step 90/100  no loss  lr 2.5e-04  ")
    assert line_of(skipped, 100, 2.0, None, None, 80).endswith("  20 s left  skipped 3")


@given(
    step=st.integers(min_value=1, max_value=99_999),
    loss=st.floats(min_value=0, max_value=9.999),
    rate=st.floats(min_value=0, max_value=9e11),
    seconds=st.floats(min_value=0, max_value=50),
    skipped=st.integers(min_value=0, max_value=99_999),
    bpb=st.none() | st.floats(min_value=0, max_value=99),
)
def test_the_line_fits_the_terminal(
    step: int, loss: float, rate: float, seconds: float, skipped: int, bpb: float | None
) -> None:
    figures = metrics(step, loss=loss, tokens_per_second=rate, data_wait=0.99, skipped=skipped)
    assert len(line_of(figures, 99_999, seconds, loss, bpb, 80)) <= 80


PROGRAM = """\
import sys
from pilekit.cli.display.live_line import live_line
from msgspec import UNSET
from pilekit.train.log.metrics import StepBitsPerByte, StepMetrics
with live_line(3) as show:
    for step in (1, 2, 3):
        show(StepMetrics(step=step, loss=None if step == 3 else 2.5, loss_by_subset={}, lr=0.1, grad_norm=1.0,
                         tokens=step, tokens_per_second=1e6, data_wait=0.5, step_seconds=float(step),
                         bpb=StepBitsPerByte(overall=1.5, subsets={}) if step == 1 else UNSET))
print("done")
"""


def test_only_a_terminal_shows_it_and_it_vanishes_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", PROGRAM]
    on_terminal = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert on_terminal.stdout == b"done\n"
    assert shown.index("starting the first step") < shown.index("step 3/3")
    assert "starting" not in shown[shown.index("step 3/3") :]
    assert "step 3/3  loss 2.500  lr 1.0e-01  1.00M tokens/s  wait 50%  0 s left  bpb 1.5000" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # Its last act is to clear the line.
