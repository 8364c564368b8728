"""Ranks in groups that each hold a copy (HSDP): figures, checkpoints and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilekit.engine.ranks import join
from pilekit.errors import PilekitError
from pilekit.train.config.check import check_world
from pilekit.train.config.file import load_config
from pilekit.train.estimate import estimate
from pilekit.train.step.sharding import own_part
from tests.process_groups import ProcessGroups
from tests.train.ranks.fitting import TIMEOUT, case, check_moved, check_resumed
from tests.train.runs import trainer

pytestmark = pytest.mark.timeout(900)

GROUPS = "parallel.shard=2"


def own_numbers(made: Path, out: Path, changes: tuple[str, ...]) -> tuple[int, int]:
    """This rank's place, and how many numbers of the model it holds."""
    parameters = trainer(made, out, *changes).engine.lm.model.parameters()
    return join().rank, sum(own_part(parameter).numel() for parameter in parameters)


@pytest.mark.slow
def test_groups_have_the_figures_of_one_rank_and_their_checkpoints_load_anywhere(
    made: Path, tmp_path: Path, process_group: ProcessGroups
) -> None:
    sharded = (*case("fp32", 3, 1), GROUPS)
    parts = [(4, sharded), (2, case("fp32", 1, 2)), (4, (*case("fp32", 2, 1), GROUPS))]
    check_moved(process_group, made, tmp_path, parts)
    held = process_group(4).run(own_numbers, made, tmp_path / "parts", sharded, timeout=TIMEOUT)
    assert len({numbers for rank, numbers in held if rank % 2 == 0}) == 1
    config = load_config(made / "tiny.toml", sharded)
    assert estimate(config, 4).stages[3].held.parameters == 4 * held[0][1]


@pytest.mark.slow
@pytest.mark.parametrize(("zero", "more"), [(1, ("train.ema=0.9",)), (3, ("optimizer.name=muon",))])
def test_groups_resume_bit_for_bit(
    made: Path, tmp_path: Path, process_group: ProcessGroups, zero: int, more: tuple[str, ...]
) -> None:
    changes = (f"model.config={made}/dropout", *case("bf16", zero, 1), GROUPS, *more)
    check_resumed(process_group, made, tmp_path, 4, changes, seed=zero, stops_in_it=1)


def test_groups_that_cannot_be_are_refused(made: Path) -> None:
    with pytest.raises(PilekitError, match=r"parallel.shard = 2: needs parallel.zero = 1, 2 or 3"):
        load_config(made / "tiny.toml", (GROUPS,))
    config = load_config(made / "tiny.toml", (GROUPS, "parallel.zero=1"))
    with pytest.raises(PilekitError, match=r"^parallel.shard = 2: must divide the number of ranks, 1, into groups"):
        check_world(config, 1)
    check_world(config, 4)
