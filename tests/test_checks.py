"""A check that cannot fail proves nothing: each check of `make check` gets a mistake, and must name it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
READ = ("pilekit", "docs", "manifests", "mkdocs.yml", "pyproject.toml", "README.md")
READ_BY_MYPY = ("pilekit/errors.py", "pyproject.toml")
"""The whole package would take it minutes."""


@dataclass(frozen=True)
class Mistake:
    """A `text` at the end of a `file`, and a pattern that the command `check` must print of it."""

    check: str
    file: str
    text: str
    told: str


MISTAKES = {
    "unused import": Mistake("ruff check", "pilekit/errors.py", "import os\n", "F401"),
    "format": Mistake("ruff format", "pilekit/errors.py", "X = {  }\n", "would be reformatted"),
    "type": Mistake("mypy", "pilekit/errors.py", "X: int = ''\n", "Incompatible types in assignment"),
    "missing type": Mistake("mypy", "pilekit/errors.py", "def f(x): ...\n", "missing a type annotation"),
    "page": Mistake("mkdocs build", "docs/index.md", "\n[x](nosuch.md)\n", "nosuch.md"),
    "anchor": Mistake("mkdocs build", "docs/index.md", "\n[x](bpb.md#nosuch)\n", "#nosuch"),
    "cross-reference": Mistake("mkdocs build", "docs/index.md", "\n[x][pilekit.nosuch]\n", "pilekit.nosuch"),
    "navigation": Mistake("mkdocs build", "docs/attic.md", "# Attic\n", "attic.md"),
    "unknown name": Mistake("mkdocs build", "docs/api.md", "\n::: pilekit.NoSuch\n", "pilekit.NoSuch"),
}


def checks() -> dict[str, list[str]]:
    """The commands that `make check` runs, by their first words."""
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    plan = subprocess.check_output(["make", "-n", "check", "VENV=", "BIN="], cwd=ROOT, text=True, env=environment)
    commands = [shlex.split(line.removeprefix("/")) for line in plan.splitlines()]
    two_words = {"ruff", "mkdocs"}
    return {" ".join(command[: 1 + (command[0] in two_words)]): command for command in commands}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_each_check_finds_a_mistake(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    program, *arguments = checks()[mistake.check]
    if not (found := shutil.which(program, path=str(Path(sys.executable).parent))):
        pytest.skip(f"{program} is not installed")
    for part in READ_BY_MYPY if program == "mypy" else READ:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        (tmp_path / part).parent.mkdir(exist_ok=True)
        copy(ROOT / part, tmp_path / part)
    with (tmp_path / mistake.file).open("a", encoding="utf-8") as file:
        file.write(mistake.text)
    done = subprocess.run(
        [found, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode, done.stdout
    assert mistake.told in done.stdout


SKIPPED = {
    "of a test": "@pytest.mark.skip{}\ndef test(): ...",
    "in a test": "def test(): pytest.skip{}",
    "of a file": "pytest.importorskip('nosuchmodule', reason='no GPU')",
}


@pytest.mark.parametrize(
    ("skip", "reason", "allowed", "code", "told"),
    [
        ("of a test", "", None, 4, "without a reason"),
        ("of a test", "(reason='no GPU')", None, 0, ""),
        ("of a test", "(reason='no GPU')", "no text|no GPU", 0, ""),
        ("of a test", "(reason='no GPU')", "no text", 1, "no GPU"),
        ("in a test", "('no GPU')", None, 0, ""),
        ("in a test", "('no GPU')", "", 1, "no GPU"),
        ("of a file", "", "", 2, "no GPU"),
    ],
)
def test_a_skip_has_a_reason_that_is_allowed(
    skip: str, reason: str, allowed: str | None, code: int, told: str, tmp_path: Path
) -> None:
    (file := tmp_path / "test_one.py").write_text(f"import pytest\n\n{SKIPPED[skip].format(reason)}\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(file)]
    environment = {name: value for name, value in os.environ.items() if name != "PILEKIT_TEST_SKIPS"}
    if allowed is not None:
        environment["PILEKIT_TEST_SKIPS"] = allowed
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stdout
    assert told in done.stdout + done.stderr
