"""PileStream's order, against the plain reference or a plain count: the quick part.

Ranks are simulated by `rank=` and `world_size=`; real process groups, and all topologies, are in
test_guarantees_ranks.py.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import AddedToken

from pilekit.stream.pile_stream import PileStream
from pilekit.tokenize import load_tokenizer
from tests.stream.collecting import Way, counted, no_brown_fox, read_in_turn, run, run_ranks, steps_of
from tests.stream.conftest import PACKINGS, Corpora, Expected, Settings
from tests.stream.corpora import made
from tests.stream.reference import Encoder, unit_of
from tests.tokenize.making import byte_level_bpe

# 1. Order: the content of an optimizer step is the same for every topology

WAYS: list[tuple[Way, int, int]] = [("iter", 0, 1), ("loader", 2, 1), ("stock", 3, 2), ("loader", 4, 4)]
STEPS = 12
"""192 rows; a lane's window fills about seven rows."""


@pytest.mark.parametrize("packing", PACKINGS)
def test_steps_are_the_references(corpora: Corpora, settings: Settings, expected: Expected, packing: str) -> None:
    wanted = expected(corpora["mixed"], STEPS, packing=packing)
    for way, workers, grad_accum in WAYS:
        changes = {**settings, "packing": packing, "batch_size": 16 // grad_accum, "grad_accum": grad_accum}
        batches, _ = run(corpora["mixed"].folder, changes, way, workers, STEPS * grad_accum)
        assert {len(batch) for batch in batches} == {16 // grad_accum}
        assert grad_accum > 1 or batches == wanted
        assert steps_of([batches], grad_accum) == counted(wanted), (way, workers, grad_accum)


def test_every_setting_is_the_references(corpora: Corpora, settings: Settings, expected: Expected) -> None:
    """One by one and shuffled or not, settings are in test_documents.py."""
    changes: Settings = {"subsets": ["arxiv", "GitHub", "pile_cc"], "seed": 7, "lanes": (4, 3), "window": 5}
    plan: Settings = {"subsets": ("ArXiv", "Github", "Pile-CC"), "seed": 7, "rows": 4, "columns": 3, "window": 5}
    changes |= {"repeats": {"ArXiv": 2.5, "GitHub": 0.0, "pile_cc": 0.3}, "filters": [no_brown_fox]}
    plan |= {"repeats": {"ArXiv": 2.5, "Github": 0.0, "Pile-CC": 0.3}, "keep": lambda line: "brown" not in line.text}
    for corpus, changed, by_reference in (("mixed", changes, plan), ("with_bad_lines", {"on_error": "skip"}, {})):
        folder, wanted = corpora[corpus].folder, expected(corpora[corpus], 12, **by_reference)
        assert run(folder, {**settings, **changed, "batch_size": 16}, batches=12)[0] == wanted
        ranks, _ = run_ranks(2, folder, {**settings, **changed, "batch_size": 4, "grad_accum": 2}, "loader", 1, 24)
        assert steps_of(ranks, 2) == counted(wanted)


def test_default_lanes_are_the_documented_ones(corpora: Corpora, settings: Settings, expected: Expected) -> None:
    """R: the largest divisor of the global batch up to max(32, 4 x world size); M = 4."""
    del (changes := dict(settings))["lanes"]
    wanted = expected(corpora["mixed"], 6, rows=24, columns=4, global_batch_size=48)
    found, state = run(corpora["mixed"].folder, {**changes, "batch_size": 48}, batches=6)
    assert found == wanted
    plan = json.loads(state)["plan"]
    grid = plan["grid"]
    assert (grid["rows"], grid["columns"], plan["unit"]) == (24, 4, unit_of(len(corpora["mixed"].lines), 96))


@pytest.mark.parametrize(
    ("in_turn", "packing"),
    [(False, "best_fit"), (True, "best_fit"), (True, "concat"), pytest.param(True, "none", marks=pytest.mark.slow)],
)
def test_a_run_resumes_again_and_again_on_other_topologies(
    tmp_path: Path, settings: Settings, expected: Expected, in_turn: bool, packing: str
) -> None:
    """Chained through JSON: ranks x accumulation x workers change at each stop, at whole steps; under both plans."""
    corpus = made(tmp_path, [100, 110, 90, 120, 30], form="single", bad=0.05)
    changes: Settings = {"packing": packing, "repeats": {"ArXiv": 2.5, "Github": 0.0}}
    topologies = [(1, 1, 2), (2, 2, 0), (4, 1, 0), (1, 4, 3), (8, 1, 0), (2, 1, 1)]
    if in_turn:  # lanes of whole shards: no more than there are shards
        topologies = [(1, 1, 0), (2, 1, 2), (2, 2, 1), (1, 4, 0), (1, 1, 2)]
    rows, step, states = 2 if in_turn else 8, 0, None
    wanted = counted(expected(corpus, 40, **changes, rows=rows, columns=2, in_turn=in_turn))
    for world_size, grad_accum, workers in topologies:
        given = {**settings, **changes, "lanes": (rows, 2), "on_error": "skip", "grad_accum": grad_accum}
        given["batch_size"] = 16 // world_size // grad_accum
        with read_in_turn(in_turn):
            ranks, saved = run_ranks(world_size, tmp_path, given, "loader", workers, 6 * grad_accum, states)
        assert steps_of(ranks, grad_accum) == wanted[step : step + 6]
        assert json.loads(saved[0])["plan"]["grid"]["plan"] == ("sequential" if in_turn else "random")
        states, step = saved, step + 6
        if not in_turn and world_size < 4:  # the states of all ranks as one, or as a list
            states = [json.dumps(PileStream.merge_state_dicts([json.loads(one) for one in saved]))]


# 2. Coverage, counted without the reference


def test_one_lane_uses_each_document_once_per_epoch(tmp_path: Path, settings: Settings, encode: Encoder) -> None:
    """One lane and windows of a whole epoch: rows come epoch after epoch, each with every token once."""
    corpus = made(tmp_path, [100])
    length = {(line.shard, line.number): len(encode(line.text)) for line in corpus.lines}
    changes = {**settings, "lanes": (1, 1), "window": 100, "batch_size": 1}
    rows = iter(itertools.chain.from_iterable(run(corpus.folder, changes, batches=400)[0]))
    orders = []
    for epoch in range(3):
        tokens: Counter[tuple[str, int]] = Counter()
        order = []
        while tokens != length:
            row = next(rows)
            for doc_id, document in enumerate(row.documents):
                tokens[document] += row.doc_ids.count(doc_id)
                order.append(document)
            assert all(tokens[document] <= length[document] for document in tokens), f"twice in epoch {epoch}"
        orders.append(order)
    assert len(set(map(tuple, orders))) == 3, "each epoch has an order of its own"


def test_masks_of_mlm_are_the_same_everywhere(corpora: Corpora, settings: Settings, tmp_path: Path) -> None:
    tokenizer = byte_level_bpe(300)
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    given = {**settings, "tokenizer": load_tokenizer(tmp_path / "tokenizer.json"), "objective": "mlm"}
    folder = corpora["mixed"].folder
    alone, _ = run(folder, {**given, "batch_size": 16}, batches=8)
    rows = [row for batch in alone for row in batch]
    chosen = sum(label != -100 for row in rows for label in row.labels)
    assert 0.1 < chosen / sum(doc_id >= 0 for row in rows for doc_id in row.doc_ids) < 0.2
    ranks, states = run_ranks(2, folder, {**given, "batch_size": 4, "grad_accum": 2}, "loader", 2, 8)
    assert steps_of(ranks, 2) == counted(alone[:4])
    assert run(folder, {**given, "batch_size": 16}, batches=4, state=states)[0] == alone[4:]
