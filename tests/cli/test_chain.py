"""A chain of commands, each given the folder that the one before wrote: no document is lost between two of them."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from pilekit.corpus import Corpus
from pilekit.stats.summary import corpus_stats
from tests.cli.running import run, run_json
from tests.tokenize.making import byte_level_bpe

WORDS = [f"{first}{second}" for first in ("bo", "ka", "li", "mu", "re") for second in ("na", "to", "vi", "ska")]
STOP_WORDS = "gopher-quality.stop_words=0"
MANIFEST = """
name = "mine"
[assemble]
shards = 2
val = 0.1
test = 0.1
[[subsets]]
name = "A"
sources = ["a.jsonl"]
[[subsets]]
name = "B"
sources = ["b.jsonl"]
"""


def documents(folder: Path) -> Counter[str]:
    """The documents by subset in all shards below a folder, read without pilekit."""
    found = Counter[str]()
    for path in folder.rglob("*.jsonl.zst"):
        with path.open("rb") as file:
            stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            found.update(json.loads(line)["meta"]["pile_set_name"] for line in io.TextIOWrapper(stream, "utf-8"))
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of random words: copies, near-duplicates, passages that several documents share."""
    rng, passage = random.Random(7), " ".join(WORDS * 3)
    for name in "ab":
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(20, 300))) for _ in range(60)]
        texts += [f"{text} {passage} {text[::-1]}" for text in texts[:8]]
        texts += [text + " more" for text in texts[20:30]]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "mine.toml").write_text(MANIFEST)
    byte_level_bpe(300).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_step_reads_what_the_one_before_wrote(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = ("--manifest", "mine.toml")
    run("assemble", "mine.toml", "--out", "assembled", exit_code=0)
    held_out = documents(here / "assembled") - documents(here / "assembled/train")
    before = documents(here / "assembled/train")
    assert held_out.total()
    for name, source, out, options, stays, pieces in (
        ("clean", "assembled", "cleaned", ("--rules", "gopher-quality", "--set", STOP_WORDS), "kept", 0),
        ("select", "cleaned", "selected", ("--sample", "1"), "documents", 0),
        ("dedup", "selected", "unique", (), "kept", 0),
        ("decontaminate", "unique", "clear", ("--against", "assembled/test.jsonl.zst"), "untouched", 1),
        ("substrings", "clear", "short", (), "untouched", 1),
        ("reframe", "short", "finished", (), "", 0),
    ):
        told = run_json(name, source, *mine, *options, "--out", out)
        after = documents(here / out)
        if stays:
            assert told["read"] == before.total()
            assert after.total() == told[stays] + pieces * told.get("pieces", 0)
        else:
            assert after == before
        assert after.total() > 0
        assert corpus_stats(Corpus(out, "mine.toml")).total.documents == after.total()
        assert {one.name: one.documents for one in corpus_stats(out).subsets} == dict(after)
        before = after
    for folder in ("unique", "clear", "short"):
        assert caplog.messages.count(next(m for m in caplog.messages if m.startswith(f"{folder}: was written by"))) == 1
    run("tokenize", "short", *mine, "--tokenizer", "tokenizer.json", "--out", "tokens/mine", exit_code=0)
    rows = pq.read_table("tokens/mine_text_document.documents.parquet")
    assert rows.num_rows == before.total()
    for command in (
        ("head", "short"),
        ("sample", "short"),
        ("verify", "short"),
        ("index", "short"),
        ("grep", "na", "short"),
    ):
        run(*command, *mine, exit_code=0)
