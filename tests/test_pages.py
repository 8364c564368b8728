"""Runs the code and the commands of the README and of documentation pages as they stand there.

Each page runs in a folder with the files that it names. `pilekit ...` runs in this process, and a line with a pipe or
another program in a shell. A command must fail exactly if the page shows an error or a finding below it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pilekit import dedup_corpus, reframe_corpus, select_corpus, train_tokenizer
from pilekit.assemble import demo_corpus
from pilekit.assemble.demo_story import PHRASE, write_story
from pilekit.assemble.demo_texts import standard_library
from pilekit.cli.demo import BY_HEART, CONFIG, _damage
from pilekit.cli.main import COMMANDS, pilekit
from tests import layouts
from tests.process_groups import ProcessGroups
from tests.stream.corpora import made, mixed
from tests.tiny.models import tiny_model
from tests.tokenize.making import byte_level_bpe

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SHOW_DOCUMENTS = {"show", "head", "sample", "grep", "clean"}
"""Commands that print text as it is, with the blanks at the ends of its lines."""
FAILS = re.compile(r"^error: |^\d+ shards?, .* findings? in ", re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run_python(code: str, folder: Path) -> str:
    """What the code prints, run as a script in `folder`."""
    (folder / "page.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", "page.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def commands_of(block: str) -> Iterator[tuple[str, bool]]:
    """(command, whether the page shows that it fails) of each `$ ...` in the block."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = re.split(r"(?<!\\)\n", part, maxsplit=1)
        yield command, FAILS.search("".join(shown)) is not None


def run_command(command: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Run the command in the current folder; the name of pilekit's command, or None for another program."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        monkeypatch.setenv(name, value.replace("$PWD", str(Path.cwd())))
    elif words[0] != "pilekit" or re.search(r"[|<>]", command):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert bool(done.returncode) == fails, f"{command}\n{done.stderr[-2000:]}"
    else:
        result = CliRunner().invoke(pilekit, words[1:])
        assert bool(result.exit_code) == fails, f"{command}\n{result.output[-2000:]}\n{result.exception!r}"
        if words[1] not in SHOW_DOCUMENTS:
            assert re.search(" $", result.stdout, re.MULTILINE) is None, f"{command}\n{result.stdout}"
    return words[1] if words[0] == "pilekit" else None


def run_page(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Run the text's commands and Python in their order, write its TOML files, and return pilekit's commands in it."""
    monkeypatch.chdir(folder)
    # The page of `explore` would be served until Ctrl-C.
    monkeypatch.setattr("pilekit.explore.server.serve", lambda sources, announce: announce("http://127.0.0.1/"))
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "pilekit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m pilekit.cli.main "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    used: set[str] = set()
    for language, block in re.findall(r"^```(console|python|toml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "toml" and (name := re.match(r"# (\S+\.toml)$", block, re.MULTILINE)):
            (folder / name[1]).write_text(block, encoding="utf-8")
        elif language == "python":
            run_python(block, folder)
        elif language == "console":
            for command, fails in commands_of(block):
                if command not in ("pilekit demo", "pilekit train-tokenizer --help"):
                    used.add(run_command(command, fails, monkeypatch) or "")
    return used - {""}


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's corpus and tokenizer, made from a few packages of the standard library."""
    here = tmp_path_factory.mktemp("here")
    for package in ("email", "json", "logging"):
        shutil.copytree(standard_library() / package, here / "library" / package)
    demo_corpus(here / "demo" / "corpus", arithmetic_bytes=100_000, library=here / "library")
    train_tokenizer(here / "demo" / "corpus" / "train", 4096, here / "demo" / "tokenizer.json")
    return here


def test_the_ten_lines_of_the_readme_run_as_they_stand(small_demo: Path, process_group: ProcessGroups) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    assert len(code.split("\n\n")[1].splitlines()) == 10
    failed, printed, stderr = process_group.script(code, folder=small_demo)
    assert not failed, stderr[-4000:]
    assert re.search(r"^Total +[\d,]+ +\d", printed, re.MULTILINE)
    score = re.search(r"^Overall \(pooled\) .*? (\d\.\d{4}) ", printed, re.MULTILINE)
    assert score is not None
    assert 1 < float(score[1]) < 3.5  # untrained it is over 3.6, the cost of equally likely tokens


def test_two_commands_of_the_readme_do_all_the_set_up() -> None:
    lines = "\n".join(blocks(ROOT / "README.md", "console")).splitlines()
    commands = [line.split("  ")[0] for line in lines]
    first_install = next(number for number, command in enumerate(commands) if "pip install" in command)
    for target, does in (("demo", "pilekit demo"), ("test", "pytest")):
        assert commands.index(f"$ make {target}") < first_install
        # As in a fresh clone, whose stamp is older than all files, or absent.
        planned = subprocess.run(
            ["make", "-n", "-W", "pyproject.toml", target], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        install = planned.index("pip install")
        assert "--constraint constraints.txt --editable" in planned[install:]
        assert "Installing" in planned[:install]  # it says so before the minutes of installing
        assert "--quiet" not in planned
        assert does in planned[install:]


def test_columns_of_a_docstring_become_a_table_and_all_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    with_tables = pytest.importorskip("parameter_tables", reason="griffe is not installed").with_tables
    before = "Read it.\n\nAn example:\n\n    read(1)  # two spaces\n\nIt ends. A sentence.  Another one."
    assert with_tables(before) == before
    columns = "Count.\n\ndata, number   a | path\n               or a URL\n`jobs`         at a time\n\nIt ends."
    table = "| | |\n| --- | --- |\n| `data`, `number` | a \\| path or a URL |\n| `jobs` | at a time |"
    assert with_tables(columns).replace("\n\n\n", "\n\n") == f"Count.\n\n{table}\n\nIt ends."


@pytest.fixture(scope="module")
def left_by_the_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages use of `pilekit demo`'s folder, and an untrained model in the README's `tiny`."""
    here = tmp_path_factory.mktemp("pages")
    demo = here / "demo"
    demo_corpus(demo / "corpus")
    reframe_corpus(str(demo / "corpus"), demo / "reframed")
    _damage(demo / "reframed" / "train" / "00.jsonl.zst", demo / "damaged" / "00.jsonl.zst")
    train_tokenizer(demo / "corpus" / "train", 4096, demo / "tokenizer.json", sample_bytes=2_000_000)
    (demo / "train.toml").write_text(CONFIG.format(corpus='"demo/corpus/train"', tokenizer='"demo/tokenizer.json"'))
    subsets = ["Github", "DM Mathematics"]
    select_corpus(demo / "corpus" / "train", demo / "sample", subsets=subsets, sample=0.01, manifest="demo")
    write_story(demo / "planted")
    by_heart = {"sample": '"demo/sample"', "planted": '"demo/planted"', "tokenizer": '"demo/tokenizer.json"'}
    (demo / "by-heart.toml").write_text(BY_HEART.format(**by_heart))
    tiny_model("gpt_neox", vocab_size=4096, max_length=256).save_pretrained(here / "tiny")
    shutil.copy(demo / "tokenizer.json", here / "tiny")
    return here


@pytest.fixture
def after_the_demo(left_by_the_demo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(left_by_the_demo, tmp_path / "copy"))


FROM_README = "## A model of your own shard"
RUN = (
    *("chain.md", "corpora.md", "reading.md", "storage.md", "dedup.md", "cleaning.md", "cutting.md", "explore.md"),
    *("tokens.md", "scale.md", "streaming.md", "bpb.md", "generate.md", "embed.md", "report.md", "prune.md", "FAQ.md"),
    *("count.md", "trace.md", "seen.md", "memorised.md", "mixtures.md"),
    "counterfactual.md",
)
"""Pages whose examples run on what the demo leaves; three of them up to a heading."""
UP_TO = {"corpora.md": "## Cleaning", "bpb.md": "## The protocol", "mixtures.md": "## Anneals"}


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_examples_of_a_page_run(page: str, after_the_demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / page).read_text("utf-8").split(UP_TO.get(page, "\0"))[0]
    if page == "streaming.md":  # Its Python is run by another test.
        text = "\n".join(f"```console\n{one}```" for one in blocks(DOCS / page, "console"))
    assert run_page(text, after_the_demo, monkeypatch)


@pytest.mark.slow
def test_later_sections_on_scoring_run(after_the_demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "bpb.md").read_text("utf-8")
    for title in (
        "## Weights in 8 or 4 bits: `--dtype int8`",
        "## By length, source or year: `--by`",
        "## Every token: `--per-token`",
    ):
        assert run_page(page.split(title)[1].split("\n## ")[0], after_the_demo, monkeypatch) == {"bpb"}


@pytest.mark.slow
def test_a_model_of_ones_own_shard(after_the_demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = after_the_demo / "mine"
    mine.mkdir()
    shutil.copy(after_the_demo / "demo/corpus/train/00.jsonl.zst", mine)
    shutil.copy(after_the_demo / "demo/corpus/val.jsonl.zst", mine)
    text = (ROOT / "README.md").read_text("utf-8").split(FROM_README)[1].split("\n## ")[0]
    text = text.replace("train.steps=300", "train.steps=2").replace("--limit 50", "--limit 2")
    assert run_page(text, after_the_demo, monkeypatch) == {"stats", "train-tokenizer", "train", "bpb"}


@pytest.mark.slow
def test_training_from_python_runs_in_one_process_and_in_two(
    after_the_demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(after_the_demo)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    text = (DOCS / "training.md").read_text("utf-8").split("## From Python")[1].split("\n## ")[0]
    python, console = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (after_the_demo / "train.py").write_text(python)
    for command, _ in commands_of(console):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert re.fullmatch(r"step 10: loss \d.*\nstep 20: .*\n\d\.\d+ bits per byte\n", done.stdout), done.stderr
        shutil.rmtree("runs")


@pytest.mark.slow
def test_the_first_hour_runs_and_its_mistakes_have_the_messages_of_the_page(
    after_the_demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers may differ: another version of Python ships another text."""
    text = (DOCS / "first-hour.md").read_text("utf-8")
    before, mistakes = text.split("## When something is wrong")
    used = run_page(before, after_the_demo, monkeypatch)
    assert {"doctor", "stats", "verify", "reframe", "dedup", "train", "bpb", "trace", "count", "seen"} <= used
    # This tokenizer is not the demo's, so the model may stumble at the end of the sentence.
    assert json.loads(Path("generations.jsonl").read_text())["text"].startswith(f" carries {PHRASE}, and nobody")
    checked = 0
    for block in re.findall(r"^```console\n(.*?)^```$", mistakes, re.MULTILINE | re.DOTALL):
        for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            assert done.returncode == bool(shown), done.stderr
            if shown:
                checked += 1
                (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
                assert re.sub(r"\d", "0", error) == re.sub(r"\d", "0", shown.strip())
    assert checked == 8


def test_every_command_has_an_example_that_runs() -> None:
    shown = (ROOT / "README.md").read_text("utf-8").split(FROM_README)[1]
    shown += "".join((DOCS / page).read_text("utf-8") for page in RUN)
    shown = "".join(re.findall(r"^```console\n(.*?)^```$", shown, re.MULTILINE | re.DOTALL))
    used = re.findall(r"^\$ pilekit ([\w-]+)", shown, re.MULTILINE)
    assert set(COMMANDS) <= set(used)


@pytest.mark.slow
def test_other_layouts_run_by_the_commands_of_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting, dedup, streaming and scoring of a Dolma-, a FineWeb- and a RedPajama-like corpus."""
    layouts.dolma(tmp_path / "dolma")
    layouts.fineweb(tmp_path / "fineweb")
    layouts.redpajama(tmp_path / "redpajama")
    tiny_model("gpt_neox", max_length=256).save_pretrained(tmp_path / "model")
    byte_level_bpe(300).save(str(tmp_path / "tokenizer.json"))
    shutil.copy(tmp_path / "tokenizer.json", tmp_path / "model")
    used = run_page((DOCS / "manifests.md").read_text("utf-8"), tmp_path, monkeypatch)
    assert used == {"stats", "head", "dedup", "stream", "bpb"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The files that the pages use: data/train, data/val.jsonl.zst, tokenizer.json, model/config.json, dedup/."""
    mixed(tmp_path / "data" / "train")
    made(tmp_path / "val", [40])
    (tmp_path / "val" / "00.jsonl.zst").rename(tmp_path / "data" / "val.jsonl.zst")
    tokenizer = byte_level_bpe(300)
    tokenizer.add_special_tokens(["<|mask|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tiny_model("gpt_neox", max_length=256).config.save_pretrained(tmp_path / "model")
    dedup_corpus(str(tmp_path / "data" / "train"), out=tmp_path / "dedup", write=False)
    return tmp_path


@pytest.mark.slow
def test_the_page_on_streaming_runs(here: Path) -> None:
    printed = run_python("\n".join(blocks(DOCS / "streaming.md", "python")), here)
    page = (DOCS / "streaming.md").read_text("utf-8")
    explained = re.search(r"^lanes [^\n]* columns = .*?(?=^memory)", page, re.MULTILINE | re.DOTALL)
    assert explained is not None
    for line in explained[0].splitlines():
        assert line in printed, line
