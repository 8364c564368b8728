"""Damaged checkpoints: the newest good one is found, and one line names the damage."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pilekit.artifacts.sealed import _sum_of_fields
from pilekit.train.checkpoint.state_file import INDEX_FILE, STATE_FILE, Damaged, read_state, verify
from tests.refusing import refused
from tests.shards.making import flipped
from tests.train.checkpoint.saving import FILES, SHARD, Run, save_next, warnings_in


def flip_last_bit(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes(), -1))


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def copy_another_step(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("step-1"), folder)


def change(folder: Path, old: str, new: str) -> None:
    """Change the text of the state, with right sums."""
    text = json.dumps(json.loads((folder / STATE_FILE).read_bytes()), separators=(",", ":"))
    assert old in text
    write_signed(folder, json.loads(text.replace(old, new)))


def write_signed(folder: Path, state: dict[str, Any]) -> None:
    """Write fields of a state, with the right sum if they are JSON that Python and msgspec read alike."""
    with suppress(TypeError):
        state["sum"] = _sum_of_fields(state)
    (folder / STATE_FILE).write_text(json.dumps(state))


def list_without_end(target: str | None, name: str, folder: Path) -> None:
    """A pipe or a link to a device, with the size that the system tells."""
    size = (folder / name).stat().st_size
    (folder / name).unlink()
    os.mkfifo(folder / name) if target is None else (folder / name).symlink_to(target)
    change(folder, f'"{name}":{{"bytes":{size}', f'"{name}":{{"bytes":0')


KINDS: list[tuple[Callable[[Path], object], str, str]] = [
    *((flip_last_bit, name, name) for name in FILES),
    (partial(os.truncate, length=0), INDEX_FILE, INDEX_FILE),
    (Path.unlink, SHARD, "it has no __0_0.distcp"),
    (Path.unlink, STATE_FILE, "it has no state.json"),
    (make_pipe, SHARD, "__0_0.distcp has 0 bytes, not the"),
    (make_pipe, STATE_FILE, "state.json cannot be read"),
    (make_file, "", "state.json cannot be read: Not a directory"),
    (copy_another_step, "", "it holds step 1"),
    *((partial(change, old=SHARD, new=new), "", "does not list the files") for new in ("../../x", "/x", "a/" + SHARD)),
    (partial(list_without_end, None, SHARD), "", SHARD + " cannot be read: is a device or a pipe"),
    (partial(list_without_end, "/dev/zero", INDEX_FILE), "", INDEX_FILE + " cannot be read: is a device or a pipe"),
    *(
        (partial(change, old=old, new=new), "", "state.json is damaged (")
        for old, new in (
            *(('"threads":2', f'"threads":{threads}') for threads in (0, 100_000, "null")),
            ('"skipped":0', '"skipped":3'),
            ('"tokens":2000', '"tokens":-1'),
            ('"loss_scale":null', '"loss_scale":{"value":1}'),
        )
    ),
]


def test_the_newest_good_one_is_used_and_one_line_names_the_damaged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    for number, (damage, name, message) in enumerate(KINDS):
        caplog.clear()
        own = Run(run.path / str(number))
        own.save(1)
        damaged = own.save(2)
        damage(damaged / name)
        assert own.newest() == "step-1"
        [warning] = warnings_in(caplog)
        assert f"{damaged} is damaged (" in warning
        assert message in warning
        assert "resuming from step-1" in warning
        assert "\n" not in warning
        assert own.steps() == {"step-1", "step-2"}
        own.save(2)
        assert own.steps() == {"step-1", "step-2"}
        assert own.newest() == "step-2"


def test_several_damaged_ones_are_named_and_do_not_count_as_kept(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2, 3):
        run.save(step, keep_last=9)
    for step in (2, 3):
        flip_last_bit(run.folder / f"step-{step}" / SHARD)
    checkpoints = run.checkpoints(keep_last=2)
    assert checkpoints.newest() == run.folder / "step-1"
    [warning] = warnings_in(caplog)
    assert all(f"step-{step} is damaged (" in warning for step in (2, 3))
    save_next(checkpoints, 4)
    assert run.steps() == {"step-1", "step-4"}


def test_if_all_are_damaged_the_error_says_what_to_do(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    for step in (9, 10):
        (run.save(step) / SHARD).unlink()
    for _ in range(2):  # the second start must not begin from the first step either
        refused(r"step-10, is damaged \(it has no .*; put back a good copy, or", run.newest)
        assert run.steps() == {"step-9", "step-10"}
    assert not warnings_in(caplog)


def test_any_flipped_bit_and_any_cut_of_the_state_is_damage_or_changes_nothing(run: Run) -> None:
    folder = run.save(1)
    path, state = folder / STATE_FILE, read_state(folder)
    whole, read = path.read_bytes(), 0
    for place in range(8 * len(whole)):
        path.write_bytes(flipped(whole, place // 8, 1 << place % 8))
        try:
            assert read_state(folder) == state, place
            read += 1  # a space between two fields
        except Damaged as damage:
            assert re.fullmatch(r"state\.json is (damaged|not that of a checkpoint) \([^\n]*\)", str(damage))
    assert read < len(whole)
    for size in range(len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Damaged):
            read_state(folder)


@given(name=st.sampled_from([SHARD, INDEX_FILE]), share=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
def test_a_changed_byte_anywhere_in_a_listed_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, name: str, share: float, byte: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "changed"
    if not folder.exists():
        shutil.copytree(Run(tmp_path_factory.mktemp("run")).save(1), folder)
    verify(folder)
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(flipped(good, int(share * len(good)), byte))
    try:
        with pytest.raises(Damaged):
            verify(folder)
    finally:
        (folder / name).write_bytes(good)


def test_another_format_is_not_damage(run: Run) -> None:
    run.save(1)
    folder = run.save(2)
    later = {"sum": "0", "kind": "checkpoint", "format": 4, "pilekit": "9.9", "files": {"model.safetensors": 1}}
    earlier = {"xxh3": "0", "state": {"format": 2, "pilekit": "0.1", "progress": {}, "files": {}}}
    for content, version, by in ((later, 4, "9.9"), (earlier, 2, "0.1")):
        write_signed(folder, content)
        message = f"is a checkpoint of format {version} from pilekit {by}, .* reads format 3; resume with the pilekit"
        for call in (lambda: run.newest(), lambda: run.load(folder, nn.Linear(2, 3))):
            refused(message, call)
    assert run.steps() == {"step-1", "step-2"}


def test_a_file_that_cannot_be_opened_now_is_not_damage(run: Run) -> None:
    folder = run.save(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        refused(r"state\.json: cannot be read: Too many open files; correct that", verify, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    verify(folder)
