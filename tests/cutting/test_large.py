"""One document of 500 MB, 10,000 documents with one header, and millions under a limit of the process's memory.

Beside what the imports take, `decontaminate` takes 57 MB for a million documents, and `substrings` 82 MB for a million
and 84 MB for five. The limits leave less than 2 and 15 bytes for each document more. `substrings` reads its shards four
times, so it gets fewer documents.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from pilekit import decontaminate_corpus, substrings_corpus
from tests.memory_limit import NO_HOLES

WORDS = [f"{number * 7919 % 999983:x}" for number in range(20_000)]
PASSAGE = " ".join(f"passage{number}" for number in range(500))


def own_words(numbers: range) -> str:
    """Words that occur once."""
    return " ".join(f"{number * 2654435761 % (1 << 40):x}" for number in numbers)


def test_ten_thousand_documents_with_one_licence_header(tmp_path: Path) -> None:
    header = " ".join(WORDS[:30])
    with (tmp_path / "code.jsonl").open("w") as file:
        for number in range(10_000):
            text = f"{header}\n\n{own_words(range(50 * number, 50 * number + 50))}"
            file.write(json.dumps({"text": text}) + "\n")
    found = substrings_corpus(tmp_path / "code.jsonl", out=tmp_path / "out", write=False)
    cuts = [tuple(row.values()) for row in found.repeats.select(["number", "start", "end", "first_number"]).to_pylist()]
    assert cuts == [(number, 0, len(header), 0) for number in range(1, 10_000)]
    assert found.summary["passages"] == [{"count": 10_000, "text": header[:200]}]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_document_of_500_megabytes(tmp_path: Path) -> None:
    half, other = (random.Random(seed).randbytes(112_000_000).hex(" ", 4) for seed in (1, 2))
    text = f"{half} {PASSAGE} {other}"
    assert len(text) > 500_000_000
    with (tmp_path / "data.jsonl").open("w") as file:
        file.write(json.dumps({"text": PASSAGE}) + "\n" + json.dumps({"text": text}) + "\n")
    del other, text
    cut = substrings_corpus(tmp_path / "data.jsonl", out=tmp_path / "cut", write=False, jobs=1)
    rows = [(row["number"], row["start"], row["end"]) for row in cut.repeats.to_pylist()]
    assert rows == [(1, len(half) + 1, len(half) + 1 + len(PASSAGE))]
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"text": PASSAGE}))
    clean = decontaminate_corpus(
        tmp_path / "data.jsonl", against=tmp_path / "quiz.jsonl", out=tmp_path / "clean", write=False
    )
    hits = [(row["number"], row["start"], row["end"]) for row in clean.hits.to_pylist()]
    assert hits == [(0, 0, len(PASSAGE)), *rows]


EVERY = 10_000
PLANTED = " ".join(f"planted{word}" for word in range(13))
"""The text of every document whose number is a multiple of `EVERY`."""

RUN = """
import sys
from pathlib import Path
from pilekit import substrings_corpus, decontaminate_corpus
from tests.memory_limit import limit_memory

folder, command, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def counts(name):
    options = {"out": folder / f"out-{name}", "write": False, "jobs": 1}
    if command == "substrings":
        found = substrings_corpus(folder / name, min_bytes=20, memory=64_000_000, **options)
    else:
        found = decontaminate_corpus(folder / name, against=folder / "quiz.jsonl", common=0, **options)
    return [found.summary[part] for part in ("read", "untouched", "cut", "dropped", "spans")]

counts("warm.jsonl.zst")  # loads and compiles all there is
limit_memory(limit)
print(counts("all.jsonl.zst"))
"""


def write(path: Path, documents: int) -> None:
    """Write documents of two words that no other has, and the planted ones."""
    with path.open("wb") as file, zstandard.ZstdCompressor(1).stream_writer(file) as lines:
        for first in range(0, documents, EVERY):
            texts = [f"{n * 0x9E3779B97F4A7C15 % (1 << 64):x} {n:x}" for n in range(first + 1, first + EVERY)]
            of = (f'{{"text":"{text}","meta":{{"pile_set_name":"X"}}}}\n' for text in (PLANTED, *texts))
            lines.write("".join(of).encode())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("command", "documents", "limit"), [("decontaminate", 20_000_000, 80 << 20), ("substrings", 5_000_000, 128 << 20)]
)
def test_memory_does_not_grow_with_documents(tmp_path: Path, command: str, documents: int, limit: int) -> None:
    (tmp_path / "quiz.jsonl").write_text(f'{{"text":"{PLANTED}"}}\n')
    write(tmp_path / "warm.jsonl.zst", 4 * EVERY)
    write(tmp_path / "all.jsonl.zst", documents)
    run = [sys.executable, "-c", RUN, str(tmp_path), command, str(limit)]
    done = subprocess.run(run, check=False, env=os.environ | NO_HOLES, capture_output=True, text=True)
    planted = documents // EVERY - (command == "substrings")  # The first of equal documents stays.
    assert done.stdout == f"{[documents, documents - planted, 0, planted, planted]}\n", done.stderr[-2000:]
