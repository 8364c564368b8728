"""Runs a PileStream in this process or in the ranks of a group, and gives its batches in the reference's form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from typing import Any, Literal

import pytest
import torch
from torch import distributed as dist
from torch.utils.data import DataLoader

from pilekit.documents import Document
from pilekit.pipeline.functions import document_filter
from pilekit.stream import stream_parts
from pilekit.stream.batch.batch import COLUMNS, OUTPUTS, Batch
from pilekit.stream.pile_stream import PileStream
from pilekit.stream.read.read_plan import choose_plan
from tests.process_groups import ProcessGroups
from tests.stream.reference import Row, cu_seqlens

Way = Literal["iter", "loader", "stock"]
"""`for batch in stream`, `stream.loader(num_workers=n)`, or a stock DataLoader with `stream.advance(batch)`."""

ALL = OUTPUTS

STEP = list[Row]

SECONDS = 240.0
"""For 20 steps of a tiny corpus in all ranks; a hang is a failure."""


@document_filter
def no_brown_fox(document: Document) -> bool:
    """Drops about half of the documents of `corpora.text`."""
    return "brown" not in document.text


@contextmanager
def read_in_turn(on: bool = True) -> Iterator[None]:
    """Tiny shards are treated like the Pile's: not kept in memory, and read without seeking, so one after another."""
    with pytest.MonkeyPatch.context() as patch:
        if on:
            patch.setattr(stream_parts, "choose_plan", partial(choose_plan, held_bytes=0, most_decoded=0))
        yield


def rows_of(batch: Batch, subset_names: Sequence[str]) -> list[Row]:
    """The rows of a batch that holds `ALL`; shapes, dtypes and the borders of segments are checked."""
    documents = batch.documents()
    columns = [batch[name] for name in COLUMNS]
    for column in columns:
        assert column.dtype == torch.int64
        assert column.is_contiguous()
        assert column.shape == (len(documents), columns[0].shape[1])
    tokens, labels, positions, numbers, subsets = ([tuple(row) for row in column.tolist()] for column in columns)
    names = (tuple(None if subset < 0 else subset_names[subset] for subset in row) for row in subsets)
    found = list(map(Row, map(tuple, documents), tokens, labels, positions, numbers, names))
    borders = cu_seqlens(found)
    assert batch["cu_seqlens"].tolist() == borders
    assert int(batch["max_seqlen"]) == max((b - a for a, b in pairwise(borders)), default=0)
    assert batch["cu_seqlens"].dtype == batch["max_seqlen"].dtype == torch.int32
    return found


def batches_of(stream: PileStream, way: Way, workers: int = 0) -> Iterator[Batch]:
    """The stream's batches; each is recorded when it is handed out."""
    if way == "iter":
        yield from stream
    elif way == "loader":
        yield from stream.loader(num_workers=workers)
    else:
        for batch in DataLoader(stream, batch_size=None, num_workers=workers):
            stream.advance(batch)
            yield batch


def run(
    data: Any,
    settings: dict[str, Any],
    way: Way = "iter",
    workers: int = 0,
    batches: int | None = None,
    state: str | Sequence[str] | None = None,
) -> tuple[list[STEP], str]:
    """The rows of the next `batches` batches of a new stream, and its state then, as JSON.

    state  the state to load first: one state, or a list of all ranks' states
    """
    stream = PileStream(data, **{"outputs": ALL, **settings})
    if state is not None:
        stream.load_state_dict(json.loads(state) if isinstance(state, str) else [json.loads(one) for one in state])
    iterator = batches_of(stream, way, workers)
    found = [rows_of(batch, stream.subset_names) for batch in islice(iterator, batches)]
    saved = json.dumps(stream.state_dict())
    del iterator
    return found, saved


def run_ranks(
    world_size: int, data: Any, settings: dict[str, Any], *arguments: Any
) -> tuple[list[list[STEP]], list[str]]:
    """`run` as each rank, one after another: (batches, states) by rank."""
    given = {**settings, "world_size": world_size}
    results = [run(data, {**given, "rank": rank}, *arguments) for rank in range(world_size)]
    return [batches for batches, _ in results], [state for _, state in results]


def steps_of(ranks: Sequence[Sequence[STEP]], grad_accum: int) -> list[Counter[Row]]:
    """The rows of each optimizer step, from all ranks' batches."""
    assert len({len(batches) for batches in ranks}) == 1, "ranks took different numbers of batches"
    return [
        Counter(row for batches in ranks for batch in batches[first : first + grad_accum] for row in batch)
        for first in range(0, len(ranks[0]), grad_accum)
    ]


def counted(steps: Iterable[STEP]) -> list[Counter[Row]]:
    """Steps whose rows have no order."""
    return [Counter(step) for step in steps]


def run_in_rank(*arguments: Any) -> tuple[list[STEP], str]:
    """`run`; afterwards all ranks wait for each other, so that no rank ends while others are working."""
    result = run(*arguments)
    dist.barrier()
    return result


def in_group(
    process_group: ProcessGroups, world_size: int, folder: Any, settings: dict[str, Any], *arguments: Any
) -> tuple[list[list[STEP]], list[str]]:
    """(batches, states) by rank."""
    results = process_group(world_size).run(run_in_rank, str(folder), settings, *arguments, timeout=SECONDS)
    return [batches for batches, _ in results], [state for _, state in results]
