"""Word diffs: no text is lost, parts marked alike are equal, and the output is safe and short."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pilekit.dedup.show.side_by_side import side_by_side
from pilekit.dedup.show.word_diff import MOST_CHARACTERS, WordDiff, word_diff
from tests.dedup import reference

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
        (one, [part.one for part in diff.parts], diff.after[0]),
        (other, [part.other for part in diff.parts], diff.after[1]),
    ):
        compared = "".join(word for part in words for word in part)
        assert len(compared) <= most
        assert text[diff.before :] == compared + text[len(text) - after :]
        assert after == 0 or max(len(one), len(other)) > most
    for part in diff.parts:
        assert part.one or part.other
        if part.alike:
            assert reference.words("".join(part.one)) == reference.words("".join(part.other))
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
    assert [part.other for part in diff.parts if not part.alike] == [["other "]]

    for unit in ("a ", "a", "日", ". "):
        one, other = unit * 40_000, unit * 20_000 + "!" + unit * 20_000
        check(one, other, word_diff(one, other), MOST_CHARACTERS)


def shown(one: str, other: str, *, width: int = 80, colour: bool = False) -> str:
    console = Console(width=width, force_terminal=colour, color_system="standard" if colour else None, highlight=False)
    with console.capture() as capture:
        console.print(side_by_side(word_diff(one, other), ("a", "b"), colour=colour))
    return capture.get()


def test_what_makes_a_difference_and_how_it_is_marked() -> None:
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


def test_hostile_text_is_made_visible_and_what_is_alike_is_cut_short() -> None:
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
