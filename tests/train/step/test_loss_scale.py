"""The loss scale against its definition, computed from the whole history at every step."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from pilekit.train.config.sections import PrecisionConfig
from pilekit.train.step.loss_scale import LossScale


def scale_by_definition(history: Sequence[bool], config: PrecisionConfig) -> float | None:
    """The scale after these overflows and good steps; None if one of them was an overflow at the floor.

    Each full window of good steps doubles the scale. An overflow halves it, down to the floor, if there were at least
    `hysteresis - 1` other overflows since the last doubling (or since the start).
    """
    window, hysteresis, floor = config.loss_scale_window, config.loss_scale_hysteresis, config.loss_scale_floor
    scale = config.loss_scale
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
    config=st.builds(
        PrecisionConfig,
        loss_scale=st.sampled_from([1.0, 3.0, 8.0, 65536.0]),
        loss_scale_window=st.integers(1, 6),
        loss_scale_hysteresis=st.integers(1, 4),
        loss_scale_floor=st.sampled_from([0.5, 1.0]),
    ),
    saved=st.integers(0, 60),
)
def test_it_follows_its_definition_and_survives_being_saved(
    history: list[bool], config: PrecisionConfig, saved: int
) -> None:
    scale = LossScale(config, torch.device("cpu"))
    for step, overflow in enumerate(history):
        if step == saved:
            state = json.loads(json.dumps(scale.state_dict()))
            scale = LossScale(config, torch.device("cpu"))
            scale.load_state_dict(state)
        expected = scale_by_definition(history[: step + 1], config)
        if expected is None:
            assert scale.update(torch.tensor(overflow))
            return
        assert not scale.update(torch.tensor(overflow))
        assert scale.value == expected
