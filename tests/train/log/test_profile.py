"""The page of a profile shows the parts of real steps, and the trace has every one of them."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import pytest
import torch

from pilekit.models.causal import as_causal_lm
from pilekit.train.config.sections import TrainConfig
from pilekit.train.log.profile import Profile, part
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.tiny.models import tiny_model
from tests.train.runs import small_config


def config_of(profile: tuple[int, int] | None) -> TrainConfig:
    rows = {"train.steps": 100, "train.global_batch_size": 8, "train.micro_batch_size": 4}
    return small_config({**rows, "parallel.zero": 3, "precision.dtype": "bf16", "log.profile": profile})


def profiled(folder: str) -> None:
    """Seven steps, of which three are profiled; in each, rank 0 waits 20 ms for data, 10 to save, 300 for rank 1."""
    ranks, config = join(), config_of((3, 5))
    engine = StepEngine(as_causal_lm(tiny_model()), config, ranks)
    ids = torch.randint(2, 320, (4, 16))
    rows = {"input_ids": ids, "labels": ids, "position_ids": torch.arange(16).expand(4, 16)}
    with Profile(Path(folder), config, ranks, "REMEDY") as profile:
        for number in range(1, 8):
            ranks.any(False)
            with profile.step(number):
                with part("data"):
                    time.sleep(0.02)
                if ranks.rank == 1 and 3 <= number <= 5:
                    time.sleep(0.3)
                engine.forward_backward(rows, scale=0.01, last=True)
                engine.update(1e-3)
                with part("checkpoint"):
                    time.sleep(0.01)
            assert Path(folder, "breakdown.txt").exists() or not ranks.is_first or number < 5


def test_the_page_shows_where_real_steps_spent_time(process_group: ProcessGroups, tmp_path: Path) -> None:
    process_group(2).run(profiled, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["breakdown.txt", "trace-rank0.json.gz"]
    page = (tmp_path / "breakdown.txt").read_text()
    assert page.startswith("Where the time of steps 3 to 5 went: rank 0 of 2, on cpu, bf16, parallel.zero = 3\n")
    numbers = re.findall(r"^ +([\d.]+)(?:%| ms per step)", page, re.MULTILINE)
    ms, data, saving, computing, communicating = map(float, numbers)
    assert ms >= 300  # rank 1 comes later
    assert data * ms / 100 >= 19.9
    assert saving * ms / 100 >= 9.9
    assert communicating * ms / 100 >= 250
    assert 0 < computing <= 100 - data - saving - communicating + 0.3
    assert "\nMost useful: REMEDY\n" in page
    assert re.search(r"^ +(FSDP|c10d)::", page, re.MULTILINE)  # 250 ms: surely among the costliest 20
    trace = json.loads(gzip.decompress((tmp_path / "trace-rank0.json.gz").read_bytes()))
    assert sum(one.get("name") == "pilekit::step" for one in trace["traceEvents"]) == 3


def idle_steps(folder: Path, profile: tuple[int, int] | None, *steps: int) -> str:
    """The first line of the page of these steps; empty if there is none."""
    with Profile(folder, config_of(profile), join(), "REMEDY") as running:
        for number in steps:
            with running.step(number):
                assert number != 13, "an unlucky step"
    page = folder / "breakdown.txt"
    return page.read_text().partition(":")[0] if page.exists() else ""


def test_runs_that_end_or_fail_or_cannot_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert idle_steps(tmp_path / "none", None, 1, 2) == idle_steps(tmp_path / "none", (7, 9), 1, 2) == ""
    assert not (tmp_path / "none").exists()
    assert idle_steps(tmp_path / "short", (2, 9), 1, 2, 3) == "Where the time of steps 2 to 3 went"
    assert idle_steps(tmp_path / "resumed", (2, 9), 9, 10) == "Where the time of steps 9 to 9 went"
    with pytest.raises(AssertionError, match="unlucky"):
        idle_steps(tmp_path / "failed", (11, 19), 12, 13)
    assert "Where the time of steps 12 to 12 went" in (tmp_path / "failed" / "breakdown.txt").read_text()
    (tmp_path / "file").write_text("")
    assert idle_steps(tmp_path / "file", (1, 2), 1, 2) == ""
    assert "the profile cannot be written" in caplog.text
    assert "USDT" not in capfd.readouterr().err  # Kineto prints nothing


def test_the_trace_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "trace-rank0.json.gz").symlink_to("victim")
    assert idle_steps(tmp_path, (1, 1), 1)
    assert (tmp_path / "victim").read_text() == "precious"
