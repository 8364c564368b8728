"""Blocks of a shard that is read in order, against a plain reference; and that raw shards are shuffled at all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus.shuffle import permutation
from pilekit.stream.read.lane_documents import NUMBER, ORDER, SKIPPED, LaneDocuments, document_table
from pilekit.stream.read.shuffled_blocks import shuffled_blocks
from tests.stream.corpora import made
from tests.stream.test_documents import found_of, raw


def blocks(documents: Sequence[tuple[int, str]], lines: int, most: int) -> Iterator[list[tuple[int, str]]]:
    """(number, text) of each block, one document at a time."""
    block: list[tuple[int, str]] = []
    for number, text in documents:
        if block and block[0][0] // lines != number // lines:
            yield block
            block = []
        block.append((number, text))
        if sum(len(text) for _, text in block) >= most:
            yield block
            block = []
    if block:
        yield block


@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=60),
    cuts=st.lists(st.integers(0, 60)),
    lines=st.integers(1, 20),
    most=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_blocks_are_the_references_wherever_reading_cuts(
    sizes: list[tuple[int, int]], cuts: list[int], lines: int, most: int, seed: int
) -> None:
    numbers = np.cumsum([gap + 1 for _, gap in sizes], dtype=np.int64)
    texts = [chr(97 + index % 26) * size for index, (size, _) in enumerate(sizes)]
    table = document_table(len(texts), order=numbers, number=numbers, skipped=np.arange(len(texts)))
    whole = LaneDocuments(table, texts)
    edges = [0, *sorted(min(cut, len(texts)) for cut in cuts), len(texts)]
    pieces = [whole.part(begin, end) for begin, end in itertools.pairwise(edges)]

    wanted = []
    for block in blocks(list(zip(numbers.tolist(), texts, strict=True)), lines, most):
        order = permutation(len(block), seed, block[0][0]).tolist()
        wanted.append([(first, *block[place]) for (first, _), place in zip(block, order, strict=True)])
    given_out = list(shuffled_blocks(iter(pieces), lines, lambda count, first: permutation(count, seed, first), most))
    found = [
        list(zip(block.table[:, ORDER].tolist(), block.table[:, NUMBER].tolist(), block.texts, strict=True))
        for block in given_out
    ]
    assert found == wanted
    skipped = [number for block in given_out for number in block.table[:, SKIPPED].tolist()]
    assert skipped == list(range(len(texts))), "a bad line counts with the place that follows it"


def test_a_raw_shard_is_shuffled_within_its_blocks_and_by_the_seed(tmp_path: Path) -> None:
    rng = random.Random(5)
    made(tmp_path, [400], form="single", text_of=lambda _: f"{rng.random()}")
    passes = {}
    for name, changes in (
        ("in order", {"shuffle": False}),
        ("shuffled", {}),
        ("the same", {}),
        ("another seed", {"seed": 1}),
        ("small blocks", {"shuffle_block": 100}),
    ):
        stream = raw(tmp_path, True, epochs=1, **changes)
        passes[name] = [document[1] for batch in stream for document in found_of(batch)]
    assert passes["in order"] == sorted(passes["in order"])
    assert all(sorted(numbers) == passes["in order"] for numbers in passes.values())
    assert passes["shuffled"] == passes["the same"]
    assert len({tuple(numbers) for numbers in passes.values()}) == 4
    assert [number // 100 for number in passes["small blocks"]] == [number // 100 for number in passes["in order"]]
    moved = np.abs(np.array(passes["shuffled"]) - np.array(passes["in order"])).mean()
    assert 400 / 4 < moved < 400 / 2, "a random permutation moves a document by a third of the block on average"
