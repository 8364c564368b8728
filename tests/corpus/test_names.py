"""What people type becomes the exact subset name."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Manifest, Subset, load_manifest, normalised, resolve_subsets, split_names
from pilekit.errors import PilekitError

PILE = load_manifest()
SPELLINGS = [(spelling, subset.name) for subset in PILE.subsets for spelling in (subset.name, *subset.aliases)]


@pytest.mark.parametrize(
    ("typed", "exact"),
    [
        ("GitHub", "Github"),
        ("github", "Github"),
        ("pile_github", "Github"),
        ("pile-github", "Github"),
        ("PMC", "PubMed Central"),
        ("pubmed-central", "PubMed Central"),
        ("pile-pubmed_central", "PubMed Central"),
        ("pubmed", "PubMed Abstracts"),
        ("pile_upsto", "USPTO Backgrounds"),
        ("OWT2", "OpenWebText2"),
        ("PG-19", "Gutenberg (PG-19)"),
        ("Gutenberg_PG-19", "Gutenberg (PG-19)"),
        ("Stack Exchange", "StackExchange"),
        ("bibliotik", "Books3"),
        ("CommonCrawl", "Pile-CC"),
        ("pile_pile-cc", "Pile-CC"),
        ("books1", "BookCorpus2"),
        ("Enron_Emails", "Enron Emails"),
        ("YTSubtitles", "YoutubeSubtitles"),
        ("hacker_news", "HackerNews"),
        ("free_law", "FreeLaw"),
        ("NIH", "NIH ExPorter"),
    ],
)
def test_other_spellings(typed: str, exact: str) -> None:
    assert resolve_subsets(typed) == (exact,)


@pytest.mark.parametrize(("spelling", "exact"), SPELLINGS)
def test_every_alias_of_the_pile_means_one_subset(spelling: str, exact: str) -> None:
    assert resolve_subsets(spelling) == (exact,)


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


@given(st.text())
def test_normalising_is_idempotent_and_keeps_only_letters_and_digits(name: str) -> None:
    once = normalised(name)
    assert normalised(once) == once
    assert all(character.isalnum() for character in once)


@given(st.text(max_size=40))
def test_anything_typed_is_resolved_or_refused_in_one_visible_line(typed: str) -> None:
    try:
        (exact,) = resolve_subsets(typed)
    except PilekitError as error:
        assert not any(unicodedata.category(character) == "Cc" for character in str(error))
    else:
        assert PILE.subset(exact) is not None


def test_the_order_of_the_arguments_is_kept_and_repetitions_are_not() -> None:
    assert resolve_subsets("PMC", "github", "GitHub", "ArXiv", "PubMed Central") == (
        "PubMed Central",
        "Github",
        "ArXiv",
    )
    assert resolve_subsets() == ()


def test_names_may_come_as_a_list() -> None:
    assert resolve_subsets(["PMC", "github"], "ArXiv") == ("PubMed Central", "Github", "ArXiv")
    assert resolve_subsets([]) == ()
    assert resolve_subsets(["b", "a"], manifest=Manifest(name="any")) == ("b", "a")
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
    with pytest.raises(PilekitError, match='unknown subset ""'):
        resolve_subsets("")


def test_a_subset_of_another_corpus_is_unknown() -> None:
    with pytest.raises(PilekitError, match='unknown subset "Books3" in the manifest pile-uncopyrighted'):
        resolve_subsets("Books3", manifest=load_manifest("pile-uncopyrighted"))
    assert resolve_subsets("reference", manifest=load_manifest("demo")) == ("Python Reference",)


def test_without_subsets_in_the_manifest_names_are_labels() -> None:
    assert resolve_subsets("b", "A b", "b", manifest=Manifest(name="any")) == ("b", "A b")


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
