"""Small corpora in the layouts of other public corpora, for the pages' examples."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import zstandard
from pyarrow import parquet

_WORDS = "a corpus with other fields and other names for its parts but the same lines of text".split()  # noqa: SIM905


def _texts(count: int, seed: int) -> Iterator[str]:
    """Texts of 20 to 200 words; one in ten repeats another."""
    rng = random.Random(seed)
    made: list[str] = []
    for _ in range(count):
        again = made and rng.random() < 0.1
        made.append(rng.choice(made) if again else " ".join(rng.choices(_WORDS, k=rng.randint(20, 200))) + "\n")
        yield made[-1]


def _lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def dolma(folder: Path) -> None:
    """One gzip file of JSON lines per source, the source at the top of the record."""
    folder.mkdir()
    for seed, source in enumerate(("c4", "stack-code", "wiki")):
        records = [
            {"id": f"{source}-{number}", "text": text, "source": source, "added": "2024-04-01", "metadata": {}}
            for number, text in enumerate(_texts(120, seed))
        ]
        (folder / f"{source}-0000.json.gz").write_bytes(gzip.compress(_lines(records)))


def fineweb(folder: Path) -> None:
    """Parquet, a folder for each crawl, with columns beside the text."""
    for seed, crawl in enumerate(("CC-MAIN-2023-50", "CC-MAIN-2024-10")):
        texts = list(_texts(150, 10 + seed))
        columns = {
            "text": texts,
            "id": [f"<urn:uuid:{number}>" for number in range(len(texts))],
            "dump": [crawl] * len(texts),
            "url": ["https://example.org/"] * len(texts),
            "language": ["en"] * len(texts),
            "language_score": [0.9] * len(texts),
            "token_count": [len(text.split()) for text in texts],
        }
        (folder / "data" / crawl).mkdir(parents=True)
        parquet.write_table(pyarrow.table(columns), folder / "data" / crawl / "000_00000.parquet")


def redpajama(folder: Path) -> None:
    """Zstandard JSON lines in folders for train and validation, as SlimPajama, the deduplicated RedPajama, has them."""
    names = ("RedPajamaC4", "RedPajamaGithub", "RedPajamaArXiv")
    for seed, (split, count) in enumerate((("train", 300), ("validation", 30))):
        records = [
            {"text": text, "meta": {"redpajama_set_name": names[number % 3]}}
            for number, text in enumerate(_texts(count, 20 + seed))
        ]
        (folder / split / "chunk1").mkdir(parents=True)
        file = folder / split / "chunk1" / f"example_{split}_0.jsonl.zst"
        file.write_bytes(zstandard.compress(_lines(records)))
