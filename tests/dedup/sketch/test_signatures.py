"""Shingle hashes against sets of tuples of bytes: the same sizes and overlaps, wherever pieces and buffers end.

Signatures are datasketch's, bit for bit; band keys are equal only for equal rows; the choice of bands.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from datasketch import MinHash
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.dedup.sketch.bands import Bands, choose_bands
from pilekit.dedup.sketch.minhash import SHINGLES_AT_A_TIME, band_keys, permutations, signatures
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
from pilekit.errors import PilekitError
from tests.dedup import reference

# What decides where words end: every byte that is next to a class of word bytes, their cases, and beyond ASCII.
EDGES = "/09:@AZ[^_`az{\x7f\x00 \n\t-é\x80ÿŁ日𝄞"
NGRAMS, SEEDS = st.integers(1, 8), st.integers(0, 2**32 - 1)


def utf8(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def joined(texts: list[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), np.cumsum([0, *map(len, encoded)])


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
    values, sizes = shingle_sets(*joined(documents), ngram)
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


def datasketch_signature(text: str, ngram: int, num_perm: int, seed: int) -> list[int]:
    sketch = MinHash(num_perm, seed, scheme="affine32", hashfunc=lambda shingle: shingle & 0xFFFFFFFF)
    for shingle in shingle_set(np.frombuffer(text.encode(), dtype=np.uint8), ngram).tolist():
        sketch.update(shingle)
    return sketch.hashvalues.tolist()


@given(st.lists(ADVERSARIAL, min_size=1, max_size=6), NGRAMS, st.sampled_from([1, 2, 5, 126, 128, 130]), SEEDS)
def test_signatures_equal_datasketch_s(texts: list[str], ngram: int, num_perm: int, seed: int) -> None:
    found = signatures(*joined(texts), ngram, *permutations(num_perm, seed))
    assert found.dtype == np.uint32
    assert found.tolist() == [datasketch_signature(text, ngram, num_perm, seed) for text in texts]


def test_a_document_may_have_more_shingles_than_are_taken_at_a_time() -> None:
    for count in (SHINGLES_AT_A_TIME - 1, SHINGLES_AT_A_TIME, SHINGLES_AT_A_TIME + 1, 2 * SHINGLES_AT_A_TIME):
        texts = ["before", " ".join(map(str, range(count + 4))), "behind it"]
        assert len(reference.shingles(texts[1])) == count
        found = signatures(*joined(texts), 5, *permutations(16))
        assert found.tolist() == [datasketch_signature(text, 5, 16, 1) for text in texts]


@given(st.integers(1, 6), st.integers(1, 4), SEEDS)
def test_keys_are_equal_exactly_where_all_rows_of_the_band_are(rows: int, bands: int, seed: int) -> None:
    values = np.random.default_rng(seed).choice(np.array([0, 1, 2**32 - 1], dtype=np.uint32), (8, rows * bands))
    keys = band_keys(values, bands, rows)
    assert keys.shape == (bands, 8)
    for band in range(bands):
        part = values[:, band * rows : (band + 1) * rows]
        equal = (part[:, None] == part[None]).all(axis=2)
        assert ((keys[band][:, None] == keys[band][None]) == equal).all()
    many = np.random.default_rng(seed).integers(0, 2**32, (20_000, rows), dtype=np.uint32)
    assert len(np.unique(band_keys(many, 1, rows)[0])) == len(np.unique(many, axis=0))


def test_the_choice_has_the_most_rows_with_which_the_threshold_s_pairs_are_found() -> None:
    assert choose_bands(0.8, 128) == Bands(21, 6)
    assert choose_bands(0.7, 128) == Bands(26, 5)
    assert Bands(21, 6).curve().startswith("21 bands × 6 rows: compares 28.2 % at 0.5, ")
    for threshold, num_perm in ((0, 128), (1.01, 128), (math.nan, 128), (0.8, 0)):
        with pytest.raises(PilekitError):
            choose_bands(threshold, num_perm)
    with pytest.raises(PilekitError, match="permutations cannot find"):
        choose_bands(0.1, 16)
    for threshold in (percent / 100 for percent in range(20, 100)):
        bands = choose_bands(threshold, 128)
        assert (
            bands.probability(threshold)
            >= 0.99
            > Bands(-(-128 // (bands.rows + 1)), bands.rows + 1).probability(threshold)
        )
        # No permutations are left over for another band, and none exceed the last band.
        assert 128 - bands.rows < bands.num_perm < 128 + bands.rows
