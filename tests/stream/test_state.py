"""States as JSON: ranks are merged, wrong states are refused, and a DataLoader's worker has a state of its own."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pilekit.artifacts.sealed import _sum_of_fields
from pilekit.errors import PilekitError
from pilekit.stream.pile_stream import PileStream
from pilekit.stream.state import merge, read_state
from tests.refusing import refused
from tests.shards.making import flipped
from tests.stream.collecting import ALL, STEP, rows_of, run
from tests.stream.conftest import Corpora, Settings


def state_of(corpora: Corpora, rank: int, world_size: int, batches: int, **changes: Any) -> dict[str, Any]:
    """The state of a rank after `batches` batches, through JSON."""
    settings = {"lanes": (8, 2), "batch_size": 16 // world_size, "rank": rank, "world_size": world_size, **changes}
    stream = PileStream(corpora["few"].folder, tokenizer=None, **settings)
    for _ in islice(stream, batches):
        pass
    return dict(json.loads(json.dumps(stream.state_dict())))


@pytest.fixture(scope="module")
def good(corpora: Corpora) -> dict[str, Any]:
    return state_of(corpora, 1, 2, 5, grad_accum=2, batch_size=4)


def with_checksum(state: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**state, "sum": _sum_of_fields(state)}
    except TypeError:  # an integer of more than 64 bits: no state that was sealed has one
        return {**state, "sum": ""}


def test_states_of_all_ranks_merge_to_that_of_one(corpora: Corpora) -> None:
    parts = [state_of(corpora, rank, 4, 3) for rank in range(4)]
    merged, alone = merge(parts[::-1]), read_state(state_of(corpora, 0, 1, 3))
    assert merged.places().tolist() == alone.places().tolist()
    assert merged.counts == alone.counts
    assert (merged.rank, merged.step, merged.batch, merged.world_size) == (None, 3, 0, 4)
    assert read_state(merged.to_json()) == merge([merged.to_json()]) == merged


def test_a_hole_an_overlap_and_other_moments_are_refused(corpora: Corpora) -> None:
    states = [state_of(corpora, rank, 4, 3) for rank in range(4)]
    twice_or_missing = "a rank is missing or is there twice"
    for parts, message in (
        ([], "there are no states to merge"),
        (None, "there are no states to merge"),
        (states[:2] + states[3:], rf"of rank 0, 1, 3 of 4: {twice_or_missing}"),
        ([*states, states[1]], twice_or_missing),
        ([merge(states).to_json(), states[0]], twice_or_missing),
        ([*states[:3], state_of(corpora, 3, 4, 4)], "not of one moment of one run: step is 3 in one and 4 in the"),
        ([states[0], state_of(corpora, 1, 2, 3)], "world_size is 4 in one and 2 in the other"),
        ([*states[:3], state_of(corpora, 3, 4, 3, seed=1)], "fingerprint is"),
    ):
        refused(message, merge, parts)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
    st.booleans(),
    st.data(),
)
def test_any_value_in_the_place_of_another_is_read_or_refused(
    good: dict[str, Any], value: Any, sealed: bool, data: st.DataObject
) -> None:
    state = json.loads(json.dumps(good))
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


def test_a_missing_or_wrong_field_is_refused(good: dict[str, Any]) -> None:
    def turned(value: Any) -> Any:
        return {name: turned(value[name]) for name in reversed(value)} if isinstance(value, dict) else value

    def with_grid(**changes: Any) -> dict[str, Any]:
        return {"plan": {**good["plan"], "grid": {**good["plan"]["grid"], **changes}}}

    assert read_state(turned(good)) == read_state(good)
    for field in [*good, "plan.grid.rows", "plan.unit"]:
        state = json.loads(json.dumps(good))
        at, names = state, field.split(".")
        for name in names[:-1]:
            at = at[name]
        del at[names[-1]]
        if field not in ("worker", "pilekit"):  # they have defaults
            refused("state", read_state, state if field == "sum" else with_checksum(state))
    short = base64.b64encode(np.zeros(45, "<i8").tobytes()).decode()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"format": 7}, "is the state of a PileStream of format 7 from pilekit .* reads format 8; give what"),
        ({"format": "\x1b[31m"}, 'its "format" has a wrong value'),
        ({"kind": "\x1b[31m"}, "it is of another kind"),
        ({"lanes": short}, "its lanes and ranks do not fit its grid"),
        ({"lanes": "?" * 512}, "lanes"),
        ({"rank": 2}, "its lanes and ranks"),
        ({"step": -1}, "step"),
        (with_grid(plan="other"), r"its \"plan.grid.plan\" has a wrong value"),
        (with_grid(rows=5), "5 rows of lanes cannot share"),
        (with_grid(rows=3, global_batch_size=1 << 61), "global_batch_size"),
        ({"world_size": 1 << 62}, "4,611,686,018,427,387,904 ranks cannot share 8 rows"),
        ({"grad_accum": 3}, "cannot share 8 rows"),
        ({"batch": 2}, "its places are impossible"),
        ({"step": 1 << 60}, "step"),
        ({"counts": {**good["counts"], "rows": 1 << 60}}, "rows"),
    ]
    for change, message in changes:
        refused(message, read_state, with_checksum({**good, **change}))
    changed = {**good, "lanes": good["lanes"].replace("A", "B", 1)}
    for read in (read_state, lambda one: merge([one])):
        refused("the stream's state: is damaged .it does not match its sum.; give", read, changed)
    refused("it is not JSON", read_state, {**good, "step": 1 << 70})  # which no JSON here can hold
    refused("it is not JSON", read_state, {**good, "counts": np.zeros(2)})
    refused("it does not match its sum", read_state, {**good, "sum": np.zeros(2)})
    refused("it is of another kind", read_state, {**good, "kind": np.zeros(2)})
    refused("it is of another kind", read_state, [good])
    refused('it has no "kind": another version of pilekit wrote it, or', read_state, {"version": 7, "xxh3": ""})


PLACES = st.sampled_from([0, 1, 5, 10**6, 1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, -1, -(1 << 63)])


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
@settings_of(max_examples=40)
@given(data=st.data())
def test_a_sealed_state_with_any_place_is_resumed_or_refused(
    corpora: Corpora, settings: Settings, packing: str, data: st.DataObject
) -> None:
    """A checksum shows damage, and anyone can compute it. A negative place took rows without end."""
    chosen = {**settings, "packing": packing, "batch_size": 16}
    state = json.loads(run(corpora["mixed"].folder, chosen, batches=2)[1])
    places = np.frombuffer(base64.b64decode(state["lanes"]), "<i8").copy()
    for _ in range(data.draw(st.integers(1, 3))):
        places[data.draw(st.integers(0, len(places) - 1))] = data.draw(PLACES)
    stream = PileStream(corpora["mixed"].folder, **chosen)
    try:
        stream.load_state_dict(with_checksum({**state, "lanes": base64.b64encode(places.tobytes()).decode()}))
        assert sum(1 for _ in islice(stream, 4)) == 4
    except PilekitError as error:
        assert str(error).isprintable()


def test_any_flipped_bit_and_any_cut_is_refused_or_changes_nothing(good: dict[str, Any]) -> None:
    text = json.dumps(good).encode()
    state = read_state(good)
    for place in range(8 * len(text)):
        content = flipped(text, place // 8, 1 << place % 8)
        try:
            assert read_state(json.loads(content)) == state, place
        except PilekitError as error:
            assert re.fullmatch("the stream's state: is [^\n]*; give what state_dict.* returned", str(error))
        except ValueError:  # no JSON
            pass


# In a DataLoader's worker, for a loader that keeps its workers' states

Told = tuple[int, STEP, str, str]
"""A worker, its batch, and the stream's state in that worker before and after the batch."""


class Telling(IterableDataset[Told]):
    """A stream whose workers load their own states before they begin, and return them with each batch."""

    def __init__(self, stream: PileStream, states: dict[int, str] | None = None) -> None:
        self.stream, self.states = stream, states or {}

    def __iter__(self) -> Iterator[Told]:
        info = get_worker_info()
        if info.id in self.states:
            self.stream.load_state_dict(json.loads(self.states[info.id]))
        batches = iter(self.stream)
        before = json.dumps(self.stream.state_dict())
        for batch in batches:
            rows = rows_of(batch, self.stream.subset_names)
            after = json.dumps(self.stream.state_dict())
            yield info.id, rows, before, after
            before = after


def as_it_is(item: Any) -> Any:
    return item


def told(telling: Telling, workers: int, count: int) -> list[Told]:
    batches = iter(DataLoader(telling, batch_size=None, num_workers=workers, collate_fn=as_it_is))
    found = []
    for _ in range(count):
        try:
            found.append(next(batches))
        except StopIteration:
            break
    return found


def test_a_worker_resumes_where_its_own_state_says(corpora: Corpora, settings: Settings) -> None:
    given = {**settings, "batch_size": 16}
    whole, _ = run(corpora["mixed"].folder, given, batches=20)
    _, begun = run(corpora["mixed"].folder, given, batches=2)
    for asked, active, done, first, state in [(1, 1, 3, 0, None), (2, 2, 4, 0, None), (3, 2, 3, 2, begun)]:
        stream = PileStream(corpora["mixed"].folder, **given, outputs=ALL)
        if state is not None:
            stream.load_state_dict(json.loads(state))
        every = told(Telling(stream), asked, 7)
        assert [rows for _, rows, _, _ in every] == whole[first : first + 7]
        states = {worker: before for worker, _, before, _ in reversed(every)}
        states |= {worker: after for worker, _, _, after in every[:done]}
        fresh = PileStream(corpora["mixed"].folder, **given, outputs=ALL)
        rest = told(Telling(fresh, states), asked, 6)
        for worker in range(active):
            mine = [rows for index, rows in enumerate(whole[first:]) if index >= done and index % active == worker]
            found = [rows for told_by, rows, _, _ in rest if told_by == worker]
            assert found == mine[: len(found)] != []


def test_a_workers_state_fits_nowhere_else(corpora: Corpora, settings: Settings) -> None:
    def stream() -> PileStream:
        return PileStream(corpora["few"].folder, **settings, batch_size=16, outputs=ALL)

    def with_worker(part: list[int]) -> str:
        return json.dumps(with_checksum({**json.loads(one), "worker": part}))

    one = told(Telling(stream()), 2, 1)[0][3]
    refused("one worker", stream().load_state_dict, json.loads(one))
    refused("one worker", PileStream.merge_state_dicts, [json.loads(one)])
    for states, workers in [({1: one}, 2), ({0: one}, 1), ({0: with_worker([1, 2, 1])}, 2)]:
        with pytest.raises(PilekitError, match="that of another worker"):
            told(Telling(stream(), states), workers, 2)
    changed = json.dumps({**json.loads(one), "worker": [0, 2, 3]})  # other batches would be the next ones
    with pytest.raises(PilekitError, match="does not match its sum"):
        told(Telling(stream(), {0: changed}), 2, 2)


def test_a_worker_that_has_not_begun_has_no_state(corpora: Corpora, settings: Settings) -> None:
    stream: Any = PileStream(corpora["few"].folder, **settings, batch_size=16)
    loader = DataLoader(stream, batch_size=None, num_workers=1, worker_init_fn=lambda _: stream.state_dict() and None)
    with pytest.raises(PilekitError, match="only its own part"):
        next(iter(loader))
