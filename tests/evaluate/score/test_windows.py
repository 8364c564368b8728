from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.evaluate.score.windows import Window, cost_factor, windows
from tests.evaluate.reference import reference_windows


def places(window: Window) -> tuple[range, range]:
    """(places of the inputs, places predicted) in [prefix] + tokens, as the docstring of Window says."""
    return range(window.begin, window.end), range(window.end - window.targets + 1, window.end + 1)


@given(st.integers(0, 70) | st.integers(0, 5000), st.integers(1, 32) | st.integers(1, 600), st.data())
def test_every_token_is_predicted_once_and_with_enough_in_front_of_it(
    tokens: int, max_length: int, data: st.DataObject
) -> None:
    context_len = data.draw(st.integers(1, max_length))
    found = [places(window) for window in windows(tokens, max_length, context_len)]
    assert found == reference_windows(tokens, max_length, context_len)
    assert [place for _, predicted in found for place in predicted] == list(range(1, tokens + 1))
    for inputs, predicted in found[1:]:
        assert len(inputs) == max_length
        assert predicted[0] - inputs[0] >= context_len


def test_the_published_examples() -> None:
    """34 tokens by 10: 0-9, 10-19, 20-29, then 30-33 from 23-32; 9 tokens by 2: the last token from 6 and 7."""
    assert list(windows(34, 10)) == [Window(0, 10, 10), Window(10, 20, 10), Window(20, 30, 10), Window(24, 34, 4)]
    assert list(windows(9, 2))[-1] == Window(7, 9, 1)
    inputs = sum(window.end - window.begin for window in windows(512_000, 512, 256))
    assert inputs / 512_000 == pytest.approx(cost_factor(512, 256), rel=0.002)
