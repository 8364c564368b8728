"""The demo runs the commands that it prints, in a fresh folder and after being killed."""

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
from typing import Any

import pytest
from click.testing import CliRunner

from pilekit.assemble import assemble_corpus
from pilekit.assemble.demo import write_demo_sources
from pilekit.assemble.demo_story import PHRASE, STORY
from pilekit.cli import demo
from pilekit.errors import PilekitError
from tests.assemble.test_demo import library

PILEKIT = [sys.executable, "-P", "-m", "pilekit.cli.main"]
COMMANDS = [
    *("assemble", "reframe", "verify", "verify", "verify", "verify", "dedup", "duplicates", "clean"),
    *("decontaminate", "substrings", "train-tokenizer", "stats", "stream"),
    *("tokenize", "tokenize", "merge", "stream"),
    *("select", "train", "bpb", "train", "bpb", "bpb"),
    *("trace", "count", "dedup", "seen", "report"),
]


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The demo in an empty folder, on a corpus of a few files. Its commands are noted, not run."""
    commands: list[list[str]] = []

    def note(command: list[str], stdout: Any = None) -> int:
        commands.append(command)
        if command[4] == "assemble":
            assemble_corpus(command[5], command[-1])
        if command[4] == "reframe":
            shutil.copytree(command[5], command[-1], dirs_exist_ok=True)
        return int("damaged" in command[5])

    source = library(tmp_path / "library")
    monkeypatch.setattr(
        demo, "write_demo_sources", lambda out: write_demo_sources(out, arithmetic_bytes=50_000, library=source)
    )
    monkeypatch.setattr(subprocess, "call", note)
    monkeypatch.setattr(demo, "_compare_steps", lambda script: None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return commands


def test_it_runs_the_commands_that_it_prints(quick: list[list[str]]) -> None:
    result = CliRunner().invoke(demo.command, ["--out", "a demo"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "made from" in result.stdout
    printed = [line.removeprefix("$ ") for line in result.stdout.splitlines() if line.startswith("$ ")]
    assert [line.split()[1] for line in printed] == COMMANDS
    printed = [line.partition(" > ")[0] for line in printed]
    shell = "\n".join(['pilekit() { printf "%s\\t" "$@"; echo; }', *printed])
    typed = subprocess.check_output(["bash", "-c", shell], text=True).splitlines()
    assert [line.split("\t")[:-1] for line in typed] == [command[4:] for command in quick]
    assert all(command[:4] == PILEKIT for command in quick)
    assert Path("a demo/corpus/train/03.jsonl.zst").is_file()
    whole, damaged = (Path(f"a demo/{name}/00.jsonl.zst").read_bytes() for name in ("reframed/train", "damaged"))
    wrong = [one ^ other for one, other in zip(whole, damaged, strict=True) if one != other]
    assert [byte.bit_count() for byte in wrong] == [1]
    first = list(quick)
    quick.clear()
    again = CliRunner().invoke(demo.command, ["--out", "a demo"], catch_exceptions=False)
    assert "kept; it holds" in again.stdout
    assert quick == first


def test_it_stops_at_the_first_command_with_another_exit_code(
    quick: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = subprocess.call
    for answer, message in ((1, "`pilekit assemble` ended with exit code 1"), (0, "`pilekit verify` ended with")):
        monkeypatch.setattr(subprocess, "call", lambda command, stdout=None, answer=answer: answer or 0 * call(command))
        result = CliRunner().invoke(demo.command)
        assert isinstance(result.exception, PilekitError)
        assert message in str(result.exception)
        assert "$ pilekit dedup" not in result.stdout
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("years of work")
    with pytest.raises(PilekitError, match=r"mine is not empty.*--out"):
        CliRunner().invoke(demo.command, ["--out", "mine"], catch_exceptions=False)
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.tex"]


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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_after_being_killed(tmp_path: Path) -> None:
    """It is killed while it assembles the corpus."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PILEKIT_DATA", "OMP_NUM_THREADS")}
    out, command = tmp_path / "demo", [*PILEKIT, "demo", "--out", "demo"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        while not list(out.glob("corpus/train/*")):
            assert process.poll() is None
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "tokenizer.json").exists()

    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    output = result.stdout
    assert result.returncode == 0, result.stderr
    assert "kept; it holds" in output
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
    (sample,) = (json.loads(line) for line in (out / "trained/samples.jsonl").read_text().splitlines())
    assert sample["prompt"] + sample["text"] == STORY
    assert re.search(r"^text 0: 100.00 % of 21 words in 1 passage$", output, re.MULTILINE)
    assert re.search(rf"^{PHRASE[:30]}.* 3 +3 Planted$", output, re.MULTILINE)
    seen = re.findall(r"^planted/00.jsonl (\d) Planted +(\d+) .* (–|\d\.\d+)$", output, re.MULTILINE)
    assert [(number, similarity) for number, _, similarity in seen] == [("0", "–"), ("1", "–"), ("2", "0.913")]
    assert all(int(times) > 100 for _, times, _ in seen)
    for name in ("gain.png", "one-step/bpb.png", "trained/bpb.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    made = {"sources", "corpus", "reframed", "damaged", "unique", "clean", "tokenizer.json", "stats.png", "steps.py"}
    made |= {"tokens", "train.toml", "decontaminated", "substrings", "report.html"}
    made |= {"one-step", "trained", "gain.png", "verify.json", "verify-damaged.json"}
    made |= {"sample", "planted", "by-heart.toml", "copies"}
    assert {path.name for path in out.iterdir()} == made
    assert not list(out.rglob("*.partial"))
    nothing = subprocess.run([*PILEKIT, "stats"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert nothing.returncode == 1  # a search for a corpus does not take the demo's folders
    assert "name such a folder" in nothing.stderr
