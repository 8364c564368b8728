"""The folder of a job: its owner, its finished shards, and that a kill at any moment leaves it valid."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError
from pilekit.artifacts.atomic_write import final_name, write_atomically
from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.artifacts.job_folder import NOTES, Output, output_folder
from tests.kills import killed_at
from tests.stopping import tree

NAMES = ["train/00.jsonl", "train/01.jsonl", "val.jsonl"]
INPUTS = {name: [100, name] for name in NAMES}


def job(folder: Path, parameters: dict[str, Any] | None = None, inputs: Any = INPUTS, fail_after: int = 99) -> Any:
    """Process the unfinished shards (`val` makes no file); returns (the processed shards, all results)."""
    with output_folder(folder, kind="copies", parameters=parameters or {"level": 3}, inputs=inputs) as output:
        waiting = [name for name in NAMES if output.result(name) is None]
        for number, name in enumerate(waiting):
            if number == fail_after:
                raise InterruptedError
            write_shard(output, name)
        return waiting, output.results()


def write_shard(output: Output, name: str) -> None:
    files = [] if "val" in name else [output.path(name, ".zst")]
    for path in files:
        with write_atomically(path) as file:
            file.write(name.encode() * 1000)
    output.note(name, {"documents": len(name)}, *files)


def interrupted(folder: Path, after: int) -> None:
    with pytest.raises(InterruptedError):
        job(folder, fail_after=after)


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The files of a job that nothing interrupted."""
    job(tmp_path / "whole")
    return tree(tmp_path / "whole")


def test_a_finished_folder_holds_the_files_and_a_header_with_results(tmp_path: Path, whole: dict[str, bytes]) -> None:
    assert set(whole) == {HEADER_FILE, "train/00.jsonl.zst", "train/01.jsonl.zst"}
    header = read_header(tmp_path / "whole", "copies")
    assert (header.parameters, header.inputs, header.finished) == ({"level": 3}, INPUTS, True)
    assert job(tmp_path / "whole") == ([], {name: {"documents": len(name)} for name in NAMES})
    assert tree(tmp_path / "whole") == whole


def test_a_note_of_a_shard_is_not_flushed_but_its_files_other_notes_and_the_header_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, fsync = [], os.fsync

    def counted(file: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{file}").readlink().relative_to(tmp_path).as_posix())
        fsync(file)

    monkeypatch.setattr(os, "fsync", counted)
    with output_folder(tmp_path / "other", kind="copies", parameters={}, inputs=INPUTS) as output:
        output.note("/whole", {})
        assert len(flushed) == 2
        assert final_name(flushed.pop()).startswith(f"other/{NOTES}/")
    flushed.clear()
    job(tmp_path / "out")
    names = [final_name(name) for name in flushed]
    assert names == [f"out/{name}" for name in (HEADER_FILE, "train/00.jsonl.zst", "train/01.jsonl.zst", HEADER_FILE)]


def test_a_note_that_is_damaged_or_lost_bytes_in_a_power_cut_is_none(tmp_path: Path, whole: dict[str, bytes]) -> None:
    spoils: list[Callable[[bytes], bytes]] = [
        lambda note: b"",
        lambda note: bytes(len(note)),
        lambda note: note[:-9],
        lambda note: note[:12] + bytes(9) + note[21:],
        lambda note: b"\xff",
        lambda note: b"[" * 100_000,
        lambda note: note.replace(b'"files"', b'"fils"'),
    ]
    for spoil in spoils:
        interrupted(tmp_path / "out", 2)
        for note in (tmp_path / "out" / NOTES).iterdir():
            note.write_bytes(spoil(note.read_bytes()))
        assert job(tmp_path / "out")[0] == NAMES
        assert tree(tmp_path / "out") == whole
        shutil.rmtree(tmp_path / "out")


def test_only_unfinished_shards_and_those_with_changed_files_are_done(tmp_path: Path, whole: dict[str, bytes]) -> None:
    spoils: list[Callable[[Path], object]] = [lambda path: None, Path.unlink, lambda path: path.write_bytes(b"short")]
    for number, spoil in enumerate(spoils):
        finished, unfinished = tmp_path / f"finished{number}", tmp_path / f"unfinished{number}"
        job(finished)
        interrupted(unfinished, 2)
        assert read_header(unfinished).finished is False
        spoiled = NAMES[:1] if number else []
        for folder, again in ((finished, spoiled), (unfinished, [*spoiled, NAMES[2]])):
            spoil(folder / "train/00.jsonl.zst")
            waiting, results = job(folder)
            assert (waiting, list(results)) == (again, NAMES)
            assert tree(folder) == whole


def test_a_shard_that_changed_is_done_again_and_loses_its_old_files(
    tmp_path: Path, whole: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"kind": "copies", "parameters": {"level": 3}, "inputs": INPUTS}
    outside, before = tmp_path / "outside", INPUTS | {NAMES[0]: [100, "before"]}
    outside.touch()
    for done in (1, 2):
        folder = tmp_path / str(done)
        with pytest.raises(InterruptedError):
            job(folder, inputs=before, fail_after=done)
        hostile = f'"files":{{"../outside":0,"{outside}":0,"{NAMES[0]}'.encode()
        for note in (folder / NOTES).iterdir():
            note.write_bytes(note.read_bytes().replace(f'"files":{{"{NAMES[0]}'.encode(), hostile))
        caplog.clear()
        assert job(folder)[0] == [NAMES[0], *NAMES[done:]]
        assert caplog.messages == [f"{folder}: read again, because they have changed since: {NAMES[0]}"]
        assert tree(folder) == whole
    assert outside.exists()
    # A shard changed in place has the same fingerprint; its new version may make no file.
    with output_folder(folder, versions={NAMES[0]: "later"}, **settings) as output:
        assert [name for name in NAMES if output.result(name) is None] == NAMES[:1]
        assert output.path(NAMES[0], ".zst").exists()  # Readers of the folder lose no file that is made again.
        output.note(NAMES[0], {})
    assert [path for path in tree(folder) if path != HEADER_FILE] == ["train/01.jsonl.zst"]


def test_a_job_that_finished_no_shard_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "existed").mkdir()
    for folder, forget in ((tmp_path / "new", False), (tmp_path / "existed", False), (tmp_path / "forgets", True)):
        with (
            pytest.raises(ZeroDivisionError),
            output_folder(folder, kind="copies", parameters={"level": 3}, inputs=INPUTS) as output,
        ):
            with pytest.raises(PilekitError, match="another process"):
                job(folder)
            partial = output.path("train/00.jsonl", ".zst.12345678.partial")  # of a worker that was stopped
            partial.parent.mkdir()
            partial.write_bytes(b"half")
            if forget:
                output.note("00.jsonl", {})
                output.forget()
            raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["existed"]
    assert not list((tmp_path / "existed").iterdir())


def test_folders_that_disappear_while_partial_files_are_removed_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
) -> None:
    folder, unlink = tmp_path / "folder", Path.unlink
    interrupted(folder, 1)
    for name in ("a", "b"):
        (folder / "scratch" / name).mkdir(parents=True)
        (folder / "scratch" / name / "x.12345678.partial").write_bytes(b"half")

    def unlink_and_more(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path.name == "x.12345678.partial":  # The worker of a killed process removes its folders now.
            shutil.rmtree(folder / "scratch")

    monkeypatch.setattr(Path, "unlink", unlink_and_more)
    assert job(folder)[0] == NAMES[1:]
    assert tree(folder) == whole


def test_parts_at_once_remove_nothing_and_leave_the_end_to_another_run(tmp_path: Path, whole: dict[str, bytes]) -> None:
    settings: dict[str, Any] = {"kind": "copies", "parameters": {"level": 3}, "inputs": INPUTS}
    folder = tmp_path / "folder"
    with output_folder(folder, shared=True, **settings) as first:
        with pytest.raises(ZeroDivisionError), output_folder(folder, shared=True, **settings):
            raise ZeroDivisionError
        with pytest.raises(PilekitError, match="another process"):
            job(folder)
        with pytest.raises(PilekitError, match="level is 3 there"):
            job(folder, {"level": 4})
        partial = folder / "val.jsonl.zst.12345678.partial"
        partial.write_bytes(b"half")
        with output_folder(folder, shared=True, **settings) as second:
            write_shard(second, NAMES[0])
        assert partial.exists()
        assert list(first.results()) == NAMES[:1]
        assert not read_header(folder).finished
    assert job(folder)[0] == NAMES[1:]
    assert tree(folder) == whole
    with output_folder(folder, shared=True, **settings) as late:
        assert list(late.results()) == NAMES
    assert tree(folder) == whole


def test_another_job_is_refused_by_the_difference_and_changes_nothing(tmp_path: Path) -> None:
    job(tmp_path / "finished")
    interrupted(tmp_path / "unfinished", 1)
    before = tree(tmp_path)
    for parameters, inputs, message in [
        ({"level": "3"}, INPUTS, 'was made with other settings: level is 3 there, "3" here; .* --out'),
        ({"level": 3, "rows": [1]}, INPUTS, r"rows is not given there, \[1\] here"),
        ({"rows": "\x1b[31m"}, INPUTS, "level is 3 there, not given here"),
        ({"level": 3}, {**INPUTS, "te\x1bst": [1, "c"]}, r"te\\x1bst was not among them"),
        ({"level": 3}, {name: INPUTS[name] for name in NAMES[:2]}, "val.jsonl is not among them now"),
    ]:
        for folder in ("finished", "unfinished"):
            with pytest.raises(PilekitError, match=rf"{folder}: .*{message}"):
                job(tmp_path / folder, parameters, inputs)
    with pytest.raises(PilekitError, match=r"other shards: val\.jsonl is not the same any more"):
        job(tmp_path / "finished", inputs={**INPUTS, "val.jsonl": [100, "b"]})
    assert tree(tmp_path) == before
    job(tmp_path / "long", {"words": "a" * 300})
    with pytest.raises(PilekitError, match="words is"):
        job(tmp_path / "long", {"words": "a" * 299 + "b"})


def test_a_folder_that_is_not_ours_is_refused_and_unchanged(tmp_path: Path) -> None:
    for name in ("photos/me.jpg", "downloads/film.partial"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"not to be lost")
    write_header(tmp_path / "run", kind="run", parameters={}, inputs={})
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / HEADER_FILE).write_bytes(b"\xff{")
    write_header(
        tmp_path / "false", kind="copies", parameters={"level": 3}, inputs=INPUTS, finished=True, results={"a": 1}
    )
    before = tree(tmp_path)
    for folder, message in [
        ("photos", r"photos: is not empty, and not of this command .*was not written by pilekit.*name another folder"),
        ("downloads", "downloads: is not empty, and not of this command"),
        ("run", r'run: is not empty, and not of this command .* kind "run", not "copies".; name another folder'),
        ("odd", "odd: is not empty, and not of this command .* is not a header of pilekit"),
        ("photos/me.jpg", r"me.jpg: cannot be used as a folder: Not a dir.* name another folder with --out"),
        ("false", "pilekit.json holds results of another kind"),
        ("nul\0", r"nul\\x00: cannot be used"),
    ]:
        with pytest.raises(PilekitError, match=message):
            job(tmp_path / folder)
    assert tree(tmp_path) == before


def test_a_path_that_is_not_utf8_is_told_in_one_line(tmp_path: Path) -> None:
    with output_folder(tmp_path / "out", kind="copies", parameters={}, inputs=INPUTS) as output:
        with pytest.raises(PilekitError, match=r"^/data\\udcff/val: is not valid UTF-8, .*; rename that folder$"):
            output.note(NAMES[2], {"path": "/data\udcff/val"})
        assert output.result(NAMES[2]) is None


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400), unique=True, max_size=5))
def test_any_name_can_be_noted(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder = tmp_path_factory.mktemp("out")
    names += ["/etc/passwd", "../up", "x" * 5000]
    with output_folder(folder, kind="copies", parameters={}, inputs={}) as output:
        there = pickle.loads(pickle.dumps(output))
        for number, name in enumerate(names):
            assert output.result(name) is None
            there.note(name, {"number": number, "ä": [None, 1.5]})
            assert output.result(name) == {"number": number, "ä": [None, 1.5]}
        noted = output.results()
    assert [path.name for path in folder.iterdir()] == [HEADER_FILE]
    with output_folder(folder, kind="copies", parameters={}, inputs={}) as output:
        assert output.finished
        assert output.results() == noted
        assert set(noted) == set(names)


@pytest.mark.slow
@pytest.mark.parametrize("repair", [False, True])
def test_a_job_killed_anywhere_ends_with_the_same_bytes(tmp_path: Path, whole: dict[str, bytes], repair: bool) -> None:
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        if repair:
            job(folder)
            (folder / "train/01.jsonl.zst").unlink()
        killed = killed_at(moment, partial(job, folder))
        left = tree(folder) if folder.exists() else {}
        for name, content in left.items():
            if not name.startswith((".", HEADER_FILE)) and not name.endswith(".partial"):
                assert content == whole[name]
        if HEADER_FILE in left and json.loads(left[HEADER_FILE])["finished"]:
            assert set(whole) <= set(left) or repair
        job(folder)
        assert tree(folder) == whole
        if not killed:
            break
    assert moment > 20
