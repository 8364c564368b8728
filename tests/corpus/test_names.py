"""Typed names become exact subset names."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Manifest, Subset, load_manifest, normalised, resolve_subsets, split_names
from pilekit.errors import PilekitError

PILE = load_manifest()
SPELLINGS = [(spelling, subset.name) for subset in PILE.subsets for spelling in (subset.name, *subset.aliases)]


def test_other_spellings_and_aliases() -> None:
    for typed, exact in [
        ("GitHub", "Github"),
        ("pile_github", "Github"),
        ("PMC", "PubMed Central"),
        ("pile-pubmed_central", "PubMed Central"),
        ("pubmed", "PubMed Abstracts"),
        ("OWT2", "OpenWebText2"),
        ("Gutenberg_PG-19", "Gutenberg (PG-19)"),
        ("CommonCrawl", "Pile-CC"),
        ("books1", "BookCorpus2"),
        *SPELLINGS,
    ]:
        assert resolve_subsets(typed) == (exact,)


@given(
    spelling=st.sampled_from(SPELLINGS),
    upper=st.booleans(),
    noise=st.text(alphabet=" -_().,/", max_size=6),
    data=st.data(),
)
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
    for wrong in (5, None, ["ArXiv", None], b"ArXiv", [["ArXiv"]]):
        with pytest.raises(PilekitError, match='a subset is named by text, such as "ArXiv", not by '):
            resolve_subsets(wrong)  # type: ignore[arg-type]


def test_unknown_names_fail_with_the_closest() -> None:
    with pytest.raises(PilekitError, match=r'unknown subset "Githib" in the manifest pile; did you mean Github\?'):
        resolve_subsets("ArXiv", "Githib")
    with pytest.raises(PilekitError, match=r"did you mean YoutubeSubtitles, OpenSubtitles\?"):
        resolve_subsets("Subtitles")
    with pytest.raises(PilekitError, match="it has Pile-CC, PubMed Central, Books3"):
        resolve_subsets("zzzz")
    with pytest.raises(PilekitError, match='unknown subset "Books3" in the manifest pile-uncopyrighted'):
        resolve_subsets("Books3", manifest=load_manifest("pile-uncopyrighted"))


def test_exact_names_win_and_ambiguous_ones_are_refused() -> None:
    manifest = Manifest(
        name="code", subsets=(Subset(name="C++"), Subset(name="C#"), Subset(name="数学", aliases=("c",)))
    )
    assert resolve_subsets("C#", "C++", "数学", manifest=manifest) == ("C#", "C++", "数学")
    with pytest.raises(PilekitError, match=r'subset "c" is ambiguous: C\+\+, C#; type the exact name'):
        resolve_subsets("c", manifest=manifest)


def test_a_list_of_names_as_typed() -> None:
    assert split_names("ArXiv, GitHub,Gutenberg (PG-19),,") == ["ArXiv", "GitHub", "Gutenberg (PG-19)"]
    for empty in ("", " , "):
        with pytest.raises(PilekitError, match="no subset is named"):
            split_names(empty)
