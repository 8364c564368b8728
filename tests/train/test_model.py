"""Models to train: presets of published size, a config.json, a model_dir; and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig

from pilekit.engine.ranks import join
from pilekit.errors import PilekitError
from pilekit.evaluate.model.causal import CausalLM
from pilekit.evaluate.model.logit_transform import UNCHANGED
from pilekit.tokenize import Tokenizer, load_tokenizer
from pilekit.train.config import ModelConfig
from pilekit.train.model.build import build_model, build_on, count_parameters
from pilekit.train.model.presets import PRESETS
from tests.logit_transforms import LOGIT_TRANSFORMS, transforming_model
from tests.process_groups import ProcessGroups
from tests.tiny import Family, tiny_model, tiny_model_dir, tiny_tokenizer

# What the models' published weights hold (https://huggingface.co/EleutherAI), embeddings of 50,304 rows included; the
# embeddings and heads of the two largest were published with 128 and 384 rows more, which no token has.
PUBLISHED = {
    "pythia-14m": 14_067_712,
    "pythia-31m": 30_494_720,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016 - 2 * 128 * 4096,
    "pythia-12b": 11_846_072_320 - 2 * 384 * 5120,
}
FAMILIES: list[Family] = ["gpt_neox", "gpt2", "llama"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer(tmp_path / "tokenizer", vocab_size=300))


@pytest.fixture
def neox_tokenizer(tmp_path: Path) -> Tokenizer:
    """As many ids as the tokenizer of GPT-NeoX has."""
    made = HuggingFaceTokenizer(WordLevel({"[UNK]": 0, "last": 50_276}, unk_token="[UNK]"))
    made.add_special_tokens([AddedToken("[UNK]")])
    made.save(str(tmp_path / "neox.json"))
    return load_tokenizer(tmp_path / "neox.json")


def test_presets_have_the_published_sizes(neox_tokenizer: Tokenizer) -> None:
    assert neox_tokenizer.vocab_size == 50_277
    counted = {
        name: count_parameters(ModelConfig(preset=name), neox_tokenizer, seq_len=2048)
        for name in ("pythia-14m", *PRESETS)
    }
    assert counted == PUBLISHED


def test_a_preset_is_made_for_its_tokenizer_and_row_length(tokenizer: Tokenizer) -> None:
    lm = build_model(ModelConfig(preset="pythia-14m"), tokenizer, seq_len=48, seed=0)
    assert isinstance(lm, CausalLM)
    config = lm.model.config
    assert (config.vocab_size, config.max_position_embeddings, lm.max_length) == (384, 48, 48)
    assert (config.eos_token_id, config.bos_token_id, config.pad_token_id) == (
        tokenizer.eos_id,
        tokenizer.bos_id,
        tokenizer.pad_id,
    )
    assert lm.model.training
    assert lm.transform == UNCHANGED
    assert config._attn_implementation == "sdpa"
    assert {parameter.dtype for parameter in lm.model.parameters()} == {torch.float32}
    assert count_parameters(ModelConfig(preset="pythia-14m"), tokenizer, seq_len=48) == sum(
        parameter.numel() for parameter in lm.model.parameters()
    )


def test_a_presets_weights_are_drawn_as_gpt_neox_draws_them(tokenizer: Tokenizer) -> None:
    lm = build_model(ModelConfig(preset="pythia-14m"), tokenizer, seq_len=16, seed=0)
    for name, parameter in lm.model.named_parameters():
        if parameter.ndim == 2:
            assert 0.019 < float(parameter.detach().std()) < 0.021, name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, "norm" in name and name.endswith("weight"))), name


def test_the_seed_alone_decides_the_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tiny_model().config.save_pretrained(tmp_path)

    def weights(seed: int) -> dict[str, torch.Tensor]:
        lm = build_model(ModelConfig(config=str(tmp_path)), tokenizer, seq_len=16, seed=seed)
        return lm.model.state_dict()

    torch.manual_seed(5)
    first = weights(1)
    drawn = torch.rand(4)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4), drawn)  # others' randomness goes on as if no model had been made
    again, other = weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["gpt_neox.embed_in.weight"], other["gpt_neox.embed_in.weight"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_json_makes_a_fresh_float32_model(family: Family, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_model(family).to(torch.bfloat16).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    (folder / "model.safetensors").unlink()
    for named in (folder, folder / "config.json"):
        config = ModelConfig(config=str(named))
        lm = build_model(config, tokenizer, seq_len=32, seed=0)
        assert {parameter.dtype for parameter in lm.model.parameters()} == {torch.float32}
        assert lm.model.training
        assert lm.model.config.pad_token_id == tokenizer.pad_id
        assert count_parameters(config, tokenizer, seq_len=32) == sum(
            p.numel() for p in tiny_model(family).parameters()
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_dir_keeps_its_weights(family: Family, tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path / "model", family)
    config = ModelConfig(path=str(folder))
    lm = build_model(config, load_tokenizer(folder), seq_len=32, seed=7)
    expected = tiny_model(family).state_dict()
    assert lm.model.training
    assert all(torch.equal(tensor.cpu(), expected[name]) for name, tensor in lm.model.state_dict().items())
    assert count_parameters(config, load_tokenizer(folder), seq_len=32) == lm.model.num_parameters()


def test_tied_parameters_are_counted_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    counts = []
    for tied in (False, True):
        LlamaConfig(vocab_size=300, tie_word_embeddings=tied, **shape).save_pretrained(tmp_path)
        counts.append(count_parameters(ModelConfig(config=str(tmp_path)), tokenizer, seq_len=32))
    assert counts[0] - counts[1] == 300 * 32


@pytest.mark.parametrize("kind", ["config", "path"])
def test_what_does_not_fit_is_refused_with_both_numbers(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path / "model", vocab_size=299, max_length=24)
    config = ModelConfig(**{kind: str(folder)})
    for call in (count_parameters, lambda *given, **named: build_model(*given, **named, seed=0)):
        with pytest.raises(PilekitError, match=rf"^model.{kind} .*: vocabulary larger .* 300 ids and the model 299"):
            call(config, tokenizer, seq_len=24)
        few = load_tokenizer(tiny_tokenizer(tmp_path / "few", vocab_size=280))
        with pytest.raises(PilekitError, match=rf"^model.{kind} .*: has 24 positions and data.seq_len is 25; set"):
            call(config, few, seq_len=25)
        call(config, few, seq_len=24)


def test_what_is_no_model_is_refused_before_anything_is_made(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for config, said in (
        (ModelConfig(preset="pythia-15m"), r'^model.preset "pythia-15m" is none of pythia-14m, pythia-31m'),
        (ModelConfig(config=str(tmp_path)), "config.json: there is no such file"),
        (ModelConfig(path=str(tmp_path / "nowhere")), "there is no such model"),
        (ModelConfig(path=str(tmp_path)), "has no config.json"),
        (ModelConfig(), r"^\[model\] names no model"),
    ):
        with pytest.raises(PilekitError, match=said):
            count_parameters(config, tokenizer, seq_len=16)
        with pytest.raises(PilekitError, match=said):
            build_model(config, tokenizer, seq_len=16, seed=0)


def shape_on_rank(folder: str, tokenizer: str) -> dict[str, Any]:
    lm = build_on(join(), ModelConfig(config=folder), load_tokenizer(tokenizer), seq_len=16, seed=3)
    assert isinstance(lm, CausalLM)
    model: Any = lm.model
    return {
        "parameters": {name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
        "stored": list(model.state_dict()),
        "buffers": {name: buffer.tolist() for name, buffer in model.named_buffers()},
        "tied": lm.head.weight is model.get_input_embeddings().weight,
        "head": (lm.transform, lm.max_length, lm.model.training, type(lm.trunk).__name__),
        "values": {name: value.tolist() for name, value in model.state_dict().items()} if join().is_first else None,
    }


@pytest.mark.parametrize("family", [*FAMILIES, *LOGIT_TRANSFORMS])
def test_other_ranks_build_the_same_model_without_its_numbers(
    family: str, tokenizer: Tokenizer, tmp_path: Path, process_group: ProcessGroups
) -> None:
    model = transforming_model(family) if family in LOGIT_TRANSFORMS else tiny_model(family)  # type: ignore[arg-type]
    model.config.save_pretrained(tmp_path / "model")
    first, second = process_group(2).run(shape_on_rank, str(tmp_path / "model"), str(tokenizer.path))
    alone = build_model(ModelConfig(config=str(tmp_path / "model")), tokenizer, seq_len=16, seed=3)
    assert first.pop("values") == {name: value.tolist() for name, value in alone.model.state_dict().items()}
    assert second.pop("values") is None
    assert first == second
    assert first["tied"] == (family in ("gpt2", "gemma2", "cohere"))
    assert first["head"][0] == LOGIT_TRANSFORMS.get(family, UNCHANGED)


def error_on_rank(folder: str, tokenizer: str) -> str:
    with pytest.raises(PilekitError) as error:
        build_on(join(), ModelConfig(config=folder), load_tokenizer(tokenizer), seq_len=16, seed=0)
    return str(error.value)


def test_what_does_not_fit_all_ranks_raise(tokenizer: Tokenizer, tmp_path: Path, process_group: ProcessGroups) -> None:
    tiny_model(vocab_size=100).config.save_pretrained(tmp_path / "model")
    first, second = process_group(2).run(error_on_rank, str(tmp_path / "model"), str(tokenizer.path))
    assert first == second
    assert "vocabulary larger than the embeddings" in first
