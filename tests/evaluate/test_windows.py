from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.evaluate.windows import Window, windows
from tests.evaluate.reference import reference_windows


def places(window: Window) -> tuple[list[int], list[int]]:
    """(places of the inputs, places predicted) in [prefix] + tokens, as the docstring of Window says."""
    return (
        list(range(window.begin, window.end)),
        list(range(window.end - window.targets + 1, window.end + 1)),
    )


@pytest.mark.parametrize("tokens", range(65))
def test_every_window_is_the_one_of_the_rule(tokens: int) -> None:
    for max_length in range(1, 65):
        for context_len in {1, 2, max_length // 2, max_length - 1, max_length} - {-1, 0}:
            if context_len <= max_length:
                found = [places(window) for window in windows(tokens, max_length, context_len)]
                assert found == reference_windows(tokens, max_length, context_len)


@given(st.integers(0, 64), st.integers(1, 64), st.data())
def test_every_context_len(tokens: int, max_length: int, data: st.DataObject) -> None:
    context_len = data.draw(st.integers(1, max_length))
    found = [places(window) for window in windows(tokens, max_length, context_len)]
    assert found == reference_windows(tokens, max_length, context_len)
    assert [place for _, predicted in found for place in predicted] == list(range(1, tokens + 1))
    for inputs, predicted in found[1:]:
        assert len(inputs) == max_length
        assert predicted[0] - inputs[0] >= context_len


def test_the_published_examples() -> None:
    """34 tokens by 10: 0-9, 10-19, 20-29, then 30-33 from 23-32; 9 tokens by 2: the last one from 6 and 7."""
    assert list(windows(34, 10)) == [Window(0, 10, 10), Window(10, 20, 10), Window(20, 30, 10), Window(24, 34, 4)]
    assert list(windows(9, 2))[-1] == Window(7, 9, 1)


@pytest.mark.parametrize(("max_length", "context_len"), [(0, 1), (-1, 1), (4, 0), (4, 5)])
def test_impossible_lengths(max_length: int, context_len: int) -> None:
    with pytest.raises(PilekitError, match=f"max_length is {max_length} and context_len {context_len}"):
        list(windows(10, max_length, context_len))
