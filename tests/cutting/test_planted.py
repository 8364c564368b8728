"""Planted questions are gone from the output, at any place of a document and in any dress, and little else is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from pilekit import decontaminate_corpus, read
from pilekit.cutting.decontaminate import DecontaminationResult
from tests.cutting import reference
from tests.shards import making

RNG = random.Random(3)
WORDS = ["".join(RNG.choices("abcdefghij", k=RNG.randrange(3, 9))) for _ in range(3000)]
PLAIN = " ".join(f"Planted{number}" for number in range(13))
DRESSES = (
    PLAIN,
    PLAIN.upper(),
    PLAIN.replace(" ", "\n"),
    PLAIN.replace(" ", " — "),
    f"(“{PLAIN.lower().replace(' ', '”, “', 5)}!!!",
    f"漢字é 😀 {PLAIN} 😀é",
    f"…{PLAIN.replace('Planted4', 'P-l-a-n-t-e-d-4')}\u3000",
)


def cleaned(folder: Path, texts: Sequence[str], evaluation: str) -> tuple[DecontaminationResult, list[str]]:
    (folder / "quiz.jsonl").write_bytes(making.record(evaluation))
    (folder / "data.jsonl").write_bytes(b"\n".join(map(making.record, texts)))
    found = decontaminate_corpus(
        folder / "data.jsonl", against=folder / "quiz.jsonl", common=0, out=folder / "out", jobs=1
    )
    return found, [text for batch in read(folder / "out/clean") for text in batch.texts]


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.slow)])
def test_a_planted_question_is_gone_from_the_output(tmp_path: Path, step: int) -> None:
    texts, spans, expected = [], [], []
    for number, offset in enumerate(range(0, 3001, step)):
        dress = DRESSES[number % len(DRESSES)]
        before = "".join(f"{word} " for word in WORDS[:offset])
        text = f"{before}{dress} {' '.join(WORDS[: number % 8 * 30])}".rstrip()
        words = [place for place in reference.words_of(dress) if place[0].startswith("planted")]
        span = (len(before) + words[0][1], len(before) + words[-1][2])
        texts.append(text)
        spans.append((number, *span))
        expected += reference.pieces(text, [span])
    found, left = cleaned(tmp_path, texts, PLAIN)
    assert [(row["number"], row["start"], row["end"]) for row in found.hits.to_pylist()] == spans
    assert left == expected
    assert not any("planted6" in text.lower() for text in left)


def test_an_overlap_of_500_words_costs_a_book_that_passage_and_no_more(tmp_path: Path) -> None:
    book = RNG.choices(WORDS, k=120_000)
    text = " ".join(book)
    evaluation = " ".join([*RNG.choices(WORDS, k=500), *book[70_000:70_500], *RNG.choices(WORDS, k=500)])
    start = len(" ".join(book[:70_000])) + 1
    end = start + len(" ".join(book[70_000:70_500]))
    found, left = cleaned(tmp_path, [text], evaluation)
    assert [(row["start"], row["end"], row["words"]) for row in found.hits.to_pylist()] == [(start, end, 500)]
    assert left == reference.pieces(text, [(start, end)])
    assert len(left) == 2
    assert end - start + 400 <= found.summary["characters_removed"] < end - start + 420
