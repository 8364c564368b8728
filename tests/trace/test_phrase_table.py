"""The compiled search finds what `bytes.startswith` finds at each place, in any set of phrases."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.trace.phrase_table import PhraseTable
from pilekit.trace.subset_counts import SubsetCounts
from tests.trace import reference

Pairs = dict[tuple[int, int], tuple[int, int]]
"""Occurrences and documents by the numbers of phrase and subset."""


def arrays(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])


def counted(
    phrases: Sequence[str], documents: Sequence[str], subsets: Sequence[int], *, at_words: bool = False, cells: int = 1
) -> Pairs:
    data, offsets = arrays(phrases)
    table = PhraseTable.build(data, offsets[1:], at_words=at_words)
    counts = SubsetCounts(table, cells)
    for part in (slice(0, 1), slice(1, None)):  # two batches
        counts.add(*arrays(documents[part]), np.array(subsets[part], np.int64))
    keys, occurrences, held = counts.rows().tolist()
    assert keys == sorted(keys)
    pairs = zip(occurrences, held, strict=True)
    return {(key >> 16, key & 0xFFFF): pair for key, pair in zip(keys, pairs, strict=True)}


def expected(phrases: Sequence[str], documents: Sequence[str], subsets: Sequence[int]) -> Pairs:
    pairs = {}
    for number, phrase in enumerate(phrases):
        if phrase in phrases[:number]:
            continue
        for subset in set(subsets):
            of = [text for text, name in zip(documents, subsets, strict=True) if name == subset]
            found = [reference.occurrences(text.encode(), phrase.encode()) for text in of]
            if any(found):
                pairs[number, subset] = (sum(found), sum(map(bool, found)))
    return pairs


letters = st.sampled_from(["a", "ab", "aé", "a漢😀", '\x00\n\\"', "a b"])
sizes = st.sampled_from([*range(1, 10), 15, 16, 17, 18, 31, 32, 33, 40])


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], list[str], list[int]]:
    """Phrases that share beginnings and ends, contain each other, repeat themselves, and documents made of them."""
    alphabet = st.text(draw(letters), min_size=1, max_size=3)
    period = st.builds(lambda piece, size: (piece * size)[:size], alphabet, sizes)
    pieces = draw(st.lists(st.one_of(period, st.text(draw(letters), min_size=1, max_size=40)), min_size=1, max_size=8))
    cut = st.builds(lambda piece, begin, size: piece[begin:][:size] or piece, st.sampled_from(pieces), sizes, sizes)
    head = st.builds(lambda piece, size: piece[:size], st.sampled_from(pieces), sizes)
    phrases = draw(st.lists(st.one_of(st.sampled_from(pieces), cut, head), min_size=1, max_size=30))
    text = st.lists(st.one_of(st.sampled_from(pieces), st.text("ab ", max_size=3)), max_size=8).map("".join)
    documents = draw(st.lists(text, min_size=1, max_size=5))
    return phrases, documents, draw(st.lists(st.integers(0, 2), min_size=len(documents), max_size=len(documents)))


@given(cases())
def test_phrases_that_contain_each_other_are_counted_as_the_reference_counts_them(
    case: tuple[list[str], list[str], list[int]],
) -> None:
    assert counted(*case) == expected(*case)


@given(cases(), st.integers(1, 20))
def test_the_border_of_two_blocks_is_no_border_for_a_phrase(
    case: tuple[list[str], list[str], list[int]], positions: int
) -> None:
    phrases, documents, _ = case
    table = PhraseTable.build(arrays(phrases)[0], arrays(phrases)[1][1:])

    def found(positions: int) -> Counter[tuple[int, ...]]:
        blocks = table.find(*arrays(documents), positions=positions)
        return Counter(tuple(row) for block in blocks for row in block.tolist())

    assert found(positions) == found(1 << 16)


word = st.builds(lambda piece, size: (piece * size)[:size], st.sampled_from(["a", "ab", "é", "漢"]), sizes)


@st.composite
def cases_of_words(draw: st.DrawFn) -> tuple[list[str], list[str], list[int]]:
    """Phrases of one to seven words, and documents with their words, all short or up to 40 letters long."""
    words = draw(st.lists(word, min_size=1, max_size=5))
    phrases = draw(st.lists(st.lists(st.sampled_from(words), min_size=1, max_size=7), min_size=1, max_size=20))
    text = st.lists(st.one_of(st.sampled_from([*phrases, []]), st.lists(word, max_size=2)), max_size=9)
    documents = [[*map(" ".join, pieces), ""] for pieces in draw(st.lists(text, min_size=1, max_size=5))]
    subsets = draw(st.lists(st.integers(0, 2), min_size=len(documents), max_size=len(documents)))
    spaced = [" ".join(["", *filter(None, pieces), ""]) for pieces in documents]
    return [" ".join([*words, ""]) for words in phrases], spaced, subsets


@given(cases_of_words(), st.integers(1, 30))
def test_phrases_of_words_are_counted_as_the_reference_counts_them(
    case: tuple[list[str], list[str], list[int]], positions: int
) -> None:
    phrases, documents, subsets = case
    behind_spaces = [f" {phrase}" for phrase in phrases]
    assert counted(*case, at_words=True) == expected(behind_spaces, documents, subsets)
    table = PhraseTable.build(arrays(phrases)[0], arrays(phrases)[1][1:], at_words=True)
    blocks = [
        np.concatenate([np.zeros((0, 3)), *map(np.copy, table.find(*arrays(documents), positions=size))])
        for size in (positions, 1 << 16)
    ]
    assert sorted(blocks[0].tolist()) == sorted(blocks[1].tolist())


@pytest.mark.parametrize("seed", range(3))
def test_many_phrases_of_random_text_are_counted_as_the_reference_counts_them(seed: int) -> None:
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoin", k=rng.randrange(1, 9))) for _ in range(60)]
    documents = [" ".join(rng.choices(words, k=rng.randrange(200))) for _ in range(30)]
    whole = " ".join(documents)
    begins = [rng.randrange(len(whole) - 70) for _ in range(400)]
    phrases = [whole[begin:][: rng.randrange(1, 70)] for begin in begins]
    subsets = [rng.randrange(4) for _ in documents]
    assert counted(phrases, documents, subsets) == expected(phrases, documents, subsets)


def test_all_beginnings_of_a_text_are_counted_at_each_place_of_a_run() -> None:
    phrases = ["a" * size for size in range(1, 300)]
    pairs = counted(phrases, ["a" * 400, "b" + "a" * 50], [7, 65_535])
    assert pairs == {
        (size - 1, subset): (length - size + 1, 1)
        for size in range(1, 300)
        for subset, length in ((7, 400), (65_535, 50))
        if size <= length
    }


def test_a_phrase_that_occurs_often_takes_no_memory() -> None:
    table = PhraseTable.build(np.frombuffer(b"aab", np.uint8), np.array([1, 3]))
    counts = SubsetCounts(table, 4)
    for _ in range(100):
        counts.add(*arrays(["a" * 100_000]), np.zeros(1, np.int64))
    assert counts.rows().tolist() == [[0], [10_000_000], [100]]
    assert len(counts._cells) == 6


def test_only_what_follows_a_space_is_a_word() -> None:
    phrases, documents = ["is ", "this is "], [" this is this is it ", " is his "]
    assert counted(phrases, documents, [0, 1], at_words=True) == {(0, 0): (2, 1), (1, 0): (2, 1), (0, 1): (1, 1)}


def test_a_table_is_the_same_from_its_files(tmp_path: Path) -> None:
    data, offsets = arrays(["a", "bc", "a" * 9, "b" * 17, "b" * 20, "a", "é" * 3])
    table = PhraseTable.build(data, offsets[1:])
    table.save(tmp_path)
    loaded = PhraseTable.load(tmp_path)
    assert (loaded.depth, [one.head for one in loaded.classes]) == (2, [1, 2, 4, 8, 17])
    assert sorted(loaded.number.tolist()) == [0, 1, 2, 3, 4, 6]
    for one, other in zip([*table[:5], *sum(table.classes, ())], [*loaded[:5], *sum(loaded.classes, ())], strict=True):
        np.testing.assert_array_equal(one, other)
