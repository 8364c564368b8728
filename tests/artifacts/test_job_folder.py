"""The folder of a job: whose it is, what of it is done, and that no kill at any moment leaves it wrong."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError, Shard
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.artifacts.job_folder import Output, output_folder
from pilekit.shards.fingerprint import inputs_for

NAMES = ["train/00.jsonl", "train/01.jsonl", "val.jsonl"]
INPUTS = {name: [100, name] for name in NAMES}


def work(output: Output, name: str) -> None:
    """Write one shard, of which `val` has none."""
    files = []
    if "val" not in name:
        files.append(output.path(name, ".zst"))
        with write_atomically(files[0]) as file:
            file.write(name.encode() * 1000)
    output.note(name, {"documents": len(name)}, *files)


def job(folder: Path, parameters: dict[str, Any] | None = None, inputs: Any = INPUTS, fail_after: int = 99) -> Any:
    """Do what is not done yet; (the shards that were done now, the results)."""
    with output_folder(folder, kind="copies", parameters=parameters or {"level": 3}, inputs=inputs) as output:
        waiting = [name for name in NAMES if output.result(name) is None]
        for number, name in enumerate(waiting):
            if number == fail_after:
                raise InterruptedError
            work(output, name)
        return waiting, output.results()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file in the folder, hidden ones too."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """What a job leaves that nothing interrupted."""
    job(tmp_path / "whole")
    return tree(tmp_path / "whole")


def test_a_finished_folder_holds_files_and_a_header_with_the_results(tmp_path: Path, whole: dict[str, bytes]) -> None:
    assert set(whole) == {HEADER_FILE, "train/00.jsonl.zst", "train/01.jsonl.zst"}
    header = read_header(tmp_path / "whole", "copies")
    assert (header.parameters, header.inputs, header.finished) == ({"level": 3}, INPUTS, True)
    waiting, results = job(tmp_path / "whole")
    assert waiting == []
    assert results == {name: {"documents": len(name)} for name in NAMES}
    assert tree(tmp_path / "whole") == whole


def test_while_a_job_runs_its_folder_is_known_for_an_unfinished_one(tmp_path: Path) -> None:
    with output_folder(tmp_path, kind="copies", parameters={}, inputs={}) as output:
        assert (output.folder, output.finished) == (tmp_path, False)
        assert read_header(tmp_path, "copies").finished is False
    assert read_header(tmp_path, "copies").finished is True


@pytest.mark.parametrize("done", [1, 2])
def test_a_job_that_failed_goes_on_where_it_was(tmp_path: Path, whole: dict[str, bytes], done: int) -> None:
    with pytest.raises(InterruptedError):
        job(tmp_path / "out", fail_after=done)
    assert read_header(tmp_path / "out").finished is False
    waiting, results = job(tmp_path / "out")
    assert waiting == NAMES[done:]
    assert list(results) == NAMES
    assert tree(tmp_path / "out") == whole


def change(file: Path) -> None:
    file.write_bytes(b"shorter")


@pytest.mark.parametrize("spoil", [Path.unlink, change])
@pytest.mark.parametrize("fail_after", [2, 99])
def test_what_was_taken_away_since_is_done_again_and_only_that(
    tmp_path: Path, whole: dict[str, bytes], spoil: Any, fail_after: int
) -> None:
    if fail_after == 2:
        with pytest.raises(InterruptedError):
            job(tmp_path / "out", fail_after=2)
    else:
        job(tmp_path / "out")
    spoil(tmp_path / "out" / "train/00.jsonl.zst")
    waiting, _ = job(tmp_path / "out")
    assert waiting == ([NAMES[0], NAMES[2]] if fail_after == 2 else [NAMES[0]])
    assert tree(tmp_path / "out") == whole


def test_a_damaged_note_counts_for_nothing(tmp_path: Path, whole: dict[str, bytes]) -> None:
    with pytest.raises(InterruptedError):
        job(tmp_path / "out", fail_after=1)
    (note,) = (tmp_path / "out/.unfinished").iterdir()
    for damage in (b"", b"{", b"\xff", b"[" * 100_000, note.read_bytes().replace(b'"files"', b'"fils"')):
        note.write_bytes(damage)
        with pytest.raises(InterruptedError):
            job(tmp_path / "out", fail_after=0)
    assert job(tmp_path / "out")[0] == NAMES
    assert tree(tmp_path / "out") == whole


@pytest.mark.parametrize("existed", [False, True])
def test_a_job_that_did_nothing_leaves_nothing(tmp_path: Path, existed: bool) -> None:
    folder = tmp_path / "out"
    if existed:
        folder.mkdir()
    with (
        pytest.raises(ZeroDivisionError),
        output_folder(folder, kind="copies", parameters={}, inputs={}) as output,
    ):
        partial = output.path("train/00.jsonl", ".zst.12345678.partial")  # of a worker that was stopped
        partial.parent.mkdir()
        partial.write_bytes(b"half")
        raise ZeroDivisionError
    assert folder.exists() == existed
    assert not existed or not list(folder.iterdir())


def test_what_is_forgotten_is_no_reason_to_keep_the_folder(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        output_folder(tmp_path / "out", kind="copies", parameters={}, inputs={}) as output,
    ):
        output.note("00.jsonl", {})
        output.forget()
        raise ZeroDivisionError
    assert not (tmp_path / "out").exists()


OTHERS = [
    ({"level": 4}, INPUTS, "with other settings: level is 3 there, 4 here; .* --out, or remove this one"),
    ({"level": "3"}, INPUTS, 'level is 3 there, "3" here'),
    ({"level": 3, "rows": [1]}, INPUTS, r"rows is not set there, \[1\] here"),
    ({"rows": "\x1b[31m"}, INPUTS, "level is 3 there, not set here"),
    (
        {"level": 3},
        {**INPUTS, "val.jsonl": [100, "b"]},
        "from other shards: val.jsonl is not the same any more; .*--out",
    ),
    ({"level": 3}, {**INPUTS, "te\x1bst": [1, "c"]}, r"te\\x1bst was not among them"),
    ({"level": 3}, {name: INPUTS[name] for name in NAMES[:2]}, "val.jsonl is not among them now"),
]


@pytest.mark.parametrize(("parameters", "inputs", "message"), OTHERS)
@pytest.mark.parametrize("fail_after", [1, 99])
def test_another_job_is_refused_by_what_differs_and_touches_nothing(
    tmp_path: Path, parameters: dict[str, Any], inputs: Any, message: str, fail_after: int
) -> None:
    if fail_after == 1:
        with pytest.raises(InterruptedError):
            job(tmp_path / "out", fail_after=1)
    else:
        job(tmp_path / "out")
    before = tree(tmp_path / "out")
    with pytest.raises(PilekitError, match=f"out: was made {message}" if "other" in message else message):
        job(tmp_path / "out", parameters, inputs)
    assert tree(tmp_path / "out") == before


def test_settings_are_the_same_if_their_json_is(tmp_path: Path) -> None:
    job(tmp_path / "out", {"rates": (0.1, 2), "none": None}, {name: tuple(there) for name, there in INPUTS.items()})
    assert job(tmp_path / "out", {"none": None, "rates": [0.1, 2]})[0] == []


def test_somebody_elses_folder_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/me.jpg").write_bytes(b"not to be lost")
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/film.partial").write_bytes(b"not to be lost")
    write_header(tmp_path / "run", kind="run", parameters={}, inputs={})
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / HEADER_FILE).write_bytes(b"\xff{")
    write_header(
        tmp_path / "false", kind="copies", parameters={"level": 3}, inputs=INPUTS, finished=True, results={"a": 1}
    )
    before = tree(tmp_path)
    for folder, message in [
        ("photos", r"photos is not empty and not ours: .*was not written by pilekit.*name another folder with --out"),
        ("downloads", "downloads is not empty and not ours"),
        ("run", r'run is not empty and not ours: .* kind "run", not "copies"; name another folder'),
        ("odd", "odd is not empty and not ours: .* is not a header of pilekit"),
        ("photos/me.jpg", r"me.jpg is a file, .* name another with --out"),
        ("photos/me.jpg/out", r"out is a file, or below one"),
        ("false", "results in pilekit.json are not ours"),
        ("nul\0", r"nul\\x00: cannot be read"),
    ]:
        with pytest.raises(PilekitError, match=message):
            job(tmp_path / folder)
    assert tree(tmp_path) == before


def test_what_a_killed_process_left_does_not_make_a_folder_somebody_elses(tmp_path: Path) -> None:
    for name in ("pilekit.json.4711.partial", ".lock"):
        (tmp_path / name).write_bytes(b"half")
    assert job(tmp_path)[0] == NAMES
    assert {path.name for path in tmp_path.iterdir()} == {HEADER_FILE, "train"}


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
        assert output.results() == there.results()
    assert [path.name for path in folder.iterdir()] == [HEADER_FILE]
    with output_folder(folder, kind="copies", parameters={}, inputs={}) as output:
        assert output.finished
        assert {name: result["number"] for name, result in output.results().items()} == dict(
            zip(names, range(len(names)), strict=True)
        )


HOLD = """
import sys
from pilekit.artifacts.job_folder import output_folder
with output_folder(sys.argv[1], kind="copies", parameters={"level": 3}, inputs={}) as output:
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_at_once_and_goes_on_when_the_first_is_killed(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(PilekitError, match=r"out.*another process"):
        job(tmp_path / "out", inputs={})
    holder.kill()
    holder.wait()
    assert job(tmp_path / "out", inputs={})[0] == NAMES
    assert ".lock" not in tree(tmp_path / "out")


def test_inputs_are_known_by_size_and_content(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"one")
    (tmp_path / "b.jsonl").write_bytes(b"two")
    shards = [Shard("a.jsonl", str(tmp_path / "a.jsonl")), Shard("b.jsonl", str(tmp_path / "b.jsonl"))]
    before = inputs_for(tmp_path / "out", shards).fingerprints
    assert [found[0] for found in before.values()] == [3, 3]
    assert before["a.jsonl"] != before["b.jsonl"]
    (tmp_path / "b.jsonl").write_bytes(b"TWO")
    after = inputs_for(tmp_path / "out", shards).fingerprints
    assert after["a.jsonl"] == before["a.jsonl"]
    assert after["b.jsonl"] != before["b.jsonl"]


def test_a_folder_that_holds_what_is_read_is_no_folder_to_write_into(tmp_path: Path) -> None:
    inside = tmp_path / "data" / "train"
    inside.mkdir(parents=True)
    (inside / "00.jsonl").write_bytes(b"text")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    shards = [Shard("train/00.jsonl", str(inside / "00.jsonl"))]
    for folder in (tmp_path / "data", tmp_path / "link", inside):
        with pytest.raises(PilekitError, match=r"holds .*00\.jsonl, which is to be read; name another folder"):
            inputs_for(folder, shards)
    assert inputs_for(inside / "out", shards)


CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}
"""What Python tells its audit hooks before it is done."""


def killed_at(moment: int, folder: Path) -> bool:
    """Do the job in a process that is killed before its file operation number `moment`; false if it has fewer."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, _: object) -> None:
            nonlocal count
            if event in CHANGES:
                if count == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1

        code = 1
        try:
            sys.addaudithook(hook)
            job(folder)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.parametrize("repair", [False, True])
def test_killed_at_any_moment_it_ends_as_if_nothing_had_happened(
    tmp_path: Path, whole: dict[str, bytes], repair: bool
) -> None:
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        if repair:
            job(folder)
            (folder / "train/01.jsonl.zst").unlink()
        killed = killed_at(moment, folder)
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
