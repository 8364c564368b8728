"""Chosen lines by rank: against a plain list of numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import shard_of
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_of
from pilekit.shards.random_access import selected_lines
from pilekit.shards.random_access.selected_lines import Int64, SelectedLines, lines_of_subsets
from tests.shards.making import LABELS, record


@st.composite
def chosen(draw: st.DrawFn) -> tuple[int, list[int]]:
    """(lines, some of their numbers): dense, sparse, none, all, in runs."""
    lines = draw(st.integers(0, 20_000))
    share = draw(st.sampled_from([0.0, 0.0005, 0.02, 0.5, 0.98, 1.0]))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    keep = random.random(lines) < share
    for _ in range(draw(st.integers(0, 3))):
        begin, end = sorted(random.integers(0, lines + 1, 2).tolist())
        keep[begin:end] = draw(st.booleans())
    return lines, np.flatnonzero(keep).tolist()


def parts_of(numbers: list[int], data: st.DataObject) -> list[Int64]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=4)))
    borders = zip([0, *cuts], [*cuts, len(numbers)], strict=True)
    return [np.array(numbers[begin:end], dtype=np.int64) for begin, end in borders]


def check(selected: SelectedLines, expected: list[int], data: st.DataObject) -> None:
    assert len(selected) == len(expected)
    for _ in range(5):
        begin = data.draw(st.integers(0, len(expected)))
        end = data.draw(st.integers(begin, len(expected)) | st.integers(begin, min(begin + 3, len(expected))))
        found = selected.numbers(begin, end)
        assert found.dtype == np.int64
        assert found.tolist() == expected[begin:end]


@given(chosen(), chosen(), st.data())
def test_ranks_of_any_choice_and_of_masked_choices(
    choice: tuple[int, list[int]], other: tuple[int, list[int]], data: st.DataObject
) -> None:
    lines, numbers = choice
    selected = SelectedLines.where(lines, parts_of(numbers, data))
    check(selected, numbers, data)
    mask = np.zeros(lines, dtype=bool)
    mask[[number for number in other[1] if number < lines]] = True
    bits = np.packbits(mask, bitorder="little")
    check(selected.and_bits(bits), [number for number in numbers if mask[number]], data)
    check(SelectedLines(lines).and_bits(bits), np.flatnonzero(mask).tolist(), data)


def test_all_lines_are_arithmetic() -> None:
    selected = SelectedLines(10**12)
    assert (len(selected), selected.bits) == (10**12, None)
    assert selected.numbers(10**11, 10**11 + 3).tolist() == [10**11, 10**11 + 1, 10**11 + 2]


def test_lines_of_subsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(record(str(i), LABELS[i % 3]) if i % 7 else b"" for i in range(100)))
    index = index_of(shard_of(str(path)))
    documents = [i for i in range(100) if i % 7]
    assert lines_of_subsets(index, None).numbers(0, len(documents)).tolist() == documents
    for label in LABELS[:4]:
        expected = [i for i in documents if LABELS[i % 3] == label]
        selected = lines_of_subsets(index, label.__eq__)
        assert selected.numbers(0, len(selected)).tolist() == expected
    monkeypatch.setattr(selected_lines, "MOST_LINES", 99)
    with pytest.raises(PilekitError, match=r"its shard has 100 lines, more than can be chosen from \(99\)"):
        lines_of_subsets(index, None)
