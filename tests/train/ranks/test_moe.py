"""A mixture of experts: a small Mixtral under ZeRO-3 has the figures of one rank, and the exported model loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from tests.process_groups import ProcessGroups
from tests.tiny.models import tiny_neox_config
from tests.train.ranks.fitting import TIMEOUT, assert_close, case, fit, rows_of_steps
from tests.train.runs import lines

pytestmark = pytest.mark.timeout(900)


def test_a_mixtral_is_trained_on_two_ranks_as_on_one(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    MixtralConfig(
        vocab_size=tiny_neox_config().vocab_size,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=48,
        sliding_window=None,
        initializer_range=0.2,
    ).save_pretrained(tmp_path / "mixtral")
    changes = (f"model.config={tmp_path}/mixtral/config.json",)
    (one,) = process_group(1).run(fit, made, tmp_path / "one", (*changes, *case("fp32", 0, 1)), timeout=TIMEOUT)
    seen = process_group(2).run(fit, made, tmp_path / "two", (*changes, *case("fp32", 3, 2)), timeout=TIMEOUT)
    assert [part.error for part in (one, *seen)] == [None] * 3
    assert rows_of_steps(seen) == rows_of_steps([one])
    assert_close(lines(tmp_path / "two"), lines(tmp_path / "one"), loss=1e-5, grad_norm=1e-4)
    ids = torch.arange(2, 42).reshape(2, 20)
    with torch.no_grad():
        logits = [AutoModelForCausalLM.from_pretrained(tmp_path / run / "model")(ids).logits for run in ("one", "two")]
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-4)
    experts = [name for name in one.state if "experts" in name and name.startswith("model.")]
    assert experts
