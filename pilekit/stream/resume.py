"""What a state must be to resume in a stream, and what follows from it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pilekit.errors import PilekitError
from pilekit.stream.order.lane_grid import Grid, batch_sizes
from pilekit.stream.state import MAY_CHANGE, Counts, StreamState, merge, misfit, read_state

_SHOWN = {"name": "plan", "rows": "lanes' rows", "columns": "lanes' columns"}
"""What fields of a state's plan are called where that is not their name."""


def loaded_state(state: object, rank: int, world_size: int) -> tuple[StreamState, Counts]:
    """(the state, the counts that this rank resumes with) of one rank's state, a merged one, or all ranks' in a list.

    Rank 0 takes over the counts of all ranks together, so that a later sum is right. PilekitError for another rank's
    state alone.
    """
    if isinstance(state, Sequence) and not isinstance(state, str):
        loaded = merge(state)
        for part in map(read_state, state):
            if (part.rank, part.world_size) == (rank, world_size):
                return loaded, part.counts
    else:
        loaded = read_state(state)
    if loaded.rank is not None and loaded.world_size > 1:
        if (loaded.rank, loaded.world_size) == (rank, world_size):
            return loaded, loaded.counts
        raise PilekitError(
            f"the state is that of rank {loaded.rank} of {loaded.world_size}, and this is rank {rank} of {world_size}; "
            f"give a list with the states of all {loaded.world_size} ranks, or what merge_state_dicts makes of them"
        )
    return loaded, loaded.counts if rank == 0 else Counts()


def changed_fields(loaded: StreamState, own: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """What the fields were that have changed since the state was taken; PilekitError for one that must not."""
    theirs = loaded.fingerprint
    changed = [field for field in {**own, **theirs} if theirs.get(field) != own.get(field)]
    for field in changed:
        if strict or field not in MAY_CHANGE:
            raise misfit(field, theirs.get(field), own.get(field))
    return {field: theirs.get(field) for field in changed}


def grid_for(loaded: StreamState, wanted: Mapping[str, Any]) -> Grid:
    """The state's grid; PilekitError if its plan differs in a field of `wanted`, which the stream was asked for."""
    for field, value in wanted.items():
        if getattr(loaded.plan, field) != value:
            raise misfit(_SHOWN.get(field, field), getattr(loaded.plan, field), value)
    return loaded.plan.grid()


def accumulation_for(
    loaded: StreamState, grid: Grid, world_size: int, batch_size: int | None, grad_accum: int | None
) -> int:
    """Batches per step on this world size: as given, or what follows from the state's global batch and what is given.

    If both are given and do not make the global batch, grad_accum counts, because training loops count by it. If
    neither is given, batches stay as large as they were, or become smaller. PilekitError where nothing fits, and for a
    state inside a step that was to be made in other parts.
    """
    whole = grid.global_batch_size
    if batch_size is None and grad_accum is None:
        before = whole // (loaded.world_size * loaded.grad_accum)
        valid = grid.accumulations(world_size) if world_size in grid.world_sizes() else [1]
        grad_accum = next((a for a in valid if whole // (world_size * a) <= before), valid[-1])
    elif grad_accum is not None and (batch_size or 0) * grad_accum * world_size != whole:
        batch_size = None
    accumulation = batch_sizes(world_size, batch_size, grad_accum, whole)[1]
    if loaded.batch and (loaded.world_size, loaded.grad_accum) != (world_size, accumulation):
        raise PilekitError(
            f"the state was taken inside step {loaded.step}, after {loaded.batch} of {loaded.grad_accum} batches: it "
            f"resumes only with world_size={loaded.world_size} and grad_accum={loaded.grad_accum}, not {world_size} "
            f"and {accumulation}; use those, or a state taken between steps"
        )
    return accumulation
