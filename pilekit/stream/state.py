"""The state of a stream as JSON: the places of its lanes, and the fingerprint of the stream.

A lane's place is three int64, (position, document, offset in window): the unit of the shared sequence, the number of
documents before the place in that unit's order, and the number of rows already given of the window that begins there
(with "concat": the number of tokens of the document). Under a schedule of weights a lane draws from each subset's own
sequence, and its place is longer: see `Place.drawn`, and plain_order.py for the time before the schedule's first entry.
No token is stored, and nothing grows with the run. All lanes of a grid are one int64 array, because nested dicts would
cost more time than making small batches.

A rank's state holds all lanes, but only the lanes of its own rows are current. `merge` joins the states of all ranks.
A state is a sealed dict (artifacts/sealed.py), because a changed place would be a valid number too. The functions at
the end check whether a state fits a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import numpy as np

from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError, shortened
from pilekit.stream.finite_pass import Passes
from pilekit.stream.order.lane_grid import Grid, Positive, Share, batch_sizes
from pilekit.stream.settings import MOST_STEPS

STATE = SealedKind("the state of a PileStream", 8, "give what state_dict() of this pilekit returned")
_GIVEN = "the stream's state"

MAY_CHANGE = ("subsets", "repeats")
"""Fields of the fingerprint that may differ with `strict=False`."""

_SHOWN = {
    "rows": "lanes' rows",
    "columns": "lanes' columns",
    "eos_id": "end-of-document token (eos_id)",
    "pad_id": "padding token (pad_id)",
}
"""Names of a state's fields in messages, where they differ from the field's name."""

_MOST_PLACE = 1 << 62
"""No run has more. Up to it, the numbers of the next units fit into 64 bits."""

_Steps = Annotated[int, msgspec.Meta(ge=0, le=MOST_STEPS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class StatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The grid and the units of a run, and its passes if it is finite.

    units   documents in the units of each subset, under a schedule of weights
    """

    grid: Grid
    passes: Passes | None
    unit: Positive
    window: Positive
    per_epoch: Positive
    units: dict[str, Positive] = {}

    @property
    def numbers(self) -> int:
        """Of a lane's place."""
        return 3 + (1 + 3 * len(self.units) if self.units else 0)


class Counts(msgspec.Struct, frozen=True):
    """Counts of the batches handed out. subsets: [documents, tokens] by subset name."""

    rows: _Count = 0
    skipped: _Count = 0
    subsets: dict[str, tuple[_Count, _Count]] = {}


class StreamState(SealedHeader, frozen=True, kw_only=True):
    """The state of one rank, or of all ranks.

    step, batch   optimizer steps done, and batches done of the next step
    rank          the rank of this state; None: of all ranks
    worker        the `WorkerPart` of the DataLoader's worker whose state this is; None: of no single worker
    lanes         the places, int64 [L, n], little-endian
    changes       earlier values of `subsets`, `repeats` and scheduled weights, and the step until which they held
    """

    format: int = STATE.format
    fingerprint: dict[str, Any]
    plan: StatePlan
    step: _Steps
    batch: _Steps
    rank: _Count | None
    worker: tuple[_Count, Positive, _Count] | None = None
    world_size: Positive
    grad_accum: Positive
    lanes: bytes
    counts: Counts
    changes: list[dict[str, Any]]

    def places(self) -> Int64:
        """The places of all lanes, int64 [L, n]."""
        return np.frombuffer(self.lanes, "<i8").astype(np.int64).reshape(-1, self.plan.numbers)

    def to_json(self) -> dict[str, Any]:
        """A sealed dict of JSON types."""
        return STATE.sealed(self)


def read_state(state: object, *, of_worker: bool = False) -> StreamState:
    """Read what `to_json` made; PilekitError if it is not a state, is damaged, or has another format.

    of_worker   whether it may be the state of a DataLoader's worker
    """
    opened = STATE.open_dict(_GIVEN, state, StreamState)
    if opened.worker is not None and not of_worker:
        raise PilekitError(
            "this is the state of one worker of a DataLoader, which knows only its own part; load the loader's state "
            "into the StatefulDataLoader that it was taken from, or use stream.loader() and its state"
        )
    try:
        opened.plan.grid.share(0, opened.world_size, opened.grad_accum)
        if (
            len(opened.lanes) != 8 * opened.plan.numbers * opened.plan.grid.lanes
            or (opened.rank or 0) >= opened.world_size
        ):
            raise ValueError("its lanes and ranks do not fit its grid")
        places = opened.places()
        subsets = len(opened.plan.units)
        numbers = 4 + 2 * subsets  # the rest are float64
        least = np.where(np.isin(np.arange(opened.plan.numbers), range(4, 4 + subsets)), -_MOST_PLACE, 0)
        most = places[:, :numbers].max()
        if (places < least).any() or most > _MOST_PLACE or opened.batch >= opened.grad_accum:
            raise ValueError("its places are impossible")
        if not np.isfinite(places[:, numbers:].view(np.float64)).all():
            raise ValueError("its turns are impossible")
    except ValueError as error:
        raise STATE.damaged(_GIVEN, error) from error
    return opened


def merge(states: Sequence[object]) -> StreamState:
    """Join the states of all ranks: each lane's place comes from the rank that owns it, and counts are added up.

    PilekitError if a rank is missing or occurs twice, or if the states are of different streams or moments.
    """
    if not isinstance(states, Sequence) or isinstance(states, str) or not states:
        raise PilekitError("there are no states to merge; give a list with the state_dict() of every rank")
    parts = [read_state(state) for state in states]
    first = parts[0]
    for name in ("fingerprint", "plan", "world_size", "grad_accum", "step", "batch", "changes"):
        for part in parts:
            if getattr(part, name) != getattr(first, name):
                raise PilekitError(
                    f"the states of ranks {first.rank} and {part.rank} are not of one moment of one run: {name} is "
                    f"{_shown(getattr(first, name))} in one and {_shown(getattr(part, name))} in the other; give the "
                    "states that all ranks took after the same batch"
                )
    ranks = [rank for part in parts for rank in (range(first.world_size) if part.rank is None else [part.rank])]
    if sorted(ranks) != list(range(first.world_size)):
        raise PilekitError(
            f"the states are of rank {', '.join(map(str, ranks[:20]))} of {first.world_size}: a rank is missing or is "
            "there twice; give each rank's state once, or one merged state alone"
        )
    places, grid = first.places(), first.plan.grid
    subsets: dict[str, tuple[int, int]] = {}
    for part in parts:
        if part.rank is not None:
            lanes_of_rank = Share(grid, part.rank, part.world_size, part.grad_accum).lanes()
            places[lanes_of_rank] = part.places()[lanes_of_rank]
        for name, (documents, tokens) in part.counts.subsets.items():
            more_documents, more_tokens = subsets.get(name, (0, 0))
            subsets[name] = (documents + more_documents, tokens + more_tokens)
    counts = Counts(
        sum(part.counts.rows for part in parts),
        sum(part.counts.skipped for part in parts),
        dict(sorted(subsets.items())),
    )
    return msgspec.structs.replace(first, rank=None, lanes=places.astype("<i8", copy=False).tobytes(), counts=counts)


def loaded_state(state: object, rank: int, world_size: int, *, in_worker: bool) -> tuple[StreamState, Counts]:
    """(the state, this rank's counts) from one rank's state, a merged state, or a list of all ranks' states.

    With `in_worker`, also from the state of a DataLoader's worker.

    If the world size changed, rank 0 takes over the counts of all ranks, so that a later sum is right. PilekitError for
    only another rank's state.
    """
    if isinstance(state, Sequence) and not isinstance(state, str):
        loaded = merge(state)
        for part in map(read_state, state):
            if (part.rank, part.world_size) == (rank, world_size):
                return loaded, part.counts
    else:
        loaded = read_state(state, of_worker=in_worker)
    if loaded.rank is not None and loaded.world_size > 1:
        if (loaded.rank, loaded.world_size) == (rank, world_size):
            return loaded, loaded.counts
        raise PilekitError(
            f"the state is that of rank {loaded.rank} of {loaded.world_size}, and this is rank {rank} of {world_size}; "
            f"give a list with the states of all {loaded.world_size} ranks, or what merge_state_dicts makes of them"
        )
    return loaded, loaded.counts if rank == 0 else Counts()


def changed_fields(loaded: StreamState, fingerprint: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """The state's values of the fields that have changed since; PilekitError if another field changed."""
    earlier = loaded.fingerprint
    changed = [field for field in {**fingerprint, **earlier} if earlier.get(field) != fingerprint.get(field)]
    for field in changed:
        if field == "weights":  # they may change at later steps: order/schedule.py
            continue
        by_step = "weights" in fingerprint or "weights" in earlier
        if strict or by_step or field not in MAY_CHANGE:
            raise _misfit(field, earlier.get(field), fingerprint.get(field), by_step=by_step)
    return {field: earlier.get(field) for field in changed if field != "weights"}


def grid_for(loaded: StreamState, stream_settings: Mapping[str, Any]) -> Grid:
    """The state's grid; PilekitError if the state's plan differs from the settings of the stream."""
    plan = loaded.plan
    passes = {"epochs": None} if plan.passes is None else asdict(plan.passes)
    theirs = {**asdict(plan.grid), **passes, "window": plan.window}
    for field, value in stream_settings.items():
        if theirs.get(field) != value:
            raise _misfit(field, theirs.get(field), value)
    return plan.grid


def accumulation_for(
    loaded: StreamState, grid: Grid, world_size: int, batch_size: int | None, grad_accum: int | None
) -> int:
    """Batches per step on this world size, from the state's global batch and the sizes given.

    If both sizes are given and do not make the global batch, grad_accum wins, because training loops count by it. If
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
            f"resumes only with a world size of {loaded.world_size} and a grad_accum of {loaded.grad_accum}, not "
            f"{world_size} and {accumulation}; use those, or a state taken between steps"
        )
    return accumulation


def _misfit(field: str, in_state: Any, in_stream: Any, *, by_step: bool = False) -> PilekitError:
    """The error for a state that does not fit the stream; `by_step`: one of them has weights by step."""
    if field == "special_tokens" and isinstance(in_state, dict):
        field = next(name for name in in_stream if in_state.get(name) != in_stream[name])
        in_state, in_stream = in_state.get(field), in_stream[field]
    remedy = "use the settings and files of the run that wrote it, or start without the state"
    if field in MAY_CHANGE and by_step:
        remedy = "keep subsets, repeats and weights as they were, and add weights by step for later steps"
    elif field in MAY_CHANGE:
        remedy += ", or load it without `strict` to change that from here on"
    return PilekitError(
        f"the stream's state does not fit: its {_SHOWN.get(field, field)} is {_shown(in_state)}, here it is "
        f"{_shown(in_stream)}; {remedy}"
    )


def _shown(value: Any) -> str:
    return shortened(msgspec.json.encode(value, enc_hook=repr).decode(), 200)
