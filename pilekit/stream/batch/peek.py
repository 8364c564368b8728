"""Computes the rows of one optimizer step, for all ranks, without handing out the steps before it."""

from __future__ import annotations

from collections.abc import Sequence

from pilekit.errors import PilekitError
from pilekit.progress import Reached
from pilekit.stream.batch.build_batches import BatchBuilder
from pilekit.stream.order.lane_grid import Grid
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.window import Place, RowRange


def rows_of_step(
    builder: BatchBuilder,
    grid: Grid,
    step: int,
    known: Sequence[tuple[int, Int64, set[int]]],
    reached: Reached | None = None,
) -> list[RowRange]:
    """The rows of optimizer step `step`, for all ranks.

    known     (a step, the places of all lanes before it, the lanes for which these places are right)
    reached   called now and then with the number of rows already passed before the step, and their total

    PilekitError if no place before the step is known.
    """
    column = range(step % grid.columns, grid.lanes, grid.columns)
    begun = {}
    for lane in column:
        usable = [(at, places) for at, places, lanes in known if at <= step and lane in lanes]
        if not usable:
            raise PilekitError(
                f"step {step} was made with other subsets or repeats, or lies before what is known of it; load a state "
                "from before it"
            )
        at, places = max(usable, key=lambda pair: pair[0])
        visits = len(range(column.start, step, grid.columns)) - len(range(column.start, at, grid.columns))
        begun[lane] = Place(*places[lane].tolist()), visits * grid.per_visit
    found: list[RowRange] = []
    done, total = 0, sum(before for _, before in begun.values())
    for number, (place, left) in begun.items():
        opened = builder.lane(number, place)
        try:
            while left > 0 and (passed := opened.skip(min(left, 64))):
                left, done = left - passed, done + passed
                if reached is not None:
                    reached(done, total)
            found += opened.give(grid.per_visit)
        finally:
            opened.close()
    return found
