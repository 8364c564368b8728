from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.pipeline import MinBytes
from tests.pipeline.making import batch, cut, identities


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=6), max_size=20),
    st.integers(0, 12),
    st.lists(st.integers(0, 8)),
)
def test_counts_utf8_bytes(texts: list[str], minimum: int, lengths: list[int]) -> None:
    kept = identities(MinBytes(minimum)(cut(batch(texts), lengths)))
    assert [(n, text) for _, n, _, text in kept] == [
        (n, text) for n, text in enumerate(texts) if len(text.encode()) >= minimum
    ]


def test_bytes_not_characters() -> None:
    kept = identities(MinBytes(4)(iter([batch(["\xe9\xe9", "abc", "\U0001f600", "abcd"])])))
    assert [text for *_, text in kept] == ["\xe9\xe9", "\U0001f600", "abcd"]


def test_what_is_no_number() -> None:
    with pytest.raises(PilekitError, match="a number of bytes, not '4'"):
        MinBytes("4")  # type: ignore[arg-type]
