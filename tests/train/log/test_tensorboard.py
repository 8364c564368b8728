"""TensorBoard shows the figures of metrics.jsonl, also after a resume."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.train.log.metrics import StepBitsPerByte, StepMetrics, numbers_of
from pilekit.train.log.tensorboard import TensorBoardLog, check_tensorboard
from tests.train.log.test_metrics import metrics

Points = dict[str, list[tuple[int, float]]]


def read(folder: Path) -> Points:
    """By name, the (step, number) points that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def expected(steps: list[StepMetrics]) -> dict[str, list[tuple[int, Any]]]:
    points: dict[str, list[tuple[int, Any]]] = {}
    for step in steps:
        for name, number in numbers_of(step):
            points.setdefault(name, []).append((step.step, pytest.approx(number, rel=1e-6)))
    return points


def test_figures_are_read_back(tmp_path: Path) -> None:
    bpb = StepBitsPerByte(overall=1.25, subsets={"Gutenberg (PG-19)": 1.5, "Pile-CC": None})
    steps = [
        metrics(1),
        metrics(2, grad_norm=None, loss_scale=32768.0, skipped=1),
        metrics(7, bpb=bpb, loss_by_subset={"Gutenberg (PG-19)": 3.0, "PubMed/Central": 2.0}),
    ]
    with TensorBoardLog(tmp_path / "run" / "tensorboard", resume_step=0) as log:
        for step in steps:
            log.write(step)
        log.write(metrics(8, loss_by_subset={"a\x1b[31m\nb": 1.0, "x" * 1000: 2.0}))
    found = read(tmp_path / "run" / "tensorboard")
    assert all(name.isprintable() and len(name) < 200 for name in found)
    assert {name: [point for point in found[name] if point[0] < 8] for name in expected(steps)} == expected(steps)
    assert {"loss", "lr", "bpb/overall", "bpb/Gutenberg (PG-19)", "loss_by_subset/Pile-CC"} <= set(found)
    assert [step for step, _ in found["grad_norm"]] == [1, 7, 8]


@pytest.mark.parametrize("resume_step", [0, 3])
def test_a_resumed_run_shows_each_step_once(tmp_path: Path, resume_step: int) -> None:
    with TensorBoardLog(tmp_path, resume_step=0) as log:
        for step in range(1, 6):
            log.write(metrics(step, loss=100.0 + step))
    with TensorBoardLog(tmp_path, resume_step=resume_step) as log:
        for step in range(resume_step + 1, 8):
            log.write(metrics(step, loss=200.0 + step))
    first = [(step, 100.0 + step) for step in range(1, resume_step + 1)]
    assert read(tmp_path)["loss"] == first + [(step, 200.0 + step) for step in range(resume_step + 1, 8)]


def test_a_missing_package_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for action in (check_tensorboard, lambda: TensorBoardLog(tmp_path / "log", resume_step=0)):
        with pytest.raises(PilekitError, match=r"log\.tensorboard = true: .* pip install 'pilekit\[tensorboard\]'"):
            action()
    assert not (tmp_path / "log").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    with pytest.raises(PilekitError, match=r"log: cannot be written: .*log\.tensorboard = false"):
        TensorBoardLog(tmp_path / "log", resume_step=0)


FULL_DISK = """\
import logging, resource, sys
from pathlib import Path
from pilekit.train.log import tensorboard
from tests.train.log.test_metrics import metrics
logging.basicConfig(format="%(levelname)s %(message)s")
tensorboard.FLUSH_SECONDS = 0
log = tensorboard.TensorBoardLog(Path(sys.argv[1]), resume_step=0)
log.write(metrics(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for step in range(2, 400):
    log.write(metrics(step))
log.close()
print("still training")
"""


def test_a_full_disk_ends_the_log_and_not_the_training(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "still training\n"), done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert "log: cannot be written: File too large; nothing more is written for TensorBoard" in warnings[0]
