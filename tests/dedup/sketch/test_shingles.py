"""Shingle hashes against sets of tuples of bytes: the same sizes and overlaps, wherever pieces and buffers end."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.dedup.sketch.shingles import (
    PIECE_BYTES,
    at_least_eight,
    begin_document,
    jaccard,
    next_shingles,
    shared_if_enough,
    shingle_set,
    shingle_sets,
)
from tests.dedup import reference

# What decides where words end: every byte that is next to a class of word bytes, their cases, and beyond ASCII.
EDGES = "/09:@AZ[^_`az{\x7f\x00 \n\t-é\x80ÿŁ日𝄞"
NGRAMS = st.integers(1, 8)


def utf8(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def common(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> int:
    return shared_if_enough(one, other, 0)


def texts(alphabet: str, most: int = 60) -> st.SearchStrategy[str]:
    return st.text(st.sampled_from(alphabet), max_size=most)


ADVERSARIAL = st.one_of(
    texts(EDGES),
    texts("ab "),  # few words, so that n-grams repeat
    texts("aA \u0130\u212a"),  # whose lower case is ASCII, to Unicode but not here
    texts("-. \n", 20),  # no words
    st.text(max_size=60),
    st.lists(st.sampled_from(["a", "b", "A", "longer_than_eight_bytes", "eight888", "ünï", "."]), max_size=40).map(
        " ".join
    ),
)


@given(st.lists(ADVERSARIAL, min_size=2, max_size=5), NGRAMS)
@example(["", "", " ", "\0", "\0\0", "a", "A", "a.", "ab", "a b", "b a"], 5)
@example(["a" * n for n in range(1, 20)], 1)
@example(["a" * n + "b" for n in range(20)], 2)
def test_sets_are_as_large_and_share_as_much_as_the_reference_s(documents: list[str], ngram: int) -> None:
    sets = [shingle_set(utf8(text), ngram) for text in documents]
    offsets = np.cumsum([0, *(len(text.encode()) for text in documents)], dtype=np.int64)
    values, sizes = shingle_sets(utf8("".join(documents)), offsets, ngram)
    assert [part.tolist() for part in np.split(values, np.cumsum(sizes)[:-1])] == [some.tolist() for some in sets]
    expected = [reference.shingles(text, ngram) for text in documents]
    for found, wanted in zip(sets, expected, strict=True):
        assert len(found) == len(wanted)
        assert (found[1:] > found[:-1]).all()
    for one, other in combinations(range(len(documents)), 2):
        assert common(sets[one], sets[other]) == len(expected[one] & expected[other])
        assert jaccard(sets[one], sets[other]) == reference.jaccard(expected[one], expected[other])


def test_every_character_divides_words_or_is_part_of_one() -> None:
    """Characters beyond ASCII are parts of words and have no case."""
    for character in (*map(chr, range(0x80)), "\x80", "ÿ", "é", "É", "\u2028", "日", "𝄞", "\U0010ffff"):
        documents = [f"left{character}right", "left right", f"{character} {character}", character, character.swapcase()]
        sets = [shingle_set(utf8(text), 2) for text in documents]
        expected = [reference.shingles(text, 2) for text in documents]
        for one, other in combinations(range(len(documents)), 2):
            assert common(sets[one], sets[other]) == len(expected[one] & expected[other])


def test_words_and_gaps_that_cross_the_border_of_a_block_or_piece() -> None:
    for length in [at + by for at in (64, 128, PIECE_BYTES, 2 * PIECE_BYTES) for by in (-9, -8, -7, -1, 0, 1, 7, 8, 9)]:
        word = "w" * length
        for ending in ("", " ", "x", " x", "  "):
            for text in (word + ending, "a " + word + ending, " " * length + ending, "a" + " " * length + "b" + ending):
                for ngram in (1, 2):
                    assert len(shingle_set(utf8(text), ngram)) == len(reference.shingles(text, ngram))
        # The same words give the same shingles at any place.
        moved = shingle_set(utf8("b." * 9 + word + " end"), 2)
        assert common(moved, shingle_set(utf8("a b " + word + "  end."), 2)) == 2


@given(ADVERSARIAL, st.integers(1, 30), NGRAMS, st.text(max_size=12), st.text(max_size=12))
def test_a_buffer_of_any_size_gives_the_same_shingles_and_nothing_around_the_document_matters(
    text: str, size: int, ngram: int, before: str, behind: str
) -> None:
    whole = at_least_eight(utf8(before + text + behind))
    begin = len(before.encode())
    end = begin + len(text.encode())
    state, buffer = np.zeros(5 + ngram, dtype=np.uint64), np.zeros(size, dtype=np.uint64)
    begin_document(state, begin, ngram)
    found: list[int] = []
    count = size
    while count == size:
        count = next_shingles(whole, begin, end, ngram, state, buffer)
        found += buffer[:count].tolist()
    assert sorted(set(found)) == shingle_set(utf8(text), ngram).tolist()
    words = len(reference.words(text))
    assert len(found) == max(1, words - ngram + 1)


def test_long_documents_and_hashes_that_differ_in_every_part() -> None:
    """A hash that lost bits would show: in 64 bits no two are the same, in any 32 of them 10 pairs or so."""
    drawn = np.random.default_rng(0).integers(0, 3000, 60_000).tolist()
    text = "".join(f"{chr(97 + i % 26)}{i**3}" + (" ", " .", "\n-")[place % 3] for place, i in enumerate(drawn))
    assert len(text) > 50 * PIECE_BYTES
    for ngram in (1, 2, 5):
        assert len(shingle_set(utf8(text), ngram)) == len(reference.shingles(text, ngram))
    text = " ".join(map(str, range(300_000)))
    for ngram in (1, 5):
        found = shingle_set(utf8(text), ngram)
        assert len(found) == 300_000 - ngram + 1
        for shift in (0, 16, 32):
            part = (found >> np.uint64(shift)).astype(np.uint32)
            assert 2 < len(found) - len(np.unique(part)) < 30
