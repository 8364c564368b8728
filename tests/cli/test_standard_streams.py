"""Commands whose standard input, output and error are closed, full, or a pipe whose reader has gone."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import subprocess
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.cli.standard_streams import wrapped
from tests.cli.running import PILEKIT, terminal_output
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


NOTICES = """
import logging, sys, threading, time, warnings
import click
from pilekit.cli.standard_streams import prepare_standard_streams
from pilekit.errors import message_logger
from pilekit.display.progress import byte_progress
from pilekit.train.log.metrics import StepMetrics
from pilekit.cli.display.live_line import live_line

PATH = "/folder" * 12
prepare_standard_streams()
click.echo(f"held-out shards are left out of the training documents, as they always were: {PATH} and others", err=True)
click.ClickException("the option is wrong, because it cannot be given together with the other option").show()
message_logger("pilekit.test").warning("left out: %s has no index, which pilekit index builds within a minute", PATH)
logging.getLogger("another").warning("a library that pilekit calls warns of something in a sentence without an end")
warnings.showwarning("Python warns too, in a sentence that is longer than the line has room", UserWarning, "f.py", 7)
with byte_progress("counting", 1000) as advance:
    time.sleep(0.7)
    message_logger("pilekit.test").warning("above the progress another message is broken at spaces, as of %s", PATH)
with live_line(10) as show:
    figures = {"lr": 1e-3, "grad_norm": 1.0, "tokens": 10, "tokens_per_second": 10.0}
    show(StepMetrics(step=1, loss=2.0, loss_by_subset={}, data_wait=0.1, step_seconds=0.1, **figures))
    message_logger("pilekit.test").warning("above the line of training another message is broken at its spaces too")
print("a result on standard output is left as it is, because programs and people read it, at any width of the terminal")
"""
FOLDER = "/folder" * 12


def test_all_messages_on_a_terminal_are_broken_at_spaces_alone(tmp_path: Path) -> None:
    (tmp_path / "notices.py").write_text(NOTICES)
    command = [PILEKIT[0], str(tmp_path / "notices.py")]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    notices = piped.stderr.splitlines()
    assert len(notices) == 7, "in a log a message is a line"
    assert all(len(notice) > 60 for notice in notices)

    printed = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal_output(command, columns=60))
    texts = re.split("[\r\n]+", printed)
    assert texts[-2:] == [piped.stdout.strip(), ""]
    for notice in notices:
        first = next(place for place, line in enumerate(texts) if line and notice.startswith(line))
        lines = [texts[first]]
        while len(" ".join(lines)) < len(notice):
            lines.append(texts[first + len(lines)])
        assert " ".join(lines) == notice
        assert all(len(line) <= 60 or line == FOLDER for line in lines)
        assert all(len(f"{line} {after.split()[0]}") > 60 for line, after in itertools.pairwise(lines))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1)), st.integers(1, 90))
def test_lines_hold_as_many_words_as_fit(words: list[str], columns: int) -> None:
    terminal, other = pty.openpty()
    termios.tcsetwinsize(other, (24, columns))
    with os.fdopen(other, "w") as stream:
        text = " ".join(words)
        lines = wrapped(text, stream).split("\n")
    os.close(terminal)
    assert " ".join(lines) == text
    assert all(len(line) <= columns or " " not in line for line in lines)
    assert all(len(f"{line} {after.split()[0]}") > columns for line, after in itertools.pairwise(lines))
    assert wrapped(text, io.StringIO()) == text
