"""`metrics.jsonl` is read back as it was written; after a resume it looks as if the run had never stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.train.log.metrics import StepBitsPerByte, StepLog, StepMetrics, read_metrics
from tests.refusing import refused
from tests.small_disk import files_limited_to


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
    with StepLog(path, StepMetrics, resume_step=resume_step) as log:
        for step in steps:
            log.write(metrics(step))


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite, st.dictionaries(st.text(), finite), st.integers(0, 2**60))
def test_lines_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, number: float, by_subset: dict[str, float], tokens: int
) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    written = [
        metrics(1, loss=number, loss_by_subset=by_subset, tokens=tokens),
        metrics(2, lr=number, grad_norm=number, step_seconds=number),
        metrics(3, grad_norm=None, loss_scale=number, skipped=tokens),
        metrics(4, bpb=StepBitsPerByte(overall=None, subsets={"Github": None, **by_subset})),
        metrics(5, epochs_by_subset=by_subset),
    ]
    with StepLog(path, StepMetrics, resume_step=0) as log:
        for one in written:
            log.write(one)
    assert read_metrics(path) == written
    lines, fields = path.read_bytes().splitlines(keepends=True), StepMetrics.__struct_fields__
    for line, one in zip(lines, written, strict=True):
        assert line.endswith(b"}\n")
        parsed = json.loads(line)
        assert list(parsed) == [*fields[:-2], *["bpb"] * (one.step == 4), *["epochs_by_subset"] * (one.step == 5)]
        assert parsed["loss_by_subset"] == one.loss_by_subset
        assert parsed["loss"] == one.loss


def test_a_resumed_file_equals_that_of_a_run_that_never_stopped(tmp_path: Path) -> None:
    write(straight := tmp_path / "straight.jsonl", range(1, 10), 0)
    for resume_step, torn in ((0, 0), (1, 20), (4, 1), (7, 100)):
        write(path := tmp_path / "metrics.jsonl", range(1, 8), 0)
        with path.open("ab") as file:
            file.write(straight.read_bytes().splitlines()[7][:torn])
        write(path, range(resume_step + 1, 10), resume_step)
        assert path.read_bytes() == straight.read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "straight.jsonl"]


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    write(path := tmp_path / "metrics.jsonl", range(1, 3), 0)
    whole = path.read_bytes()
    first = len(whole.splitlines(keepends=True)[0])
    for length in [first, *range(first + 1, len(whole), 7), len(whole) - 1, len(whole), len(whole) + 500]:
        path.write_bytes(whole[:length].ljust(length, b"\0"))  # zeros, as after a power cut
        complete = length >= len(whole) - 1  # only the line's end may be missing
        assert [one.step for one in read_metrics(path)] == ([1, 2] if complete else [1])
        StepLog(path, StepMetrics, resume_step=2).close()
        assert path.read_bytes() == (whole if complete else whole[:first])


def test_a_line_that_is_not_metrics_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for line in (b"garbage", b"{}", b"\xff", b'{"step": "1"}', b"", b"[" * 100_000):
        write(path, range(1, 3), 0)
        content = path.read_bytes() + line + b"\n"
        path.write_bytes(content)
        for action in (lambda: read_metrics(path), lambda: StepLog(path, StepMetrics, resume_step=1)):
            refused(r"metrics\.jsonl, line 3: is not a line of .* remove that line", action)
        assert path.read_bytes() == content
        path.unlink()
    write(path, range(1, 2), 0)
    path.write_bytes(path.read_bytes().replace(b"{", b'{"memory":1,', 1))  # a field of a later pilekit
    assert read_metrics(path) == [metrics(1)]


def test_a_number_that_json_does_not_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    changes: list[dict[str, Any]] = [
        {"loss": math.nan},
        {"grad_norm": -math.inf},
        {"loss_by_subset": {"ArXiv": math.inf}},
        {"bpb": StepBitsPerByte(overall=1.0, subsets={"ArXiv": math.nan})},
    ]
    with StepLog(path, StepMetrics, resume_step=0) as log:
        for change in changes:
            with pytest.raises(PilekitError, match=r"step 2: (loss|grad_norm|.*ArXiv.*) is -?(nan|inf)"):
                log.write(metrics(2, **change))
        log.write(metrics(3))
    assert [one.step for one in read_metrics(path)] == [3]


def test_lines_that_a_full_disk_refuses_wait_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(straight := tmp_path / "straight.jsonl", range(1, 9), 0)
    path = tmp_path / "metrics.jsonl"
    log = StepLog(path, StepMetrics, resume_step=0)
    log.write(metrics(1))
    first = path.stat().st_size
    with files_limited_to(first + 50):
        for step in (2, 3, 4):
            log.write(metrics(step))
    assert path.stat().st_size == first + 50  # torn
    assert read_metrics(path) == [metrics(1)]
    for step in range(5, 9):
        log.write(metrics(step))
    log.close()
    assert path.read_bytes() == straight.read_bytes()
    assert caplog.messages == [
        f"{path}: cannot be written: File too large; training continues, and lines from step 2 on wait in memory until "
        "there is room"
    ]


@pytest.mark.parametrize("closing", [True, False])
def test_lines_that_are_lost_are_an_error_at_the_end(tmp_path: Path, closing: bool) -> None:
    path = tmp_path / "metrics.jsonl"

    def fill() -> None:
        with (
            StepLog(path, StepMetrics, resume_step=0) as log,
            files_limited_to(len(msgspec.json.encode(metrics(1))) * 2 + 20),
        ):
            for step in range(1, 6):
                log.write(metrics(step))
            if not closing:
                raise ValueError("another")
            log.close()

    told = r"cannot be written: File too large; it lacks the figures from step 3 on, nothing else is lost"
    with pytest.raises(PilekitError if closing else ValueError, match=told if closing else "another"):
        fill()
    assert [one.step for one in read_metrics(path)] == ([1, 2] if closing else [1, 2, 3, 4, 5])
