"""The loss scale against its definition, read off the whole history at every step."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.train.step.loss_scale import LossScale


def scale_by_definition(
    history: Sequence[bool], *, initial: float, window: int, hysteresis: int, floor: float
) -> float | None:
    """The scale after these overflows and good steps; None if one of them was an overflow at the floor.

    A run of good steps doubles the scale each time it has been going on for another window. An overflow halves it, down
    to the floor, if `hysteresis - 1` other overflows have come since it was last doubled (or since the start).
    """
    scale = initial
    for step, overflow in enumerate(history):
        run = 0  # good steps that end here
        while run <= step and not history[step - run]:
            run += 1
        if run and run % window == 0:
            scale *= 2
        if overflow:
            before = 0  # overflows since the last doubling
            good = 0
            for earlier in history[:step]:
                good = 0 if earlier else good + 1
                before += earlier
                if good == window:
                    before, good = 0, 0
            if before >= hysteresis - 1:
                if scale <= floor:
                    return None
                scale = max(floor, scale / 2)
    return scale


@given(
    history=st.lists(st.booleans(), max_size=60),
    initial=st.sampled_from([1.0, 3.0, 8.0, 65536.0]),
    window=st.integers(1, 6),
    hysteresis=st.integers(1, 4),
    floor=st.sampled_from([0.5, 1.0]),
    saved=st.integers(0, 60),
)
def test_it_follows_its_definition_and_survives_being_saved(
    history: list[bool], initial: float, window: int, hysteresis: int, floor: float, saved: int
) -> None:
    def made() -> LossScale:
        return LossScale(initial=initial, window=window, hysteresis=hysteresis, floor=floor)

    scale = made()
    for step, overflow in enumerate(history):
        if step == saved:
            state = json.loads(json.dumps(scale.state_dict()))
            scale = made()
            scale.load_state_dict(state)
        expected = scale_by_definition(
            history[: step + 1], initial=initial, window=window, hysteresis=hysteresis, floor=floor
        )
        if expected is None:
            with pytest.raises(PilekitError, match=r"lowest loss scale .* lower optimizer\.lr"):
                scale.update(overflow=overflow)
            return
        scale.update(overflow=overflow)
        assert scale.value == expected


def test_one_odd_batch_does_not_lower_it() -> None:
    scale = LossScale(initial=1024, window=3, hysteresis=2, floor=1)
    values = []
    for overflow in (True, False, True, True, False, False, False, True, True):
        scale.update(overflow=overflow)
        values.append(scale.value)
    assert values == [1024, 1024, 512, 256, 256, 256, 512, 512, 256]


def test_settings_that_changed_since_it_was_saved_hold() -> None:
    scale = LossScale(initial=8, window=4, hysteresis=1, floor=2)
    scale.load_state_dict({"value": 1.0, "good_steps": 900, "patience": 7})
    assert scale.value == 2
    scale.update(overflow=False)
    assert scale.value == 4
    scale.update(overflow=True)
    assert scale.value == 2


@pytest.mark.parametrize("state", [{}, {"value": 1.0}, {"value": None, "good_steps": 0, "patience": 1}])
def test_a_damaged_state_is_one_line(state: dict[str, object]) -> None:
    scale = LossScale(initial=8, window=4, hysteresis=1, floor=2)
    with pytest.raises(PilekitError, match="loss scale of a checkpoint is damaged"):
        scale.load_state_dict(state)
    assert scale.value == 8
