"""Checkpoints that are damaged, in every way we know of: the newest good one is found, and the damage is told."""

from __future__ import annotations

import logging
import os
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pilekit.errors import PilekitError
from pilekit.train.checkpoint.files import (
    INDEX_FILE,
    STATE_FILE,
    Damaged,
    Progress,
    own_sums,
    unseal,
    verify,
    write_state,
)
from tests.train.saving import (
    FILES,
    SHARD,
    adamw,
    checkpoints_in,
    load,
    newest,
    progress_of,
    save,
    steps_in,
    warnings_in,
)


def flip(path: Path, at: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(content)


def replace(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def as_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_dangling_link(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("nowhere")


def as_loop(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder.name)


def as_another_step(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("step-1"), folder)


def resealed(folder: Path, name: str) -> None:
    """Sums that are right, of a folder that lists a file outside."""
    state = (folder / STATE_FILE).read_bytes()
    body = bytes(msgspec.json.encode(msgspec.json.decode(state)["state"])).replace(SHARD.encode(), name.encode())
    (folder / STATE_FILE).write_bytes(
        b'{"xxh3":"%s","state":%s}' % (xxhash.xxh3_128_hexdigest(body).encode(), body),
    )


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


OF_A_FILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "first byte": (partial(flip, at=0), "{}"),
    "last byte": (partial(flip, at=-1), "{}"),
    "cut short": (cut_short, "{}"),
    "longer": (longer, "{}"),
    "empty": (partial(replace, content=b""), "{}"),
    "missing": (Path.unlink, "it has no {}"),
    "a pipe": (as_pipe, "{} is not a file"),
}
OF_A_FOLDER: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty folder": (emptied, "it has no state.json"),
    "a file": (as_file, "it is not a folder"),
    "dangling link": (as_dangling_link, "it has no state.json"),
    "loop of links": (as_loop, "state.json cannot be read"),
    "copy of another": (as_another_step, "it holds step 1"),
    "a path outside": (partial(resealed, name="../../x"), "does not list the files"),
}
CONTENTS = {
    "no JSON": b"\x80\x04pickle",
    "deep JSON": b"[" * 100_000,
    "other JSON": b'{"xxh3": 1}',
    "no UTF-8": b'{"xxh3": "\xff"}',
}
KINDS = [
    *((file, kind) for file in FILES for kind in OF_A_FILE),
    *((None, kind) for kind in OF_A_FOLDER),
    *((STATE_FILE, kind) for kind in CONTENTS),
]


def damage(folder: Path, file: str | None, kind: str) -> str:
    """Do it; returns what must be told of it."""
    if file is None:
        change, told = OF_A_FOLDER[kind]
        change(folder)
        return told
    if kind in CONTENTS:
        replace(folder / file, CONTENTS[kind])
        return file
    change, told = OF_A_FILE[kind]
    change(folder / file)
    return told.format(file)


def test_the_newest_good_one_is_taken_and_one_line_names_the_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, (file, kind) in enumerate(KINDS):
        check_damage(tmp_path / str(number), caplog, file, kind)


def check_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str | None, kind: str) -> None:
    caplog.clear()
    save(tmp_path, 1)
    damaged = save(tmp_path, 2)
    told = damage(damaged, file, kind)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == "step-1"
    [record] = warnings_in(caplog)
    message = record.getMessage()
    assert "\n" not in message
    assert f"{damaged} is damaged (" in message
    assert told in message
    assert "resuming from step-1" in message
    assert (tmp_path / "latest").read_text() == "checkpoints/step-1\n"

    # It is told, in nobody's way, and gone with the next save.
    assert steps_in(tmp_path) == {"step-1", "step-2"}
    save(tmp_path, 2, keep_last=2)
    assert steps_in(tmp_path) == {"step-1", "step-2"}
    assert newest(tmp_path) == "step-2"


def test_several_damaged_ones_are_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep_last=9)
    flip(tmp_path / "checkpoints/step-2" / SHARD, 0)  # older than the one that is taken: nobody asks
    flip(tmp_path / "checkpoints/step-4" / SHARD, 0)
    flip(tmp_path / "checkpoints/step-3" / INDEX_FILE, -1)
    flip(tmp_path / "checkpoints/step-4" / INDEX_FILE, 0)
    flip(tmp_path / "checkpoints/step-2" / INDEX_FILE, 0)
    (tmp_path / "checkpoints/step-1" / SHARD).rename(tmp_path / "kept")
    with pytest.raises(PilekitError):
        newest(tmp_path)
    (tmp_path / "kept").rename(tmp_path / "checkpoints/step-1" / SHARD)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == "step-1"
    [record] = warnings_in(caplog)
    assert all(f"step-{step} is damaged (" in record.getMessage() for step in (4, 3, 2))


def test_if_all_are_damaged_it_says_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (9, 10):
        (save(tmp_path, step) / SHARD).unlink()
    for _ in range(2):  # it must not begin anew on the second try
        with pytest.raises(PilekitError) as caught:
            newest(tmp_path)
        message = str(caught.value)
        assert "\n" not in message
        assert "step-10 for one is damaged (it has no __0_0.distcp)" in message
        assert "put back a good copy, or remove the folder" in message
        assert steps_in(tmp_path) == {"step-9", "step-10"}
    assert not warnings_in(caplog)


def test_damaged_ones_do_not_count_as_kept(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / SHARD).unlink()
    checkpoints = checkpoints_in(tmp_path, keep_last=2)
    assert checkpoints.newest() == tmp_path / "checkpoints" / "step-1"
    model = nn.Linear(2, 3)
    checkpoints.save(model, adamw(model), progress_of(3), {})
    checkpoints.finish()
    assert steps_in(tmp_path) == {"step-1", "step-3"}


def test_latest_is_for_people_and_is_put_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    latest = tmp_path / "latest"
    for content in (None, b"", b"checkpoints/step-1\n", b"checkpoints/step-99\n", b"../../etc/passwd", b"\x00\xff\n"):
        latest.unlink() if content is None else latest.write_bytes(content)
        assert newest(tmp_path) == "step-2"
        assert latest.read_text() == "checkpoints/step-2\n"
    assert not warnings_in(caplog)


def test_every_bit_of_the_state_file_is_guarded(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    path = folder / STATE_FILE
    good = path.read_bytes()
    assert unseal(good, path).progress.step == 1
    for at in range(len(good)):
        for bit in range(8):
            with pytest.raises(Damaged):
                unseal(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :], path)
        with pytest.raises(Damaged):
            unseal(good[:at], path)


@given(name=st.sampled_from(FILES), share=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
def test_a_changed_byte_anywhere_is_found(
    tmp_path_factory: pytest.TempPathFactory, name: str, share: float, byte: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "changed"
    if not folder.exists():
        shutil.copytree(save(tmp_path_factory.mktemp("run"), 1), folder)
    verify(folder)
    good = (folder / name).read_bytes()
    flip(folder / name, int(share * len(good)), byte)
    try:
        with pytest.raises(Damaged):
            verify(folder)
    finally:
        (folder / name).write_bytes(good)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_state_of_a_stream_comes_back(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    folder = tmp_path_factory.mktemp("state")
    for name in (SHARD, INDEX_FILE):
        (folder / name).write_bytes(b"")
    progress = Progress(1, 2**40, {"value": value}, 1, loss_scale={"value": value})
    write_state(folder, progress, {}, own_sums(folder, 0))
    assert verify(folder).progress == progress


@pytest.mark.parametrize("version", [1, 3])  # files of safetensors; whatever will come
def test_a_checkpoint_of_another_format_is_not_taken_for_damaged(tmp_path: Path, version: int) -> None:
    save(tmp_path, 1)
    folder = save(tmp_path, 2)
    state = {"format": version, "pilekit": "9.9", "files": {"model.safetensors": {"bytes": 1, "xxh3": "0"}}}
    body = msgspec.json.encode(state)
    seal = msgspec.json.encode({"xxh3": xxhash.xxh3_128_hexdigest(body), "state": msgspec.Raw(body)})
    (folder / STATE_FILE).write_bytes(seal)
    told = rf"has format {version}, .* reads format 2; resume with pilekit 9\.9"
    with pytest.raises(PilekitError, match=told):
        newest(tmp_path)
    with pytest.raises(PilekitError, match=told):
        load(folder, nn.Linear(2, 3))
    assert steps_in(tmp_path) == {"step-1", "step-2"}


def test_a_checkpoint_that_cannot_be_opened_now_is_not_taken_for_damaged(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(PilekitError, match=r"state\.json: cannot be read: Too many open files; put that right"):
            verify(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    verify(folder)


def test_latest_as_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "mine").write_text("mine")
    for target in ("mine", "checkpoints/step-1", "nowhere", "latest"):
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to(target)
        assert newest(tmp_path) == "step-1"
        assert not (tmp_path / "latest").is_symlink()
        assert (tmp_path / "latest").read_text() == "checkpoints/step-1\n"
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
