"""The grid's partition against the definition: every sample of every step once, every lane with one worker."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.stream.order.lane_grid import Grid, Plan, Share, batch_sizes, default_rows
from pilekit.stream.read.sequential import default_grid
from tests.refusing import refused


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    rows = draw(st.integers(1, 24))
    plan: Plan = draw(st.sampled_from(["random", "sequential"]))
    return Grid(rows, draw(st.integers(1, 5)), rows * draw(st.integers(1, 6)), plan)


@st.composite
def topologies(draw: st.DrawFn) -> tuple[Grid, int, int]:
    grid = draw(grids())
    world_size = draw(st.sampled_from(grid.world_sizes()))
    return grid, world_size, draw(st.sampled_from(grid.accumulations(world_size)))


@given(topologies())
def test_a_step_takes_q_samples_from_every_lane_of_its_column(topology: tuple[Grid, int, int]) -> None:
    grid, world_size, grad_accum = topology
    shares = [grid.share(rank, world_size, grad_accum) for rank in range(world_size)]
    assert sorted(lane for share in shares for lane in share.lanes().tolist()) == list(range(grid.lanes))
    for step in range(2 * grid.columns):
        taken: Counter[int] = Counter()
        for share in shares:
            own = set(share.lanes().tolist())
            for batch in range(step * grad_accum, (step + 1) * grad_accum):
                lanes = share.read_by(batch).tolist()
                assert lanes == sorted(set(lanes))
                assert own.issuperset(lanes)
                assert len(lanes) * share.per_lane == share.batch_size
                taken.update(dict.fromkeys(lanes, share.per_lane))
        column = range(step % grid.columns, grid.lanes, grid.columns)
        assert taken == dict.fromkeys(column, grid.per_visit)
        assert sum(taken.values()) == grid.global_batch_size


@given(topologies(), st.integers(0, 30), st.integers(0, 100))
def test_every_lane_has_one_worker_from_any_batch_on(topology: tuple[Grid, int, int], asked: int, first: int) -> None:
    grid, world_size, grad_accum = topology
    share = grid.share(world_size - 1, world_size, grad_accum)
    active = share.workers(asked)
    if asked == 0:
        assert active == 0
        return
    assert 1 <= active <= asked

    def workers_of_lanes(count: int) -> int:
        found: dict[int, set[int]] = defaultdict(set)
        for batch in range(first, first + count * grad_accum * grid.columns):
            for lane in share.read_by(batch).tolist():
                found[lane].add((batch - first) % count)
        return max(map(len, found.values()))

    assert workers_of_lanes(active) == 1
    more = [
        count
        for count in range(active + 1, asked + 1)
        if workers_of_lanes(count) == 1 and count <= grad_accum * grid.columns
    ]
    assert not more, "a larger count would do"


@given(grids(), st.integers(1, 60), st.integers(1, 60))
def test_exactly_the_named_topologies_are_served(grid: Grid, world_size: int, grad_accum: int) -> None:
    if grid.plan == "random":
        fits = grid.rows % (world_size * grad_accum) == 0
    else:
        fits = grid.rows % world_size == 0 and grid.per_visit % grad_accum == 0
    if fits:
        assert grid.share(0, world_size, grad_accum) == Share(grid, 0, world_size, grad_accum)
        return
    with pytest.raises(PilekitError) as raised:
        grid.share(0, world_size, grad_accum)
    assert "\n" not in str(raised.value)
    if world_size not in grid.world_sizes():
        assert f"valid world sizes are {', '.join(map(str, grid.world_sizes()))}" in str(raised.value)
    else:
        assert f"valid are {', '.join(map(str, grid.accumulations(world_size)))}, " in str(raised.value)


def test_the_error_names_the_sizes_that_fit() -> None:
    refused(
        r"valid world sizes are 1, 2, 4, 8, 16, 32; other lanes give a new run another", Grid(32, 4, 96).share, 0, 3, 1
    )
    refused(r"valid are 1, 2, 4, 8, 16, 32, which are batch sizes 96, 48, 24, 12, 6, 3", Grid(32, 4, 96).share, 0, 1, 3)
    refused(r"5 rows of lanes cannot share a global batch size of 16; .* 1, 2, 4, 8, 16", Grid, 5, 1, 16)
    for batch, world_size, rows in [(1, 1, 1), (48, 1, 24), (64, 8, 32), (64, 16, 64), (97, 1, 1), (1024, 64, 256)]:
        assert default_rows(batch, world_size) == rows


@given(st.integers(1, 48), st.integers(1, 64), st.integers(1, 100))
def test_a_new_run_has_a_grid_that_its_own_sizes_fit(batch_size: int, world_size: int, grad_accum: int) -> None:
    whole, _ = batch_sizes(world_size, batch_size, grad_accum, None)
    rows = default_rows(whole, world_size, grad_accum)
    assert Grid(rows, 4, whole).share(0, world_size, grad_accum).batch_size == batch_size
    assert rows <= max(32, 4 * world_size, world_size * grad_accum)
    if default_rows(whole, 1) % (world_size * grad_accum) == 0:
        assert rows >= default_rows(whole, 1)


def test_lanes_of_whole_shards_have_a_shard_each() -> None:
    grids = {(30, 1): (1, 8), (30, 2): (2, 8), (30, 8): (8, 3), (30, 64): (64, 1), (1, 1): (1, 1)}
    for (shards, world_size), grid in grids.items():
        assert default_grid(shards, world_size) == grid


def test_the_three_sizes_follow_from_one_another() -> None:
    """If the sizes given fit G = batch_size x grad_accum x world_size, the others follow; otherwise it is an error."""
    numbers = [None, 1, 2, 3, 8]
    for world_size, batch_size, grad_accum, whole in product((1, 2, 4), numbers, numbers, [None, 1, 6, 8, 48]):
        fitting = [
            (b * a * world_size, a)
            for b, a in product(range(1, 50), repeat=2)
            if batch_size in (None, b) and grad_accum in (None, a) and whole in (None, b * a * world_size)
        ]
        try:
            found = batch_sizes(world_size, batch_size, grad_accum, whole)
        except PilekitError as error:
            assert not fitting
            assert "\n" not in str(error)
            assert "global batch size" in str(error)
        else:
            assert found in fitting
    assert batch_sizes(2, None, None, None) == (16, 1)
    assert batch_sizes(2, None, 4, None) == (64, 4)
    assert batch_sizes(2, None, None, 32) == (32, 1)
    assert batch_sizes(2, 4, None, 32) == (32, 4)
