"""Checks that a state fits a stream, and takes the stream's counts, grid and accumulation from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pilekit.errors import PilekitError
from pilekit.stream.order.lane_grid import Grid, batch_sizes
from pilekit.stream.state import MAY_CHANGE, Counts, StreamState, merge, misfit, read_state

_SHOWN = {"name": "plan", "rows": "lanes' rows", "columns": "lanes' columns"}
"""Names for messages of fields of a state's plan, where they differ from the field's name."""


def loaded_state(state: object, rank: int, world_size: int) -> tuple[StreamState, Counts]:
    """(the state, this rank's counts) from one rank's state, a merged state, or a list of all ranks' states.

    If the world size changed, rank 0 takes over the counts of all ranks, so that a later sum is right. PilekitError for
    the state of another rank alone.
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
    """The state's values of the fields that have changed since; PilekitError if a field changed that must not."""
    theirs = loaded.fingerprint
    changed = [field for field in {**own, **theirs} if theirs.get(field) != own.get(field)]
    for field in changed:
        if strict or field not in MAY_CHANGE:
            raise misfit(field, theirs.get(field), own.get(field))
    return {field: theirs.get(field) for field in changed}


def grid_for(loaded: StreamState, wanted: Mapping[str, Any]) -> Grid:
    """The state's grid; PilekitError if the state's plan differs from `wanted`, the stream's own arguments."""
    for field, value in wanted.items():
        if getattr(loaded.plan, field) != value:
            raise misfit(_SHOWN.get(field, field), getattr(loaded.plan, field), value)
    return loaded.plan.grid()


def accumulation_for(
    loaded: StreamState, grid: Grid, world_size: int, batch_size: int | None, grad_accum: int | None
) -> int:
    """Batches per step on this world size, from the state's global batch and the sizes given.

    If both sizes are given and do not make the global batch, grad_accum counts, because training loops count by it. If
    neither is given, batches keep their size or become smaller. PilekitError if nothing fits, and if the state was
    taken inside a step that other ranks or another accumulation divided differently.
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
