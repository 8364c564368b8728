"""A few tokens run through a model show whether it is causal, and its parts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    Cohere2Config,
    Gemma2Config,
    GPTJConfig,
    GraniteConfig,
    LlamaConfig,
    MambaConfig,
    OPTConfig,
    RecurrentGemmaConfig,
)

from pilekit.errors import PilekitError
from pilekit.models.causal import as_causal_lm, check_vocabulary, isolates_documents
from pilekit.models.logit_transform import UNCHANGED, LogitTransform, logit_transform_of
from pilekit.tokenize import load_tokenizer
from tests.refusing import refused
from tests.tiny.models import tiny_model, tiny_tokenizer
from tests.versions import TRAINS

SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA_LIKE: dict[str, Any] = {
    **SMALL,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
WITHOUT_HEAD_DIM = {name: value for name, value in LLAMA_LIKE.items() if name != "head_dim"}
BLOOM = BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
MAMBA = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4)
IDS = torch.tensor([[5, 9, 2, 60, 33, 33, 7, 1]])


def made(config: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return cast("Tensor", model(input_ids=ids, use_cache=False).logits)


def test_a_masked_language_model_is_refused() -> None:
    bert = BertForMaskedLM(BertConfig(**SMALL, intermediate_size=64, max_position_embeddings=32))
    refused(r"this bert model (is not a causal|cannot predict)", as_causal_lm, bert.eval())
    decoder = made(BertConfig(**SMALL, intermediate_size=64, is_decoder=True))
    assert as_causal_lm(decoder).transform is None  # a layer stands between trunk and head


TRANSFORMS = [
    (Gemma2Config(**LLAMA_LIKE, final_logit_softcapping=30.0), LogitTransform(cap=30.0)),
    (Cohere2Config(**LLAMA_LIKE, logit_scale=0.3), LogitTransform(times=0.3)),
    (GraniteConfig(**WITHOUT_HEAD_DIM, logits_scaling=7.0), LogitTransform(over=7.0)),
    (RecurrentGemmaConfig(**WITHOUT_HEAD_DIM, logits_soft_cap=3.0), LogitTransform(cap=3.0)),
    (GPTJConfig(vocab_size=64, n_embd=32, n_layer=1, n_head=4, rotary_dim=4), UNCHANGED),  # its head has a bias
    (OPTConfig(**SMALL, ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=32), UNCHANGED),
    (BLOOM, UNCHANGED),
    (MAMBA, UNCHANGED),
]
if TRAINS:  # transformers 4.56 lacks this model
    from transformers import HyperCLOVAXConfig

    TRANSFORMS.append((HyperCLOVAXConfig(**WITHOUT_HEAD_DIM, logits_scaling=7.0), LogitTransform(times=7.0)))


def test_the_transform_after_the_head_is_found() -> None:
    for config, transform in TRANSFORMS:
        for dtype in (torch.float32, torch.bfloat16):
            if config is MAMBA and dtype == torch.bfloat16:
                continue  # its own logits are rounded otherwise
            lm = as_causal_lm(made(config).to(dtype))
            assert lm.transform == transform
            with torch.no_grad():
                by_head = lm.head(lm.trunk(input_ids=IDS, use_cache=False).last_hidden_state)
                assert torch.equal(transform(by_head), logits(lm.model))
                assert torch.equal(by_head, logits(lm.model)) == (transform == UNCHANGED)


def test_a_cap_is_found_where_logits_are_too_small_to_show_it() -> None:
    model = made(Gemma2Config(**LLAMA_LIKE, final_logit_softcapping=30.0))
    for scale in (1e-3, 0.0):
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(scale)
        assert as_causal_lm(model).transform == LogitTransform(cap=30.0)


def test_a_cap_that_a_model_names_and_does_not_apply_is_not_trusted() -> None:
    named = {"final_logit_softcapping": 2.0, "logit_scale": 0.3, "logits_scaling": 7.0}
    assert as_causal_lm(made(LlamaConfig(**LLAMA_LIKE, **named))).transform == UNCHANGED
    del named["logits_scaling"]
    granite = made(GraniteConfig(**WITHOUT_HEAD_DIM, logits_scaling=3.0))
    for name, value in named.items():
        setattr(granite.config, name, value)
    assert as_causal_lm(granite).transform == LogitTransform(over=3.0)


def test_an_unknown_change_of_logits_is_left_to_the_model() -> None:
    for change in (
        lambda made: made + 1,
        lambda made: made.clamp(-50, 50),  # no logit of a fresh model exceeds it
        lambda made: made.index_fill_(-1, torch.tensor([3]), -1e4),  # in place: the head's own output is changed
        lambda made: made[..., :-1],
        lambda made: made.float() * 0.3,
    ):
        model = made(LlamaConfig(**LLAMA_LIKE, logit_scale=0.3)).to(torch.bfloat16)
        forward = model.forward

        def changed(*args: Any, forward: Any = forward, change: Any = change, **named: Any) -> Any:
            result = forward(*args, **named)
            result.logits = change(result.logits)
            return result

        assert as_causal_lm(model).transform == UNCHANGED
        model.forward = changed
        assert as_causal_lm(model).transform is None


def test_probing_leaves_the_model_as_it_was() -> None:
    for training in (True, False):
        model = tiny_model("gpt2").train(training)  # dropout would make any two calls differ
        lm = as_causal_lm(model)
        assert isolates_documents(lm)
        assert model.training is training
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not any(module._forward_hooks for module in model.modules())


def test_documents_are_isolated_by_positions_that_start_again() -> None:
    for family in ("gpt_neox", "gpt2", "llama"):
        lm = as_causal_lm(tiny_model(family).eval())
        assert isolates_documents(lm)
        alone = [logits(lm.model, IDS[:, :3]), logits(lm.model, IDS[:, 3:])]
        positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
        with torch.no_grad():
            packed = lm.head(lm.trunk(input_ids=IDS, position_ids=positions, use_cache=False).last_hidden_state)
        torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=0, atol=1e-5)
    for config in (BLOOM, MAMBA):  # models without positions
        assert not isolates_documents(as_causal_lm(made(config)))


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer(tmp_path, vocab_size=300))
    check_vocabulary(tiny_model(vocab_size=300), tokenizer, "M")
    with pytest.raises(PilekitError, match=r"^M: vocabulary larger than the embeddings: .* 300 ids and the model 299;"):
        check_vocabulary(tiny_model(vocab_size=299), tokenizer, "M")


LOGITS = torch.linspace(-90.0, 90.0, 1001)


def found(numbers: dict[str, Any], *logits: Tensor) -> LogitTransform | None:
    return logit_transform_of(LlamaConfig(**numbers), [(LOGITS.to(made.dtype), made) for made in logits])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_numbers_and_not_names_tell_the_transform(dtype: torch.dtype) -> None:
    """Models use the same name for different operations."""
    logits = LOGITS.to(dtype)
    named = {"logits_scaling": 7.0, "final_logit_softcapping": 11.0}
    capped = torch.tanh(logits / 11.0) * 11.0
    assert found(named, logits) == UNCHANGED
    assert found(named, logits / 7.0) == LogitTransform(over=7.0)
    assert found(named, logits * 7.0) == LogitTransform(times=7.0)
    assert found(named, capped) == LogitTransform(cap=11.0)
    assert found(named, torch.tanh(logits * 7.0 / 11.0) * 11.0) == LogitTransform(times=7.0, cap=11.0)
    assert found(named, capped * 7.0) is None
    assert found(named, logits.clamp(-11.0, 11.0)) is None
    assert found(named, logits + 1) is None
    assert found({}, capped) is None


def test_a_value_that_cannot_divide_is_no_candidate() -> None:
    for value in (0, 0.0, None, math.nan, math.inf, "30", [30.0], {}):
        named = {"logit_scale": value, "logits_scaling": value, "final_logit_softcapping": value}
        assert found(named, LOGITS) == UNCHANGED
        assert found(named, LOGITS * 0.5) is None
