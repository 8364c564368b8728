"""The parts of a profile add up to the steps, and real steps show their real work."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pilekit.engine.ranks import join
from pilekit.evaluate.model.causal import as_causal_lm
from pilekit.train.config import LogConfig, ParallelConfig, PrecisionConfig, TrainConfig, TrainSection
from pilekit.train.log.profile import USUAL, Profile, part, times_of
from pilekit.train.step.engine import Engine
from tests.process_groups import ProcessGroups
from tests.tiny import tiny_model


def entry(name: str, time: float, device: str = "CPU", annotation: bool = False) -> Any:
    on_gpu = device == "CUDA"
    return SimpleNamespace(
        key=name,
        device_type=SimpleNamespace(name=device),
        cpu_time_total=0 if on_gpu else time,
        self_cpu_time_total=0 if on_gpu else time,
        self_device_time_total=time if on_gpu else 0,
        is_user_annotation=annotation,
    )


def test_parts_of_steps_on_a_cpu() -> None:
    """The time beside compute is communication, as far as there was any."""
    for collective, communication, rest in ((19, 21, 39), (200, 60, 0)):
        entries = [
            entry("pilekit::step", 100, annotation=True),
            entry("pilekit::data", 10, annotation=True),
            entry("aten::mm", 20),
            entry("autograd::engine::evaluate_function: MmBackward0", 30),  # collectives are waited for in here
            entry("FSDP::all_gather", 20, annotation=True),
            entry("c10d::_allgather_base_", 2),
            entry("gloo:all_gather", collective),
            entry("pilekit::checkpoint", 10, annotation=True),
        ]
        parts = {"data": 10, "checkpoint": 10, "compute": 20, "communication": communication, "rest": rest}
        assert times_of(entries, gpu=False) == parts


def test_parts_of_steps_on_a_gpu() -> None:
    """While the GPU computes, waiting for data does not count as waiting; only kernels count as compute."""
    entries = [
        entry("pilekit::step", 100, annotation=True),
        entry("pilekit::step", 95, "CUDA", annotation=True),
        entry("pilekit::data", 50, annotation=True),
        entry("aten::mm", 10),
        entry("ampere_gemm", 40, "CUDA"),
        entry("FSDP::all_gather", 50, "CUDA", annotation=True),
        entry("c10d::_allgather_base_", 2),
        entry("ncclDevKernel_AllGather_RING", 20, "CUDA"),
        entry("gloo:all_reduce", 10),
    ]
    parts = {"compute": 40, "communication": 30, "data": 30, "checkpoint": 0, "rest": 0}
    assert times_of(entries, gpu=True) == parts


def config_of(profile: tuple[int, int] | None) -> TrainConfig:
    return TrainConfig(
        train=TrainSection(steps=1, global_batch_size=8, micro_batch_size=4),
        parallel=ParallelConfig(zero=3),
        precision=PrecisionConfig(dtype="bf16"),
        log=LogConfig(profile=profile),
    )


def profiled(folder: str) -> None:
    """Seven steps, of which three are profiled; in each, rank 0 waits 20 ms for data, 10 to save, 300 for rank 1."""
    ranks, config = join(), config_of((3, 5))
    engine = Engine(as_causal_lm(tiny_model()), config, ranks)
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
    rows = re.findall(r"^(\w+) +([\d.]+)% +([\d.]+)$", page, re.MULTILINE)
    assert [name for name, *_ in rows] == [*USUAL, "all"]
    ms = {name: float(number) for name, _, number in rows}
    assert sum(list(ms.values())[:-1]) == pytest.approx(ms["all"], abs=0.05)
    assert sum(float(share) for _, share, _ in rows[:-1]) == pytest.approx(100, abs=0.3)
    assert ms["data"] >= 19.9
    assert ms["checkpoint"] >= 9.9
    assert ms["communication"] >= 50  # rank 1 comes later, less what rank 0 has to compute until then
    assert ms["compute"] > 0
    assert ms["all"] >= 300
    operations = [float(own) for own in re.findall(r"^\S.*? +([\d.]+) +\d+$", page, re.MULTILINE)]
    assert len(operations) == 5
    assert operations == sorted(operations, reverse=True)
    assert re.search(r"^Most useful: (data|communication|checkpoint|rest) takes \d+%: ", page, re.MULTILINE)
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
