"""PileStream's order, against the plain reference or a plain count: the quick part.

Ranks are simulated by `rank=` and `world_size=`; real process groups, and all topologies, are in
test_guarantees_ranks.py.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from pilekit.tokenize import load_tokenizer
from tests.stream.collecting import Way, counted, no_brown_fox, read_in_turn, run, steps_of
from tests.stream.conftest import PACKINGS, Corpora, Expected, Settings
from tests.stream.corpora import made, uneven
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
    cases = [("mixed", changes, plan), ("with_bad_lines", {"on_error": "skip"}, {})]
    for corpus, changes, plan in cases:
        folder, wanted = corpora[corpus].folder, expected(corpora[corpus], 12, **plan)
        assert run(folder, {**settings, **changes, "batch_size": 16}, batches=12)[0] == wanted
        split = {**settings, **changes, "batch_size": 4, "grad_accum": 2, "world_size": 2}
        ranks = [run(folder, {**split, "rank": rank}, "loader", 1, 24)[0] for rank in range(2)]
        assert steps_of(ranks, 2) == counted(wanted)


def test_the_form_of_the_shards_changes_nothing(
    tmp_path: Path, corpora: Corpora, settings: Settings, expected: Expected
) -> None:
    """Recompressed or not compressed at all: the same steps, and the same state."""
    given, wanted = {**settings, "batch_size": 16}, expected(corpora["uneven"], 8)
    _, state = run(corpora["uneven"].folder, given, batches=5)
    for form in ("plain", "single"):
        folder = uneven(tmp_path / form, form).folder
        assert run(folder, given, batches=5) == (wanted[:5], state)
        assert run(folder, given, batches=3, state=state)[0] == wanted[5:]


def test_default_lanes_are_the_documented_ones(corpora: Corpora, settings: Settings, expected: Expected) -> None:
    """R: the largest divisor of the global batch up to max(32, 4 x world size); M = 4."""
    del (changes := dict(settings))["lanes"]
    wanted = expected(corpora["mixed"], 6, rows=24, columns=4, global_batch_size=48)
    found, state = run(corpora["mixed"].folder, {**changes, "batch_size": 48}, batches=6)
    assert found == wanted
    plan = json.loads(state)["plan"]
    grid = plan["grid"]
    assert (grid["rows"], grid["columns"], plan["unit"]) == (24, 4, unit_of(len(corpora["mixed"].lines), 96))


@pytest.mark.parametrize("packing", ["best_fit", "concat", pytest.param("none", marks=pytest.mark.slow)])
def test_single_frames_are_read_as_the_reference_reads_them(
    tmp_path: Path, settings: Settings, expected: Expected, packing: Any
) -> None:
    """The sequential plan: lanes of whole shards, on other ranks, accumulation and workers, and resumed."""
    corpus = made(tmp_path, [100, 110, 90, 120, 30], form="single", bad=0.05)
    factors = {"ArXiv": 2.5, "Github": 0.0}
    grid = {"rows": 2, "columns": 2, "global_batch_size": 8}
    steps = expected(corpus, 40, **grid, packing=packing, repeats=factors, in_turn=True)
    given = {**settings, "lanes": (2, 2), "packing": packing, "repeats": factors, "on_error": "skip"}
    states: list[str] | None = None
    step = 0
    for world_size, grad_accum, workers in [(1, 1, 0), (2, 1, 2), (2, 2, 1), (1, 4, 0), (1, 1, 2)]:
        split = {**given, "batch_size": 8 // world_size // grad_accum, "grad_accum": grad_accum}
        with read_in_turn():
            results = [
                run(tmp_path, {**split, "rank": r, "world_size": world_size}, "loader", workers, 8 * grad_accum, states)
                for r in range(world_size)
            ]
        assert steps_of([batches for batches, _ in results], grad_accum) == counted(steps[step : step + 8])
        states = [state for _, state in results]
        assert json.loads(states[0])["plan"]["grid"]["plan"] == "sequential"
        step += 8


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
    split = {**given, "batch_size": 4, "grad_accum": 2, "world_size": 2}
    ranks = [run(folder, {**split, "rank": rank}, "loader", 2, 8) for rank in range(2)]
    assert steps_of([batches for batches, _ in ranks], 2) == counted(alone[:4])
    assert run(folder, {**given, "batch_size": 16}, batches=4, state=[state for _, state in ranks])[0] == alone[4:]
