"""Processes that kill themselves at a chosen file operation, so that every moment of a job can be tried."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pilekit.artifacts.job_folder import NOTES, Output
from tests.stopping import tree

FILE_OPERATIONS = (
    *("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.scandir"),
    *("os.listdir", "shutil.rmtree"),
)
"""How the audit events begin that Python announces before a file operation. Between two of them only the inside of a
file changes."""


def kill_at(moment: int, events: tuple[str, ...] = FILE_OPERATIONS, of: Path | None = None) -> None:
    """Have this process killed before its file operation number `moment`, in any thread.

    of   open files count only below this folder
    """
    counter = itertools.count()

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if not event.startswith(events):
            return
        counts = event != "open" or of is None or any(str(of) in str(one) for one in arguments)
        if counts and next(counter) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def in_a_child(action: Callable[[], object]) -> int:
    """The exit code of a fork that does `action` and nothing else: 0, or 1 if it raised, or -9 if it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(moment: int, action: Callable[[], object]) -> bool:
    """Do `action` in a fork that is killed before its file operation number `moment`; false if it has fewer."""
    code = in_a_child(lambda: (kill_at(moment), action()))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def killed_after(renamings: int, action: Callable[[], object]) -> bool:
    """Do `action` in a fork that is killed after so many renamings, when files on disk changed; false if it has fewer.

    A fork has the imports and the compiled kernels of this process, so it needs a fraction of a new process's time.
    """
    count, replace = itertools.count(1), os.replace

    def counted(source: str | Path, target: str | Path) -> None:
        replace(source, target)
        if next(count) == renamings:
            os.kill(os.getpid(), signal.SIGKILL)

    def act() -> None:
        os.replace = counted  # type: ignore[assignment]
        action()

    code = in_a_child(act)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def record_notes(patch: pytest.MonkeyPatch) -> list[str]:
    """The names of the steps and shards that this process notes as done, from now on."""
    names, note = list[str](), Output.note

    def recorded(self: Output, name: str, *arguments: Any) -> None:
        names.append(name)
        note(self, name, *arguments)

    patch.setattr(Output, "note", recorded)
    return names


def left_at_each_renaming(folder: Path, run: Callable[[Path], object]) -> tuple[int, set[str]]:
    """Kill the job `run` after each of its renamings, and run it again: each output is then that of the whole job,
    and no step of which a note was left is done again, but the summary.

    Returns the number of moments, and what kills left behind.
    """
    run(folder / "whole")
    whole, left = tree(folder / "whole"), set[str]()
    for moment in itertools.count(1):
        out = folder / str(moment)
        killed = killed_after(moment, partial(run, out))
        left |= {path.relative_to(out).as_posix() for path in out.rglob("*")}
        if not killed:
            return moment, left
        notes = {json.loads(path.read_bytes())["name"] for path in out.glob(f"**/{NOTES}/*.json")} - {"/summary"}
        with pytest.MonkeyPatch.context() as patch:
            noted = record_notes(patch)
            run(out)
        assert tree(out) == whole, moment
        assert notes.isdisjoint(noted), moment
    raise AssertionError
