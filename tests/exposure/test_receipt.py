"""A receipt of `seen` holds while nothing changes, and `check_receipt` names what has changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from pilekit import check_receipt, dedup_corpus, read_corpus, seen, tokenize_corpus, trace_texts
from pilekit.exposure.receipt import RECEIPT, read_receipt
from pilekit.train.config.file import load_config, to_toml
from tests.cli.running import leave
from tests.refusing import refused
from tests.train.runs import interrupt_at, tiny_run, trainer

RUN, DATA, SHARD = Path("run"), Path("data"), Path("data/00.jsonl.zst")
CHANGES = ("train.steps=4", "checkpoint.every=2", "data.packing=concat", "data.seq_len=16")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `run`, whose config has relative paths, a trace, and a dedup."""
    here = tmp_path_factory.mktemp("receipt")
    before = Path.cwd()
    os.chdir(here)
    try:
        made = tiny_run(Path(), documents=20)
        trainer(made, RUN, *CHANGES).fit(interrupt_at(3))
        trainer(made, RUN, *CHANGES).fit()
        Path("list.txt").write_text("00.jsonl 3 a line\n00.jsonl.zst 4\n")
        trace_texts(DATA, ["the"], "traces.parquet", words=1, common=0, jobs=1)
        dedup_corpus(DATA, "unique", jobs=1)
        texts = [document.text for batch in read_corpus(DATA) for document in batch]
        given = "".join(json.dumps({"text": text}) + "\n" for text in (texts[3], texts[8].upper()))
        Path("given.jsonl").write_text(given)
    finally:
        os.chdir(before)
    return here


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, the current one."""
    monkeypatch.chdir(shutil.copytree(trained, tmp_path / "here"))
    return Path()


QUESTIONS: list[dict[str, Any]] = [
    {"documents": [("00.jsonl", 3), ("01.jsonl", 5)]},
    {"documents": "list.txt"},
    {"documents": Path("list.txt"), "copies": "unique"},
    {"text": "the"},
    {"text": "the", "copies": Path("unique")},
    {"text": '(a "text" that is nowhere: \u2603)'},
    {"trace": "traces.parquet"},
    {"subset": "arxiv"},
    {"against": Path("given.jsonl")},
]


def sum_of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "path": str(path)}


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_receipt_holds_the_answer_and_all_sums_and_is_confirmed(here: Path, question: dict[str, Any]) -> None:
    answer = seen(RUN, **question, receipt="receipt.json")
    receipt = json.loads(Path("receipt.json").read_text())
    assert receipt["answer"] == answer.to_dict()
    assert {name: str(value) for name, value in question.items() if name != "documents"}.items() <= receipt[
        "question"
    ].items()
    assert receipt["shards"] == {f"{n}.jsonl": sum_of(DATA / f"{n}.jsonl.zst") for n in ("00", "01")}
    files = {"documents": "list.txt", "trace": "traces.parquet", "copies": "unique/removed.parquet"}
    files["against"] = "given.jsonl"
    named = {files[name] for name, value in question.items() if name in files and not isinstance(value, list)}
    assert receipt["inputs"] == {name: sum_of(Path(name)) for name in named}
    run = receipt["run"]
    assert run["config"]["train"]["steps"] == 4
    assert run["checkpoint"]["step"] == 4
    assert run["model"]["model/model.safetensors"] == sum_of(RUN / "model/model.safetensors")
    state = json.loads((RUN / "checkpoints/step-4/state.json").read_text())
    assert run["data"] == state["progress"]["stream"]["fingerprint"]
    assert run["checkpoint"]["files"] == state["files"]
    assert receipt["commands"][-1] == "pilekit seen --check=receipt.json"

    check = check_receipt("receipt.json", jobs=1)
    assert check.differences == ()
    assert check.holds
    assert check.documents == answer.summary["documents"]
    assert re.match(r"receipt.json: holds: the answer about .* in steps 1 to 4 of run is the same, and so", str(check))
    assert json.loads(json.dumps(check.to_dict())) == check.to_dict()


def test_the_commands_of_a_receipt_give_it_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """it's "the" $HOME"""
    code, output, errors = leave(capsys, "seen", "run", "--text", text, "--receipt", "first.json")
    assert (code, errors) == (0, "")
    assert "receipt in first.json" in output
    first = json.loads(Path("first.json").read_text())
    _, ask, check = (shlex.split(command) for command in first["commands"])
    Path("first.json").unlink()
    assert leave(capsys, *ask[1:])[0] == 0
    assert json.loads(Path("first.json").read_text()) == first
    code, output, _ = leave(capsys, *check[1:])
    assert code == 0
    assert output.startswith("first.json: holds")


def content_of(shard: Path) -> bytes:
    with shard.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()


def recompressed() -> None:
    SHARD.write_bytes(zstandard.ZstdCompressor(level=19).compress(content_of(SHARD)))


def other_text() -> None:
    lines = content_of(SHARD).splitlines(keepends=True)
    record = json.loads(lines[4])
    lines[4] = json.dumps({**record, "text": record["text"] + " and the more"}).encode() + b"\n"
    SHARD.write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines)))


def edited_config() -> None:
    config = load_config(RUN / "config.toml", ["optimizer.lr=0.5"])
    (RUN / "config.toml").write_text(to_toml(config))


def grown(path: str, by: str = "x") -> None:
    with Path(path).open("a") as file:
        file.write(by)


def continued() -> None:
    trainer(Path(), RUN, *CHANGES[1:], "train.steps=7").fit()


def other_answer() -> None:
    receipt = json.loads(Path("receipt.json").read_text())
    receipt["answer"]["rows"][0]["times"] += 1
    receipt["answer"]["scanned"]["documents"] += 1
    del receipt["answer"]["rows"][-1]
    changed = msgspec.structs.replace(read_receipt("receipt.json"), answer=receipt["answer"])
    Path("receipt.json").write_text(json.dumps(RECEIPT.sealed(changed)))


OTHER_DATA = r"run: was trained on other data than there is now"
ANSWER = r"the answer: (steps|times|tokens) of 0\d\.jsonl \d+ is .*, in the receipt "
NEW = r"the answer: 0\d\.jsonl \d+ is new, and not in the receipt"
DIFFERENCES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "a recompressed shard": (
        recompressed,
        [r"data/00\.jsonl\.zst: has changed: \d+ bytes of SHA-256 \w{64}, in the receipt \d+ bytes of SHA-256 \w{64}"],
    ),
    "a shard of other text": (other_text, [OTHER_DATA, r"data/00\.jsonl\.zst: has changed", NEW]),
    "a lost shard": (
        SHARD.unlink,
        [
            OTHER_DATA,
            r"data/00\.jsonl\.zst: is not there any more",
            r"the answer: the number of (shards|documents) that were scanned is \d+, in the receipt \d+",
            r"the answer: 00.jsonl \d+ is not in it any more",
        ],
    ),
    "another shard": (
        lambda: shutil.copy(SHARD, "data/02.jsonl.zst"),
        [
            OTHER_DATA,
            r"data/02\.jsonl\.zst: is new, and not in the receipt",
            r"the answer: the number of (shards|documents) that were scanned is \d+, in the receipt \d+",
            NEW,
        ],
    ),
    "no data": (
        lambda: shutil.move("data", "moved"),
        [r"data: no such file or folder; check the path", r"the answer cannot be computed again: data: no such file"],
    ),
    "another config": (edited_config, [r"run/config\.toml: optimizer\.lr is 0\.5, in the receipt"]),
    "another list": (partial(grown, "list.txt", "00.jsonl 5"), [r"list\.txt: has changed", NEW]),
    "another opt-out list": (
        partial(grown, "given.jsonl", json.dumps({"text": "a text that is nowhere"})),
        [r"given\.jsonl: has changed"],
    ),
    "no opt-out list": (
        Path("given.jsonl").unlink,
        [r"given.jsonl: no such file", r"the answer cannot be computed again: given.jsonl: no such file"],
    ),
    "other weights": (
        partial(grown, "run/model/model.safetensors"),
        [r"run/model/model\.safetensors: has changed"],
    ),
    "no model": (
        Path("run/model/config.json").unlink,
        [r"run/model/config\.json: is not there any more"],
    ),
    "a damaged checkpoint": (
        partial(grown, "run/checkpoints/step-4/.metadata"),
        [r"run/checkpoints/step-4: \.metadata has .* restore it"],
    ),
    "more steps": (
        continued,
        [
            r"run: was trained on since: it has 7 steps now, in the receipt 4",
            r"run/config\.toml: train\.steps is 7, in the receipt 4",
        ],
    ),
    "fewer steps": (
        lambda: shutil.rmtree("run/checkpoints/step-4"),
        [r"run: has 3 steps in its checkpoints now, in the receipt 4", ANSWER],
    ),
    "no checkpoints": (
        lambda: shutil.rmtree("run/checkpoints"),
        [r"run: has 0 steps in its checkpoints now, in the receipt 4"],
    ),
    "another answer": (
        other_answer,
        [r"the answer: the number of documents that were scanned is 40, in the receipt 41", ANSWER, NEW],
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_is_named(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    change, expected = DIFFERENCES[name]
    questions: dict[str, dict[str, Any]] = {"another list": {"documents": "list.txt"}}
    questions["another opt-out list"] = questions["no opt-out list"] = {"against": "given.jsonl"}
    question = questions.get(name, {"text": "the"})
    seen(RUN, **question, receipt="receipt.json")
    change()
    check = check_receipt("receipt.json", jobs=1)
    assert not check.holds
    assert all(any(re.match(line, difference) for difference in check.differences) for line in expected), check
    assert all(any(re.match(line, difference) for line in expected) for difference in check.differences), check
    code, output, _ = leave(capsys, "seen", "--check", "receipt.json")
    assert code == 1
    assert output.splitlines()[1:] == list(check.differences)
    assert leave(capsys, "seen", "--check", "receipt.json", "--json")[0] == 1


def test_a_removed_log_changes_no_answer(here: Path) -> None:
    seen(RUN, text="the", receipt="receipt.json")
    shutil.rmtree(RUN / "documents")
    assert check_receipt("receipt.json").differences == ()


def test_a_changed_receipt_is_refused(here: Path) -> None:
    seen(RUN, text="the", receipt="receipt.json")
    content = Path("receipt.json").read_text()
    for old, new in [('"times": 1', '"times": 2'), ('"the"', '"The"'), ("[", "[7, "), ('"step": 4', '"step": 5')]:
        assert old in content
        Path("receipt.json").write_text(content.replace(old, new, 1))
        refused(
            "receipt.json: is damaged .it does not match its sum.; take an unchanged copy, or ask again with --receipt",
            check_receipt,
            "receipt.json",
        )
    Path("receipt.json").write_text(content[: len(content) // 2])
    no_receipt = "receipt.json: is not a receipt of pilekit seen .it is empty or cut off.; take"
    refused(no_receipt, check_receipt, "receipt.json")
    refused("run/pilekit.json: is not a receipt of pilekit seen", check_receipt, "run/pilekit.json")
    refused("nothing.json: cannot be read: No such file", check_receipt, "nothing.json")


def test_a_receipt_that_cannot_be_written_is_refused_first(here: Path) -> None:
    Path("receipt.json").write_text("mine")
    refused(
        "receipt.json: exists already, and a receipt is not overwritten", seen, RUN, text="the", receipt="receipt.json"
    )
    assert Path("receipt.json").read_text() == "mine"
    refused("data: is a folder; name a file in it", seen, RUN, text="the", receipt="data")
    other_text()
    refused("run: was trained on other data than there is now", seen, RUN, text="the", receipt="new.json")
    shutil.rmtree(RUN / "checkpoints")
    refused("run: has no checkpoint, which names its data and lanes", seen, RUN, text="the", receipt="new.json")
    assert not Path("new.json").exists()
    refused("the text is not UTF-8", seen, RUN, text="\udc80")


def test_check_takes_no_other_options(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["run"], ["--text", "the"], ["--receipt", "other.json"]):
        code, _, errors = leave(capsys, "seen", *more, "--check", "receipt.json")
        assert code == 2
        assert "--check takes all from the receipt" in errors
    assert "name the folder of a run, or a receipt" in leave(capsys, "seen")[2]


def test_a_run_on_token_files_has_a_receipt_of_these(here: Path) -> None:
    tokenize_corpus(DATA, "tokens/all", tokenizer="tokenizer", jobs=1)
    trainer(Path(), Path("of-tokens"), *CHANGES, "data.path=tokens/all").fit()
    answer = seen("of-tokens", "list.txt", receipt="receipt.json")
    assert answer.summary["documents"] == 2
    files = [Path(f"tokens/all_text_document.{ending}") for ending in ("bin", "documents.parquet", "idx")]
    receipt = json.loads(Path("receipt.json").read_text())
    assert receipt["shards"] == {file.name: sum_of(file) for file in files}
    assert check_receipt("receipt.json").holds
    grown("tokens/all_text_document.bin")
    assert not check_receipt("receipt.json").holds
