"""A tokenizer and a corpus for token files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.shards import making
from tests.tokenize.making import byte_level_bpe, saved


def shards_of(folder: Path, *contents: list[tuple[str, str]]) -> Path:
    """Shards `00.jsonl`, `01.jsonl`, ... of (text, subset)."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, documents in enumerate(contents):
        lines = [making.record(*document) for document in documents]
        (folder / f"{number:02}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(byte_level_bpe(700), tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of 200 documents, and a held-out one."""
    rng = random.Random(0)
    words = ["the", " quick", " fox\n", "läuft", "   ", "12345", "<|endoftext|>", "日本"]
    shards = [
        [("".join(rng.choices(words, k=rng.choice([0, 1, 5, 200]))), rng.choice(making.LABELS)) for _ in range(200)]
        for _ in range(4)
    ]
    folder = shards_of(tmp_path_factory.mktemp("corpus"), *shards)
    (folder / "val.jsonl").write_bytes(making.record("held out") + b"\n")
    return folder
