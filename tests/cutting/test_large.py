"""One document of 500 MB, 10,000 documents with one licence header."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pilekit import cut_substrings, decontaminate

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
    found = cut_substrings(tmp_path / "code.jsonl", out=tmp_path / "out", write=False)
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
    cut = cut_substrings(tmp_path / "data.jsonl", out=tmp_path / "cut", write=False, jobs=1)
    rows = [(row["number"], row["start"], row["end"]) for row in cut.repeats.to_pylist()]
    assert rows == [(1, len(half) + 1, len(half) + 1 + len(PASSAGE))]
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"text": PASSAGE}))
    clean = decontaminate(tmp_path / "data.jsonl", against=tmp_path / "quiz.jsonl", out=tmp_path / "clean", write=False)
    hits = [(row["number"], row["start"], row["end"]) for row in clean.hits.to_pylist()]
    assert hits == [(0, 0, len(PASSAGE)), *rows]
