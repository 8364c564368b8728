"""Saving beside training: the state at the call is saved, errors surface, and the right checkpoints are kept."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import nn

from pilekit.train.checkpoint import saving as module
from pilekit.train.checkpoint.saving import Checkpoints
from pilekit.train.checkpoint.state_file import INDEX_FILE, Progress
from pilekit.train.checkpoint.step_folders import find_checkpoint
from tests.refusing import refused
from tests.small_disk import files_limited_to
from tests.tiny.models import tiny_model
from tests.train.checkpoint.saving import (
    CONFIG,
    SHARD,
    Run,
    adamw,
    assert_same,
    filled,
    progress_of,
    save_next,
    saved,
    state_of,
    train,
    warnings_in,
    with_adamw,
)


def wait_for_the_end(checkpoints: Checkpoints) -> None:
    assert checkpoints._running is not None
    checkpoints._running[1].exception(60)


class Held:
    """A function that waits at its beginning until it is released."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.begun, self.release = Event(), Event()

    def __call__(self, *arguments: Any) -> Any:
        self.begun.set()
        assert self.release.wait(60)
        return self.function(*arguments)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Held]:
    function = Held(getattr(module, request.param))
    monkeypatch.setattr(module, request.param, function)
    yield function
    function.release.set()


def test_saves_beside_training_are_right_and_change_nothing(run: Run) -> None:
    alone, alone_optimizer = with_adamw(tiny_model())
    train(alone, alone_optimizer, range(8))

    model, optimizer = with_adamw(tiny_model())
    checkpoints = run.checkpoints(keep_last=8, asynchronous=True)
    expected = {}
    for step in range(8):
        train(model, optimizer, range(step, step + 1), checkpoints)
        expected[step + 1] = state_of(model, optimizer)
        checkpoints.save(model, optimizer, progress_of(step + 1), CONFIG)
    checkpoints.finish()
    assert_same(state_of(model, optimizer), state_of(alone, alone_optimizer))
    assert list(checkpoints.saved) == list(range(1, 9))
    other, other_optimizer = with_adamw(tiny_model(seed=1))
    for step, state in expected.items():
        assert run.load(run.folder / f"step-{step}", other, other_optimizer) == progress_of(step)
        assert_same(state_of(other, other_optimizer), state)


@pytest.mark.parametrize("held", ["write_tensors"], indirect=True)
def test_training_continues_while_a_save_writes_and_the_next_save_waits(run: Run, held: Held) -> None:
    model, optimizer = with_adamw(tiny_model())
    train(model, optimizer, range(2))
    expected = state_of(model, optimizer)
    checkpoints = run.checkpoints(asynchronous=True)
    checkpoints.save(model, optimizer, progress_of(2), CONFIG)
    train(model, optimizer, range(2, 4), checkpoints)  # nothing waits for the write
    assert held.begun.wait(60)
    assert list(checkpoints.saved) == []
    assert run.steps() == {"step-2.partial"}
    second = Thread(target=checkpoints.save, args=(model, optimizer, progress_of(4), CONFIG))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    held.release.set()
    second.join(60)
    checkpoints.finish()
    assert list(checkpoints.saved) == [2, 4]
    run.load(run.folder / "step-2", model, optimizer)
    assert_same(state_of(model, optimizer), expected)


@pytest.mark.parametrize("held", ["_copy_to_cpu"], indirect=True)
def test_an_update_waits_for_the_copy_and_buffers_are_copied_at_once(run: Run, held: Held) -> None:
    model = nn.BatchNorm1d(3)
    checkpoints = run.checkpoints(asynchronous=True)
    checkpoints.before_update()  # no save, no wait
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    checkpoints.save(model, adamw(model), progress_of(1), CONFIG)
    model(torch.randn(7, 3))  # changes its buffers
    assert held.begun.wait(60)
    checkpoints.poll()
    update = Thread(target=checkpoints.before_update)
    update.start()
    update.join(0.2)
    assert update.is_alive()
    held.release.set()
    update.join(60)
    checkpoints.finish()
    run.load(run.folder / "step-1", model)
    assert_same(model.state_dict(), expected)


@pytest.mark.parametrize("where", ["_copy_to_cpu", "write_tensors", "own_sums", "put_in_place"])
def test_an_unforeseen_error_surfaces_at_the_next_call(run: Run, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    checkpoints = run.checkpoints(asynchronous=True)
    saved(checkpoints, 1)

    def broken(*_: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(module, where, broken)
    for call in (checkpoints.poll, lambda: save_next(checkpoints, 3), checkpoints.finish, checkpoints.newest):
        save_next(checkpoints, 2)
        checkpoints.before_update()  # does not wait forever
        wait_for_the_end(checkpoints)
        with pytest.raises(ValueError, match="unforeseen"):
            call()
        assert list(checkpoints.saved) == [1]
        assert run.newest() == "step-1"
        assert run.steps() == {"step-1"}


# Disks that are full or refuse a write


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_a_warning_and_training_continues(
    run: Run, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    model, optimizer = with_adamw(tiny_model())
    checkpoints = run.checkpoints(asynchronous=asynchronous, keep_last=1)
    saved(checkpoints, 1, model, optimizer)
    folder = run.folder / "step-1"
    shard, index = (folder / SHARD).stat().st_size, (folder / INDEX_FILE).stat().st_size
    assert index < shard
    large = Progress(2, 2, {"long": "x" * shard}, 1)  # nothing fits; a part of the tensors; all but the state
    for limit in (0, shard // 2, shard):
        caplog.clear()
        with files_limited_to(limit):
            checkpoints.save(model, optimizer, large, CONFIG)
            if asynchronous:
                wait_for_the_end(checkpoints)
            for _ in range(3):
                checkpoints.poll()
        [warning] = warnings_in(caplog)
        assert f"{folder.with_name('step-2')}: the checkpoint cannot be written: File too large; training" in warning
        refused(r"cannot be written: File too large; earlier checkpoints are kept: make", checkpoints.finish)
        assert run.newest() == "step-1"
        assert run.steps() == {"step-1"}
    checkpoints.save(model, optimizer, large, CONFIG)
    checkpoints.finish()
    assert list(checkpoints.saved) == [1, 2]
    assert run.newest() == "step-2"
    assert len(warnings_in(caplog)) == 1


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_folder_that_cannot_be_written(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = run.checkpoints(asynchronous=True, keep_last=1)
    saved(checkpoints, 1)
    with monkeypatch.context() as patch:  # root may write everywhere
        patch.setattr(Path, "mkdir", refuse)
        save_next(checkpoints, 2)
        refused(r"step-2: the checkpoint cannot be written: Read-only file system", checkpoints.finish)
    assert not warnings_in(caplog)  # the error is enough
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        saved(checkpoints, 2)
    assert list(checkpoints.saved) == [1, 2]
    saved(checkpoints, 3)
    assert list(checkpoints.saved) == [1, 2, 3]
    assert run.steps() == {"step-3"}
    assert run.newest() == "step-3"
    (warning,) = warnings_in(caplog)
    assert warning == f"{run.path}/checkpoints/step-1 cannot be removed: Read-only file system; remove it yourself"


# Which checkpoints are kept, and which one is the newest


def test_the_last_few_are_kept_and_the_newest_is_found(run: Run) -> None:
    assert run.newest() is None
    for step in (0, 2, 9, 10, 100):
        run.save(step, keep_last=2)
        assert run.newest() == f"step-{step}"
    assert run.steps() == {"step-10", "step-100"}
    run.save(7, keep_last=1)  # the one that was just saved is kept
    assert run.steps() == {"step-7", "step-100"}
    folder = run.save(100, filled(77), keep_last=1)
    run.load(folder, model := nn.Linear(2, 3))
    assert bool((model.weight == 77).all())


def test_other_files_are_left_alone_and_links_are_only_removed(run: Run) -> None:
    elsewhere, folder = Run(run.path / "elsewhere"), run.folder
    folder.mkdir()
    (folder / "step-5").symlink_to(elsewhere.save(5))
    for name in ("step-9 (copy)", "step-007", "step-x", "notes", "step-6.old", "step--1"):
        (folder / name).mkdir()
    (folder / "step-8.txt").write_text("mine")
    before = run.steps()
    assert run.newest() == "step-5"
    run.save(6, keep_last=1)
    assert run.steps() == before - {"step-5"} | {"step-6"}
    assert elsewhere.newest() == "step-5"


def test_before_a_step_is_the_newest_that_still_exists(run: Run) -> None:
    model = nn.Linear(2, 3)
    other = Run(run.path / "other").save(2)
    checkpoints = run.checkpoints(asynchronous=True, keep_last=2)
    assert checkpoints.before(9) is None
    checkpoints.load(other, model, adamw(model))
    assert checkpoints.before(3) == other
    assert checkpoints.before(2) is None
    for step in (4, 6, 8):
        save_next(checkpoints, step)
    checkpoints.finish()
    kept = run.folder
    assert [checkpoints.before(step) for step in (5, 7, 9)] == [other, kept / "step-6", kept / "step-8"]


def test_only_looking_changes_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.save(1)
    (run.save(2) / SHARD).unlink()
    (run.folder / "step-3.partial").mkdir()
    before = sorted(os.walk(run.path))
    found, damaged = find_checkpoint(run.folder)
    assert found == run.folder / "step-1"
    assert damaged == {run.folder / "step-2": "it has no __0_0.distcp"}
    assert sorted(os.walk(run.path)) == before
    assert not warnings_in(caplog)
