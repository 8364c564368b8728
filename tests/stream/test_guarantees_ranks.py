"""Order and resume in real process groups: all ranks together make the steps of the plain reference.

Each rank finds its number and the world size through torch.distributed, as in training. The quick part is one group of
two; the matrix of packings, workers, accumulation and ways of loading is slow.
"""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist

from pilekit.stream.pile_stream import PileStream
from tests.process_groups import ProcessGroups
from tests.stream.collecting import ALL, SECONDS, STEP, Way, counted, in_group, no_brown_fox, rows_of, run, steps_of
from tests.stream.conftest import PACKINGS, Corpora, Expected, Settings


def test_two_ranks_make_the_references_steps(
    process_group: ProcessGroups, corpora: Corpora, settings: Settings, expected: Expected
) -> None:
    """One process, or workers, then resume from their state."""
    wanted = counted(expected(corpora["mixed"], 15))
    folder = corpora["mixed"].folder
    given = {**settings, "batch_size": 4, "grad_accum": 2}
    ranks, states = in_group(process_group, 2, folder, given, "iter", 0, 10)
    assert steps_of(ranks, 2) == wanted[:5]
    given = {**settings, "batch_size": 8}
    ranks, states = in_group(process_group, 2, folder, given, "loader", 2, 5, states)
    assert steps_of(ranks, 1) == wanted[5:10]
    assert steps_of([run(folder, {**settings, "batch_size": 16}, batches=5, state=states)[0]], 1) == wanted[10:]


def rows_and_gradient(data: str, settings: Settings) -> tuple[list[STEP], float]:
    """A training loop with a collective in every step, which hangs unless all ranks make equally many steps."""
    stream = PileStream(data, **settings, outputs=ALL)
    found, total = [], torch.zeros(())
    for batch in stream.loader(num_workers=1):
        step = batch["input_ids"].sum().float()
        dist.all_reduce(step)
        total += step
        found.append(rows_of(batch, stream.subset_names))
    return found, float(total)


def test_ranks_in_lockstep_never_hang(process_group: ProcessGroups, corpora: Corpora, settings: Settings) -> None:
    """All ranks make equally many steps in a finite pass, with a collective in each."""
    del (given := {**settings, "batch_size": 8, "epochs": 1})["lanes"]
    for name in ("uneven", "few"):
        folder = corpora[name].folder
        results = process_group(2).run(rows_and_gradient, str(folder), given, timeout=SECONDS)
        assert len(results[0][0]) == len(results[1][0]) > 0
        assert results[0][1] == results[1][1]
        alone = run(folder, {**given, "batch_size": 16})[0]
        assert steps_of([found for found, _ in results], 1) == counted(alone)


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_topology_makes_the_references_steps(
    process_group: ProcessGroups,
    corpora: Corpora,
    settings: Settings,
    expected: Expected,
    world_size: int,
    packing: str,
) -> None:
    """Workers 0-4, accumulation 1 and 2, all ways of loading; with repeats and a filter.

    A run begins with another number of ranks, and each way resumes where the way before it has stopped.
    """
    factors = {"ArXiv": 2.5, "Pile-CC": 0.3}
    plan: Settings = {"packing": packing, "repeats": factors, "keep": lambda line: "brown" not in line.text}
    wanted = counted(expected(corpora["mixed"], 72, **plan))
    folder = corpora["mixed"].folder
    base = {**settings, "packing": packing, "repeats": factors, "filters": [no_brown_fox]}
    parts: list[tuple[int, Way, int, int]] = [
        ({1: 2, 2: 4, 4: 1}[world_size], "iter", 0, 1),
        *[(world_size, "loader", workers, 1) for workers in range(5)],
        *[(world_size, "stock", workers, 2) for workers in range(5)],
        (world_size, "iter", 0, 2),
    ]
    states = None
    for part, (size, way, workers, grad_accum) in enumerate(parts):
        given = {**base, "batch_size": 16 // size // grad_accum, "grad_accum": grad_accum}
        found, states = in_group(process_group, size, folder, given, way, workers, 6 * grad_accum, states)
        assert steps_of(found, grad_accum) == wanted[6 * part : 6 * part + 6], (way, workers, grad_accum)
