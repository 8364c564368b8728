"""Saves beside training: what is saved is the state at the call, whatever goes on meanwhile, and errors surface."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pilekit.errors import PilekitError
from pilekit.train.checkpoint import Checkpoints
from pilekit.train.checkpoint import saving as module
from pilekit.train.checkpoint.tensors import write_tensors
from tests.small_disk import files_limited_to
from tests.tiny import tiny_model
from tests.train.saving import (
    CONFIG,
    SHARD,
    adamw,
    assert_same,
    checkpoints_in,
    load,
    newest,
    progress_of,
    save,
    state_of,
    steps_in,
    train,
    warnings_in,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Held:
    """A function that waits at its beginning until it is let go."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.begun, self.let_go = Event(), Event()

    def __call__(self, *arguments: Any) -> Any:
        self.begun.set()
        assert self.let_go.wait(60)
        return self.function(*arguments)


@pytest.fixture
def held_write(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(write_tensors)
    monkeypatch.setattr(module, "write_tensors", held)
    yield held
    held.let_go.set()


@pytest.fixture
def held_copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(module._copied)
    monkeypatch.setattr(module, "_copied", held)
    yield held
    held.let_go.set()


def test_saves_beside_twenty_steps_are_right_and_change_nothing(tmp_path: Path) -> None:
    alone = tiny_model()
    alone_optimizer = adamw(alone)
    train(alone, alone_optimizer, range(20))

    model = tiny_model()
    optimizer = adamw(model)
    checkpoints = checkpoints_in(tmp_path, keep_last=20, asynchronous=True)
    expected = {}
    for step in range(20):
        train(model, optimizer, range(step, step + 1), checkpoints)
        expected[step + 1] = state_of(model, optimizer)
        checkpoints.save(model, optimizer, progress_of(step + 1), CONFIG)
    checkpoints.finish()
    assert_same(state_of(model, optimizer), state_of(alone, alone_optimizer))
    assert checkpoints.saved == list(range(1, 21))
    other = tiny_model(seed=1)
    other_optimizer = adamw(other)
    for step, state in expected.items():
        assert load(tmp_path / "checkpoints" / f"step-{step}", other, other_optimizer) == progress_of(step)
        assert_same(state_of(other, other_optimizer), state)


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path, held_write: Held) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    train(model, optimizer, range(2))
    expected = state_of(model, optimizer)
    checkpoints = checkpoints_in(tmp_path, asynchronous=True)
    checkpoints.save(model, optimizer, progress_of(2), CONFIG)
    train(model, optimizer, range(2, 4), checkpoints)  # nothing waits for what is held
    assert held_write.begun.wait(60)
    assert checkpoints.saved == []
    assert steps_in(tmp_path) == {"step-2.partial"}
    held_write.let_go.set()
    checkpoints.finish()
    assert checkpoints.saved == [2]
    load(tmp_path / "checkpoints" / "step-2", model, optimizer)
    assert_same(state_of(model, optimizer), expected)


def test_an_update_waits_for_the_copy_and_for_nothing_else(tmp_path: Path, held_copy: Held) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    checkpoints = checkpoints_in(tmp_path, asynchronous=True)
    checkpoints.before_update()  # no save, no wait
    checkpoints.save(model, optimizer, progress_of(1), CONFIG)
    assert held_copy.begun.wait(60)
    checkpoints.poll()
    update = Thread(target=checkpoints.before_update)
    update.start()
    update.join(0.2)
    assert update.is_alive()
    held_copy.let_go.set()
    update.join(60)
    assert not update.is_alive()
    checkpoints.finish()
    assert checkpoints.saved == [1]


def test_a_buffer_that_a_forward_changes_is_saved_as_it_was(tmp_path: Path, held_copy: Held) -> None:
    model = nn.BatchNorm1d(3)
    model(torch.randn(7, 3))
    checkpoints = checkpoints_in(tmp_path, asynchronous=True)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    checkpoints.save(model, adamw(model), progress_of(1), CONFIG)
    model(torch.randn(7, 3))
    held_copy.let_go.set()
    checkpoints.finish()
    load(tmp_path / "checkpoints" / "step-1", model)
    assert_same(model.state_dict(), expected)


def test_two_requests_in_a_row(tmp_path: Path, held_write: Held) -> None:
    model = nn.Linear(2, 3)
    optimizer = adamw(model)
    checkpoints = checkpoints_in(tmp_path, asynchronous=True)
    nn.init.constant_(model.weight, 1)
    checkpoints.save(model, optimizer, progress_of(1), CONFIG)
    checkpoints.before_update()
    nn.init.constant_(model.weight, 2)
    second = Thread(target=checkpoints.save, args=(model, optimizer, progress_of(2), CONFIG))
    second.start()
    second.join(0.2)
    assert second.is_alive()  # one after the other
    held_write.let_go.set()
    second.join(60)
    checkpoints.save(model, optimizer, progress_of(3), CONFIG)
    checkpoints.finish()
    assert checkpoints.saved == [1, 2, 3]
    assert steps_in(tmp_path) == {"step-2", "step-3"}
    for step in (2, 3):
        load(tmp_path / "checkpoints" / f"step-{step}", other := nn.Linear(2, 3))
        assert bool((other.weight == 2).all())


def test_memory_for_the_copy_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    seen: list[dict[str, int]] = []

    def watched(folder: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor], ranks: Any) -> None:
        seen.append({key: value.data_ptr() for key, value in values.items()})
        assert not seen[-1].items() & {(key, value.data_ptr()) for key, value in tensors.items()}
        write_tensors(folder, tensors, values, ranks)

    monkeypatch.setattr(module, "write_tensors", watched)
    checkpoints = checkpoints_in(tmp_path, asynchronous=True)
    for step in range(3):
        checkpoints.save(model, optimizer, progress_of(step), CONFIG)
    checkpoints.finish()
    assert seen[0] == seen[1] == seen[2]


def filled(checkpoints: Checkpoints, model: nn.Module, step: int) -> None:
    nn.init.constant_(next(model.parameters()), step)
    checkpoints.save(model, adamw(model), progress_of(step), CONFIG)


def wait_for_the_end(checkpoints: Checkpoints) -> None:
    assert checkpoints._under_way is not None
    checkpoints._under_way[1].exception(60)


def test_a_full_disk_is_told_once_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 3)
    checkpoints = checkpoints_in(tmp_path, asynchronous=True)
    filled(checkpoints, model, 1)
    checkpoints.finish()
    size = (tmp_path / "checkpoints" / "step-1" / SHARD).stat().st_size
    with files_limited_to(size // 2):
        filled(checkpoints, model, 2)
        wait_for_the_end(checkpoints)
    for _ in range(3):
        checkpoints.poll()
    [record] = warnings_in(caplog)
    assert record.levelno == logging.WARNING
    told = record.getMessage()
    assert "\n" not in told
    assert f"{tmp_path / 'checkpoints' / 'step-2'}: the checkpoint cannot be written: File too large" in told
    assert "training goes on, and earlier checkpoints are as they were" in told
    assert newest(tmp_path) == "step-1"
    assert steps_in(tmp_path) == {"step-1"}

    # If it was the last one, that is an error; with the next that succeeds all is well.
    with pytest.raises(PilekitError, match="step-2: the checkpoint cannot be written: File too large"):
        checkpoints.finish()
    with files_limited_to(size // 2):
        filled(checkpoints, model, 3)
        wait_for_the_end(checkpoints)
    filled(checkpoints, model, 4)
    assert len(warnings_in(caplog)) == 2  # told by the next save, if nobody asked
    checkpoints.finish()
    assert checkpoints.saved == [1, 4]
    assert newest(tmp_path) == "step-4"
    assert len(warnings_in(caplog)) == 2


def test_the_last_save_that_fails_is_an_error_and_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    checkpoints = checkpoints_in(tmp_path, asynchronous=True)
    filled(checkpoints, nn.Linear(2, 3), 1)
    with pytest.raises(PilekitError, match=r"step-1: the checkpoint cannot be written: File exists; .* make room"):
        checkpoints.finish()
    assert not warnings_in(caplog)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_latest_that_cannot_be_written_is_told_and_the_checkpoint_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    (tmp_path / "latest").mkdir()
    checkpoints = checkpoints_in(tmp_path, asynchronous=asynchronous, keep_last=1)
    for step in (1, 2):
        filled(checkpoints, nn.Linear(2, 3), step)
    checkpoints.finish()
    assert [record.getMessage() for record in warnings_in(caplog)] == [
        f"{tmp_path}/latest: is a folder; name a file in it; it should name {tmp_path}/checkpoints/step-{step}, which "
        "is whole and is found without it"
        for step in (1, 2)
    ]
    assert checkpoints.saved == [1, 2]
    assert steps_in(tmp_path) == {"step-2"}
    assert newest(tmp_path) == "step-2"  # a restart goes on too


def test_an_older_one_that_cannot_be_removed_is_told_and_the_new_one_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = checkpoints_in(tmp_path, asynchronous=True, keep_last=1)
    filled(checkpoints, nn.Linear(2, 3), 1)
    checkpoints.finish()

    def refused(path: Path) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:  # who runs the tests as root may remove everything
        patch.setattr(shutil, "rmtree", refused)
        filled(checkpoints, nn.Linear(2, 3), 2)
        checkpoints.finish()
    [record] = warnings_in(caplog)
    assert record.getMessage() == (
        f"{tmp_path}/checkpoints/step-1 cannot be removed: Permission denied; remove it yourself"
    )
    assert checkpoints.saved == [1, 2]
    assert steps_in(tmp_path) == {"step-1", "step-2"}
    assert newest(tmp_path) == "step-2"


def test_what_is_before_a_step_is_the_newest_that_is_kept(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    other = save(tmp_path / "other", 2)
    checkpoints = checkpoints_in(tmp_path, asynchronous=True, keep_last=2)
    assert checkpoints.before(9) is None
    checkpoints.load(other, model, adamw(model))
    assert checkpoints.before(3) == other
    assert checkpoints.before(2) is None
    for step in (4, 6, 8):
        filled(checkpoints, model, step)
    wait_for_the_end(checkpoints)  # but nobody has looked: 4 is removed, and of 8 nothing is known yet
    kept = tmp_path / "checkpoints"
    assert steps_in(tmp_path) == {"step-6", "step-8"}
    assert [checkpoints.before(step) for step in (5, 7, 9)] == [other, kept / "step-6", kept / "step-6"]
    checkpoints.finish()
    assert [checkpoints.before(step) for step in (5, 7, 9)] == [other, kept / "step-6", kept / "step-8"]


@pytest.mark.parametrize("where", ["_copied", "write_tensors", "own_sums", "put_in_place"])
@pytest.mark.parametrize("asked", ["poll", "save", "finish", "newest"])
def test_an_unforeseen_error_surfaces_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, asked: str
) -> None:
    model = nn.Linear(2, 3)
    checkpoints = checkpoints_in(tmp_path, asynchronous=True)
    filled(checkpoints, model, 1)
    checkpoints.finish()

    def broken(*_: object) -> None:
        raise ValueError("unforeseen")

    with monkeypatch.context() as patch:
        patch.setattr(module, where, broken)
        filled(checkpoints, model, 2)
        checkpoints.before_update()  # does not wait for ever
        wait_for_the_end(checkpoints)
    with pytest.raises(ValueError, match="unforeseen"):
        {
            "poll": checkpoints.poll,
            "save": lambda: filled(checkpoints, model, 3),
            "finish": checkpoints.finish,
            "newest": checkpoints.newest,
        }[asked]()
    assert checkpoints.saved == [1]
    assert newest(tmp_path) == "step-1"
    assert steps_in(tmp_path) == {"step-1"}


def test_waiting_is_counted(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    checkpoints = checkpoints_in(tmp_path)
    assert checkpoints.blocked_seconds == 0
    filled(checkpoints, model, 1)
    first = checkpoints.blocked_seconds
    assert first > 0
    checkpoints.before_update()
    assert checkpoints.blocked_seconds == first
    filled(checkpoints, model, 2)
    assert checkpoints.blocked_seconds > first


def test_a_process_that_ends_ends_its_save(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom torch import nn\n"
        "from pilekit.train.checkpoint import saving\n"
        "from tests.train.saving import adamw, checkpoints_in, progress_of\n"
        "write = saving.write_tensors\n"
        "def slow(*arguments):\n    time.sleep(0.5)\n    write(*arguments)\n"
        "saving.write_tensors = slow\n"
        "model = nn.Linear(2, 3)\n"
        "checkpoints = checkpoints_in(Path(sys.argv[1]), asynchronous=True)\n"
        "checkpoints.save(model, adamw(model), progress_of(5), {})\n"
        "print('ends', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
    assert newest(tmp_path) == "step-5"
    assert steps_in(tmp_path) == {"step-5"}


def test_synchronous_and_asynchronous_saves_are_the_same_bytes(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    one = save(tmp_path / "one", 1, model, optimizer)
    checkpoints = checkpoints_in(tmp_path / "other", asynchronous=True)
    checkpoints.save(model, optimizer, progress_of(1), CONFIG)
    checkpoints.finish()
    other = tmp_path / "other" / "checkpoints" / "step-1"
    assert {path.name: path.read_bytes() for path in one.iterdir()} == {
        path.name: path.read_bytes() for path in other.iterdir()
    }
