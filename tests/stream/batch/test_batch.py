"""Batches: outputs, documents, and that loaders and pickling keep them. Columns are in pack/test_pack_stage.py."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from pilekit.stream.batch.batch import COLUMNS, OUTPUTS, Batch
from pilekit.stream.batch.mlm import Masking
from tests.refusing import refused
from tests.stream.pack.packing_reference import EOS, PAD, packed


def some_batch(outputs: tuple[str, ...] = OUTPUTS, number: int = 0) -> Batch:
    batch = packed([3, 0, 9, 2, 5, 1, 1], 6, outputs=outputs)
    batch["stream_state"] = torch.tensor([[number, 2**62]])
    return batch


def same(one: Batch, other: Batch) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@given(st.lists(st.sampled_from(OUTPUTS), min_size=1, unique=True))
def test_a_batch_holds_the_outputs_asked_for(outputs: list[str]) -> None:
    full, found = some_batch(), some_batch(tuple(outputs))
    assert list(found) == [*outputs, "stream_state"]
    assert all(torch.equal(found[name], full[name]) for name in found)
    assert found.documents() == full.documents()
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in found.values()), "memory that nobody asked for"


def test_masking_needs_columns_that_were_not_asked_for() -> None:
    options: dict[str, Any] = {"masking": Masking(3, 200, (EOS, PAD))}
    both = packed([30, 40, 50], 20, "concat", **options)
    assert (both["labels"] != -100).any()
    for name in COLUMNS:
        only = packed([30, 40, 50], 20, "concat", outputs=(name,), **options)
        assert list(only) == [name]
        assert torch.equal(only[name], both[name])


class _Stream(IterableDataset[Batch]):
    def __iter__(self) -> Iterator[Batch]:
        for number in range(4):
            yield some_batch(number=number)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_whole_out_of_a_stock_loader(workers: int) -> None:
    batches = list(DataLoader(_Stream(), batch_size=None, num_workers=workers))
    expected = [some_batch(number=number) for number in range(4) for _ in range(max(1, workers))]
    assert all(map(same, batches, expected))
    for batch in batches:
        assert batch.documents() == expected[0].documents()
        assert not any(one.is_shared() for one in batch.values()), "sent through the pipe"
    refused("batch_size=None", next, iter(DataLoader(_Stream())))


@pytest.mark.parametrize("outputs", [OUTPUTS, OUTPUTS[::-1], ("max_seqlen", "cu_seqlens", "doc_ids")])
def test_a_pickled_batch_is_equal_and_has_its_own_memory(outputs: tuple[str, ...]) -> None:
    batch = some_batch(outputs)
    batch["wide"], batch["none"] = torch.tensor([-(2**63), 2**63 - 1]), torch.zeros((0, 3), dtype=torch.int64)
    again = pickle.loads(pickle.dumps(batch))
    assert same(again, batch)
    assert [one.dtype for one in again.values()] == [one.dtype for one in batch.values()]
    assert again.documents() == batch.documents()
    before = {name: one.clone() for name, one in batch.items()}
    for one in again.values():
        one += 1
    assert same(batch, Batch(before))
    assert all(again[name].equal(before[name] + 1) for name in before), "each tensor has its own memory"
    batch["other"] = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
    assert same(pickle.loads(pickle.dumps(batch)), batch)


def test_a_batch_moves_to_a_device_with_its_documents() -> None:
    batch = some_batch()
    moved = batch.to("meta", non_blocking=True)
    assert list(moved) == list(batch)
    assert {name: one.device.type for name, one in moved.items() if name != "stream_state"} == dict.fromkeys(
        OUTPUTS, "meta"
    )
    assert torch.equal(moved["stream_state"], batch["stream_state"])
    assert moved.documents() == batch.documents()
    assert same(batch.to("cpu"), some_batch())


def test_a_batch_survives_pin_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own way through the batch; only pinning a single tensor needs a GPU.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
    batch = some_batch()
    pinned: Any = pin_memory(batch)  # type: ignore[no-untyped-call]
    assert isinstance(pinned, Batch)
    assert same(pinned, batch)
    assert pinned.documents() == batch.documents()
    assert all(pinned[name].data_ptr() != batch[name].data_ptr() for name in batch)


def test_a_batch_made_from_moved_tensors_does_not_know_its_documents() -> None:
    """Frameworks do this to move a batch."""
    batch = some_batch()
    moved = type(batch)({name: column.to("cpu", copy=True) for name, column in batch.items()})
    assert same(moved, batch)
    refused("moving it to a device", moved.documents)
