from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from pilekit.assemble import demo_corpus
from pilekit.cli import demo
from pilekit.errors import PilekitError
from pilekit.tokenize import train_tokenizer
from tests.assemble.test_sources import library

PILEKIT = [sys.executable, "-P", "-m", "pilekit.cli.main"]
COMMANDS = [
    "reframe",
    "verify",
    "verify",
    "dedup",
    "duplicates",
    "train-tokenizer",
    "stats",
    "stream",
    "train",
    "bpb",
    "train",
    "bpb",
    "bpb",
]


class InOrder:
    """Runs the ranks one after the other, so that they are noted in order."""

    def __enter__(self) -> Any:
        return SimpleNamespace(map=map)

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The demo in an empty folder, on a corpus of a few files. Its commands are noted, not run.

    The scores that it compares at the end, and the steps of the ranks, are made up.
    """
    commands: list[list[str]] = []

    def note(command: list[str]) -> int:
        commands.append(command)
        if command[4] == "bpb" and command[5] != "--compare":
            out = Path(command[command.index("--out") + 1])
            score({"before": 2.0, "after": 1.5}[out.parent.name], out)
        if command[4] == "reframe":
            shutil.copytree(command[5], command[-1], dirs_exist_ok=True)
        return int("damaged" in command[5])

    run = subprocess.run

    def rank(command: list[str], *, env: dict[str, str] | None = None, **options: Any) -> Any:
        """A process that prints one step: of rank 0 rows a and b, of rank 1 rows c and d, or all of them."""
        if env is None:
            return run(command, **options)
        place, world = int(env["RANK"]), int(env["WORLD_SIZE"])
        commands.append([f"RANK={place}", f"WORLD_SIZE={world}", *command])
        rows = list("dbca") if world == 1 else list("abcd")[2 * place : 2 * place + 2]
        return subprocess.CompletedProcess(command, 0, json.dumps({"step": 0, "rows": rows}).encode() + b"\n")

    source = library(tmp_path / "library")
    monkeypatch.setattr(demo, "demo_corpus", lambda out: demo_corpus(out, arithmetic_bytes=50_000, library=source))
    monkeypatch.setattr(subprocess, "call", note)
    monkeypatch.setattr(subprocess, "run", rank)
    monkeypatch.setattr(demo, "ThreadPoolExecutor", InOrder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return commands


def score(bpb: float, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scores = {"overall": {"bpb": bpb}, "subsets": {"Github": {"bpb": bpb}, "Docstrings": {"bpb": bpb}}}
    (folder / "result.json").write_text(json.dumps(scores))


def test_scores_that_do_not_fall_are_a_failure(tmp_path: Path) -> None:
    before, after = (tmp_path / name / "result.json" for name in ("before", "after"))
    score(2.0, before.parent)
    score(1.5, after.parent)
    demo._check_fallen(before, after)
    for worse in (before, after):
        with pytest.raises(PilekitError, match="did not help with Github, Docstrings"):
            demo._check_fallen(after, worse)


def typed(line: str) -> list[str]:
    """The arguments that a shell makes of the line: of pilekit, or a script's rank, world size and path."""
    run = (
        'pilekit() { printf "%s\\n" "$@"; }; python() { printf "%s\\n" "RANK=$RANK" "WORLD_SIZE=$WORLD_SIZE" "$@"; }; '
    )
    return subprocess.check_output(["bash", "-c", run + line], text=True).splitlines()


def test_ranks_learn_their_place_from_the_environment_and_must_make_the_same_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "steps.py"
    program = (
        "import json, os\nrank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\nfor step in range(2):\n"
        "    rows = [f'{step} {row}' for row in range(4)][rank::world]\n    print(json.dumps({'rows': rows[::-1]}))\n"
    )
    script.write_text(program)
    demo._compare_steps(script)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "equal" in line]
    hashes = [hashlib.sha256("".join(f"{step} {row}" for row in range(4)).encode()).hexdigest()[:16] for step in (0, 1)]
    assert [[line[2], line[6]] for line in lines] == [[one, one] for one in hashes]
    script.write_text(program.replace("range(4)", "range(4 + 2 * step * rank)"))
    with pytest.raises(PilekitError, match="2 ranks make another step 1 than one"):
        demo._compare_steps(script)
    script.write_text("import os\nif os.environ['RANK'] == '1':\n    os._exit(3)\n")
    with pytest.raises(PilekitError, match="rank 1 of 2 ended with exit code 3"):
        demo._compare_steps(script)


def test_it_runs_the_commands_that_it_prints(quick: list[list[str]]) -> None:
    result = CliRunner().invoke(demo.command, ["--out", "a demo"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "made from" in result.stdout
    printed = [line.removeprefix("$ ") for line in result.stdout.splitlines() if line.startswith("$ ")]
    assert [line.split()[1] for line in printed if line.startswith("pilekit")] == COMMANDS
    for line, command in zip(printed, quick, strict=True):
        if line.startswith("pilekit"):
            assert typed(line) == command[4:]
            assert command[:4] == PILEKIT
        else:
            assert typed(line) == [*command[:2], *command[4:]]
            assert command[2:4] == [sys.executable, "-P"]
    assert Path("a demo/corpus/train/03.jsonl.zst").is_file()
    whole, damaged = (Path(f"a demo/{name}/00.jsonl.zst").read_bytes() for name in ("reframed/train", "damaged"))
    wrong = [one ^ other for one, other in zip(whole, damaged, strict=True) if one != other]
    assert [byte.bit_count() for byte in wrong] == [1]
    first = list(quick)
    quick.clear()
    again = CliRunner().invoke(demo.command, ["--out", "a demo"], catch_exceptions=False)
    assert "kept; it holds" in again.stdout
    assert quick == first


def test_it_refuses_a_folder_with_other_things_in_it(quick: list[list[str]]) -> None:
    Path("demo").mkdir()
    Path("demo/thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(PilekitError, match=r"demo is not empty.*--out"):
        CliRunner().invoke(demo.command, catch_exceptions=False)
    assert [path.name for path in Path("demo").iterdir()] == ["thesis.tex"]
    assert quick == []
    Path("demo/corpus").mkdir()
    Path("demo/corpus/mine.jsonl").write_text("{}", encoding="utf-8")
    with pytest.raises(PilekitError, match=r"demo/corpus is not empty.*--out"):
        CliRunner().invoke(demo.command, catch_exceptions=False)
    assert [path.name for path in Path("demo/corpus").iterdir()] == ["mine.jsonl"]


def test_it_stops_at_the_first_command_that_fails(quick: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "call", lambda command: 1)
    result = CliRunner().invoke(demo.command)
    assert isinstance(result.exception, PilekitError)
    assert "`pilekit reframe` ended with exit code 1" in str(result.exception)
    assert "$ pilekit verify" not in result.stdout


def test_it_stops_if_the_damage_is_not_found(quick: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    call = subprocess.call
    monkeypatch.setattr(subprocess, "call", lambda command: 0 * call(command))
    result = CliRunner().invoke(demo.command)
    assert "`pilekit verify` ended with exit code 0, not 1" in str(result.exception)
    assert "$ pilekit stats" not in result.stdout


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".zst", ".safetensors") or path.name == "tokenizer.json"
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_after_being_killed_and_once_more(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("PILEKIT_DATA", "OMP_NUM_THREADS")}
    out = tmp_path / "demo"

    def whole() -> str:
        command = [*PILEKIT, "demo", "--out", "demo"]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    # Kill it while it writes the shards of its corpus.
    process = subprocess.Popen(
        [*PILEKIT, "demo", "--out", "demo"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not list(out.glob("corpus/train/*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "tokenizer.json").exists()

    output = whole()
    assert "made from" in output
    for command in COMMANDS:
        assert f"\n$ pilekit {command} " in output
    for subset in ("Github", "Docstrings", "Python Reference", "DM Mathematics"):
        assert subset in output
    assert re.search(r"^00\.jsonl +\d+ .*frame \d+ is damaged", output, re.MULTILINE)
    steps = re.findall(r"^step \d  (\w{16}) of 16 rows  (\w{16}) of 8 \+ 8 rows  equal", output, re.MULTILINE)
    assert len(set(steps)) == 6
    assert all(one == other for one, other in steps)
    assert re.search(r"^2 of 2: similarity 0\.9", output, re.MULTILINE)
    assert "B is better than A" in output
    for name in ("gain.png", "before/bpb.png", "after/bpb.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    made = {"corpus", "reframed", "damaged", "unique", "tokenizer.json", "stats.png", "steps.py", "train.toml"}
    assert {path.name for path in out.iterdir()} == made | {"before", "after", "gain.png"}
    assert not list(out.rglob("*.partial"))

    # The corpus, and the tokenizer made of it, have the bytes of a run that was not killed.
    demo_corpus(tmp_path / "fresh")
    train_tokenizer(tmp_path / "fresh" / "train", 4096, tmp_path / "tokenizer.json")
    found = digests(out)
    assert {name: found[f"corpus/{name}"] for name in digests(tmp_path / "fresh")} == digests(tmp_path / "fresh")
    assert (tmp_path / "tokenizer.json").read_bytes() == (out / "tokenizer.json").read_bytes()

    # A second run keeps the corpus, the models and the scores. A search for a corpus does not take the demo's folders.
    again = whole()
    assert "kept; it holds" in again
    assert digests(out) == found
    assert [line for line in again.splitlines() if "Github" in line] == [
        line for line in output.splitlines() if "Github" in line
    ]
    nothing = subprocess.run([*PILEKIT, "stats"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert nothing.returncode == 1
    assert "name such a folder" in nothing.stderr
