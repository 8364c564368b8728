"""States: batches' changes are recorded, written as JSON and read, and ranks merged; anything else is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.stream.order.lane_grid import Grid
from pilekit.stream.record import HandedOut, Record, batch_state
from pilekit.stream.state import StatePlan, _checksum, merge, misfit, read_state, state_from

NAMES = ("A", "B", "C")


def record(lanes: int, batch: int = 0) -> Record:
    return Record(np.zeros((lanes, 3), np.int64), batch, np.zeros(3, np.int64), np.zeros(3, np.int64))


def plan(grid: Grid) -> StatePlan:
    return StatePlan(
        name=grid.plan,
        rows=grid.rows,
        columns=grid.columns,
        global_batch_size=grid.global_batch_size,
        unit=3,
        window=16,
        per_epoch=100,
    )


def state_of(
    grid: Grid, rank: int, world_size: int, grad_accum: int, batches: int, fingerprint: Any = None
) -> dict[str, Any]:
    """The state of a rank after `batches` batches: each visit moves its lanes one position on; through JSON."""
    share = grid.share(rank, world_size, grad_accum)
    own = record(grid.lanes)
    for number in range(batches):
        lanes = share.read_by(number)
        places = own.places[lanes] + np.array([1, 0, 0])
        counted = np.array([rank % 3]), np.array([2]), np.array([30])
        own.add(batch_state(number, lanes, places, len(lanes), 1, *counted))
    state = state_from(own, share, NAMES, fingerprint=fingerprint or {"seed": 0}, plan=plan(grid), changes=[])
    return dict(json.loads(json.dumps(state.to_json())))


def with_checksum(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "xxh3": _checksum(state)}


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=10),
            st.integers(0, 2**40),
            st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 9), st.integers(0, 999)), max_size=3),
            st.integers(0, 50),
            st.integers(0, 5),
        ),
        max_size=8,
    )
)
def test_a_record_is_what_its_batches_said(batches: list[Any]) -> None:
    found = record(10, 4)
    places, documents, tokens, rows, skipped = [[0, 0, 0] for _ in range(10)], [0] * 3, [0] * 3, 0, 0
    for number, (lanes, base, subsets, more_rows, more_skipped) in enumerate(batches, 4):
        after = np.array([[base + lane, base, lane] for lane in lanes])
        ids = np.array(list(subsets), np.int64)
        counted = np.array(list(subsets.values()), np.int64).reshape(-1, 2)
        found.add(
            batch_state(number, np.array(lanes), after, more_rows, more_skipped, ids, counted[:, 0], counted[:, 1])
        )
        for lane in lanes:
            places[lane] = [base + lane, base, lane]
        for subset, (more_documents, more_tokens) in subsets.items():
            documents[subset] += more_documents
            tokens[subset] += more_tokens
        rows, skipped = rows + more_rows, skipped + more_skipped
    assert found.places.tolist() == places
    assert (found.documents.tolist(), found.tokens.tolist()) == (documents, tokens)
    assert (found.rows, found.skipped, found.batch) == (rows, skipped, 4 + len(batches))


def test_batches_are_recorded_in_order_and_once() -> None:
    none = np.zeros(0, np.int64)
    first = batch_state(0, np.array([1]), np.array([[5, 0, 0]]), 1, 0, none, none, none)
    handed_out = HandedOut(record(4), None)
    handed_out.iterated(first)
    handed_out.advance(first)  # it was counted by iterating: from here on only `advance` counts
    handed_out.iterated(first)
    assert handed_out.record.batch == 1
    for number in (0, 2):
        with pytest.raises(PilekitError, match=f"given batch {number} of this run, but batch 1 is the next"):
            handed_out.advance(np.concatenate(([number], first[1:])))
    assert handed_out.record.places.tolist()[1] == [5, 0, 0]


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(0, 7))
def test_states_of_all_ranks_merge_to_that_of_one(world_size: int, grad_accum: int, steps: int) -> None:
    grid = Grid(32, 3, 64)
    parts = [state_of(grid, rank, world_size, grad_accum, steps * grad_accum) for rank in range(world_size)]
    merged = merge(parts[::-1])
    alone = read_state(state_of(grid, 0, 1, 1, steps))
    assert merged.places().tolist() == alone.places().tolist()
    assert (merged.rank, merged.step, merged.batch, merged.world_size) == (None, steps, 0, world_size)
    documents = sum(documents for documents, _ in merged.counts.subsets.values())
    assert documents == 2 * steps * grad_accum * world_size
    assert read_state(merged.to_json()) == merge([merged.to_json()]) == merged


def test_a_hole_an_overlap_and_other_moments_are_refused() -> None:
    grid = Grid(8, 2, 16)
    states = [state_of(grid, rank, 4, 1, 3) for rank in range(4)]
    twice_or_missing = "a rank is missing or is there twice"
    cases: list[tuple[Any, str]] = [
        ([], "there are no states to merge"),
        (None, "there are no states to merge"),
        (states[:2] + states[3:], rf"of rank 0, 1, 3 of 4: {twice_or_missing}"),
        ([*states, states[1]], twice_or_missing),
        ([merge(states).to_json(), states[0]], twice_or_missing),
        ([*states[:3], state_of(grid, 3, 4, 1, 4)], "not of one moment of one run: step is 3 in one and 4 in the"),
        ([states[0], state_of(grid, 1, 2, 1, 3)], "world_size is 4 in one and 2 in the other"),
        ([*states[:3], state_of(grid, 3, 4, 1, 3, {"seed": 1})], "fingerprint is"),
    ]
    for parts, message in cases:
        with pytest.raises(PilekitError, match=message) as raised:
            merge(parts)
        assert "\n" not in str(raised.value)


GOOD = state_of(Grid(8, 2, 16), 1, 2, 2, 5)


def test_a_state_reads_back_in_any_order_of_fields() -> None:
    def turned(value: Any) -> Any:
        return {name: turned(value[name]) for name in reversed(value)} if isinstance(value, dict) else value

    loaded = read_state(GOOD)
    assert (loaded.step, loaded.batch, loaded.rank, loaded.world_size, loaded.grad_accum) == (2, 1, 1, 2, 2)
    assert loaded.places().shape == (16, 3)
    assert msgspec.to_builtins(loaded.counts) == {"rows": 10, "skipped": 5, "subsets": {"B": (10, 150)}}
    assert loaded.plan == plan(Grid(8, 2, 16))
    assert read_state(turned(GOOD)) == loaded


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
    st.booleans(),
    st.data(),
)
def test_any_value_in_the_place_of_another_is_read_or_refused(value: Any, sealed: bool, data: st.DataObject) -> None:
    state = json.loads(json.dumps(GOOD))
    at = state
    while True:
        key = data.draw(st.sampled_from(sorted(at)))
        if not isinstance(at[key], dict) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    before, at[key] = at[key], value
    try:
        read_state(with_checksum(state) if sealed else state)
        assert sealed or before == value
    except PilekitError as error:
        assert "\n" not in str(error)


def test_a_missing_or_wrong_field_is_refused() -> None:
    for field in [*GOOD, "plan.rows", "plan.unit", "counts"]:
        state = json.loads(json.dumps(GOOD))
        at, names = state, field.split(".")
        for name in names[:-1]:
            at = at[name]
        del at[names[-1]]
        with pytest.raises(PilekitError, match="state"):
            read_state(state if field == "xxh3" else with_checksum(state))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"version": 1}, "has version 1, and this pilekit reads version 5"),
        ({"version": "\x1b[31m"}, r"version \\x1b\[31m"),
        (
            {"lanes": base64.b64encode(np.zeros(45, "<i8").tobytes()).decode()},
            "its lanes and ranks do not fit its grid",
        ),
        ({"lanes": "?" * 512}, "lanes"),
        ({"rank": 2}, "its lanes and ranks"),
        ({"step": -1}, "step"),
        ({"plan": {**GOOD["plan"], "name": "other"}}, "other"),
        ({"plan": {**GOOD["plan"], "rows": 5}}, "5 rows do not divide"),
        ({"plan": {**GOOD["plan"], "rows": 3, "global_batch_size": 1 << 61}}, "global_batch_size"),
    ]
    for change, message in changes:
        with pytest.raises(PilekitError, match=message) as raised:
            read_state(with_checksum({**GOOD, **change}))
        assert not {"\n", "\x1b"} & set(str(raised.value))
    changed = {**GOOD, "lanes": GOOD["lanes"].replace("A", "B", 1)}
    for read in (read_state, lambda one: merge([one])):
        with pytest.raises(PilekitError, match="state was changed or damaged: its checksum"):
            read(changed)


def test_a_misfit_names_field_and_remedy() -> None:
    assert str(misfit("seed", 1, 2)).endswith("or start without the state")
    assert "its seed is 1, here it is 2" in str(misfit("seed", 1, 2))
    assert "strict=False" in str(misfit("repeats", {}, {"ArXiv": 2.0}))
    assert "\x1b" not in str(misfit("seed", "\x1b[31m", 2))
