"""The kernel finds the n-grams that the reference finds, in any Unicode, and no others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import compacted, folds
from tests.cutting import reference
from tests.pipeline import making

RNG = random.Random(5)
WORDS = ["".join(RNG.choices("abcdefghijklmnop", k=RNG.randrange(2, 9))) for _ in range(3000)]

odd = st.text(
    st.sampled_from("aAbſKİI\u0307ΣςσΑ’'·.-—$€½²①Ⓐ\u00ad\u200d\u0301é漢\U0001d49c😀\x00\x1c\x85\u3000 \r\n\t"),
    max_size=14,
)


def normalised(text: str) -> list[str]:
    words, count = compacted(text)
    assert words.count(b" ") == count
    return words.decode().split(" ")[:count]


def found(ngrams: NGrams, text: str) -> set[tuple[int, str]]:
    batch = making.batch(["before", text])
    data, _ = batch.utf8()
    hits = ngrams.find(batch).tolist()
    for document, _, begin, end, ngram in hits:
        assert document == 1
        piece = data[begin:end].tobytes().decode()
        assert " ".join(word for word, _, _ in reference.words_of(piece)) == ngrams.text(ngram)
    return {(word, ngrams.text(ngram)) for _, word, _, _, ngram in hits}


def expected(evaluations: list[str], text: str, ngram: int) -> set[tuple[int, str]]:
    wanted = {hit for one in evaluations for hit in reference.ngrams_of(one, ngram) if len(hit) >= min(8, ngram)}
    words = [word for word, _, _ in reference.words_of(text)]
    sizes = range(min(8, ngram), ngram + 1)
    places = [(at, tuple(words[at : at + size])) for at in range(len(words)) for size in sizes]
    return {(at, " ".join(hit)) for at, hit in places if hit in wanted and at + len(hit) <= len(words)}


@given(st.lists(odd, max_size=4), odd, st.integers(1, 4), st.randoms())
def test_odd_text_is_found_as_the_reference_finds_it(
    texts: list[str], text: str, ngram: int, rng: random.Random
) -> None:
    text = " ".join([text, *rng.choices([*texts, ""], k=3)])
    text = text.swapcase() if rng.random() < 0.3 else text
    assert normalised(text) == [word for word, _, _ in reference.words_of(text)]
    ngrams = NGrams.build(map(compacted, texts), ngram)
    assert found(ngrams, text) == expected(texts, text, ngram)


@given(
    st.lists(st.text("ab ", max_size=40), max_size=5), st.text("abAB -\n", max_size=120), st.sampled_from([9, 11, 13])
)
def test_short_texts_are_matched_whole(texts: list[str], text: str, ngram: int) -> None:
    text = f"{text} {' '.join(texts)}"
    ngrams = NGrams.build(map(compacted, texts), ngram)
    assert found(ngrams, text) == expected(texts, text, ngram)


def test_every_character_is_folded_as_the_rule_says() -> None:
    table, codes = folds(), [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for begin in range(0, len(codes), 4096):
        text, words = [], list[str]()
        for code in codes[begin : begin + 4096]:
            character, folded = chr(code), int(table[code])
            assert character.isspace() == (folded == 0xFFFFFFFF), hex(code)
            if code not in (0x0130, 0x0307, 0x03A3, 0x03C2):
                text.append(f"x{character}y")
                deleted = "xy" if folded == 0xFFFFFFFE else f"x{chr(min(folded, 0x10FFFF))}y"
                words += ["x", "y"] if character.isspace() else [deleted]
        assert normalised(" ".join(text)) == words, hex(codes[begin])


@pytest.mark.parametrize("megabytes", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_clean_text_has_no_hits_and_many_equal_texts_are_no_special_case(megabytes: int) -> None:
    texts = [" ".join(RNG.choices(WORDS, k=1000)) for _ in range(160)] + ["the same " * 600] * 50
    ngrams = NGrams.build(map(compacted, texts), 13)
    assert len(ngrams.keys) == 160 * 988 + 2
    clean = [" ".join(RNG.choices(WORDS, k=1000)) for _ in range(160 * megabytes)]
    assert not len(ngrams.find(making.batch(clean)))
