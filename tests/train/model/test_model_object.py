"""Model objects of transformers: copied with their weights, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from transformers import GPTNeoXForCausalLM, GPTNeoXModel, T5Config, T5ForConditionalGeneration

from pilekit.errors import PilekitError
from pilekit.models.masked import MaskedLM
from pilekit.tokenize import Tokenizer, load_tokenizer
from pilekit.train.backends import build_engine
from pilekit.train.config.file import load_config
from pilekit.train.config.sections import Objective
from pilekit.train.model.build import build_model
from pilekit.train.model.shape import model_shape
from pilekit.train.trainer import Trainer
from pilekit.workers.ranks import join
from tests.tiny.masked import FAMILIES, config_of, made_of
from tests.tiny.models import tiny_model, tiny_neox_config, tiny_tokenizer
from tests.train.runs import tiny_run


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer(tmp_path / "tokenizer", vocab_size=300))


def test_any_type_and_kind_is_copied_as_float32(tokenizer: Tokenizer) -> None:
    cases: list[tuple[Any, Objective]] = [(tiny_model(family), "clm") for family in ("gpt_neox", "gpt2", "llama")]
    cases += [(made_of(config_of(family)), "mlm") for family in FAMILIES]
    for number, (model, objective) in enumerate(cases):
        model.to([torch.bfloat16, torch.float16, torch.float64][number % 3]).eval()
        chosen, *_ = [name for name, _ in model.named_parameters()]
        model.get_parameter(chosen).requires_grad_(False)
        drawn = torch.random.get_rng_state()
        lm = build_model(model, tokenizer, seq_len=32, seed=1, objective=objective)
        copied: Any = lm.model
        assert torch.equal(torch.random.get_rng_state(), drawn)
        assert (isinstance(lm, MaskedLM), copied.training, model.training) == (objective == "mlm", True, False)
        assert {parameter.dtype for parameter in copied.parameters()} == {torch.float32}
        given = dict(model.named_parameters())
        assert given.keys() == dict(copied.named_parameters()).keys()
        for name, parameter in copied.named_parameters():
            assert torch.equal(parameter, given[name].float()), name
            assert parameter.data_ptr() != given[name].data_ptr()
            assert parameter.requires_grad == (name != chosen), name
        tied = lm.head.weight is copied.get_input_embeddings().weight
        assert tied == (type(copied).__name__ not in ("GPTNeoXForCausalLM", "LlamaForCausalLM"))


class Own(GPTNeoXForCausalLM):
    """A class of a user's own."""


def changed(change: Any, family: Any = "gpt_neox") -> Any:
    """A tiny model after `change`."""
    change(model := tiny_model(family))
    return model


def with_meta() -> Any:
    with torch.device("meta"):
        return GPTNeoXForCausalLM(tiny_neox_config())


def test_what_cannot_be_trained_as_given_is_refused_in_one_line(tokenizer: Tokenizer) -> None:
    head = nn.Parameter(torch.ones(320, 32))
    bytes_ = nn.Parameter(torch.ones(320, 32, dtype=torch.int8), requires_grad=False)
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=320, d_model=16, d_ff=16, d_kv=4, num_heads=2, num_layers=1))
    cases: list[tuple[Any, Objective, str]] = [
        (nn.Linear(2, 2), "clm", "a Linear is not a model of transformers; give one"),
        ("gpt2", "clm", "a str is not a model of transformers"),
        (GPTNeoXModel(tiny_neox_config()), "clm", "its configuration makes a GPTNeoXForCausalLM, not a GPTNeoXModel"),
        (Own(tiny_neox_config()), "clm", "its configuration makes a GPTNeoXForCausalLM, not a Own; give that"),
        (made_of(config_of("bert")), "clm", "as a causal language model its configuration makes a BertLMHeadModel, "),
        (tiny_model(), "mlm", "a GPTNeoXForCausalLM is not a masked language model"),
        (t5, "clm", "a T5ForConditionalGeneration is not a causal language model"),
        (changed(lambda m: setattr(m.config, "quantization_config", {"bits": 8})), "clm", "quantised weights are not"),
        (changed(lambda m: setattr(m.lm_head, "weight", bytes_)), "clm", "quantised weights are not supported"),
        (with_meta(), "clm", "is on the meta device, without numbers"),
        (
            *(changed(lambda m: setattr(m.lm_head, "weight", head), "gpt2"), "clm"),
            "lm_head.weight is [320, 32], but its configuration makes none of its own; change the configuration",
        ),
        (
            *(changed(lambda m: setattr(m.lm_head, "weight", m.gpt_neox.embed_in.weight)), "clm"),
            "lm_head.weight is none of its own, but its configuration makes [320, 32]",
        ),
        (changed(lambda m: m.register_parameter("more", head)), "clm", "parameter more is [320, 32], but"),
        (changed(lambda m: setattr(m.config, "vocab_size", 330)), "clm", "is [320, 32], but its configuration makes"),
        (changed(lambda m: m.register_buffer("more", torch.ones(2))), "clm", "its weights cannot be copied: Error"),
        (changed(lambda m: m.requires_grad_(False)), "clm", "all parameters are frozen; set requires_grad"),
        (tiny_model(max_length=31), "clm", "has 31 positions and data.seq_len is 32"),
        (tiny_model(vocab_size=299), "clm", "vocabulary larger"),
    ]
    for model, objective, message in cases:
        with pytest.raises(PilekitError) as raised:
            build_model(model, tokenizer, seq_len=32, seed=0, objective=objective)
        assert str(raised.value).startswith("the model object: "), raised.value
        assert message in str(raised.value), raised.value
        assert "\n" not in str(raised.value)
    assert model_shape(tiny_model(), tokenizer, 32).device.type == "meta"


def test_a_trainer_takes_one_model_and_tells_whose_weights_a_resumed_run_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(load_config(tiny_run(tmp_path, "train.steps=2") / "tiny.toml"), {"model.config": None})
    out = tmp_path / "run"
    for refused, changes, message in (
        (nn.Linear(2, 2), {}, "^the model object: a Linear is not"),
        (
            tiny_model(),
            {"model.preset": "pythia-14m"},
            r"^model.preset = .*: a model object is given too; leave one out$",
        ),
        (tiny_model(), {"model.freeze": ["*.bias"]}, r"^model.freeze = .*: set requires_grad of the model object's "),
        (None, {}, "^model has neither preset nor config nor path nor from_teacher: give exactly one of them"),
    ):
        with pytest.raises(PilekitError, match=message):
            Trainer(load_config(config, changes), out, model=cast("Any", refused))
    assert not out.exists()
    (frozen := tiny_model()).lm_head.requires_grad_(False)
    lm = build_model(frozen, load_tokenizer(tmp_path / "tokenizer"), seq_len=32, seed=0)
    for engine in ("deepspeed", "accelerate"):
        with pytest.raises(PilekitError, match=f'^parallel.backend = "{engine}": frozen parameters are not supported'):
            build_engine(lm, load_config(config, {"parallel.backend": engine}), join())
    steps: list[int] = []
    model = tiny_model()
    assert Trainer(config, out, model=model).fit(lambda metrics: steps.append(metrics.step)).model == out / "model"
    assert steps == [1, 2]
    assert "model object" not in caplog.text
    longer = load_config(config, {"train.steps": 3})
    Trainer(longer, out, model=model).fit(lambda metrics: steps.append(metrics.step))
    assert steps == [1, 2, 3]
    assert f"{out}: resumes with the weights of step-2, not those of the model object" in caplog.messages
    with pytest.raises(PilekitError, match=r"of a model of another configuration; .* or its model object"):
        model.config.rope_parameters["rope_theta"] = 5000.0
        Trainer(longer, out, model=model).fit()
