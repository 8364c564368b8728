"""The scripts of docs/frameworks.md, unchanged, in the real frameworks: killed, and started again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.conftest import Rows
from tests.frameworks.environment import ROOT, launch

PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
SCRIPTS = {
    title: re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
WATCHED = ROOT / "tests" / "frameworks" / "watched.py"

STEPS = 6
"""Optimizer steps of each script; it saves after every second one."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def seen(folder: Path, rank: int) -> Rows:
    return [json.loads(line) for line in (folder / f"seen-{rank}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("title", SCRIPTS)
def test_killed_and_started_again(title: str, python: Path, folder: Path, alone: Callable[..., Rows]) -> None:
    """Killed in the fourth step, a script resumes after the second, the last saved; each rank has its own rows."""
    (script,) = SCRIPTS[title]
    (folder / "train.py").write_text(script, encoding="utf-8")
    ranks, per_step = (1, 1) if title == "StatefulDataLoader" else (2, 2)
    sizes = {"batch_size": 16 // ranks // per_step, "grad_accum": per_step, "world_size": ranks}
    wanted = [alone(STEPS * per_step, **sizes, rank=rank) for rank in range(ranks)]

    calls = 3 * per_step + per_step // 2
    killed = launch(python, WATCHED, "train.py", folder=folder, ranks=ranks, WATCHED_CALLS=str(calls))
    assert killed.code != 0
    assert all((folder / f"seen-{rank}.jsonl").exists() for rank in range(ranks)), killed.text[-4000:]
    for rank in range(ranks):
        first = seen(folder, rank)
        assert first == wanted[rank][: len(first)], killed.text[-4000:]
        assert 3 * per_step <= len(first) <= calls, killed.text[-4000:]
        (folder / f"seen-{rank}.jsonl").unlink()

    again = launch(python, WATCHED, "train.py", folder=folder, ranks=ranks)
    assert again.code == 0, again.text[-4000:]
    rest = [seen(folder, rank) for rank in range(ranks)]
    for rank in range(ranks):
        assert rest[rank] == wanted[rank][2 * per_step :], again.text[-4000:]

    for step, together in enumerate(alone(STEPS)[2:]):
        parts = [rows for own in rest for batch in own[step * per_step : (step + 1) * per_step] for rows in batch]
        assert sorted(parts) == sorted(together)
