"""The parts of a profile add up to the steps, and real steps show their real work."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from pilekit.engine.ranks import join
from pilekit.evaluate.model.causal import as_causal_lm
from pilekit.train.config import (
    CheckpointConfig,
    LogConfig,
    ParallelConfig,
    PrecisionConfig,
    TrainConfig,
    TrainSection,
)
from pilekit.train.log.profile import TITLES, Part, Profile, advice, part, times_of
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
    assert times_of(entries, gpu=True) == {
        "compute": 40,
        "communication": 30,
        "data": 30,
        "checkpoint": 0,
        "rest": 0,
    }


# ---- real steps


def config_of(stage: Any = 0, profile: tuple[int, int] | None = (3, 5)) -> TrainConfig:
    return TrainConfig(
        train=TrainSection(steps=1, global_batch_size=8, micro_batch_size=4),
        parallel=ParallelConfig(zero=stage),
        precision=PrecisionConfig(dtype="bf16"),
        log=LogConfig(profile=profile),
    )


def profiled(folder: str, stage: int) -> None:
    """Seven steps, of which three are profiled; in each, rank 0 waits 20 ms for data, 10 to save, 1,000 for rank 1."""
    ranks, config = join(), config_of(stage)
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
                    time.sleep(1.0)
                engine.forward_backward(rows, scale=0.01, last=True)
                engine.update(1e-3)
                with part("checkpoint"):
                    time.sleep(0.01)
            assert Path(folder, "breakdown.txt").exists() or not ranks.is_first or number < 5


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_the_page_shows_where_real_steps_spent_time(process_group: ProcessGroups, tmp_path: Path, stage: int) -> None:
    process_group(2).run(profiled, str(tmp_path / "profile"), stage)
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["breakdown.txt", "trace-rank0.json.gz"]
    page = (tmp_path / "profile" / "breakdown.txt").read_text()
    assert page.startswith("Where the time of steps 3 to 5 went: rank 0 of 2, on cpu, bf16, parallel.zero = ")
    assert page.count("\n") <= 30
    assert max(map(len, page.splitlines())) <= 200
    rows = re.findall(r"^(\w+(?: wait)?) +([\d.]+)% +([\d.]+)$", page, re.MULTILINE)
    assert [name for name, *_ in rows] == [*TITLES.values(), "all"]
    ms = {name: float(number) for name, _, number in rows}
    assert sum(list(ms.values())[:-1]) == pytest.approx(ms["all"], abs=0.05)
    assert sum(float(share) for _, share, _ in rows[:-1]) == pytest.approx(100, abs=0.3)
    assert ms["data wait"] >= 19.9
    assert ms["checkpoint"] >= 9.9
    assert ms["communication"] >= 50  # rank 1 comes a second later, less what rank 0 has to compute until then
    assert ms["compute"] > 0
    assert ms["all"] >= 1000
    operations = re.findall(r"^(\S.*?) +([\d.]+) +(\d+)$", page, re.MULTILINE)
    assert len(operations) == 5
    assert [float(own) for _, own, _ in operations] == sorted((float(own) for _, own, _ in operations), reverse=True)
    assert re.search(r"^Most useful: (data wait|communication|checkpoint|rest) takes \d+%: ", page, re.MULTILINE)
    trace = json.loads(gzip.decompress((tmp_path / "profile" / "trace-rank0.json.gz").read_bytes()))
    assert sum(one.get("name") == "pilekit::step" for one in trace["traceEvents"]) == 3


def idle_steps(folder: Path, config: TrainConfig, count: int) -> None:
    with Profile(folder, config, join(), "REMEDY") as profile:
        for number in range(1, count + 1):
            with profile.step(number):
                torch.ones(10).sum()


def test_no_profile_was_asked_for(tmp_path: Path) -> None:
    idle_steps(tmp_path / "profile", config_of(profile=None), 3)
    idle_steps(tmp_path / "profile", config_of(profile=(7, 9)), 3)
    assert not (tmp_path / "profile").exists()


def test_a_run_that_ends_or_resumes_within_the_profiled_steps(tmp_path: Path) -> None:
    idle_steps(tmp_path / "short", config_of(profile=(2, 9)), 3)
    assert (tmp_path / "short" / "breakdown.txt").read_text().startswith("Where the time of steps 2 to 3 went")
    with Profile(tmp_path / "later", config_of(profile=(2, 9)), join(), "REMEDY") as profile, profile.step(9):
        pass
    assert (tmp_path / "later" / "breakdown.txt").read_text().startswith("Where the time of step 9 went")


def test_a_step_that_fails_ends_the_profile(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Profile(tmp_path, config_of(profile=(1, 9)), join(), "REMEDY") as profile,
    ):
        with profile.step(1):
            pass
        with profile.step(2):
            raise ZeroDivisionError
    assert (tmp_path / "breakdown.txt").read_text().startswith("Where the time of step 1 went")


def test_a_page_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile").write_text("")
    idle_steps(tmp_path / "profile", config_of(profile=(1, 2)), 3)
    assert "the profile cannot be written" in caplog.text
    assert "USDT" not in capfd.readouterr().err  # Kineto prints nothing


# ---- advice


ADVICE: list[tuple[dict[str, Any], dict[str, float], str]] = [
    ({}, {"data": 0.1}, "data wait takes 10%: REMEDY"),
    ({}, {"data": 0.1, "communication": 0.4}, "communication takes 40%: more rows per step"),
    ({"parallel": ParallelConfig(zero=3)}, {"communication": 0.4}, "parallel.zero = 2 gathers parameters once"),
    ({"parallel": ParallelConfig(zero=2)}, {"communication": 0.4}, "parallel.zero = 1 sends gradients once"),
    ({}, {"checkpoint": 0.3}, "save less often than every 1,000 steps"),
    ({"checkpoint": CheckpointConfig(asynchronous=False)}, {"checkpoint": 0.3}, "checkpoint.asynchronous = true"),
    ({}, {"rest": 0.6}, "rest takes 60%: train.micro_batch_size above 4"),
    ({"parallel": ParallelConfig(compile=True)}, {"rest": 0.2, "data": 0.01}, "nothing but the model itself"),
    ({"precision": PrecisionConfig(dtype="fp32")}, {}, 'precision.dtype = "bf16"'),
    ({"parallel": ParallelConfig(activation_checkpoint="full")}, {}, 'activation_checkpoint = "none"'),
    ({}, {}, "parallel.compile = true"),
]


def test_the_advice_is_about_what_stands_out() -> None:
    for changes, shares, expected in ADVICE:
        whole: dict[Part, float] = {**dict.fromkeys(TITLES, 0.0), **shares}  # type: ignore[dict-item]
        config = msgspec.structs.replace(config_of(), **changes)
        text = advice(whole, config, join(), "REMEDY")
        assert expected in text
        assert "\n" not in text
