from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import zstandard
from click.testing import CliRunner

from pilekit import __version__
from pilekit.cli import main as main_module
from pilekit.cli.main import COMMANDS, GROUPS, pilekit
from pilekit.cli.options import ByteSize, Similarity, lanes, repeats
from pilekit.errors import AlreadyReported
from tests.cli.running import PILEKIT, assert_told_before_torch, leave, on_terminal
from tests.process_groups import ROOT
from tests.shards import making
from tests.versions import TRAINS

HEAVY = ("torch", "pyarrow", "numba", "transformers", "tokenizers", "numpy", "matplotlib", "datasketch", "scipy")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one shard."""
    (tmp_path / "a.jsonl").write_bytes(making.record("abc", "naïve") + b"\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PILEKIT_DATA", raising=False)
    return tmp_path


def test_help_version_show_and_stats_load_nothing_heavy(corpus: Path) -> None:
    (corpus / "a.jsonl.zst").write_bytes(making.zstd_frame(making.record("first")))
    for arguments, heavy, text in (
        (["--help"], HEAVY, list(COMMANDS)),
        (["--version"], HEAVY, [__version__]),
        (["show", "a.jsonl.zst", "0"], ("torch", "numba", "transformers", "matplotlib"), ["first"]),
        (["stats", "a.jsonl.zst"], ("torch", "numba", "transformers", "matplotlib"), ["Total"]),
    ):
        check = (
            f"import sys; from pilekit.cli.main import pilekit; pilekit({arguments}, standalone_mode=False); "
            f"print([name for name in {heavy} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("[]\n")
        assert all(name in done.stdout for name in text)


def test_a_wrong_path_or_name_is_told_before_torch_is_imported(corpus: Path) -> None:
    (corpus / "model").mkdir()
    (corpus / "bare").mkdir()
    (corpus / "bare/config.json").write_text("{}")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (corpus / "model" / name).write_text("{}")
    config = '[data]\npath = "nosuch"\ntokenizer = "model"\n[model]\npreset = "pythia-14m"\n[train]\nsteps = 1\n'
    (corpus / "run.toml").write_text(config)
    old = corpus / "old/torch-2.6.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n")
    assert_told_before_torch(
        {
            "bpb nosuch a.jsonl": "nosuch: there is no such model",
            "bpb model a.jsonl --subsets Arxif": "did you mean ArXiv",
            "bpb model nosuch.jsonl": "nosuch.jsonl: no such file or folder",
            "bpb bare a.jsonl": "bare: has no weights (model.safetensors)",
            "bpb model a.jsonl --out a.jsonl": "a.jsonl: is a file, where a folder belongs",
            "stream a.jsonl --tokenizer model --dedup nosuch": "nosuch: there is no such folder",
            "stream a.jsonl --tokenizer model --state nosuch": "nosuch: cannot be read",
            "stream a.jsonl --tokenizer model --weights Arxif=1": "did you mean ArXiv",
            "stream a.jsonl --tokenizer model --repeats Arxif=2": "did you mean ArXiv",
            "train run.toml": "nosuch: no such file or folder" if TRAINS else "train needs torch",
            "train run.toml --set optimizer.lr=nan": "error: --set: optimizer.lr" if TRAINS else "train needs torch",
            "stream a.jsonl --tokenizer nosuch.json": "no tokenizer 'nosuch.json'",
            "train nosuch.toml": "nosuch.toml: cannot be read" if TRAINS else "train needs torch",
        }
    )
    path = os.pathsep.join(["old", os.environ.get("PYTHONPATH", str(ROOT))])
    too_old = {"train a.toml": "error: train needs torch 2.13 or later; 2.6.0 is installed"}
    assert_told_before_torch(too_old, {**os.environ, "PYTHONPATH": path})


def test_the_help_page_groups_all_commands_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = CliRunner().invoke(pilekit, ["--help"], terminal_width=80).output
    begins = [page.index(f"\n{title}:\n") for title in GROUPS]
    assert begins == sorted(begins)
    for (title, commands), begin, end in zip(GROUPS.items(), begins, [*begins[1:], len(page)], strict=True):
        first, *lines = page[begin:end].strip().splitlines()
        assert first == f"{title}:"
        assert [line.split(maxsplit=1) for line in lines] == [[name, text] for name, text in commands.items()]


def test_every_command_has_help_with_an_example() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(pilekit, [name, "--help"])
        assert result.exit_code == 0
        assert "Example:" in result.output
        assert f"pilekit {name}" in result.output


def test_done_is_exit_0_and_a_character_that_the_terminal_lacks_becomes_its_number(corpus: Path) -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*PILEKIT, "stats", "a.jsonl"], capture_output=True, text=True, env=ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"na\xefve" in done.stdout
    assert "naïve" in CliRunner().invoke(pilekit, ["stats", "a.jsonl"], catch_exceptions=False).stdout


def test_failures_are_one_line_and_exit_1_and_wrong_usage_is_exit_2(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, named in (
        (["missing.jsonl.zst"], "missing.jsonl.zst"),
        (["*.nothing"], "*.nothing"),
        (["--plot", "no-figure", "a.jsonl"], "no-figure"),
    ):
        code, output, errors = leave(capsys, "stats", *arguments)
        assert (code, output, errors.count("\n")) == (1, "", 1)
        assert errors.startswith("error: ")
        assert named in errors
    for arguments, told in (
        (["stat"], "Error: No such command 'stat'; did you mean stats?"),
        (["evaluate"], "Error: No such command 'evaluate'; did you mean bpb?"),
        (["minhash"], "Error: No such command 'minhash'; did you mean dedup?"),
        (["corpus_stats"], "Error: No such command 'corpus_stats'; did you mean stats?"),
        (["traintokenizer"], "Error: No such command 'traintokenizer'; did you mean train-tokenizer?"),
        (["no-such-command"], "Error: No such command 'no-such-command'."),
        (["stats", "--no-such-option"], "No such option"),
    ):
        code, output, errors = leave(capsys, *arguments)
        assert (code, output) == (2, "")
        assert "Usage:" in errors
        assert told in errors
    (corpus / "empty").mkdir()
    monkeypatch.chdir(corpus / "empty")
    code, _, errors = leave(capsys, "stats")
    assert code == 1
    for part in ("PILEKIT_DATA", "./data", "pilekit demo"):
        assert part in errors


def test_exit_codes_and_which_rank_prints_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(error: BaseException) -> None:
        monkeypatch.setattr(pilekit, "main", lambda **options: (_ for _ in ()).throw(error))

    for error, expected in ((KeyboardInterrupt(), 130), (OSError("disk"), 1), (SystemExit(3), 3)):
        failing(error)
        code, _, errors = leave(capsys, "stats")
        assert code == expected
        assert "Traceback" not in errors
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):  # A bug keeps its traceback.
        leave(capsys, "stats")
    failing(OSError("disk"))
    with pytest.raises(OSError, match="disk"):
        leave(capsys, "stats", "--debug")
    waited: list[float] = []
    monkeypatch.setattr(main_module, "time", SimpleNamespace(sleep=waited.append))
    failing(AlreadyReported("disk"))
    for rank, printed in (("0", "error: disk\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert leave(capsys, "stats") == (1, "", printed)
    assert [seconds > 5 for seconds in waited] == [True]


@pytest.mark.parametrize(
    ("command", "stack"),
    [
        ("show long.jsonl 0", 0),  # a line of 200 MB
        ("show window.jsonl.zst 0", 0),  # a frame whose window has 128 MiB; it is not damaged
        ("stream long.jsonl --tokenizer nosuch", 0),  # torch's libraries
        ("show short.jsonl.zst 0", 1 << 30),  # the stack of a thread
    ],
    ids=["line", "window", "library", "thread"],
)
def test_memory_that_runs_out_is_one_line(command: str, stack: int, tmp_path: Path) -> None:
    line = b'{"text": "' + b"x" * 200_000_000 + b'"}\n'
    (tmp_path / "long.jsonl").write_bytes(line)
    wide = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()  # does not know the size beforehand
    (tmp_path / "window.jsonl.zst").write_bytes(packer.compress(line[-9:]) + packer.flush())
    (tmp_path / "short.jsonl.zst").write_bytes(zstandard.compress(line[-9:]))
    script = f"""if 1:
        import resource, sys, threading
        from pathlib import Path
        import pilekit.cli.look.show, pilekit.cli.stream, pilekit.cli.main, pilekit.shards.read.reader
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 60_000_000,) * 2)
        threading.stack_size({stack})
        sys.argv = ["pilekit", *{command.split()}]
        pilekit.cli.main.main()
    """
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    told = "error: memory ran out; free some, or raise its limit\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


INTERRUPTED_AT_THE_END = """
import atexit, os, signal, sys
from pilekit.cli.main import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
if place := sys.argv.pop(1):  # the end of the path of a file whose opening is interrupted too
    def hook(event, arguments):
        if event == "open" and str(arguments[0]).endswith(place):
            os.kill(os.getpid(), signal.SIGINT)
    sys.addaudithook(hook)
main()
"""


@pytest.mark.parametrize(
    ("place", "command", "code", "told"),
    [
        ("", ["head"], 0, ""),
        ("", ["head", "nosuch"], 1, "error: nosuch: no such file or folder; check the path\n"),
        ("", ["head", "--nosuch"], 2, "Usage:"),
        ("a.jsonl", ["stats", "a.jsonl"], 130, "\ninterrupted; the same command begins again\n"),
    ],
)
def test_ctrl_c_while_python_ends_changes_nothing(
    place: str, command: list[str], code: int, told: str, corpus: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_THE_END, place, *command],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stderr.startswith(told)) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_values_as_people_type_them() -> None:
    sizes = {"200MB": 200_000_000, "1.5GB": 1_500_000_000, "64MiB": 64 << 20, "512 kib": 512 << 10, "1T": 10**12}
    sizes |= {"3k": 3_000, "10b": 10, "65536": 65536, "1.5MiB": 3 << 19}
    assert {typed: ByteSize().convert(typed, None, None) for typed in sizes} == sizes
    assert repeats("ArXiv=2, Wikipedia (en)=3.5") == {"ArXiv": 2.0, "Wikipedia (en)": 3.5}
    assert lanes("32, 4") == (32, 4)
    for read, wrong in (
        (ByteSize(4096), ("", "much", "MiB", "-5MB", "1 MiB 2", "1,5M", "1e9", "١M", "9" * 40, "\x1b[2J", "4kB")),
        (Similarity(0, 1), ("nan", "-0.1", "1.1", "much")),
        (repeats, ("ArXiv", "=2", "", "ArXiv=\x1b", "ArXiv=2,x")),
        (lanes, ("8", "8,", "8,x", "8,2,1", "١,2", "-1,2")),
    ):
        for typed in wrong:
            with pytest.raises(click.BadParameter) as raised:
                read.convert(typed, None, None) if isinstance(read, click.ParamType) else read(typed)
            assert "\x1b" not in raised.value.message


@pytest.mark.parametrize("columns", [80, 40])
def test_no_line_on_a_terminal_is_broken_inside_a_word(columns: int, corpus: Path) -> None:
    """Errors, help and `doctor` fit the terminal, unless one word is longer; in a pipe an error is one line."""
    wrong = ["stats", "--subsets", "a.jsonl", "not here, and " * 9 + "nowhere.jsonl"]
    [error] = subprocess.run([*PILEKIT, *wrong], capture_output=True, text=True).stderr.splitlines()
    assert len(error) > columns
    printed = on_terminal(*wrong, columns=columns)
    assert printed.split() == error.split()
    for lines in (printed, *(on_terminal(*of, columns=columns) for of in (["--help"], ["stats", "-h"], ["doctor"]))):
        for line in lines.splitlines():
            is_whole = "pilekit " in line or line.endswith(":")  # examples, to be copied, and titles
            assert len(line) <= columns or len(line.split()) == 1 or is_whole, line
