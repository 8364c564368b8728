"""Guarantee of packing: in a packed batch, a model sees each document alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pilekit.stream.pile_stream import PileStream
from tests.stream.collecting import ALL
from tests.stream.conftest import Corpora, Settings
from tests.tiny.models import tiny_model

# 6. Packing: documents in a row do not see each other


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "gpt2"])
@pytest.mark.parametrize("packing", ["best_fit", "concat"])
@pytest.mark.parametrize(
    "checkpointing", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "checkpointing"]
)
def test_a_model_sees_each_document_alone(
    corpora: Corpora, settings: Settings, family: Any, packing: Any, checkpointing: bool
) -> None:
    """Logits and gradients of a packed batch are those of its documents run one by one."""
    model = tiny_model(family, max_length=64)
    model.train(checkpointing)  # checkpointing works in training only
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    stream = PileStream(corpora["mixed"].folder, **settings, batch_size=16, packing=packing, outputs=ALL)
    batch = next(iter(stream))

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")

    def outputs(input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
        return logits

    together = outputs(batch["input_ids"], batch["position_ids"])
    packed = gradient(loss_of(together, batch["labels"]))
    alone_loss = torch.zeros(())
    documents = 0
    for row in range(16):
        for doc_id in range(int(batch["doc_ids"][row].max()) + 1):
            mine = batch["doc_ids"][row] == doc_id
            input_ids = batch["input_ids"][row][mine][None]
            alone = outputs(input_ids, torch.arange(input_ids.shape[1])[None])
            torch.testing.assert_close(together[row][mine], alone[0], rtol=1e-4, atol=1e-4)
            alone_loss = alone_loss + loss_of(alone, input_ids)
            documents += 1
    assert documents > 20, "rows with several documents are what this is about"
    torch.testing.assert_close(gradient(alone_loss), packed, rtol=1e-3, atol=1e-3)
