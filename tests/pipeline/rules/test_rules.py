"""Every rule equals a slow reference: at its threshold, just beside it, on any Unicode, and on real text."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import read_corpus
from pilekit.pipeline.rules.c4 import C4, FineWeb
from pilekit.pipeline.rules.gopher import GopherQuality, GopherRepetition
from pilekit.pipeline.rules.rule_set import RuleSet
from pilekit.pipeline.rules.scanned_texts import ALNUM, ALPHA, SPACE, character_kinds
from tests.pipeline.making import batch, identities
from tests.pipeline.rules import reference

Reference = Callable[[str], dict[str, bool]]

BAD_WORDS = ("badger", "honey trap", "🖕")
SETS: list[tuple[RuleSet, Reference]] = [
    (GopherQuality(), reference.gopher_quality),
    (GopherRepetition(), reference.gopher_repetition),
    (C4(), reference.c4),
    (C4(end_mark=False), partial(reference.c4, end_mark=False)),
    (C4(few_words=3, sentences=5), partial(reference.c4, few_words=3, sentences=5)),
    (C4(bad_words=BAD_WORDS), lambda text: reference.c4(text) | {"bad_word": bad_word(text)}),
    (FineWeb(), reference.fineweb),
    (FineWeb(dup_line_chars=0.01, newlines=0.3), partial(reference.fineweb, dup=0.01, newlines=True)),
]


def bad_word(text: str) -> bool:
    pattern = "|".join(map(re.escape, BAD_WORDS))
    return re.search(rf"(?<!\w)(?:{pattern})(?!\w)", text.lower()) is not None


def check(texts: list[str], sets: list[tuple[RuleSet, Reference]] = SETS) -> None:
    """What each set judges of `texts`, and keeps of them, is what the reference says."""
    whole = batch(texts)
    for rules, slow in sets:
        judged = rules.judge(whole)
        expected = [slow(text) for text in texts]
        for number, of_text in enumerate(expected):
            assert {rule: bool(fails[number]) for rule, fails in judged.items()} == of_text, texts[number][:2000]
        kept = [text for *_, text in identities(rules(iter([whole])))]
        assert kept == [text for text, of_text in zip(texts, expected, strict=True) if not any(of_text.values())]


PIECES = st.one_of(
    st.sampled_from("\n \t\r\x0b\x1c\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000"),
    st.sampled_from(
        ["\n\n", "\n\n\n", " ", " ", "\n", "\x00", "\u200b", "\ufeff", "\u0301", "Ⅷ", "²", "٣", "𝔸", "中文"]
    ),
    st.sampled_from(
        [".", "?", "!", "...", "....", "…", '"', "'", "”", "’", ")", "]", "。", "！", "？", "।", ". ", "- ", "• "]
    ),
    st.sampled_from(["[12]", "[", "]", "[٣]", "[edit]", "[citation needed]", "[[1]]", "#", "{", "*"]),
    st.sampled_from(["the ", "The ", "“the” ", "of ", "AND ", "wİth ", "have, ", "that's ", "be ", "to"]),
    st.sampled_from(
        ["java", "script", "JavaScript", "use ", "cookies", "Terms of Use", "lorem ipsum", "Lorem", " ipsum"]
    ),
    st.sampled_from(["badger", "Honey Trap", "honey", "badgers", "🖕", "a b c d e ", "one two three four five.\n"]),
    st.text(st.characters(codec="utf-8"), max_size=8),
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@given(st.lists(st.one_of(TEXTS, TEXTS.map(lambda text: text * 3), st.text(st.characters(codec="utf-8"))), max_size=6))
def test_rules_equal_the_reference_on_any_unicode(texts: list[str]) -> None:
    check(texts)
    for rules, few_words in ((C4(), 5), (C4(few_words=3), 3)):
        cut = rules.cut(batch(texts)).texts  # type: ignore[attr-defined]
        assert cut == ["\n".join(reference.c4_lines(text, few_words=few_words)) for text in texts]


def words(count: int, word: str = "word") -> str:
    return " ".join(f"{word}" for _ in range(count))


def different(count: int) -> list[str]:
    """Lines of 40 characters of which none is like another."""
    return [f"{number:07} the end of and {number:07} to be it." for number in range(count)]


def sized(text: str, size: int) -> str:
    """`text` and a paragraph of one word, `size` characters in all."""
    return text + "\n\n" + "x" * (size - len(text) - 2)


ABOVE, BELOW = [False, False, True], [True, False, False]
THRESHOLDS: list[tuple[RuleSet, str, list[str], list[bool]]] = [
    (GopherQuality(), "words", [words(n) for n in (49, 50, 51)], BELOW),
    (GopherQuality(), "words", [words(n, "a") + " -" for n in (99_999, 100_000, 100_001)], ABOVE),
    (GopherQuality(), "word_length", [words(50, "abc") + end for end in (" ab", " abc", " abcd")], BELOW),
    (GopherQuality(), "word_length", [words(50, "é" * 10) + " " + "x" * n for n in (9, 10, 11)], ABOVE),
    (GopherQuality(), "hashes", [words(99) + " " + "#" * n for n in (9, 10, 11)], ABOVE),
    (GopherQuality(), "ellipses", [words(99) + " " + "...…" * 4 + "." * n for n in (0, 6, 9)], ABOVE),
    (GopherQuality(), "bullets", ["- a\n" * 10 + "* b\n•c\n" * n + "d\n" * 2 for n in (3, 4, 5)], ABOVE),
    (GopherQuality(), "end_ellipses", ["a...\nb …\n" + "c…\n" * n + "d\n \n" * 7 for n in (0, 1, 2)], ABOVE),
    (GopherQuality(), "letters", [words(n) + " " + words(100 - n, "1-") for n in (79, 80, 81)], BELOW),
    (
        GopherQuality(),
        "stop_words",
        [f"{words(50)} {met}" for met in ("The the, bе \0of", "‘The’ “OF”", "to be …")],
        BELOW,
    ),
    *(
        (GopherRepetition(), rule, [mark.join([*different(10 - n), *different(n)]) for n in (2, 3, 4)], ABOVE)
        for rule, mark in (("dup_lines", "\n \n"), ("dup_paragraphs", "\n\n\n"))
    ),
    *(
        (GopherRepetition(), rule, [sized(f"{'é' * 20}{mark}{'é' * 20}", n) for n in (101, 100, 99)], ABOVE)
        for rule, mark in (("dup_line_chars", "\n"), ("dup_paragraph_chars", "\n\n"))
    ),
    *(
        (GopherRepetition(), f"top_{gram.count(' ') + 1}gram", [sized(f"{gram} - {gram}", n) for n in sizes], ABOVE)
        for gram, sizes in (("ab cd", (51, 50, 49)), ("abc de fg", (101, 100, 99)), ("a b c dé", (101, 100, 99)))
    ),
    *(
        (GopherRepetition(), f"dup_{n}grams", [sized(f"{gram} - {gram}", size) for size in (101, 100, 99)], ABOVE)
        for n, gram in ((n, " ".join("abcdefghij"[: n - 1]) + " " + "z" * (21 - 2 * n)) for n in range(5, 11))
    ),
    (GopherRepetition(), "top_2gram", ["aa bb aa cc bb cc", "aa bb aa bb"], [False, True]),  # no pair occurs twice
    # What is searched for reaches from one text of a batch into the next.
    (C4(), "lorem_ipsum", ["Lorem", " ipsum"], [False, False]),
    (C4(end_mark=False), "sentences", ["a b c d e\n" * 2 + "a b c d java", "script b c d e\n" * 3], [False, False]),
    (C4(end_mark=False), "sentences", ["a.", "” b c d. e\na b c d e"], [True, True]),
    (C4(), "lorem_ipsum", ["lorem\nipsum", "lorem-ipsum", "LoREM iPsum"], ABOVE),
    (C4(), "curly_bracket", ["(", "[", "a {"], ABOVE),
    (C4(), "sentences", ["Here we are now. " * n for n in (2, 3, 4)], BELOW),
    (C4(), "sentences", [line * 3 for line in ("a [1] b c [edit] d.\n", "a b c d e.\n", "a b c d e?[12]\n")], BELOW),
    (C4(), "sentences", [("a b c d " + "é" * n + ".\n") * 3 for n in (1000, 999, 998)], BELOW),
    (C4(), "sentences", [f"a b c d {end}\n" * 3 for end in ("e...", 'e..."', "e.”)")], [True, False, True]),
    (C4(), "sentences", [f"a b c d {end} e.\n" * 3 for end in ("use[1] cookies", "use  cookies", "us cookies")], BELOW),
    (C4(end_mark=False), "sentences", ["a b c d e\n" * n for n in (2, 3, 4)], BELOW),
    (
        FineWeb(),
        "line_punctuation",
        ["a?\nb!\nc।\n" * 4 + "d.\n" * n + "e\n" * (88 - n) for n in (0, 1)],
        [True, False],
    ),
    (FineWeb(), "line_punctuation", ["a。\n" * n + "e\n" * (100 - n) for n in (12, 13)], [True, False]),
    (FineWeb(), "dup_line_chars", [sized(f"{'é' * 10}\n{'é' * 10}", n) for n in (104, 103, 102)], [False, True, True]),
    (FineWeb(), "short_lines", [f"{'é' * 30}\n" * n + f"{'é' * 31}\n" * (100 - n) for n in (66, 67)], [False, True]),
    (FineWeb(newlines=0.3), "newlines", [words(100) + "\n" * n for n in (29, 30, 31)], ABOVE),
]


def test_at_each_threshold_and_beside_it() -> None:
    judged = set()
    for rules, rule, texts, expected in THRESHOLDS:
        assert rules.judge(batch(texts))[rule].tolist() == expected, rule
        check([*texts, ""], [pair for pair in SETS if type(pair[0]) is type(rules)])
        judged.add((type(rules), rule))
    for kind in (GopherQuality, GopherRepetition, C4, FineWeb):
        rules = {one.name for one in fields(kind) if one.metadata} - {"bad_word"}  # type: ignore[arg-type]
        assert {rule for one, rule in judged if one is kind} == rules


def test_limits_can_be_set_and_a_set_is_a_plain_value() -> None:
    texts = [words(n) + " the of" for n in (10, 30)]
    assert GopherQuality(words=(20, 40)).judge(batch(texts))["words"].tolist() == [True, False]
    for rules, _ in SETS:
        assert pickle.loads(pickle.dumps(rules)) == rules
        assert list(rules(iter([batch([])]))) == []
    assert repr(FineWeb()) == ("FineWeb(line_punctuation=0.12, dup_line_chars=0.1, short_lines=0.67, newlines=None)")


def test_characters_are_classified_as_python_does() -> None:
    kinds = character_kinds()
    every = [chr(code) for code in range(0x110000)]
    for kind, is_of_kind in ((SPACE, str.isspace), (ALPHA, str.isalpha), (ALNUM, str.isalnum)):
        assert np.array_equal(kinds & kind != 0, np.fromiter(map(is_of_kind, every), bool, len(every)))


@pytest.mark.slow
def test_rules_equal_the_reference_on_real_documents(real_corpus: Path) -> None:
    documents = 0
    with read_corpus([real_corpus / "minipile-00.jsonl.zst", real_corpus / "val.jsonl.zst"]) as batches:
        for whole in batches:
            check(whole.texts[::2], [*SETS[:4], SETS[-1]])
            documents += len(whole.texts[::2])
    assert documents > 3000
