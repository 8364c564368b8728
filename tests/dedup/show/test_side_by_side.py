"""Word diffs: no text is lost, parts marked alike are equal, and the output is safe and short."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pilekit.dedup.show.side_by_side import side_by_side
from pilekit.dedup.show.word_diff import CONTEXT, MOST_CHARACTERS, Part, WordDiff, folded, word_diff
from tests.dedup import reference

TWO = ("first", "second")

texts = st.one_of(
    st.text(max_size=80),
    st.text("ab \n.", max_size=300),
    st.lists(st.sampled_from(["one", "two", "three", "日本", "!", "\x1b[31m"]), max_size=60).map(" ".join),
)


@given(texts, st.integers(0, 300), st.integers(0, 20), texts, st.sampled_from([5, 40, 10_000]))
def test_parts_of_an_edited_text_are_the_texts(text: str, cut: int, length: int, new: str, most: int) -> None:
    other = text[:cut] + new + text[cut + length :]
    check(text, other, word_diff(text, other, most), most)


def check(one: str, other: str, diff: WordDiff, most: int) -> None:
    assert one[: diff.before] == other[: diff.before]
    for text, words, after in (
        (one, [part.first for part in diff.parts], diff.after[0]),
        (other, [part.second for part in diff.parts], diff.after[1]),
    ):
        compared = "".join(word for part in words for word in part)
        assert len(compared) <= most
        assert text[diff.before :] == compared + text[len(text) - after :]
        assert after == 0 or max(len(one), len(other)) > most
    for part in diff.parts:
        assert part.first or part.second
        if part.alike:
            assert reference.words("".join(part.first)) == reference.words("".join(part.second))
    if not any(diff.after):
        # The diff compares the same units as the similarity: words, or the raw text if there are no words.
        same = reference.shingles(one, most) == reference.shingles(other, most)
        assert same == all(part.alike for part in diff.parts) or not all((one, other))
    for part, following in pairwise(diff.parts):
        assert part.alike != following.alike


def test_long_texts_and_endless_repetition() -> None:
    one = "".join(f"{number} " for number in range(1_000_000))
    place = one.index(" ", 4_000_000) + 1
    other = one[:place] + "other " + one[place:]
    diff = word_diff(one, other)
    check(one, other, diff, MOST_CHARACTERS)
    assert 3_990_000 < diff.before <= 4_000_000
    assert [part.second for part in diff.parts if not part.alike] == [["other "]]

    for unit in ("a ", "a", "日", ". "):
        one, other = unit * 40_000, unit * 20_000 + "!" + unit * 20_000
        check(one, other, word_diff(one, other), MOST_CHARACTERS)


@given(st.integers(0, 2**32), st.sampled_from([2, 30, 3_000, 1_000_000]), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_parts_of_long_edited_texts_are_the_texts(seed: int, vocabulary: int, turns: int) -> None:
    """Longer than `difflib` compares at once: edited at random, with parts that moved; words that repeat, or do not."""
    generator = random.Random(seed)
    one = [f"w{generator.randrange(vocabulary)}" for _ in range(generator.randrange(2_000, 9_000))]
    other = edited(one, generator, 0.02)
    for _ in range(turns):
        cut = generator.randrange(len(other))
        other = other[cut:] + other[:cut]
    diff = word_diff(" ".join(one), " ".join(other), 10**6)
    check(" ".join(one), " ".join(other), diff, 10**6)


def edited(words: list[str], generator: random.Random, share: float) -> list[str]:
    found: list[str] = []
    for word in words:
        what = generator.choice(["delete", "insert", "replace"]) if generator.random() < share else "keep"
        found += {"delete": [], "insert": [word, "new"], "replace": ["other"], "keep": [word]}[what]
    return found


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.2])
def test_of_long_texts_of_different_words_exactly_the_edits_differ(share: float) -> None:
    """Each word occurs once, so the longest common text is that of the words which were left."""
    generator = random.Random(1)
    one = [f"w{generator.getrandbits(60)}" for _ in range(100_000)]
    other = edited(one, generator, share)
    diff = word_diff(" ".join(one), " ".join(other), 10**7)
    differing = [[word.strip() for part in diff.parts if not part.alike for word in getattr(part, of)] for of in TWO]
    left = set(other)
    assert differing[0] == [word for word in one if word not in left] != []
    assert differing[1] == [word for word in other if word in ("new", "other")]


def test_of_long_texts_that_repeat_the_edits_differ() -> None:
    """Thrice the same 5,000 words, so that no run of words occurs once."""
    generator = random.Random(2)
    one = [f"w{generator.randrange(1000)}" for _ in range(5_000)] * 3
    other = [*one[:4_000], "new", *one[4_000:9_000], *one[9_001:]]
    diff = word_diff(" ".join(["begin", *one]), " ".join(["start", *other, "end"]), 10**7)
    differing = [[word.strip() for part in diff.parts if not part.alike for word in getattr(part, of)] for of in TWO]
    assert differing == [["begin", one[9_000]], ["start", "new", "end"]]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 80)), max_size=6))
def test_folded_parts_are_the_parts_with_their_middle_apart(sizes: list[tuple[bool, int]]) -> None:
    parts = [Part(alike, [f"w{n} " for n in range(size)], [f"W{n}\n" for n in range(size)]) for alike, size in sizes]
    found = list(folded(parts))
    for of in (1, 2):
        words = [word for part in parts for word in getattr(part, TWO[of - 1])]
        assert [word for piece in found for word in piece[of]] == words
    for place, (kind, one, other) in enumerate(found):
        assert len(one) == len(other) > (CONTEXT if kind == "folded" else 0)
        if kind == "folded":
            assert [(before, len(words)) for before, words, _ in (found[place - 1], found[place + 1])] == [
                ("alike", CONTEXT)
            ] * 2
        elif kind == "alike":
            assert len(one) <= 3 * CONTEXT
    assert [kind for kind, *_ in found if kind == "differs"] == ["differs" for alike, _ in sizes if not alike]


def shown(one: str, other: str, *, width: int = 80, colour: bool = False) -> str:
    console = Console(width=width, force_terminal=colour, color_system="standard" if colour else None, highlight=False)
    with console.capture() as capture:
        console.print(side_by_side(word_diff(one, other), ("a", "b"), colour=colour))
    return capture.get()


def test_words_that_differ_are_marked_and_spaces_and_case_make_no_difference() -> None:
    for one, other, alike in (
        ("one two\tthree\n", "one  two three", True),
        ("one two three", "One TWO Three!", True),
        ("(one) -- two; three", "one two/three", True),
        ("a_1 日本 b", "...A_1, 日本. B", True),
        ("x" * 200 + " y", "X" * 200 + "\n" * 200 + "y", True),
        ("日本語", "日本 語", False),
        ("a…b", "a b", False),
        ("Ä", "ä", False),
        ("ab", "a b", False),
        ("...", "", False),
        ("a\xa0b", "a b", False),
    ):
        assert all(part.alike for part in word_diff(one, other).parts) == alike
        assert ("No word differs." in shown(one, other)) == alike
    line = shown("the big brown fox", "the small brown dog").splitlines()[-1]
    assert line.split("  ")[0].strip() == "the {+big+} brown {+fox+}"
    assert line.strip().endswith("the [-small-] brown [-dog-]")


def test_hostile_text_is_made_visible_and_equal_text_is_cut_short() -> None:
    hostile = "\x1b]0;title\x07 [bold]no markup[/bold] \x1b[2J\u202e \x9b31m"
    for colour in (False, True):
        out = shown(f"one {hostile} two", f"one {hostile} three", width=200, colour=colour)
        ours = re.sub(r"\x1b\[[0-9;]*m", "", out)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", ours)
        assert "\\x1b]0;title\\x07 [bold]no markup[/bold] \\x1b[2J\\u202e" in ours
    words = [f"w{number}" for number in range(1000)]
    out = shown(" ".join(words), " ".join([*words[:500], "new", *words[500:]]))
    assert all("⋯ 476 words alike" in part for part in out.split("[-new-]"))
    shown_words = {f"w{number}" for number in [*range(12), *range(488, 512), *range(988, 1000)]}
    assert set(re.findall(r"w\d+", out)) == shown_words
    out = shown("x " + " ".join(words), " ".join(words[::-1]))
    assert "⋯" in out
    assert len(re.findall(r"w\d+", out)) < 600
