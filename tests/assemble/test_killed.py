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
from tests.kills import AFTER_RENAMING, killed_after

__all__ = ["made"]

KILLED = """
from pilekit.assemble import assemble_corpus
assemble_corpus(sys.argv[1], sys.argv[2], jobs=1)
print(-left)
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
    unkilled = [sys.executable, "-c", AFTER_RENAMING + KILLED, "0", str(manifest), str(tmp_path / "whole")]
    renamed = int(subprocess.check_output(unkilled))
    kinds: set[str] = set()
    for moment in (renamed * number // (killed + 1) for number in range(1, killed + 1)):
        out = tmp_path / str(moment)
        assert killed_after(moment, KILLED, manifest, out) == -9
        done = {json.loads(path.read_bytes())["name"] for path in (out / ".unfinished").glob("*.json")}
        kinds |= {"".join(name.split("/")[:2]) if name[0] == "/" else name.split("/")[0] for name in done}
        noted.clear()
        assemble_corpus(manifest, out, jobs=1)
        assert content(out) == whole
        assert done.isdisjoint(noted)
    assert killed == 1 or kinds >= {"a.jsonl", "text files from files", "plan", "spilled", "train"}, kinds
