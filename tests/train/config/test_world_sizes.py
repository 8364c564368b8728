"""Which numbers of ranks can share the steps of a config."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.train.config import DataConfig, TrainConfig, TrainSection, check_world, world_sizes


@given(
    parts=st.integers(1, 60),
    micro_batch_size=st.integers(1, 6),
    lane_rows=st.none() | st.integers(1, 60),
    ranks=st.integers(1, 70),
)
def test_ranks_pass_if_each_gets_whole_micro_batches_and_rows_of_lanes(
    parts: int, micro_batch_size: int, lane_rows: int | None, ranks: int
) -> None:
    rows = parts * micro_batch_size
    config = TrainConfig(
        data=DataConfig(lanes="auto" if lane_rows is None else (lane_rows, 4)),
        train=TrainSection(steps=1, global_batch_size=rows, micro_batch_size=micro_batch_size),
    )
    possible = rows % ranks == 0 and (rows // ranks) % micro_batch_size == 0 and (lane_rows or ranks) % ranks == 0
    assert (ranks in world_sizes(config)) is possible
    if possible:
        check_world(config, ranks)
    else:
        with pytest.raises(PilekitError, match=f"^train.global_batch_size = {rows}: {ranks} ranks cannot share it in"):
            check_world(config, ranks)
