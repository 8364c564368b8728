from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.pipeline import Match
from tests.pipeline.making import batch, cut, identities


@given(
    st.lists(st.text("abAB \n\xe9", max_size=8), max_size=20),
    st.sampled_from(["a", "^b", "b$", r"(?i)ab+", r"\bA\b", r"(?s)a.b", r"(?m)^a$", "\xe9", ""]),
    st.lists(st.integers(0, 8)),
)
def test_as_re_search(texts: list[str], regex: str, lengths: list[int]) -> None:
    kept = identities(Match(regex)(cut(batch(texts), lengths)))
    assert [(n, text) for _, n, _, text in kept] == [
        (n, text) for n, text in enumerate(texts) if re.search(regex, text)
    ]


@pytest.mark.parametrize("regex", ["(", "[a", "*", "(?P<1>a)", r"\1"])
def test_no_regular_expression(regex: str) -> None:
    with pytest.raises(PilekitError, match="is no regular expression"):
        Match(regex)


@pytest.mark.parametrize("regex", ["(?<\x1b[31m", "(\n\x1b", 5])
def test_no_regular_expression_is_told_in_one_visible_line(regex: str) -> None:
    with pytest.raises(PilekitError, match="is no regular expression") as caught:
        Match(regex)
    assert str(caught.value).isprintable()


def test_pickle() -> None:
    stage = pickle.loads(pickle.dumps(Match("b")))
    assert stage == Match("b")
    assert [text for *_, text in identities(stage(iter([batch(["a", "b"])])))] == ["b"]
