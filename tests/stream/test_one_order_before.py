"""Weights by step after one order of all documents: the reference's steps, whole epochs, and what is refused."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pilekit import PileStream
from tests.refusing import refused
from tests.stream.collecting import counted, no_brown_fox, run, run_ranks, steps_of
from tests.stream.conftest import PACKINGS, Corpora, Settings
from tests.stream.reference import Encoder
from tests.stream.schedule_reference import Entries, Mixing, wanted_steps

WIKIPEDIA = "Wikipedia (en)"
SUBSETS = ("ArXiv", "Github", "Pile-CC", WIKIPEDIA)
BEGIN = 9
ENTRIES: Entries = [
    (BEGIN, {"Pile-CC": 3, "Github": 1, WIKIPEDIA: 1}),
    (16, {"Pile-CC": 1, WIKIPEDIA: 2.5, "ArXiv": 0.2}),
]
STEPS = 32


@pytest.mark.parametrize(("packing", "window"), list(product(PACKINGS, [3, 16])))
def test_steps_are_the_references_on_every_topology(
    corpora: Corpora, settings: Settings, encode: Encoder, packing: str, window: int
) -> None:
    """The stops are before the change, at it, inside windows that are open then, and later."""
    wanted = wanted_steps(corpora, encode, Mixing(ENTRIES, 3), STEPS, packing=packing, window=window)
    changes = {**settings, "packing": packing, "window": window, "weights": ENTRIES, "ramp": 3}
    states, step = None, 0
    for world_size, grad_accum, workers, count in [
        (1, 2, 2, 7),
        (2, 2, 0, 2),
        (4, 1, 0, 1),
        (1, 4, 3, 9),
        (2, 1, 0, 13),
    ]:
        sizes = {**changes, "grad_accum": grad_accum, "batch_size": 16 // world_size // grad_accum}
        ranks, saved = run_ranks(
            world_size, corpora["mixed"].folder, sizes, "loader", workers, count * grad_accum, states
        )
        assert steps_of(ranks, grad_accum) == counted(wanted[step : step + count]), (world_size, grad_accum)
        states, step = [json.dumps(PileStream.merge_state_dicts([json.loads(one) for one in saved]))], step + count
    assert step == STEPS


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_run_resumes_after_every_batch(corpora: Corpora, settings: Settings, encode: Encoder, packing: str) -> None:
    wanted = wanted_steps(corpora, encode, Mixing(ENTRIES), 20, packing=packing)
    changes = {**settings, "packing": packing, "weights": ENTRIES, "batch_size": 8, "grad_accum": 2}
    batches, state = [], None
    for _ in range(40):
        found, state = run(corpora["mixed"].folder, changes, batches=1, state=state)
        batches += found
    assert steps_of([batches], 2) == counted(wanted)


@given(data=st.data())
@hypothesis_settings(max_examples=8)
def test_a_run_without_weights_by_step_may_get_them(
    corpora: Corpora, settings: Settings, encode: Encoder, data: st.DataObject
) -> None:
    """It equals a run that has them from its beginning, and may get others for later steps again."""
    packing = data.draw(st.sampled_from(PACKINGS))
    until = data.draw(st.integers(0, 12))
    begin = until + data.draw(st.sampled_from([0, 0, 1, 5]))
    again = begin + data.draw(st.integers(1, 8))
    window = data.draw(st.sampled_from([2, 16, 60]))
    first = [(max(begin, 1), {"Github": 1.0, "Pile-CC": 1.0})]
    then = [*first, (max(again, first[0][0] + 1), {"ArXiv": 2.0, "Pile-CC": 1.0})]
    changes = {**settings, "packing": packing, "window": window, "batch_size": 16}
    mixing = Mixing(then, 0, until=again, earlier=first)
    wanted = wanted_steps(corpora, encode, mixing, again + 10, packing=packing, window=window)
    folder = corpora["mixed"].folder
    before, state = run(folder, changes, batches=until)
    middle, state = run(folder, {**changes, "weights": first}, batches=again - until, state=state)
    after, state = run(folder, {**changes, "weights": then}, batches=10, state=state)
    assert before + middle + after == wanted
    assert [change["until_step"] for change in json.loads(state)["changes"]] == [until, again]
    stream = PileStream(folder, **{**changes, "weights": then})
    stream.load_state_dict(json.loads(state))
    step = data.draw(st.integers(0, again + 8))
    peeked = [sorted(set(row)) for row in stream.peek(step)]
    assert sorted(peeked) == sorted(sorted(set(row.documents)) for row in wanted[step])


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_every_document_of_the_epoch_stands_once_before_any_again(
    corpora: Corpora, settings: Settings, packing: str
) -> None:
    """Counted without the reference, in one lane. A window of one document keeps the order of documents."""
    entries = [(20, {"ArXiv": 5, "Github": 1, "Pile-CC": 2}), (45, dict.fromkeys(SUBSETS, 1))]
    changes = {**settings, "lanes": (1, 1), "packing": packing, "window": 1, "weights": entries, "batch_size": 16}
    steps, _ = run(corpora["mixed"].folder, changes, batches=130)
    subset_of = {(line.shard, line.number): line.subset for line in corpora["mixed"].lines}
    begun = defaultdict[str, list[tuple[str, int]]](list)
    before = Counter[str]()
    for number, step in enumerate(steps):
        for document in (document for row in step for document in row.documents):
            subset = subset_of[document]
            if begun[subset][-1:] != [document]:  # its parts may stand in several rows
                begun[subset].append(document)
                before[subset] += number < entries[0][0]
    for subset in SUBSETS:
        epoch = Counter(subset_of.values())[subset]
        assert 0 < before[subset] < epoch < len(begun[subset]), subset
        assert len(set(begun[subset][:epoch])) == epoch, subset
        second = begun[subset][epoch : 2 * epoch]
        assert len(set(second)) == len(second), subset


def test_what_the_one_order_reads_need_not_be_what_is_drawn(
    corpora: Corpora, settings: Settings, encode: Encoder
) -> None:
    """Factors, subsets, constant weights and filters; the rest has the factors too, and own sequences have none."""
    folder = corpora["mixed"].folder
    shares = {"ArXiv": 1.0, "Pile-CC": 4.0}
    plain = PileStream(folder, **settings, weights=shares)
    keep: dict[str, Any] = {"keep": lambda line: "brown" not in line.text}
    for given_settings, plan, weights in (
        ({"repeats": {"ArXiv": 2.5, "Github": 0.0, "Pile-CC": 0.4}}, {}, ENTRIES),
        (
            {"subsets": ["ArXiv", "Pile-CC"], "filters": [no_brown_fox]},
            {"subsets": ("ArXiv", "Pile-CC"), **keep},
            ENTRIES,
        ),
        ({}, {"subsets": plain.subsets, "repeats": plain.repeats}, [shares, *ENTRIES]),
    ):
        plan = {"repeats": given_settings.get("repeats", {}), "packing": "concat", **plan}
        wanted = wanted_steps(corpora, encode, Mixing(ENTRIES), STEPS, **plan)
        changes = {**settings, "packing": "concat", "batch_size": 16, **given_settings}
        constant = {} if weights is ENTRIES else {"weights": shares}
        begun, state = run(folder, {**changes, **constant}, batches=8)
        assert begun + run(folder, {**changes, "weights": weights}, batches=STEPS - 8, state=state)[0] == wanted


def test_what_is_said_and_refused(corpora: Corpora, settings: Settings) -> None:
    folder, changes = corpora["mixed"].folder, {**settings, "batch_size": 16}
    stream = PileStream(folder, **changes, weights=ENTRIES)
    text = str(stream.explain())
    assert "random over the whole corpus, in groups of 4 consecutive documents; from step 9 on drawn by weights" in text
    assert "from step 9" in text
    _, state = run(folder, changes, batches=5)
    late = PileStream(folder, **changes, weights=[(4, {"ArXiv": 1})])
    refused(
        "5 steps of the run are done, and step 4 had one order of all documents, not ArXiv 1; begin the weights by "
        "step at step 5 or later",
        late.load_state_dict,
        json.loads(state),
    )
    wrong = PileStream(folder, **changes, weights=ENTRIES, repeats={"ArXiv": 2})
    keep = 'its repeats is {}, here it is {"ArXiv":2.0}; keep subsets, repeats and weights as they were'
    for strict in (True, False):
        refused(keep.replace("{", "\\{"), wrong.load_state_dict, json.loads(state), strict)
    # Entries that were never reached may be left out again.
    begun, state = run(folder, {**changes, "weights": ENTRIES}, batches=BEGIN)
    found, _ = run(folder, changes, batches=4, state=state)
    assert begun + found == run(folder, changes, batches=BEGIN + 4)[0]
    epochs = PileStream(folder, **changes, weights=ENTRIES)
    epochs.load_state_dict(json.loads(state))
    counts = epochs.stats()["subsets"]
    own = Counter(line.subset for line in corpora["mixed"].lines)
    for name, part in epochs.explain()["epochs"].items():
        assert part["epochs"] == counts[name]["documents"] / own[name] > 0
