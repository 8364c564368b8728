"""Typed names become exact subset names."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Manifest, Subset, SubsetNames, load_manifest, normalised, resolve_subsets, split_names
from pilekit.errors import PilekitError

PILE = load_manifest()
SPELLINGS = [
    ("GitHub", "Github"),
    ("PMC", "PubMed Central"),
    ("pubmed", "PubMed Abstracts"),
    ("OWT2", "OpenWebText2"),
    ("CommonCrawl", "Pile-CC"),
    *((spelling, subset.name) for subset in PILE.subsets for spelling in (subset.name, *subset.aliases)),
]


def test_every_spelling_and_alias() -> None:
    assert [resolve_subsets(typed) for typed, _ in SPELLINGS] == [(exact,) for _, exact in SPELLINGS]
    assert resolve_subsets("pile-pubmed_central", "pile_github") == ("PubMed Central", "Github")


@given(st.sampled_from(SPELLINGS), st.booleans(), st.text(alphabet=" -_().,/", max_size=6), st.data())
def test_case_and_punctuation_do_not_matter(
    spelling: tuple[str, str], upper: bool, noise: str, data: st.DataObject
) -> None:
    typed, exact = spelling
    typed = typed.upper() if upper else typed.lower()
    for character in noise:
        place = data.draw(st.integers(0, len(typed)))
        typed = typed[:place] + character + typed[place:]
    assert resolve_subsets(typed) == (exact,)


@given(st.text(max_size=40))
def test_any_text_is_resolved_or_refused_in_one_printable_line(typed: str) -> None:
    try:
        (exact,) = resolve_subsets(typed)
    except PilekitError as error:
        assert not any(unicodedata.category(character) == "Cc" for character in str(error))
    else:
        assert PILE.subset(exact) is not None
    assert all(character.isalnum() for character in normalised(typed))


def test_names_keep_their_order_without_repetitions() -> None:
    assert resolve_subsets("PMC", ["github", "GitHub"], "ArXiv") == ("PubMed Central", "Github", "ArXiv")
    assert resolve_subsets() == resolve_subsets([]) == ()
    assert resolve_subsets(["b", "A b"], "b", manifest=Manifest(name="any")) == ("b", "A b")
    assert split_names("ArXiv, GitHub,Gutenberg (PG-19),,") == ["ArXiv", "GitHub", "Gutenberg (PG-19)"]


def test_wrong_names_fail_with_the_closest() -> None:
    subsets = (Subset(name="C++"), Subset(name="C#"), Subset(name="数学", aliases=("c",)))
    code = Manifest(name="code", subsets=subsets)
    assert resolve_subsets("C#", "C++", "数学", manifest=code) == ("C#", "C++", "数学")
    assert resolve_subsets("c", manifest=code) == ("数学",)  # an alias as it is written
    for names, manifest, why in [
        (("ArXiv", "Githib"), PILE, r'unknown subset "Githib" in the manifest pile; did you mean Github\?'),
        (("Subtitles",), PILE, r"did you mean YoutubeSubtitles, OpenSubtitles\?"),
        (("zzzz",), PILE, "it has Pile-CC, PubMed Central, Books3"),
        (("Books3",), load_manifest("pile-uncopyrighted"), '"Books3" in the manifest pile-uncopyrighted'),
        (("C.",), code, r'subset "C\." is ambiguous: C\+\+, C#; type the exact name'),
        *(((wrong,), PILE, 'a subset is named by text, such as "ArXiv", not by ') for wrong in (5, None, ["x", None])),
    ]:
        with pytest.raises(PilekitError, match=why):
            resolve_subsets(*names, manifest=manifest)  # type: ignore[arg-type]
    for empty in ("", " , "):
        with pytest.raises(PilekitError, match="no subset is named"):
            split_names(empty)


def test_the_aliases_of_a_manifest_are_normalised_once_for_all_shards() -> None:
    normalised.cache_clear()
    SubsetNames(PILE)
    misses = normalised.cache_info().misses
    for label in ("GitHub", "PMC"):
        assert [SubsetNames(PILE)[label] for _ in range(100)] == [*resolve_subsets(label)] * 100
    assert misses > 0
    assert normalised.cache_info().misses <= misses + 2
