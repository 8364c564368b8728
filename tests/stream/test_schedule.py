"""Weights by step: the order against the plain reference, the shares, each subset's epochs, and what is refused."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilekit.errors import PilekitError
from pilekit.stream.order.schedule import Schedule
from pilekit.stream.pile_stream import PileStream
from tests.refusing import refused
from tests.stream.collecting import counted, no_brown_fox, read_in_turn, run, run_ranks, steps_of
from tests.stream.conftest import PACKINGS, Corpora, Settings
from tests.stream.corpora import made, text
from tests.stream.reference import Encoder
from tests.stream.schedule_reference import Entries, Mixing, wanted_steps

WIKIPEDIA = "Wikipedia (en)"
BOOK = 900
"""Words of a usual book."""
ENTRIES: Entries = [
    (0, {"ArXiv": 1, "Github": 1}),
    (7, {"Pile-CC": 3, "Github": 1}),
    (12, {"Pile-CC": 1, WIKIPEDIA: 2.5, "ArXiv": 0.01}),
]
STEPS = 24


@pytest.mark.parametrize(("packing", "ramp"), list(product(PACKINGS, [0, 4, 9])))
def test_steps_are_the_references_on_every_topology(
    corpora: Corpora, settings: Settings, encode: Encoder, packing: str, ramp: int
) -> None:
    """Ranks, micro-batches and workers change at each stop; the ramp of nine steps is cut short by the next entry."""
    wanted = wanted_steps(corpora, encode, Mixing(ENTRIES, ramp), STEPS, packing=packing)
    folder, changes = corpora["mixed"].folder, {**settings, "packing": packing, "weights": ENTRIES, "ramp": ramp}
    assert run(folder, {**changes, "batch_size": 16}, batches=STEPS)[0] == wanted
    states, step = None, 0
    for world_size, grad_accum, workers in [(1, 2, 2), (2, 2, 0), (4, 1, 0), (1, 4, 3)]:
        given = {**changes, "grad_accum": grad_accum, "batch_size": 16 // world_size // grad_accum}
        ranks, saved = run_ranks(world_size, folder, given, "loader", workers, 6 * grad_accum, states)
        assert steps_of(ranks, grad_accum) == counted(wanted[step : step + 6]), (world_size, grad_accum)
        states, step = [json.dumps(PileStream.merge_state_dicts([json.loads(one) for one in saved]))], step + 6


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_run_resumes_after_every_batch(corpora: Corpora, settings: Settings, encode: Encoder, packing: str) -> None:
    wanted = wanted_steps(corpora, encode, Mixing(ENTRIES, 4), STEPS, packing=packing)
    changes = {**settings, "packing": packing, "weights": ENTRIES, "ramp": 4, "batch_size": 8, "grad_accum": 2}
    batches, state = [], None
    for _ in range(2 * STEPS):
        found, state = run(corpora["mixed"].folder, changes, batches=1, state=state)
        batches += found
    assert steps_of([batches], 2) == counted(wanted)


def test_other_settings_are_the_references(corpora: Corpora, settings: Settings, encode: Encoder) -> None:
    keep = {"seed": 7, "rows": 4, "columns": 3, "window": 5, "keep": lambda line: "brown" not in line.text}
    wanted = wanted_steps(corpora, encode, Mixing(ENTRIES, 3), STEPS, **keep)
    changes = {"seed": 7, "lanes": (4, 3), "window": 5, "filters": [no_brown_fox], "weights": ENTRIES, "ramp": 3}
    assert run(corpora["mixed"].folder, {**settings, **changes, "batch_size": 16}, batches=STEPS)[0] == wanted


def test_each_subset_has_whole_epochs_whatever_changes(corpora: Corpora, settings: Settings) -> None:
    """Counted without the reference: in one lane, documents of a subset come epoch after epoch, each once in each."""
    changes = {**settings, "lanes": (1, 1), "packing": "concat", "weights": ENTRIES, "ramp": 2, "batch_size": 16}
    batches, _ = run(corpora["mixed"].folder, changes, batches=60)
    drawn = defaultdict[str, list[tuple[str, int]]](list)
    begun = [
        (document, row.subsets[row.doc_ids.index(number)])
        for batch in batches
        for row in batch
        for number, document in enumerate(row.documents)
        if row.position_ids[row.doc_ids.index(number)] == 0
    ]
    for document, subset in begun:
        if drawn[str(subset)][-1:] != [document]:  # going on in a later row, it begins at position 0 too
            drawn[str(subset)].append(document)
    own = Counter(line.subset for line in corpora["mixed"].lines)
    for subset, documents in drawn.items():
        epochs = [documents[begin : begin + own[subset]] for begin in range(0, len(documents), own[subset])]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs), subset
        assert all(len(epoch) == own[subset] for epoch in epochs[:-1])
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs), "each epoch has its own order"
    assert max(len(documents) / own[subset] for subset, documents in drawn.items()) > 2


@pytest.fixture(scope="module")
def long_and_short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of some subsets are a few times as long as those of others, and those of one are books."""
    folder = tmp_path_factory.mktemp("long")

    def of_words(words: int) -> Any:
        return lambda rng: text(rng, int(rng.lognormvariate(0, 0.7) * words) + 1)

    for name, (subset, words) in enumerate([("ArXiv", 12), ("Github", 3), ("Pile-CC", 6), (WIKIPEDIA, 3)]):
        made(folder / str(name), [700], seed=name, subsets=[subset], text_of=of_words(words), form="plain")
    made(folder / "books", [80], seed=9, subsets=["Books3"], text_of=of_words(BOOK), form="plain")
    return folder


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_shares_hold_over_any_two_hundred_steps(long_and_short: Path, settings: Settings, packing: str) -> None:
    """In proportion harder than 200 steps of 0.5 M tokens, rows of 2,048 and 128 lanes, with books of 2.5 M tokens.

    The steps here have 0.41 M tokens. A row of each lane is 0.5 % of them, not 0.26 %, and the longest book 2.5 %.
    """
    entries: Entries = [
        (0, {"ArXiv": 0.3, "Github": 0.3, "Pile-CC": 0.28, WIKIPEDIA: 0.02, "Books3": 0.1}),
        (300, {"ArXiv": 0.05, "Github": 0.4, WIKIPEDIA: 0.35, "Books3": 0.2}),
    ]
    changes = {**settings, "lanes": (16, 2), "packing": packing, "weights": entries, "ramp": 100, "batch_size": 32}
    stream = PileStream(long_and_short, **changes, outputs=["subset_ids"])
    by_step = np.zeros((600, len(stream.subset_names)))
    for step, batch in enumerate(islice(stream, len(by_step))):
        ids = batch["subset_ids"]
        by_step[step] = np.bincount(ids[ids >= 0], minlength=len(stream.subset_names))
    schedule = Schedule((0, 300), tuple(dict(weights) for _, weights in entries), 100)
    expected = np.zeros_like(by_step)
    for step in range(len(expected)):
        for name, share in schedule.at(step).items():
            expected[step, stream.subset_names.index(name)] = share
    found, wanted = (np.cumsum(table, axis=0) for table in (by_step, expected))
    found, wanted = found[200:] - found[:-200], (wanted[200:] - wanted[:-200]) / 200
    assert np.abs(found / found.sum(axis=1, keepdims=True) - wanted).max() < 0.01


# Schedules that change while a run goes on


LONGER: Entries = [*ENTRIES[:2], (11, {"ArXiv": 2, WIKIPEDIA: 1}), (16, {"Github": 1})]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("until", [8, 10])
def test_steps_not_yet_reached_may_change(
    corpora: Corpora, settings: Settings, encode: Encoder, packing: str, until: int
) -> None:
    """A new subset, an earlier border, and one inside the lanes' open windows."""
    changes = {**settings, "packing": packing, "batch_size": 16}
    folder = corpora["mixed"].folder
    first: Settings = {**changes, "weights": ENTRIES[:2]}
    wanted = wanted_steps(corpora, encode, Mixing(LONGER, 0, until, ENTRIES[:2]), STEPS, packing=packing)
    begun, state = run(folder, first, batches=until)
    second = {**changes, "weights": LONGER}
    found, saved = run(folder, second, batches=6, state=state)
    more, _ = run(folder, second, "loader", 2, STEPS - until - 6, saved)
    assert begun + found + more == wanted
    stream = PileStream(folder, **second)
    stream.load_state_dict(json.loads(saved))
    (change,) = stream.state_dict()["changes"]
    assert change["until_step"] == until
    assert [step for step, _ in change["was"]["weights"]["entries"]] == [0, 7]
    documents = [[set(row.documents) for row in step] for step in wanted]
    peeked = [set(row) for row in stream.peek(until + 9)]
    assert sorted(map(sorted, peeked)) == sorted(map(sorted, documents[until + 9]))


def test_a_subset_that_was_never_reached_may_be_left_out(corpora: Corpora, settings: Settings, encode: Encoder) -> None:
    """Also one that a lane has drawn already, into an open window."""
    changes, folder = {**settings, "batch_size": 16}, corpora["mixed"].folder
    shorter: Entries = [*ENTRIES[:2], (13, {"Github": 1})]
    wanted = wanted_steps(corpora, encode, Mixing(shorter, 0, 11, ENTRIES), STEPS)
    begun, state = run(folder, {**changes, "weights": ENTRIES}, batches=11)
    assert begun + run(folder, {**changes, "weights": shorter}, batches=STEPS - 11, state=state)[0] == wanted


def test_the_past_cannot_change(corpora: Corpora, settings: Settings) -> None:
    changes, folder = {**settings, "batch_size": 16}, corpora["mixed"].folder
    _, state = run(folder, {**changes, "weights": ENTRIES, "ramp": 3}, batches=9)
    for entries, ramp, words in (
        (
            [*ENTRIES[:1], (8, ENTRIES[1][1])],
            3,
            r"9 steps of the run are done, and step 8 had ArXiv 0\.3333, Github 0\.4167, Pile-CC 0\.25, not ArXiv "
            r"0\.5, Github 0\.5; keep the entries and the ramp before step 9, and change later ones",
        ),
        ([(0, {"ArXiv": 1})], 0, "step 0 had ArXiv 0.5, Github 0.5, not ArXiv 1; keep the entries and the ramp before"),
        (ENTRIES[:2], 4, "step 8 had"),
        ([*ENTRIES[:2], (8, ENTRIES[2][1])], 0, "step 7 had"),
    ):
        stream = PileStream(folder, **changes, weights=entries, ramp=ramp)
        refused(words, stream.load_state_dict, json.loads(state))
    stream = PileStream(folder, **changes, weights=[*ENTRIES[:2], (9, ENTRIES[2][1])], ramp=3)
    stream.load_state_dict(json.loads(state))
    fixed = PileStream(folder, **changes, weights={"ArXiv": 1, "Github": 1})
    keep = "keep subsets, repeats and weights as they were, and add weights by step for later steps"
    refused(f"its subsets is null, here it is .*; {keep}", fixed.load_state_dict, json.loads(state))
    refused(f"its subsets is .*, here it is null; {keep}", stream.load_state_dict, fixed.state_dict())
    plain = PileStream(folder, **changes)
    refused(
        "step 0 had ArXiv 0.5, Github 0.5, not one order of all documents", plain.load_state_dict, json.loads(state)
    )


def test_wrong_schedules_are_refused(corpora: Corpora, settings: Settings, tmp_path: Path) -> None:
    one: dict[str, Any] = {"ArXiv": 1}
    folder = corpora["mixed"].folder
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "have no entry; give pairs of a step and its weights, such as"),
        ([one], {}, "are pairs of a step and its weights"),
        ([one, (0, one)], {}, "weights without a step are for the steps before the first entry"),
        ([one, (5, one)], {"subsets": ["ArXiv"]}, "weights replaces repeats and subsets"),
        ([(5, one), one], {}, "are pairs of a step and its weights"),
        ([(0, one), (9, one), (4, one)], {}, "step 4 follows step 9; give increasing steps, each once"),
        ([(0, one), (0, one)], {}, "step 0 follows step 0"),
        ([(0, one), (-1, one)], {}, "are pairs of a step and its weights"),
        ([(0, one, 5)], {}, "are pairs of a step and its weights"),
        ([(0, {})], {}, "step 0: weights is a dict from subset to share"),
        ([(0, {"ArXiv": 0.0})], {}, "step 0: weights of ArXiv: 0.0 is no share; give a number above 0"),
        ([(0, {"ArXiv": float("nan")})], {}, "is no share"),
        ([(0, one), (3, {"Arxif": 1})], {}, 'step 3: unknown subset "Arxif"'),
        ([(0, {"ArXiv": 1, "arxiv": 2})], {}, "names ArXiv twice"),
        ([(0, {"ArXiv": 1, "EuroParl": 1})], {}, "weights names EuroParl, which has no document here; leave it out"),
        ([(0, one)], {"subsets": ["ArXiv"]}, "weights replaces repeats and subsets"),
        ([(0, one)], {"epochs": 1, "lanes": "auto"}, "1 epoch and weights by step exclude each other"),
        ([(0, one)], {"tokenizer": None}, "weights are shares of tokens"),
        (one, {"ramp": 5}, "ramp = 5: is the number of steps in which weights change, and they do not"),
        (None, {"ramp": 5}, "ramp = 5"),
    ]
    for weights, changes, words in wrong:
        with pytest.raises(PilekitError, match=words.replace("(", r"\(")) as raised:
            PileStream(folder, **{**settings, "batch_size": 16, "weights": weights, **changes})
        assert "\n" not in str(raised.value)
    with read_in_turn():
        made(tmp_path, [40, 40], form="single")
        with pytest.raises(PilekitError, match="need random access to draw documents"):
            PileStream(tmp_path, **{**settings, "batch_size": 16, "lanes": (1, 1), "weights": [(0, one)]})
