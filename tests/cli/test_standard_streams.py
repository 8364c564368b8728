"""Commands whose standard input, output and error are closed, full, or a pipe whose reader has gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import PILEKIT
from tests.shards import making
from tests.stopping import tree
from tests.tokenize.making import byte_level_bpe

COMMANDS = {
    "stats": "stats in",
    "head": "head in --json",
    "help": "--help",
    "stream": "stream in --tokenizer tokenizer.json --seq-len 16",
    "select": "select in --sample 0.5 --out out",
    "nothing there": "stats nosuch",
    "findings": "verify damaged",
    "not found": "grep --count nosuchword in",
}
SLOW_COMMANDS = {"faults": "doctor --tokenizer damaged/a.jsonl"}
CLOSED = (">&-", "2>&-", "<&- >&- 2>&-")
EXIT_CODES = {"nothing there": 1, "findings": 1, "not found": 1, "faults": 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a", "b"):
        lines = [making.record(f"words of {name} {i}", f"label {i % 40}") for i in range(400)]
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / f"in/{name}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/a.jsonl").write_bytes(b"{\n")
    byte_level_bpe(300).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str, redirections: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-c", f'exec "$@" {redirections}', "bash", *PILEKIT, *COMMANDS[command].split()],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_closed_streams_change_neither_the_work_nor_the_exit_code(command: str, folder: Path) -> None:
    code, output, errors = run(command)
    assert code == EXIT_CODES.get(command, 0), errors
    written = tree(folder)
    for closed in CLOSED:
        subprocess.run(["rm", "-rf", "out"], check=True)
        found = run(command, closed)
        assert (found[0], found[1] != "") == (code, output != "" and ">&-" not in closed.split())
        assert found[2] == errors * ("2>" not in closed)
        assert tree(folder) == written


@pytest.mark.parametrize("command", [name for name in COMMANDS if EXIT_CODES.get(name, 0) == 0])
def test_a_full_standard_output_is_named(command: str, folder: Path) -> None:
    code, _, errors = run(command, ">/dev/full")
    assert code == 1
    assert errors.splitlines()[-1] == "error: standard output: cannot be written: No space left on device"


@pytest.mark.parametrize("command", [*COMMANDS, *SLOW_COMMANDS])
@pytest.mark.parametrize("redirection", ["", "2>&1 >/dev/null"], ids=["output", "messages"])
def test_a_reader_that_has_gone_is_no_failure(command: str, redirection: str, folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    shell = ["bash", "-c", f'exec "$@" {redirection}', "bash"]
    words = (COMMANDS | SLOW_COMMANDS)[command].split()
    done = subprocess.run([*shell, *PILEKIT, *words], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == EXIT_CODES.get(command, 0)
    assert b"Traceback" not in done.stderr
    assert b"roken" not in done.stderr


def test_the_first_opened_file_never_gets_the_number_of_a_closed_stream(folder: Path) -> None:
    script = "import os; from pilekit.cli.standard_streams import prepare_standard_streams as prepare; prepare(); "
    script += "file = os.open('new', os.O_CREAT | os.O_WRONLY); print('stray', flush=True); os.write(2, b'stray'); "
    script += "assert all(map(os.get_inheritable, range(3))); os.write(file, str(file).encode())"
    subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", PILEKIT[0], "-c", script], check=True)
    assert Path("new").read_text() == "3"
