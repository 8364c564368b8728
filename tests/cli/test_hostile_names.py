"""Every command on hostile names: a terminal gets no control character, and an error is one line.

`pilekit.errors` spells out what an error or a log message quotes. Tables and lines of results call `visible`
themselves, and a new one might forget it. So each command of the group runs here on a corpus whose folder, shards,
subsets, fields and texts a terminal would obey, once where it works and once for each way in which it must fail.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click import Context

from pilekit.assemble.demo import write_demo_sources
from pilekit.cli import demo
from pilekit.cli.main import pilekit
from pilekit.train.config.file import load_config, to_toml
from tests.assemble.test_demo import library
from tests.cli.running import leave
from tests.shards.making import record, write_shard, zstd_frame
from tests.tiny.models import tiny_model_dir

EVIL = "\x1b[31m\n\t\u202e\x9b[red]"
"""What a terminal would obey; a Linux file may have this name."""
NOT_UTF8 = os.fsdecode(b"\xff\x1b[2J\n")
TEXT, LABEL, ANSWER = f"te{EVIL}xt", f"la{EVIL}bel", f"an{EVIL}swer"
LABELS = [f"ArXiv{EVIL}\x00", f"Github{EVIL}\x00"]
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
OBEYED_IN_JSON = re.compile("[\x00-\x09\x0b-\x1f\ud800-\udfff]")
"""JSON has no escapes for the others, which are text."""
TEXTS = ("head", "sample", "show", "generate")
"""Commands that print texts on a terminal, with the tabs in them."""
OBEYED_IN_TEXT = re.compile(OBEYED.pattern.replace("\x09", "\x08"))

PLANT = f"[{{file = {json.dumps(f'short{EVIL}.jsonl')}, copies = 2, to = 9}}]"
CORPUS = ["data", "--manifest", "pile.toml"]
WORKS = [
    ["stats", *CORPUS, "--copies", "--tokenizer", "model", "--plot", "made/stats.png"],
    ["stats", *CORPUS, "--audit"],
    ["stats", "bad.jsonl", "--on-error", "skip"],
    ["head", *CORPUS],
    ["sample", *CORPUS],
    ["grep", "word3", *CORPUS],
    ["grep", "word3", *CORPUS, "--count"],
    ["count", "phrases", *CORPUS, "--out", "made/counts.parquet"],
    ["trace", "quiz.jsonl", *CORPUS, "--words", "1", "--out", "made/traces.parquet"],
    ["count", "--phrase", f"a{EVIL}", *CORPUS, "--words", "--phrase", "Word3"],
    ["show", "data/00.jsonl.zst", "1", "--meta", "--manifest", "pile.toml"],
    ["explore", *CORPUS, "--tokenizer", "model"],
    ["index", *CORPUS],
    ["verify", *CORPUS, "--write-sums"],
    ["reframe", *CORPUS, "--out", "made/reframed"],
    ["select", *CORPUS, "--out", "made/selected", "--subsets", LABELS[0]],
    ["assemble", "mine.toml", "--out", "made/assembled"],
    ["clean", *CORPUS, "--out", "made/clean", "--rules", "gopher-repetition", "--pii", "email"],
    ["clean", *CORPUS, "--rules", "gopher-repetition", "--show", "gopher-repetition.top_2gram"],
    ["dedup", *CORPUS, "--out", "made/unique"],
    ["duplicates", "made/unique"],
    ["decontaminate", *CORPUS, "--against", "quiz.jsonl", "--out", "made/clear"],
    ["duplicates", "made/clear"],
    [
        "decontaminate",
        *CORPUS,
        "--against",
        "quiz.jsonl",
        "--question",
        "text",
        "--answer",
        ANSWER,
        "--cut",
        "text",
        "--out",
        "made/judged",
    ],
    ["substrings", *CORPUS, "--out", "made/cut", "--min-bytes", "50"],
    ["train-tokenizer", *CORPUS, "--vocab-size", "300", "--out", "made/tokenizer.json"],
    ["tokenize", *CORPUS, "--tokenizer", "model", "--out", "made/tokens/one"],
    ["merge", "made/tokens/one", "--out", "made/tokens/all"],
    ["show", "made/tokens/one_text_document.idx", "1", "--tokenizer", "model"],
    ["stream", *CORPUS, "--tokenizer", "model", "--seq-len", "32", "--steps", "1"],
    ["stream", *CORPUS, "--tokenizer", "model", "--seq-len", "32", "--without", LABELS[0], "--peek", "2"],
    ["stream", *CORPUS, "--tokenizer", "model", "--seq-len", "32", "--without", LABELS[0], "--explain"],
    ["stream", *CORPUS, "--tokenizer", "model", "--seq-len", "512", "--plant", PLANT, "--explain"],
    ["train", "run.toml", "--dry-run"],
    ["train", "run.toml", "--out", "made/run"],
    ["train", "run.toml", "--from", "made/run/checkpoints/step-1", "--set", "train.steps=2", "--out", "made/branch"],
    ["bpb", "model", *CORPUS, "--limit", "1", "--out", "made/bpb", "--plot", "made/bpb.png"],
    [
        *("memorised", "model", *CORPUS, "--prompt", "2", "--continuation", "2"),
        *("--copies", "made/unique", "--seen", "made/run"),
        "--out",
        "made/known",
        "--plot",
        "made/k.png",
    ],
    ["memorised", "--compare", "made/known", "made/known"],
    ["generate", "model", "--prompts", "prompts", "--max-new-tokens", "2"],
    ["generate", "model", "--data", *CORPUS, "--prompt-tokens", "9", "--max-new-tokens", "2"],
    ["embed", "model", *CORPUS, "--limit", "1", "--out", "made/vectors.parquet"],
    ["mix", "fit", "runs.csv", "--target", "equal", "--plot", "made/mix.png"],
    ["mix", "fit", "runs.csv", "--json"],
    ["seen", "made/run", "--subset", LABELS[0], "--receipt", "made/receipt.json"],
    ["seen", "--check", "made/receipt.json"],
    ["seen", "made/run", "--against", "data/00.jsonl.zst"],
    ["prune", "model", *CORPUS, "--limit", "1", "--magnitude", "0.5", "--out", "made/pruned"],
    ["report", "data", "made/unique", "made/run", "--manifest", "pile.toml", "--out", "made/report.html"],
    ["doctor", "--tokenizer", "model"],
    ["demo", "--out", "made/demo"],
]
"""Calls of each command that end well, in an order in which each finds the results that it needs."""

INPUTS = (
    "data",
    "pile.toml",
    "mine.toml",
    "quiz.jsonl",
    "prompts",
    "phrases",
    "run.toml",
    "runs.csv",
    "model",
    "bad.jsonl",
    "odd",
    "damaged",
)
READ = (
    *(*INPUTS, "data/00.jsonl.zst", "made/unique", "made/known", "made/clear", "made/tokens/one"),
    "made/receipt.json",
    "made/run/checkpoints/step-1",
)
FAILS = [
    ["demo", "--out", "data"],
    ["seen", "odd", "--subset", LABELS[0]],
    ["stream", *CORPUS, "--tokenizer", "model", "--plant", PLANT.replace("short", "none")],
    ["stream", *CORPUS, "--tokenizer", "model", "--without", EVIL],
    *(["mix", *call] for call in (["run", "data"], ["run", "missing"], ["fit", "data"])),
    *(
        ["mix", "design", data, "--config", config, "--set", "train.eval_path=data/00.jsonl.zst", "--out", "made/mix"]
        for data, config in (
            ("data", "run.toml"),
            ("odd", "run.toml"),
            ("damaged", "run.toml"),
            ("data", "damaged.toml"),
        )
    ),
    *(
        [*call[:place], broken + Path(given).suffix * given.endswith(".toml"), *call[place + 1 :]]
        for call in WORKS
        for place, given in enumerate(call)
        if given in READ and call[place - 1] != "--out"
        for broken in ("missing", "damaged", "odd")
    ),
]
"""The same calls, each with one of its inputs missing, damaged, or a folder of a shard whose name is not UTF-8."""

NAMED = re.compile(
    r"(?<![-\w])(data|made|model|pile|mine|quiz|prompts|phrases|runs|run|missing|damaged|odd|bad)(?=[/.]|$)"
)


def spelt(arguments: list[str]) -> list[str]:
    """The arguments with hostile characters in each name of a file or folder."""
    names = (NAMED.sub(lambda found: found[1] + EVIL, one) if one != "run" else one for one in arguments)  # a command
    return [one.replace("00.jsonl", f"00{EVIL}.jsonl") for one in names]


def documents(text: str, label: str) -> bytes:
    """JSON lines, of which each second one is nearly a copy of the one before."""
    made = []
    for number in range(24):
        words = " ".join(f"word{number // 2 * place}" for place in range(80))
        made.append({text: f"{words} {EVIL}\x00 {number % 2}", "meta": {label: LABELS[number // 2 % 2]}})
    return b"".join(json.dumps(one).encode() + b"\n" for one in made)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder: a corpus and its manifest, sources, a model, the configuration of a run."""
    (tmp_path / f"here{EVIL}").mkdir()
    monkeypatch.chdir(tmp_path / f"here{EVIL}")
    data, pile, mine, quiz, prompts, phrases, run, runs, model, bad, odd, damaged = map(Path, spelt([*INPUTS]))
    data.mkdir()
    for number in range(2):
        (data / f"{number:02d}{EVIL}.jsonl.zst").write_bytes(zstd_frame(documents(TEXT, LABEL)))
    quiz.write_text(json.dumps(json.loads(documents("text", LABEL).partition(b"\n")[0]) | {ANSWER: EVIL}))
    Path(f"short{EVIL}.jsonl").write_text(json.dumps({TEXT: EVIL}))
    phrases.write_text(f"word3\n{EVIL}\n{LABELS[0]}\n")
    prompts.write_text(f"a prompt{EVIL}{LABELS[0]}\n")
    fields = f"text_field = {json.dumps(TEXT)}\nlabel_path = {json.dumps(f'meta.{LABEL}')}\n"
    first, second = (f"[[subsets]]\nname = {json.dumps(label)}\n" for label in LABELS)
    evil = json.dumps(EVIL)
    kinds = (f'"occurrences"\ntext = {evil}', f'"stated"\nname = {evil}')
    heads = (f"[[published.figures]]\nfigure = {kind}\n" for kind in kinds)
    published = "".join(f"{head}value = 9\nsource = {evil}\ndifference = {evil}\n" for head in heads)
    pile.write_text(f"name = {evil}\n{fields}{first}{second}{published}")
    sources = f"{first}sources = [{json.dumps(f'{data}')}]\n"
    mine.write_text(f'name = "mine"\n{fields}[assemble]\nshards = 1\n{sources}')
    with runs.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([f"{kind}.{label}" for kind in ("weight", "loss") for label in LABELS])
        table.writerows([weight / 40, 1 - weight / 40, 2 - weight / 40, 1 + weight / 80] for weight in range(40))
    tiny_model_dir(model)
    bad.write_bytes(b'{"text": "abc"}\n' + f"bad {EVIL}\n".encode() * 2)
    odd.mkdir()
    (odd / f"{NOT_UTF8}.jsonl.zst").write_bytes(zstd_frame(documents(TEXT, LABEL)))
    damaged.mkdir()
    (damaged / f"{EVIL}.jsonl.zst").write_bytes(zstd_frame(documents(TEXT, LABEL))[:-20])
    for name in ("config.json", "tokenizer.json"):
        (damaged / name).write_text(json.dumps({"model_type": EVIL, "model": {"type": EVIL}, EVIL: 1}))
    Path(f"{damaged}.toml").write_text(f"{json.dumps(EVIL)} = 1\n")
    given = {
        "data": {"path": data, "manifest": f"{pile}", "tokenizer": model, "seq_len": 32, "window": 64},
        "model": {"config": model},
        "train": {"steps": 1, "global_batch_size": 2, "micro_batch_size": 2},
    }
    run.write_text(to_toml(load_config(given)))


@pytest.fixture
def nothing_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`explore` ends, and `demo` starts no process, as its commands have their turn here."""
    monkeypatch.setattr("pilekit.explore.server.serve", lambda sources, announce: announce("http://127.0.0.1/"))

    def call(command: list[str], stdout: object) -> int:
        if command[4] == "reframe":
            write_shard(Path(command[-1]) / "train" / "00.jsonl.zst", [record("a")])
        return int("damaged" in command[5])

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], 0, b"")

    source = library(tmp_path / "library")
    monkeypatch.setattr(
        demo, "write_demo_sources", lambda out: write_demo_sources(out, arithmetic_bytes=10_000, library=source)
    )
    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(call=call, run=run, PIPE=subprocess.PIPE))


def test_each_command_has_a_case() -> None:
    assert list(dict.fromkeys(name for name, *_ in WORKS)) == pilekit.list_commands(Context(pilekit))


def called(capsys: pytest.CaptureFixture[str], name: str, *arguments: str) -> tuple[object, str, str]:
    """The exit code, the output and the messages of a call, if they hold nothing that a terminal obeys."""
    with pytest.MonkeyPatch.context() as patch:
        if name in TEXTS[:3] and "--json" not in arguments:  # A file or a pipe gets the text as it is.
            patch.setattr(sys.stdout, "isatty", lambda: True)
        code, output, errors = leave(capsys, name, *arguments)
    obeyed = OBEYED_IN_JSON if "--json" in arguments else OBEYED_IN_TEXT if name in TEXTS else OBEYED
    call = ascii([name, *arguments])
    assert "Traceback" not in output + errors, call
    assert ("\\x9b" in output) <= ("ed]" in output), call  # It is no markup; a table may break it.
    assert [ascii(output[max(0, at.start() - 50) : at.end()]) for at in obeyed.finditer(output)] == [], call
    assert [ascii(errors[max(0, at.start() - 50) : at.end()]) for at in OBEYED.finditer(errors)] == [], call
    return code, output, errors


def test_what_each_command_prints_is_spelt_out(
    here: None, nothing_waits: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, *arguments in WORKS:
        code, output, errors = called(capsys, name, *spelt(arguments))
        assert code == 0, (name, arguments, output, errors)
        command = pilekit.get_command(Context(pilekit), name)
        if command is not None and "--json" in {option for one in command.params for option in one.opts}:
            called(capsys, name, *spelt(arguments), "--json")


def test_each_error_is_one_line_that_is_spelt_out(
    here: None, nothing_waits: None, capsys: pytest.CaptureFixture[str]
) -> None:
    told = set()
    for name, *arguments in FAILS:
        code, output, errors = called(capsys, name, *spelt(arguments))
        assert code == 1, (name, arguments, output, errors)
        if name in ("doctor", "verify") and "error: " not in errors:
            assert re.search("FAULT|Problem", output), output
            continue
        begins = [line.startswith("error: ") for line in errors.split("\n")]
        assert begins.index(True) == len(begins) - 2, (name, arguments, errors)
        told.add(name)
    assert told == {name for name, *_ in WORKS} - {"doctor"}
