"""Where a stream stands: the places of its lanes, and the fingerprint that says which stream they are places of.

A lane's place is three int64, (position, document, offset in window): the unit of the shared sequence; how many
documents of that unit's order are behind it; and how many rows of the window that begins there were given, or, with
"concat", how many tokens of the document there. No token is stored, and nothing grows with the run. All lanes of a grid
are one int64 array, because handling nested dicts would cost more than making small batches does.

A rank's record (record.py) holds all lanes, of which those of its own rows are current; states of all ranks merge into
one by taking from each its own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import orjson
import xxhash

from pilekit.errors import PilekitError, visible
from pilekit.stream.order.lane_grid import MOST_SAMPLES, Grid, Plan, Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.record import Record
from pilekit.stream.worker_part import refuse_worker_state

STATE_VERSION = 4

MAY_CHANGE = ("subsets", "repeats")
"""Fields of the fingerprint that `strict=False` lets differ."""


def to_json(
    record: Record,
    share: Share,
    names: Sequence[str],
    *,
    fingerprint: Mapping[str, Any],
    plan: Mapping[str, Any],
    changes: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The state of a rank as a small dict of JSON types, whatever the place."""
    step, batch = divmod(record.batch, share.grad_accum)
    used = np.flatnonzero(record.documents | record.tokens).tolist()
    state = {
        "version": STATE_VERSION,
        "fingerprint": dict(fingerprint),
        "plan": dict(plan),
        "step": step,
        "batch": batch,
        "rank": share.rank,
        "world_size": share.world_size,
        "grad_accum": share.grad_accum,
        "lanes": base64.b64encode(record.places.astype("<i8", copy=False).tobytes()).decode(),
        "counts": {
            "rows": record.rows,
            "skipped": record.skipped,
            "subsets": {names[i]: [int(record.documents[i]), int(record.tokens[i])] for i in used},
        },
        "changes": [dict(change) for change in changes],
    }
    return with_checksum(state)


@dataclass(frozen=True)
class Loaded:
    """A state that was read and found whole.

    places        int64 [L, 3]
    step, batch   optimizer steps done, and batches of the next one
    counts        rows, skipped, and {subset name: [documents, tokens]}
    """

    plan: dict[str, Any]
    fingerprint: dict[str, Any]
    places: Int64
    step: int
    batch: int
    rank: int | None
    world_size: int
    grad_accum: int
    counts: dict[str, Any]
    changes: list[dict[str, Any]]


def with_checksum(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with the checksum of its other fields.

    Another unit size or place is as good a number as the right one, so only a checksum finds a damaged state. It guards
    against slips, not against malice.
    """
    return {**state, "xxh3": _checksum(state)}


def _checksum(state: Mapping[str, Any]) -> str | None:
    """Of the JSON of all fields but the checksum, 32 hexadecimal digits; None for fields that are not JSON."""
    fields = {name: value for name, value in state.items() if name != "xxh3"}
    try:
        return xxhash.xxh3_128_hexdigest(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS))
    except TypeError:
        return None


def read_state(state: object) -> Loaded:
    """The parts of a state made by `to_json` or `merge`; PilekitError if it is none, incomplete or contradictory."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise PilekitError("not the state of a PileStream: it has no version; give what state_dict() returned")
    refuse_worker_state(state)
    if state["version"] != STATE_VERSION:
        raise PilekitError(
            f"the stream's state has version {visible(str(state['version']), 20)}, and this pilekit reads version "
            f"{STATE_VERSION}; resume with the pilekit that wrote it"
        )
    if state.get("xxh3") != _checksum(state):
        raise PilekitError(
            "the stream's state was changed or damaged: its checksum does not fit; give what state_dict() gave"
        )
    try:
        plan = dict(state["plan"])
        grid = grid_of(plan)
        for name in ("unit", "window", "per_epoch"):
            _count(plan[name], 1)
        if grid.finite:
            _count(plan["epochs"], 1)
            _count(plan["epoch"])
        places = np.frombuffer(base64.b64decode(state["lanes"], validate=True), "<i8").astype(np.int64).reshape(-1, 3)
        counts = dict(state["counts"])
        counts = {
            "rows": _count(counts["rows"]),
            "skipped": _count(counts["skipped"]),
            "subsets": {
                str(name): [_count(documents), _count(tokens)]
                for name, (documents, tokens) in dict(counts["subsets"]).items()
            },
        }
        loaded = Loaded(
            plan=plan,
            fingerprint=dict(state["fingerprint"]),
            places=places,
            step=_count(state["step"]),
            batch=_count(state["batch"]),
            rank=None if state["rank"] is None else _count(state["rank"]),
            world_size=_count(state["world_size"], 1),
            grad_accum=_count(state["grad_accum"], 1),
            counts=counts,
            changes=[dict(change) for change in state["changes"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PilekitError(
            f"the stream's state is incomplete or damaged ({visible(repr(error), 200)}); give what state_dict() gave"
        ) from error
    rank = loaded.rank or 0
    if (
        len(places) != grid.lanes
        or (places < 0).any()
        or rank >= loaded.world_size
        or loaded.batch >= loaded.grad_accum
    ):
        raise PilekitError(
            f"the stream's state contradicts itself: {len(places)} lanes of {grid.lanes}, rank {rank} of "
            f"{loaded.world_size}, batch {loaded.batch} of {loaded.grad_accum}; give what state_dict() returned"
        )
    return loaded


def grid_of(plan: Mapping[str, Any]) -> Grid:
    """The grid that a state's plan describes."""
    rows, columns, batch = (_count(plan[name], 1) for name in ("rows", "columns", "global_batch_size"))
    if batch > MOST_SAMPLES:
        raise ValueError(f"global_batch_size={batch}")
    if plan["name"] not in get_args(Plan):
        raise ValueError(f"{plan['name']!r} is no plan")
    return Grid(rows, columns, batch, plan["name"], finite="epochs" in plan)


def _count(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 62:
        raise ValueError(f"{value!r} is no count")
    return value


def merge(states: Sequence[object]) -> dict[str, Any]:
    """One state from those of all ranks: each lane's place from the rank that owns it, counts added up.

    PilekitError if a rank is missing or there twice, and if they are of different streams or moments.
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
    flat = [rank for part in parts for rank in (range(first.world_size) if part.rank is None else [part.rank])]
    if twice := sorted({rank for rank in flat if flat.count(rank) > 1}):
        raise PilekitError(
            f"the states overlap: rank{_listed(twice)} of {first.world_size} is there more than once; give each rank's "
            "state once, or one merged state alone"
        )
    if missing := sorted(set(range(first.world_size)) - set(flat)):
        raise PilekitError(
            f"the states have a hole: rank{_listed(missing)} of {first.world_size} is missing; give the states of all "
            f"{first.world_size} ranks"
        )
    grid = grid_of(first.plan)
    places = first.places.copy()
    subsets: dict[str, list[int]] = {}
    for part in parts:
        if part.rank is not None:
            own = Share(grid, part.rank, part.world_size, part.grad_accum).lanes()
            places[own] = part.places[own]
        for name, (documents, tokens) in part.counts["subsets"].items():
            known = subsets.get(name, [0, 0])
            subsets[name] = [known[0] + documents, known[1] + tokens]
    source = states[0]
    assert isinstance(source, Mapping)
    merged = {
        **source,
        "rank": None,
        "lanes": base64.b64encode(places.astype("<i8", copy=False).tobytes()).decode(),
        "counts": {
            "rows": sum(part.counts["rows"] for part in parts),
            "skipped": sum(part.counts["skipped"] for part in parts),
            "subsets": dict(sorted(subsets.items())),
        },
    }
    return with_checksum(merged)


def differing(theirs: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The fields of the fingerprint in which a state and a stream differ."""
    return [field for field in {**own, **theirs} if theirs.get(field) != own.get(field)]


def misfit(field: str, theirs: Any, own: Any) -> PilekitError:
    """What to raise of a state that does not fit the stream."""
    more = ", or load it with strict=False to change that from here on" if field in MAY_CHANGE else ""
    return PilekitError(
        f"the stream's state does not fit: its {field} is {_shown(theirs)}, here it is {_shown(own)}; use the settings "
        f"and files of the run that wrote it, or start without the state{more}"
    )


def _shown(value: Any) -> str:
    return visible(orjson.dumps(value, default=repr).decode(), 200)


def _listed(ranks: list[int]) -> str:
    return f"{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:20]))}{', …' if len(ranks) > 20 else ''}"
