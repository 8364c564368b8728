"""TensorBoard shows the figures of metrics.jsonl, also after a resume."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.train.log import tensorboard
from pilekit.train.log.metrics import StepBitsPerByte
from pilekit.train.log.tensorboard import TensorBoardLog
from tests.small_disk import files_limited_to
from tests.train.log.test_metrics import metrics


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By name, the (step, number) points that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "tensorboard"
    with TensorBoardLog(folder, resume_step=0) as log:
        for step in range(1, 6):
            log.write(metrics(step, loss=100.0 + step))
    bpb = StepBitsPerByte(overall=1.25, subsets={"Gutenberg (PG-19)": 1.5, "Pile-CC": None})
    with TensorBoardLog(folder, resume_step=3) as log:
        log.write(metrics(4, loss=204, grad_norm=None))
        log.write(metrics(7, loss=207, bpb=bpb, loss_by_subset={"a\x1b[31m\nb": 1.0, "x" * 1000: 2.0}))
    found = read(folder)
    assert found["loss"] == [(1, 101), (2, 102), (3, 103), (4, 204), (7, 207)]
    assert [step for step, _ in found["grad_norm"]] == [1, 2, 3, 7]
    assert found["bpb/overall"] + found["bpb/Gutenberg (PG-19)"] == [(7, 1.25), (7, 1.5)]
    assert "bpb/Pile-CC" not in found
    assert all(name.isprintable() and len(name) < 200 for name in found)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's own thread
def test_a_full_disk_ends_the_log_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tensorboard, "FLUSH_SECONDS", 0)
    log = TensorBoardLog(tmp_path / "log", resume_step=0)
    with files_limited_to(4096):
        for step in range(1, 400):
            log.write(metrics(step))
        log.close()
        for thread in threading.enumerate():
            if "WriterThread" in type(thread).__name__:
                thread.join()
    (warning,) = [message for message in caplog.messages if "log: cannot be written" in message]
    assert "File too large; nothing more is written for TensorBoard" in warning
    (tmp_path / "file").write_text("")
    with pytest.raises(PilekitError, match=r"file: cannot be written: .*log\.tensorboard = false"):
        TensorBoardLog(tmp_path / "file", resume_step=0)
