"""TensorBoard and Weights & Biases show the figures of metrics.jsonl, also after a resume."""

from __future__ import annotations

import json
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.train.log.logs import check_viewers, open_tensorboard, open_wandb
from pilekit.train.log.metrics import StepBitsPerByte
from tests.refusing import refused
from tests.small_disk import files_limited_to
from tests.train.log.test_metrics import metrics
from tests.train.runs import small_config


def read_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By name, the (step, number) points that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log file of LevelDB (doc/log_format.md there): blocks of 32 KiB with parts of records."""
    whole, at = b"", 7  # wandb's own header
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part
            yield whole
            whole = b""


def read_wandb(folder: Path) -> list[tuple[str, dict[str, list[tuple[int, float]]]]]:
    """(id, points as `read_tensorboard`) of each start of a run, in order."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its process may still be writing

    starts = []
    for file in sorted(folder.glob("*run-*/*.wandb")):
        found: dict[str, list[tuple[int, float]]] = {}
        for data in leveldb_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                if not name.startswith("_"):
                    found.setdefault(name, []).append((record.history.step.num, json.loads(item.value_json)))
        starts.append((file.stem.removeprefix("run-"), found))
    return starts


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "tensorboard"
    with open_tensorboard(folder, resume_step=0) as write:
        for step in range(1, 6):
            write(metrics(step, loss=100.0 + step))
    bpb = StepBitsPerByte(overall=1.25, subsets={"Gutenberg (PG-19)": 1.5, "Pile-CC": None})
    with open_tensorboard(folder, resume_step=3) as write:
        write(metrics(4, loss=204, grad_norm=None))
        write(metrics(7, loss=207, bpb=bpb, loss_by_subset={"a\x1b[31m\nb": 1.0, "x" * 1000: 2.0}))
    found = read_tensorboard(folder)
    assert found["loss"] == [(1, 101), (2, 102), (3, 103), (4, 204), (7, 207)]
    assert [step for step, _ in found["grad_norm"]] == [1, 2, 3, 7]
    assert found["bpb/overall"] + found["bpb/Gutenberg (PG-19)"] == [(7, 1.25), (7, 1.5)]
    assert "bpb/Pile-CC" not in found
    assert all(name.isprintable() and len(name) < 200 for name in found)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's own thread
def test_a_full_disk_ends_the_log_and_not_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with files_limited_to(4096):
        with open_tensorboard(tmp_path / "log", resume_step=0, flush_seconds=0) as write:
            for step in range(1, 400):
                write(metrics(step))
        for thread in threading.enumerate():
            if "WriterThread" in type(thread).__name__:
                thread.join()
    (warning,) = [message for message in caplog.messages if "log: cannot be written" in message]
    assert "File too large; nothing more is written for TensorBoard" in warning
    (tmp_path / "file").write_text("")
    refused(r"file: cannot be written: .*log\.tensorboard = false", open_tensorboard, tmp_path / "file", resume_step=0)


def test_weights_and_biases_needs_the_package_and_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config({"log.wandb": True})
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_CONFIG_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    import wandb

    wandb.teardown()  # a process reads the variables once
    with pytest.raises(PilekitError, match=r"log\.wandb = true: .*key.*set WANDB_MODE=offline, or log\.wandb = false"):
        open_wandb(tmp_path / "run", config)
    wandb.teardown()
    refused(r"log\.wandb = true: there is no API key; run `wandb login`", check_viewers, config)
    monkeypatch.setenv("WANDB_API_KEY", "")
    refused(r"log\.wandb = true: there is no API key", check_viewers, config)
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_API_KEY", "key"), ("NETRC", "file")):
        with monkeypatch.context() as given:
            given.setenv(name, value)
            check_viewers(config)

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.setenv("WANDB_API_KEY", "key")
    refused(r"package wandb is not installed; pip install 'pilekit\[wandb\]'", check_viewers, config)
    (tmp_path / "wandb").mkdir(exist_ok=True)  # what a run leaves is not the package
    refused("package wandb is not installed", check_viewers, config)


def test_a_page_that_fails_ends_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    import wandb

    begun: list[Any] = []
    begin = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **given: begun.append(begin(**given)) or begun[0])
    with open_wandb(tmp_path, small_config()) as write:
        write(metrics(1))
        begun[0].finish()
        write(metrics(2))
        write(metrics(3))
    (warning,) = [message for message in caplog.messages if "Weights & Biases" in message]
    assert "nothing more is written for Weights & Biases until the run is started again" in warning
    ((_, points),) = read_wandb(tmp_path / "wandb")
    assert [step for step, _ in points["lr"]] == [1]
