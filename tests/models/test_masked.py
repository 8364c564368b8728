"""Masked models are loaded in the given dtype and proven to predict from both sides; others are refused in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertModel, ModernBertConfig

from pilekit.errors import PilekitError
from pilekit.models.masked import MaskedLM, as_masked_lm, keeps_documents_apart, load_masked_lm, states_at
from tests.refusing import refused
from tests.tiny.masked import FAMILIES, PAD, called, config_of, made_of, tiny
from tests.tiny.models import SHAPE, tiny_model_dir
from tests.versions import trains

IDS = torch.tensor([[5, 9, 2, 60, 33, 33, 7, 4]])


def refusal(folder: Path) -> str:
    return refused(re.escape(str(folder)), load_masked_lm, folder)


@pytest.mark.parametrize(
    ("family", "dtype"), [("bert", torch.float64), ("roberta", torch.float32), ("distilbert", torch.bfloat16)]
)
def test_a_loaded_model_is_the_saved_one(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    made_of(config_of(family)).save_pretrained(tmp_path)
    lm = load_masked_lm(tmp_path, dtype=dtype, device="cpu")
    assert (lm.max_length, lm.head_by_place, lm.model.training, lm.model.dtype) == (40, True, False, dtype)
    parameters = dict(lm.model.named_parameters())
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(parameters.get(name, tensor.to(dtype)), tensor.to(dtype))


def modern_bert() -> Any:
    torch.manual_seed(0)
    return made_of(ModernBertConfig(**SHAPE, max_position_embeddings=64, local_attention=8, pad_token_id=PAD)).eval()


@pytest.mark.parametrize("family", [*FAMILIES, "modernbert"])
def test_states_at_some_places_are_those_of_all(family: str) -> None:
    lm = as_masked_lm(modern_bert()) if family == "modernbert" else tiny(family)
    assert lm.head_by_place
    ids = torch.cat((IDS, IDS.flip(1)))
    with torch.no_grad():
        made = lm.head(states_at(lm, {"input_ids": ids}, torch.tensor([3, 8, 15])))
    right = called(lm.model, ids)
    torch.testing.assert_close(made, torch.stack((right[0, 3], right[1, 0], right[1, 7])))
    assert torch.equal(called(lm.model, ids), right)  # the model keeps nothing of the change
    assert not any(module._forward_hooks for module in lm.model.modules())


def test_positions_that_go_on_are_seen_by_the_proof() -> None:
    """Obeying the mask is not enough: a document must have the same positions as alone."""
    model: Any = tiny("bert", dtype=torch.float32).model
    forward = model.base_model.forward
    model.base_model.forward = lambda *given, position_ids=None, **named: forward(*given, **named)
    assert not keeps_documents_apart(as_masked_lm(model), 40)


@trains  # scoring puts no two documents in a row
def test_a_mask_that_replaces_a_window_is_seen_by_the_proof() -> None:
    lm = as_masked_lm(modern_bert())
    assert keeps_documents_apart(lm, 8)
    assert not keeps_documents_apart(lm, 64)


def test_both_sides_are_proven_in_any_precision() -> None:
    """A later token may change logits by less than the model's own rounding of its largest logit."""
    config = config_of("roberta")
    config.initializer_range = 0.02
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch.manual_seed(0)
        model = made_of(config).to(dtype).eval()
        torch.nn.init.constant_(model.lm_head.decoder.bias[:1], 30.0)
        assert isinstance(as_masked_lm(model), MaskedLM)
    config.is_decoder = True
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(
            PilekitError, match=r'is not a masked language model.*"is_decoder": true, set that to false$'
        ):
            as_masked_lm(made_of(config).to(dtype).eval())


def test_a_folder_without_a_masked_model_is_refused(tmp_path: Path) -> None:
    assert "gpt_neox model is not a masked language model" in refusal(tiny_model_dir(tmp_path / "causal"))
    BertModel(config_of("bert")).save_pretrained(tmp_path / "base")
    assert "copy the whole AutoModelForMaskedLM" in refusal(tmp_path / "base")
