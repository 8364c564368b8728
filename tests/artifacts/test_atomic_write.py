"""A file has its final name only when it is complete."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pilekit.artifacts.atomic_write import PARTIAL, check_target, write_atomically
from pilekit.artifacts.folders import cache_folder
from pilekit.corpus.shard import looks_like_shard
from pilekit.errors import PilekitError, visible
from tests.small_disk import files_limited_to


def test_two_writers_of_one_path_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with write_atomically(path) as first:
        first.write(b"first ")
        with write_atomically(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"too")
        assert len(list(tmp_path.iterdir())) == 2, "the living writer's file is not removed"
    assert path.read_bytes() == b"first too"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_of_many_files_is_not_listed_for_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name listed costs time: without end, n files in one folder would cost n * n."""
    seen, listdir = [0], os.listdir

    def counted(folder: Path) -> list[str]:
        names = listdir(folder)
        seen[0] += len(names)
        return names

    abandoned = tmp_path / f"{1999:04}.0123abcd{PARTIAL}"
    abandoned.write_bytes(b"half")
    monkeypatch.setattr(os, "listdir", counted)
    for number in range(2000):
        with write_atomically(tmp_path / f"{number:04}"):
            pass
    assert seen[0] < 2000 * 70
    assert not abandoned.exists()
    assert len(listdir(tmp_path)) == 2000


def test_only_abandoned_partial_files_of_the_same_name_are_removed(tmp_path: Path) -> None:
    names = ("b.jsonl.0123abcd.partial", "a.jsonl.mine.partial", "xa.jsonl.0123abcd.partial")
    for name in (*names, "a.jsonl.0123abcd.partial"):
        (tmp_path / name).touch()
    with write_atomically(tmp_path / "a.jsonl"):
        assert not (tmp_path / "a.jsonl.0123abcd.partial").exists()
        assert not [path for path in tmp_path.iterdir() if looks_like_shard(path.name)]
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", *names}


def test_paths_that_a_file_must_not_replace(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.jsonl").symlink_to("/dev/full")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    for name, why in [
        ("folder.jsonl", "is a folder"),
        ("pipe.jsonl", "is a device or a pipe"),
        ("link.jsonl", "is a device or a pipe"),
        ("loop.jsonl", "cannot be written"),
        ("x" * 250 + ".jsonl", "cannot be written: File name too long"),
        ("nul\0.jsonl", "cannot be written"),
    ]:
        with pytest.raises(PilekitError, match=why) as raised, write_atomically(tmp_path / name, follow_links=True):
            pytest.fail("the block must not run")
        assert visible(name) in str(raised.value)
    assert len(list(tmp_path.iterdir())) == 4
    (tmp_path / "file").touch()
    with pytest.raises(PilekitError, match=r"file/plot\.png: cannot be written: Not a directory"):
        check_target(tmp_path / "file/plot.png")  # before a command counts for hours


def test_the_target_of_a_link_is_replaced_if_the_user_named_the_link(tmp_path: Path) -> None:
    target, link = tmp_path / "store" / "a.jsonl", tmp_path / "link.jsonl"
    target.parent.mkdir()
    link.symlink_to(target)
    with write_atomically(link, follow_links=True) as file:
        file.write(b"{}")
    assert link.is_symlink()
    assert [(path, path.read_bytes()) for path in target.parent.iterdir()] == [(target, b"{}")]


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    for write, why in (
        (lambda file: file.write(bytes(100_000)), "File too large"),
        (lambda file: np.save(file, np.zeros(10_000)), "the disk is full"),  # numpy has its own words
    ):
        refusal = pytest.raises(PilekitError, match=f"a: cannot be written: {why}")
        with files_limited_to(1000), refusal, write_atomically(tmp_path / "a") as file:
            write(file)
        assert not list(tmp_path.iterdir())


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for mine, shared, folder in [
        ("mine", "/shared", "mine"),
        ("", "/shared", "/shared/pilekit"),
        ("", "relative", "/home/somebody/.cache/pilekit"),
    ]:
        monkeypatch.setenv("PILEKIT_CACHE", mine)
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert cache_folder() == Path(folder)
