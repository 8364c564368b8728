"""Looking at an optimizer step of all ranks, without the steps before it being handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pilekit.errors import PilekitError
from pilekit.progress import Reached
from pilekit.stream.batch.build_batches import BatchBuilder, passed_over
from pilekit.stream.order.lane_grid import Grid, Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.lane import Place
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.record import Record


def before_step(
    share: Share, step: int, known: Sequence[tuple[int, Int64]], record: Record
) -> dict[int, tuple[Place, int]]:
    """For each lane of the step's column: a known place before the step, and how many samples lie between.

    known    (step, places of all lanes before it)
    record   of the rank, which knows its own lanes

    PilekitError if nothing before the step is known.
    """
    grid, own = share.grid, set(share.lanes().tolist())
    here = [] if record.batch % share.grad_accum else [(record.batch // share.grad_accum, record.places)]
    column = step % grid.columns
    begun = {}
    for lane in range(column, grid.lanes, grid.columns):
        usable = [(at, places) for at, places in [*known, *(here if lane in own else [])] if at <= step]
        if not usable:
            raise PilekitError(
                f"step {step} was made with other subsets or repeats, or lies before what is known of it; load a state "
                "from before it"
            )
        at, places = max(usable, key=lambda pair: pair[0])
        visits = len(range(column, step, grid.columns)) - len(range(column, at, grid.columns))
        begun[lane] = (Place(*places[lane].tolist()), visits * grid.per_visit)
    return begun


def given_to_step(
    source: LaneSource,
    builder: BatchBuilder,
    grid: Grid,
    step: int,
    begun: Mapping[int, tuple[Place, int]],
    reached: Reached | None = None,
) -> list[Any]:
    """What the lanes give to optimizer step `step`, for all ranks.

    begun     for each lane of the step's column where to begin to count, and how many samples it gives before the step
    reached   called now and then with how many of those samples are behind
    """
    found: list[Any] = []
    done, total = 0, sum(before for _, before in begun.values())

    def passed(count: int) -> None:
        nonlocal done
        done += count
        if reached is not None:
            reached(done, total)

    for lane in range(step % grid.columns, grid.lanes, grid.columns):
        place, before = begun[lane]
        reading = builder.lane(source, lane, place)
        try:
            passed_over(reading, before, passed)
            found += reading.give(grid.per_visit)
        finally:
            reading.close()
    return found
