"""Batches: every column equals the plain reference, for any rows of any windows."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from pilekit.errors import PilekitError
from pilekit.stream.batch.batch import COLUMNS, OUTPUTS, Batch, BatchWriter, checked_outputs
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.pack.rows import Rows
from pilekit.stream.pack.window import Layout, Packing, Place, RowRange, Window, joined, padding, pieces_of, windows
from tests.stream import reference
from tests.stream.packing_reference import (
    EOS,
    PAD,
    SHARDS,
    cu_seqlens,
    documents_of,
    lengths,
    plan,
    rows_of,
    tokenized,
)
from tests.stream.reference import Document, Row


def window_of(documents: Sequence[Document], packing: str, seq_len: int, append_eod: bool = True) -> Window:
    how = Layout(seq_len, cast(Packing, packing), 1000, append_eod, 0)
    found = list(windows(iter([tokenized(documents, append_eod)]), 0, Place(0, 0), how))
    return found[0] if len(found) == 1 else _one(found)


def _one(found: list[Window]) -> Window:
    """One window of all rows: "concat" gives two windows, the second with the rest."""
    first, last = found
    documents = joined([first.documents, last.documents])
    piece, begun = len(first.documents), len(first.rows.document)
    rows = Rows(
        np.concatenate([first.rows.document, last.rows.document + piece]),
        np.concatenate([first.rows.begin, last.rows.begin]),
        np.concatenate([first.rows.length, last.rows.length]),
        np.concatenate([first.rows.start, last.rows.start[1:] + begun]),
    )
    keys = np.concatenate([first.row_keys, last.row_keys])
    return Window(documents, rows, keys, np.concatenate([first.after, last.after]))


def reference_rows(documents: Sequence[Document], packing: str, seq_len: int) -> list[Row]:
    rows = reference.lane_rows(iter(documents), plan(seq_len, packing, window=1000))
    return [reference.columns(row, seq_len, PAD) for row in rows]


def written(
    parts: Sequence[RowRange],
    seq_len: int,
    outputs: Sequence[str] = OUTPUTS,
    state: torch.Tensor | None = None,
    append_eod: bool = True,
) -> Batch:
    writer = BatchWriter(seq_len, outputs, PAD, EOS if append_eod else -1)
    batch = writer.batch(parts, pieces_of(parts), SHARDS)
    if state is not None:
        batch["stream_state"] = state
    return batch


def some_batch(outputs: Sequence[str] = OUTPUTS, state: torch.Tensor | None = None) -> Batch:
    window = window_of(documents_of([3, 0, 9, 2, 5, 1, 1]), "best_fit", 6)
    return written([RowRange(window, 0, len(window.rows)), padding(1)], 6, outputs, state)


@given(
    st.lists(st.tuples(lengths, st.sampled_from(["best_fit", "none", "concat"])), min_size=1, max_size=3),
    st.integers(1, 40),
    st.booleans(),
    st.data(),
)
@example([([0, 0, 0], "best_fit")], 1, True, None)
@example([([9, 4, 5, 20, 6, 1], "best_fit")], 8, True, None)  # rests of long documents behind other documents
@example([([0, 0, 0], "concat")], 2, False, None)
@example([([3, 3], "concat"), ([7], "none")], 4, True, None)
def test_columns_are_those_of_the_reference(
    windows: list[tuple[list[int], str]], seq_len: int, append_eod: bool, data: st.DataObject | None
) -> None:
    parts: list[tuple[Window | None, int, int, list[Row]]] = []
    nothing = reference.columns([], seq_len, PAD)
    for window_lengths, packing in windows:
        documents = documents_of(window_lengths, append_eod=append_eod)
        window = window_of(documents, packing, seq_len, append_eod)
        rows = reference_rows(documents, packing, seq_len)
        assert len(window.rows) == len(rows)
        first, count = 0, len(rows)
        if data is not None:
            first = data.draw(st.integers(0, len(rows)))
            count = data.draw(st.integers(0, len(rows) - first))
            pads = data.draw(st.integers(0, 2))
            parts.append((None, 0, pads, [nothing] * pads))
        parts.append((window, first, count, rows[first : first + count]))
    expected = [row for *_, rows in parts for row in rows]
    ranges = [padding(n) if one is None else RowRange(one, first, n) for one, first, n, _ in parts]
    state = torch.arange(6).view(2, 3)
    found = written(ranges, seq_len, state=state, append_eod=append_eod)
    assert list(found) == [*OUTPUTS, "stream_state"]
    assert rows_of(found) == expected
    assert torch.equal(found["stream_state"], state)
    borders = found["cu_seqlens"]
    assert borders.dtype == found["max_seqlen"].dtype == torch.int32
    assert borders.tolist() == cu_seqlens(expected)
    assert found["max_seqlen"].shape == ()
    assert int(found["max_seqlen"]) == max((b - a for a, b in itertools.pairwise(borders.tolist())), default=0)


@given(st.lists(st.sampled_from(OUTPUTS), min_size=1, unique=True), st.booleans())
def test_only_what_is_asked_for_is_there(outputs: list[str], with_state: bool) -> None:
    state = torch.tensor([[4, 5]]) if with_state else None
    full, found = some_batch(state=state), some_batch(outputs, state)
    assert list(found) == [*outputs, *["stream_state"] * with_state]
    assert all(torch.equal(found[name], full[name]) for name in found)
    assert found.documents() == full.documents()
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in found.values()), "memory that nobody asked for"


@pytest.mark.parametrize("outputs", [[], ["input_ids", "label"], ["labels", "labels"], "lables", ["\x1b[2J"]])
def test_outputs_that_do_not_exist_are_refused(outputs: Sequence[str]) -> None:
    with pytest.raises(PilekitError, match=r"outputs names what a batch holds, some of input_ids, labels,") as raised:
        checked_outputs(outputs)
    assert "\x1b" not in str(raised.value)


@given(lengths, st.integers(1, 20), st.sampled_from(["best_fit", "none", "concat"]), st.data())
@example([9, 4, 5, 20, 6, 1], 8, "best_fit", None)  # rests of long documents behind other documents
@example([8], 8, "best_fit", None)  # only the EOD is left for another row
def test_what_began_in_another_row_is_known(
    lengths: list[int], seq_len: int, packing: str, data: st.DataObject | None
) -> None:
    """No two documents share a token, so a row's first token identifies its document."""
    documents = documents_of(lengths)
    window = window_of(documents, packing, seq_len)
    first = 0 if data is None else data.draw(st.integers(0, len(window.rows)))
    found = written([RowRange(window, first, len(window.rows) - first), padding(1)], seq_len, ["input_ids", "doc_ids"])
    firsts = {(document.line.shard, document.line.number): document.tokens[0] for document in documents}
    expected = [
        [int(ids[doc_ids.tolist().index(number)]) != firsts[name] for number, name in enumerate(names)]
        for names, ids, doc_ids in zip(found.documents(), found["input_ids"], found["doc_ids"], strict=True)
    ]
    assert found.continued() == expected
    assert pickle.loads(pickle.dumps(found)).continued() == expected
    if data is None:
        assert any(any(row) for row in expected)


def test_a_batch_outlives_its_windows_and_keeps_no_memory_of_theirs() -> None:
    window = window_of(documents_of([3, 3]), "none", 6)
    closed = written([RowRange(window, 0, 2)], 6)
    expected = rows_of(closed)
    for array in (window.documents.ids, window.documents.shards, window.documents.numbers, window.rows.start):
        array[:] = 1
    assert rows_of(closed) == expected


class _Stream(IterableDataset[Batch]):
    def __iter__(self) -> Iterator[Batch]:
        for number in range(4):
            yield some_batch(state=torch.tensor([[number, 2**62]]))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_whole_out_of_a_stock_loader(workers: int) -> None:
    expected = some_batch()
    batches = list(DataLoader(_Stream(), batch_size=None, num_workers=workers))
    assert [batch["stream_state"].tolist() for batch in batches] == [
        [[number, 2**62]] for number in range(4) for _ in range(max(1, workers))
    ]
    for batch in batches:
        assert isinstance(batch, Batch)
        assert batch.documents() == expected.documents()
        assert all(torch.equal(batch[name], expected[name]) for name in OUTPUTS)
        assert not any(one.is_shared() for one in batch.values()), "sent through the pipe"


def test_a_loader_that_would_batch_batches_is_refused() -> None:
    with pytest.raises(PilekitError, match="batch_size=None"):
        next(iter(DataLoader(_Stream())))


@pytest.mark.parametrize("outputs", [OUTPUTS, OUTPUTS[::-1], ("max_seqlen", "cu_seqlens", "doc_ids"), ("cu_seqlens",)])
def test_what_is_pickled_is_the_same_and_ones_own(outputs: tuple[str, ...]) -> None:
    batch = some_batch(outputs, state=torch.arange(6).view(2, 3))
    before = {name: one.clone() for name, one in batch.items()}
    again = pickle.loads(pickle.dumps(batch))
    assert list(again) == list(before) == [*outputs, "stream_state"]
    for name, one in again.items():
        assert one.dtype == before[name].dtype
        assert one.equal(before[name])
        one += 1
    assert all(batch[name].equal(before[name]) for name in before)
    assert all(again[name].equal(before[name] + 1) for name in before), "each tensor has its own bytes"
    assert again.documents() == batch.documents()


def test_a_batch_survives_pin_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own way through the batch; only what pins a single tensor needs a GPU.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
    batch = some_batch(state=torch.ones(2, dtype=torch.int64))
    pinned = pin_memory(batch)  # type: ignore[no-untyped-call]
    assert isinstance(pinned, Batch)
    assert rows_of(pinned) == rows_of(batch)
    assert list(pinned) == list(batch)
    assert all(pinned[name].data_ptr() != batch[name].data_ptr() for name in batch)


def test_a_batch_can_be_made_anew_from_moved_tensors() -> None:
    """Frameworks do this to move a batch; the new batch is equal, but does not know its documents."""
    batch = some_batch(state=torch.ones(2, dtype=torch.int64))
    moved = type(batch)({name: column.to("cpu", copy=True) for name, column in batch.items()})
    assert list(moved) == list(batch)
    assert all(moved[name].equal(batch[name]) for name in batch)
    for ask in (moved.documents, moved.continued):
        with pytest.raises(PilekitError, match="moving it to a device"):
            ask()


def test_columns_not_asked_for_are_needed_by_masking_but_not_given() -> None:
    window = window_of(documents_of([30, 40, 50]), "concat", 20)
    masking = Masking(3, 200, (EOS, PAD))

    def batch(outputs: Sequence[str]) -> Batch:
        writer = BatchWriter(20, outputs, PAD, EOS, masking)
        rows = [RowRange(window, 0, len(window.rows))]
        return writer.batch(rows, pieces_of(rows), SHARDS)

    both = batch(OUTPUTS)
    assert (both["labels"] != -100).any()
    for name in COLUMNS:
        assert list(batch([name])) == [name]
        assert torch.equal(batch([name])[name], both[name])
