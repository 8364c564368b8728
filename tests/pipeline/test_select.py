from __future__ import annotations

import pickle

import pytest

from pilekit.errors import PilekitError
from pilekit.pipeline import Select
from tests.pipeline.making import batch, identities

LABELS = ["ArXiv", "Github", "PubMed Central", "USPTO Backgrounds", "(none)", "ArXiv"]


def kept(stage: Select) -> list[str]:
    return [subset for _, _, subset, _ in identities(stage(iter([batch(list("abcdef"), LABELS)])))]


def test_any_spelling() -> None:
    assert Select("GitHub", "PMC", "pile_upsto").names == ("Github", "PubMed Central", "USPTO Backgrounds")
    assert kept(Select("GitHub", "PMC", "pile_upsto")) == ["Github", "PubMed Central", "USPTO Backgrounds"]
    assert kept(Select("arxiv")) == ["ArXiv", "ArXiv"]
    assert kept(Select("Books3")) == []
    assert Select(["GitHub", "PMC"]) == Select("GitHub", "PMC")


def test_unknown_and_missing_names() -> None:
    with pytest.raises(PilekitError, match=r"(?i)arxive?.*ArXiv"):
        Select("ArXive")
    with pytest.raises(PilekitError, match="would keep nothing"):
        Select()
    with pytest.raises(PilekitError, match="would keep nothing"):
        Select([])


def test_pickle_and_equality() -> None:
    assert pickle.loads(pickle.dumps(Select("PMC"))) == Select("PubMed Central")
