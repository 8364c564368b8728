"""The errors of a failed step."""

from __future__ import annotations

import math

import pytest
import torch

from pilekit.engine.ranks import join
from pilekit.errors import PilekitError
from pilekit.train.step.failed_step import explained, failed_step


def test_the_error_names_what_is_wrong_and_the_command_that_shows_the_documents() -> None:
    for loss, step, begins, start in (
        (math.nan, 7, "the loss is nan; lower", "after step 6"),
        (2.5, 1, "the gradient's norm is inf; lower", "from the start"),
    ):
        error = failed_step(step, loss, math.inf, "PEEK")
        assert error.startswith(f"step {step}: {begins}")
        assert start in error
        assert error.endswith("the step's documents are shown by: PEEK")


def test_blocks_that_cannot_be_compiled() -> None:
    def broken(*_: object) -> None:
        raise ValueError("no\x1b compiler\nand much more")

    what = r"cannot be compiled here \(ValueError: no\\x1b compiler\); set"
    with pytest.raises(PilekitError, match=what), explained(join()):
        torch.compile(torch.nn.Linear(2, 2), backend=broken)(torch.zeros(1, 2))
    with pytest.raises(RuntimeError, match="shapes do not fit"), explained(join()):
        raise RuntimeError("shapes do not fit")
