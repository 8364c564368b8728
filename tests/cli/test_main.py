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
from tests.cli.running import PILEKIT
from tests.shards import making

HEAVY = ("torch", "pyarrow", "numba", "transformers", "tokenizers", "numpy", "matplotlib")


def run(*arguments: str, folder: Path | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PILEKIT_DATA"} | changes
    return subprocess.run(
        [*PILEKIT, *arguments], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_bytes(making.record("abc", "naïve") + b"\n")
    return tmp_path


def test_help_and_version_load_nothing_heavy() -> None:
    for option, text in (("--help", list(COMMANDS)), ("--version", [__version__])):
        check = (
            f"import sys; from pilekit.cli.main import pilekit; pilekit(['{option}'], standalone_mode=False); "
            f"print([name for name in {HEAVY} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"
        assert all(name in done.stdout for name in text)


def test_every_command_has_help_with_an_example() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(pilekit, [name, "--help"])
        assert result.exit_code == 0
        assert "Example:" in result.output
        assert f"pilekit {name}" in result.output


def test_done_is_exit_0_and_a_character_that_the_terminal_lacks_becomes_its_number(corpus: Path) -> None:
    done = run("stats", "a.jsonl", folder=corpus, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"na\xefve" in done.stdout


def test_failures_are_one_line_and_exit_1_and_wrong_usage_is_exit_2(corpus: Path) -> None:
    for arguments in (["missing.jsonl.zst"], ["missing folder/"], ["*.nothing"]):
        done = run("stats", *arguments, folder=corpus)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith("error: ")
    for arguments in (["no-such-command"], ["stats", "--no-such-option"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Usage:" in done.stderr
    debug = run("stats", "missing.jsonl", "--debug", folder=corpus)
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr


def test_without_a_corpus_the_searched_places_and_the_demo_are_named(tmp_path: Path) -> None:
    done = run("stats", folder=tmp_path)
    assert done.returncode == 1
    for part in ("PILEKIT_DATA", "./data", str(tmp_path), "pilekit demo"):
        assert part in done.stderr


def test_hostile_text_in_errors_reaches_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mevil\x07.jsonl"
    path.write_bytes(b'{"text": "x", "meta": {"pile_set_name": ["\\u001b[2J"]}}\n\x1b[2J\x9b\n')
    for arguments in ([str(path)], [str(path), "--manifest", "\x1b[31mevil"], ["--plot", "\x1b[31mevil", str(path)]):
        done = run("stats", *arguments)
        assert done.returncode == 1
        assert "evil" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not any(ord(character) < 32 for character in done.stderr.rstrip("\n"))


def test_a_closed_pipe_is_not_a_failure(tmp_path: Path) -> None:
    labels = "\n".join(making.record("abc", f"label {i}" * 3).decode() for i in range(3000))
    (tmp_path / "a.jsonl").write_text(labels)
    command = [*PILEKIT, "stats", str(tmp_path / "a.jsonl"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_full_output_is_named(corpus: Path) -> None:
    path = str(corpus / "a.jsonl")
    for arguments in (["stats", path, "--json"], ["--help"]):
        for unbuffered in ("", "1"):
            environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
            with Path("/dev/full").open("wb") as full:
                done = subprocess.run([*PILEKIT, *arguments], stdout=full, stderr=subprocess.PIPE, env=environment)
            assert done.stderr == b"error: standard output: cannot be written: No space left on device\n"
            assert done.returncode == 1


def left(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> object:
    """The exit code if the command raises `error`."""

    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["pilekit", "stats"])
    monkeypatch.setattr(pilekit, "main", fail)
    with pytest.raises(SystemExit) as raised:
        main_module.main()
    return raised.value.code


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert [left(monkeypatch, error) for error in (KeyboardInterrupt(), OSError("disk"), SystemExit(3))] == [130, 1, 3]
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):  # A bug keeps its traceback.
        left(monkeypatch, ZeroDivisionError())


def test_an_error_of_all_ranks_is_printed_by_rank_0_while_the_others_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(main_module, "time", SimpleNamespace(sleep=waited.append))
    for rank, printed in (("0", "error: disk\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert (left(monkeypatch, ToldElsewhere("disk")), capsys.readouterr().err) == (1, printed)
    assert [seconds > 5 for seconds in waited] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("command", [["bpb", "model", "missing.jsonl"], ["train", "missing.toml"]], ids=str)
def test_a_slow_rank_0_still_prints_the_error(tmp_path: Path, command: list[str]) -> None:
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
