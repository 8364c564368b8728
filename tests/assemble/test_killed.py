"""Runs killed with -9 and repeated: the same bytes, and nothing that was done is done again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilekit.artifacts.job_folder import Output
from pilekit.assemble import assemble_corpus
from tests.assemble.reference import Case
from tests.assemble.test_assemble_corpus import content, made

__all__ = ["made"]

# At a renaming, the files on disk change for a later run.
KILLED = """
import os, signal, sys
from pilekit.assemble import assemble_corpus

renamed = 0
def killing(source, target, *, of=os.replace, **options):
    global renamed
    renamed += 1
    of(source, target, **options)
    if renamed == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = killing
assemble_corpus(sys.argv[1], sys.argv[2], jobs=1)
print(renamed)
"""


@pytest.mark.parametrize("killed", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_killed_and_run_again(
    made: tuple[Case, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int
) -> None:
    _, folder = made
    whole, manifest = content(folder / "out"), folder / "mine.toml"
    note = Output.note
    noted: list[str] = []

    def noting(self: Output, name: str, *rest: Any) -> None:
        noted.append(name)
        note(self, name, *rest)

    monkeypatch.setattr(Output, "note", noting)
    script = [sys.executable, "-c", KILLED, str(manifest)]
    renamed = int(subprocess.check_output([*script, str(tmp_path / "whole"), "0"]))
    kinds: set[str] = set()
    for moment in (renamed * number // (killed + 1) for number in range(1, killed + 1)):
        out = tmp_path / str(moment)
        assert subprocess.run([*script, str(out), str(moment)], check=False).returncode == -9
        done = {json.loads(path.read_bytes())["name"] for path in (out / ".unfinished").glob("*.json")}
        kinds |= {"".join(name.split("/")[:2]) if name[0] == "/" else name.split("/")[0] for name in done}
        noted.clear()
        assemble_corpus(manifest, out, jobs=1)
        assert content(out) == whole
        assert done.isdisjoint(noted)
    assert killed == 1 or kinds >= {"a.jsonl", "files", "plan", "spilled", "train"}, kinds
