"""`metrics.jsonl`: what is written is read back, and after a resume it is as if the run had never been stopped."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.evaluate.results.result import BitsPerByte, Score
from pilekit.train.log import metrics as module
from pilekit.train.log.metrics import MetricsLog, StepBitsPerByte, StepMetrics, numbers_of, read_metrics, step_memory
from tests.small_disk import files_limited_to

KEYS = [
    "step",
    "loss",
    "loss_by_subset",
    "lr",
    "grad_norm",
    "tokens",
    "tokens_per_second",
    "data_wait",
    "step_seconds",
    "memory_bytes",
    "loss_scale",
    "skipped",
]


def metrics(step: int, **changes: Any) -> StepMetrics:
    values: dict[str, Any] = {
        "step": step,
        "loss": 10.5 / (step + 1),
        "loss_by_subset": {"Pile-CC": 1.25, "Gutenberg (PG-19)": 0.1 * step},
        "lr": 3e-4,
        "grad_norm": 1.5,
        "tokens": 2048 * step,
        "tokens_per_second": 1234.5,
        "data_wait": 0.0,
        "step_seconds": 0.125,
        "memory_bytes": 3 << 30,
        "loss_scale": None,
        "skipped": 0,
    }
    return StepMetrics(**(values | changes))


def write(path: Path, steps: range, resume_step: int) -> None:
    with MetricsLog(path, resume_step=resume_step) as log:
        for step in steps:
            log.write(metrics(step))


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite, st.dictionaries(st.text(), finite), st.integers(0, 2**60))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, number: float, by_subset: dict[str, float], tokens: int
) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    written = [
        metrics(1, loss=number, loss_by_subset=by_subset, tokens=tokens),
        metrics(2, lr=number, grad_norm=number, step_seconds=number),
        metrics(3, grad_norm=None, loss_scale=number, skipped=tokens),
    ]
    with MetricsLog(path, resume_step=0) as log:
        for one in written:
            log.write(one)
    assert read_metrics(path) == written
    lines = path.read_bytes().splitlines(keepends=True)
    for line, one in zip(lines, written, strict=True):
        assert line.endswith(b"}\n")
        parsed = json.loads(line)
        assert list(parsed) == KEYS
        assert parsed["loss_by_subset"] == one.loss_by_subset
        assert parsed["loss"] == one.loss


@given(st.none() | finite, st.dictionaries(st.text(), st.none() | finite))
def test_bits_per_byte_are_in_the_line_of_their_step(
    tmp_path_factory: pytest.TempPathFactory, overall: float | None, subsets: dict[str, float | None]
) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    written = [metrics(1), metrics(2, bpb=StepBitsPerByte(overall=overall, subsets=subsets))]
    with MetricsLog(path, resume_step=0) as log:
        for one in written:
            log.write(one)
    assert read_metrics(path) == written
    without, line = (json.loads(line) for line in path.read_bytes().splitlines())
    assert list(without) == KEYS
    assert list(line) == [*KEYS, "bpb"]
    assert line["bpb"] == {"overall": overall, "subsets": subsets}


def test_bits_per_byte_of_an_evaluation() -> None:
    scores = {"ArXiv": Score(documents=1, bytes=4, tokens=2, nll=8 * math.log(2)), "Github": Score(documents=3)}
    found = StepBitsPerByte.of(BitsPerByte(scores["ArXiv"], scores, {}))
    assert found == StepBitsPerByte(overall=2.0, subsets={"ArXiv": 2.0, "Github": None})


def test_the_numbers_of_a_step_by_name() -> None:
    bpb = StepBitsPerByte(overall=1.5, subsets={"ArXiv": 1.0, "Github": None, "overall": 7.0})
    step = metrics(4, bpb=bpb, grad_norm=None, loss_scale=8.0, skipped=2)
    assert list(numbers_of(step)) == [
        ("loss", 2.1),
        ("loss_by_subset/Pile-CC", 1.25),
        ("loss_by_subset/Gutenberg (PG-19)", 0.4),
        ("lr", 3e-4),
        ("tokens", 8192),
        ("tokens_per_second", 1234.5),
        ("data_wait", 0.0),
        ("step_seconds", 0.125),
        ("memory_bytes", 3 << 30),
        ("loss_scale", 8.0),
        ("skipped", 2),
        ("bpb/overall", 1.5),
        ("bpb/ArXiv", 1.0),
        ("bpb/overall", 7.0),
    ]


def test_lines_of_an_earlier_pilekit_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 3), 0)
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    old = [
        {key: record[key] for key in KEYS if key not in ("memory_bytes", "loss_scale", "skipped")} for record in records
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in old))
    assert read_metrics(path) == [metrics(1, memory_bytes=0), metrics(2, memory_bytes=0)]


def test_the_memory_of_a_step_is_what_the_process_has() -> None:
    before = step_memory(torch.device("cpu"))
    block = bytearray(200 << 20)
    block[::4096] = b"x" * len(block[::4096])
    after = step_memory(torch.device("cpu"))
    assert 195 << 20 <= after - before <= 230 << 20
    del block
    assert step_memory(torch.device("cpu")) < after - (100 << 20)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_memory_of_a_step_on_a_gpu_is_its_peak() -> None:
    device = torch.device("cuda")
    torch.ones(1, device=device)
    step_memory(device)
    before = step_memory(device)
    torch.ones(64 << 20, device=device)
    assert step_memory(device) == before + (256 << 20)
    assert step_memory(device) == before


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    log = MetricsLog(path, resume_step=0)
    for step in (1, 2):
        log.write(metrics(step))
        assert [one.step for one in read_metrics(path)] == list(range(1, step + 1))
    log.close()


@pytest.mark.parametrize("torn", [0, 1, 20, 100])
@pytest.mark.parametrize("resume_step", [0, 1, 4, 7])
def test_resuming_leaves_the_file_of_a_run_that_never_stopped(tmp_path: Path, resume_step: int, torn: int) -> None:
    write(straight := tmp_path / "straight.jsonl", range(1, 10), 0)
    write(path := tmp_path / "metrics.jsonl", range(1, 8), 0)
    with path.open("ab") as file:
        file.write(straight.read_bytes().splitlines()[7][:torn])
    write(path, range(resume_step + 1, 10), resume_step)
    assert path.read_bytes() == straight.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "straight.jsonl"]


def test_only_some_steps_are_logged(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, resume_step=0) as log:
        for step in (10, 20, 30):
            log.write(metrics(step))
    MetricsLog(path, resume_step=25).close()
    assert [one.step for one in read_metrics(path)] == [10, 20]


def test_a_file_that_is_as_it_should_be_is_not_rewritten(tmp_path: Path) -> None:
    write(path := tmp_path / "metrics.jsonl", range(1, 4), 0)
    before = path.stat().st_ino
    MetricsLog(path, resume_step=3).close()
    assert path.stat().st_ino == before
    MetricsLog(path, resume_step=2).close()
    assert path.stat().st_ino != before
    assert [one.step for one in read_metrics(path)] == [1, 2]


def test_places_at_which_the_last_line_can_be_torn(tmp_path: Path) -> None:
    write(path := tmp_path / "metrics.jsonl", range(1, 3), 0)
    whole = path.read_bytes()
    first = len(whole.splitlines(keepends=True)[0])
    for length in [first, *range(first + 1, len(whole), 7), len(whole) - 1, len(whole)]:
        path.write_bytes(whole[:length])
        complete = length >= len(whole) - 1  # only the line's end may be missing
        assert [one.step for one in read_metrics(path)] == ([1, 2] if complete else [1])
        MetricsLog(path, resume_step=2).close()
        assert path.read_bytes() == (whole if complete else whole[:first])


def test_zeros_after_a_cut_of_power_are_a_torn_line(tmp_path: Path) -> None:
    write(path := tmp_path / "metrics.jsonl", range(1, 3), 0)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(500))
    assert len(read_metrics(path)) == 2
    MetricsLog(path, resume_step=2).close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", [b"garbage", b"{}", b"\xff", b'{"step": "1"}', b"", b"[" * 100_000, b"[1]"])
def test_a_line_that_is_no_metrics_is_named(tmp_path: Path, line: bytes) -> None:
    write(path := tmp_path / "metrics.jsonl", range(1, 3), 0)
    content = path.read_bytes() + line + b"\n"
    path.write_bytes(content)
    for action in (lambda: read_metrics(path), lambda: MetricsLog(path, resume_step=1)):
        with pytest.raises(PilekitError, match=r"metrics\.jsonl, line 3: is no metrics of pilekit .* remove that line"):
            action()
    assert path.read_bytes() == content


def test_fields_of_a_later_pilekit_are_passed_over(tmp_path: Path) -> None:
    write(path := tmp_path / "metrics.jsonl", range(1, 2), 0)
    path.write_bytes(path.read_bytes().replace(b"{", b'{"memory":1,', 1))
    assert read_metrics(path) == [metrics(1)]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["loss", "grad_norm", "loss_by_subset", "bpb"])
def test_a_number_that_json_does_not_have_is_refused(tmp_path: Path, field: str, number: float) -> None:
    path = tmp_path / "metrics.jsonl"
    by_subset: dict[str, float | None] = {"ArXiv": number}
    values = {"loss_by_subset": by_subset, "bpb": StepBitsPerByte(overall=1.0, subsets=by_subset)}
    changes = {field: values.get(field, number)}
    with MetricsLog(path, resume_step=0) as log:
        log.write(metrics(1))
        with pytest.raises(PilekitError, match=r"step 2: (loss|grad_norm|.*ArXiv.*) is -?(nan|inf)"):
            log.write(metrics(2, **changes))
        log.write(metrics(3))
    assert [one.step for one in read_metrics(path)] == [1, 3]


def test_what_a_full_disk_does_not_take_waits_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(straight := tmp_path / "straight.jsonl", range(1, 9), 0)
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, resume_step=0)
    log.write(metrics(1))
    first = path.stat().st_size
    with files_limited_to(first + 50):
        for step in (2, 3, 4):
            log.write(metrics(step))
    assert path.stat().st_size == first + 50  # torn
    assert read_metrics(path) == [metrics(1)]
    for step in range(5, 8):
        log.write(metrics(step))
    with files_limited_to(path.stat().st_size):
        log.write(metrics(8))
    log.close()
    assert path.read_bytes() == straight.read_bytes()
    assert caplog.messages == [
        f"{path}: cannot be written: File too large; training goes on, and lines from step 2 on wait in memory until "
        "there is room"
    ]


@pytest.mark.parametrize("closing", [True, False])
def test_lines_that_no_room_is_made_for_are_told_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, closing: bool
) -> None:
    path = tmp_path / "metrics.jsonl"
    told = (
        f"{path}: cannot be written: File too large; it lacks the figures from step 3 on, nothing else is lost; make "
        "room before the run goes on"
    )

    def fill() -> None:
        with MetricsLog(path, resume_step=0) as log, files_limited_to(len(msgspec.json.encode(metrics(1))) * 2 + 20):
            for step in range(1, 6):
                log.write(metrics(step))
            if not closing:
                raise ValueError("another")
            log.close()

    with pytest.raises(PilekitError if closing else ValueError, match=f"^{re.escape(told)}$" if closing else "another"):
        fill()
    assert caplog.messages[0].endswith("lines from step 3 on wait in memory until there is room")
    assert len(caplog.messages) == 1
    assert [one.step for one in read_metrics(path)] == ([1, 2] if closing else [1, 2, 3, 4, 5])


def test_lines_do_not_wait_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD", 3)
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, resume_step=0)
    with files_limited_to(0):
        for step in range(1, 4):
            log.write(metrics(step))
        with pytest.raises(PilekitError, match=r"has not been writable since step 1, and no more lines are"):
            log.write(metrics(4))
    log.close()
    assert [one.step for one in read_metrics(path)] == [1, 2, 3]


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match="is a folder"):
        MetricsLog(tmp_path, resume_step=0)
    with pytest.raises(PilekitError, match="cannot be read: No such file"):
        read_metrics(tmp_path / "missing.jsonl")
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(PilekitError, match="is a device or a pipe"):
        MetricsLog(pipe, resume_step=0)
