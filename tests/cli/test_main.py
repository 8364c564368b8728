from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from pilekit import __version__
from pilekit.cli import main as main_module
from pilekit.cli.main import COMMANDS, pilekit
from pilekit.errors import ToldElsewhere
from tests.shards import making

PILEKIT = [sys.executable, "-m", "pilekit.cli.main"]
HEAVY = ("torch", "pyarrow", "numba", "transformers", "tokenizers", "numpy", "matplotlib")


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PILEKIT_DATA"}
    return subprocess.run(
        [*PILEKIT, *arguments], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


@pytest.mark.parametrize(
    "statement",
    [
        "import pilekit",
        "from pilekit.cli.main import pilekit; pilekit(['--help'], standalone_mode=False)",
        "from pilekit.cli.main import pilekit; pilekit(['--version'], standalone_mode=False)",
    ],
)
def test_neither_import_nor_help_loads_anything_heavy(statement: str) -> None:
    check = f"import sys; {statement}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(pilekit, [name, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert f"pilekit {name}" in result.output


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert name in done.stdout


def test_version() -> None:
    assert __version__ in run("--version").stdout


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["stats", "--no-such-option"], ["stats", "--on-error", "x"]]
)
def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Usage:" in done.stderr
    assert done.stdout == ""


def test_done_is_exit_0(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(making.record("abc") + b"\n")
    done = run("stats", "a.jsonl", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", ["missing.jsonl.zst", "missing folder/", "*.nothing", "."])
def test_nothing_to_read_is_exit_1_with_one_line(tmp_path: Path, path: str) -> None:
    done = run("stats", path, folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_no_corpus_anywhere_says_what_was_searched_and_names_the_demo(tmp_path: Path) -> None:
    done = run("stats", folder=tmp_path)
    assert done.returncode == 1
    for part in ("PILEKIT_DATA", "./data", str(tmp_path), "pilekit demo"):
        assert part in done.stderr


def test_a_terminal_without_the_characters_gets_something_legible(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "meta": {"pile_set_name": "naïve"}}\n', encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*PILEKIT, "stats", "a.jsonl"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"na\xefve" in done.stdout


@pytest.mark.parametrize("arguments", [["--debug", "stats", "missing.jsonl"], ["stats", "missing.jsonl", "--debug"]])
def test_debug_shows_the_traceback(tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "PilekitError" in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "\x1b[31m[red]\x1b]0;title\x07"\n',
        b'{"text": 1, "meta": {"pile_set_name": "\\u001b[31m"}}\n',
        b'{"text": "x", "meta": {"pile_set_name": ["\\u001b[2J"]}}\n',
        b"\x1b[2J\x9b\n",
    ],
)
def test_hostile_text_in_errors_reaches_no_terminal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "\x1b[31mevil\x07.jsonl"
    path.write_bytes(content)
    done = run("stats", str(path))
    assert done.returncode == 1
    assert "\\x1b[31mevil\\x07.jsonl" in done.stderr
    assert "line 1" in done.stderr
    assert not any(ord(character) < 32 for character in done.stderr.rstrip("\n"))
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--subsets", "--manifest", "--tokenizer", "--plot"])
def test_hostile_text_in_options_reaches_no_terminal(tmp_path: Path, option: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(making.record("abc") + b"\n")
    done = run("stats", "a.jsonl", option, "\x1b[31mevil", folder=tmp_path)
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    assert "evil" in done.stderr


def test_a_reader_that_has_gone_is_no_failure(tmp_path: Path) -> None:
    labels = "\n".join(making.record("abc", f"label {i}" * 3).decode() for i in range(3000))
    (tmp_path / "a.jsonl").write_text(labels)
    with subprocess.Popen(
        [*PILEKIT, "stats", str(tmp_path / "a.jsonl"), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["stats", "--json"], ["stats"], ["index"], ["show", "0"], ["--help"]])
def test_a_full_output_is_named(tmp_path: Path, arguments: list[str], unbuffered: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(making.record("abc"))
    command = [
        PILEKIT[0],
        *PILEKIT[1:],
        arguments[0],
        *([] if arguments[0] == "--help" else [str(path)]),
        *arguments[1:],
    ]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}
        )
    assert done.stderr == b"error: standard output: cannot be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (OSError("disk"), 1), (SystemExit(3), 3)], ids=repr
)
def test_exit_codes_of_what_can_happen(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["pilekit", "stats"])
    monkeypatch.setattr(pilekit, "main", fail)
    with pytest.raises(SystemExit) as left:
        main_module.main()
    assert left.value.code == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "told"), [(None, "error: disk\n"), ("0", "error: disk\n"), ("1", "")])
def test_what_another_rank_tells_is_not_told_and_that_one_has_the_time_to(
    rank: str | None, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**options: object) -> None:
        raise ToldElsewhere("disk")

    waited: list[float] = []
    monkeypatch.setattr(main_module, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.setattr(sys, "argv", ["pilekit", "stats"])
    monkeypatch.setattr(pilekit, "main", fail)
    monkeypatch.delenv("RANK", raising=False) if rank is None else monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit) as left:
        main_module.main()
    assert (left.value.code, capsys.readouterr().err) == (1, told)
    assert [seconds > 5 for seconds in waited] == [True] * (rank == "1")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["bpb", "model", "missing.jsonl"], ["train", "missing.toml"]], ids=str)
def test_a_rank_that_is_late_still_tells(tmp_path: Path, command: list[str]) -> None:
    """torchrun kills all ranks when the first one ends."""
    script = tmp_path / "late.py"
    script.write_text(
        "import os, sys, time, click\nfrom pilekit.cli.main import rank_main\necho = click.echo\n"
        "def late(*what, **how):\n    time.sleep(3 * (os.environ['RANK'] == '0'))\n    echo(*what, **how)\n"
        f"click.echo = late\nsys.argv[1:] = {command}\nrank_main()\n"
    )
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*ranks, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1, done.stderr


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pilekit, "main", fail)
    with pytest.raises(ZeroDivisionError):
        main_module.main()
