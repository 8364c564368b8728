"""Models to train, and their blocks: presets, a config.json, a model_dir; and sizes that do not fit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import WordLevel
from torch import nn

from pilekit.errors import PilekitError
from pilekit.models.causal import CausalLM
from pilekit.models.logit_transform import UNCHANGED
from pilekit.models.masked import tokens_of
from pilekit.models.presets import MASKED_PRESETS, PRESETS
from pilekit.models.transformer_blocks import blocks_of
from pilekit.tokenize import Tokenizer, load_tokenizer
from pilekit.train.config.sections import ModelConfig
from pilekit.train.model.build import build_model, build_on
from pilekit.train.model.shape import model_shape
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.tiny.logit_transforms import LOGIT_TRANSFORMS, transforming_model
from tests.tiny.models import Family, tiny_model, tiny_model_dir, tiny_tokenizer

# Parameters of the published weights (https://huggingface.co/EleutherAI) with 50,304 embedding rows. The two largest
# were published with 128 and 384 more rows, which no token uses.
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
MASKED = {"distilroberta": 82_170_201, "roberta-base": 124_697_433}
"""Parameters of the published masked models with their 50,265 ids, without a layer for classifying."""
FAMILIES: list[Family] = ["gpt_neox", "gpt2", "llama"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer(tmp_path / "tokenizer", vocab_size=300))


@pytest.fixture
def neox_tokenizer(tmp_path: Path) -> Tokenizer:
    """A tokenizer with as many ids as that of GPT-NeoX."""
    made = HuggingFaceTokenizer(WordLevel({"[UNK]": 0, "last": 50_276}, unk_token="[UNK]"))
    made.add_special_tokens([AddedToken("[UNK]")])
    made.save(str(tmp_path / "neox.json"))
    return load_tokenizer(tmp_path / "neox.json")


def count(config: ModelConfig, tokenizer: Tokenizer, seq_len: int) -> int:
    """Parameters of the model's shape, tied ones once."""
    return sum(parameter.numel() for parameter in model_shape(config, tokenizer, seq_len).parameters())


def test_presets_have_the_published_sizes(neox_tokenizer: Tokenizer) -> None:
    assert neox_tokenizer.vocab_size == 50_277
    assert {name: count(ModelConfig(preset=name), neox_tokenizer, 2048) for name in PUBLISHED} == PUBLISHED
    assert PRESETS.keys() == PUBLISHED.keys() | set(MASKED_PRESETS)


def test_masked_presets_have_the_published_sizes(tmp_path: Path) -> None:
    made = HuggingFaceTokenizer(WordLevel({"<s>": 0, "<pad>": 1, "last": 50_264}, unk_token="<s>"))
    made.add_special_tokens([AddedToken("<pad>")])
    made.save(str(tmp_path / "roberta.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')
    tokenizer = load_tokenizer(tmp_path / "roberta.json")
    for name, published in MASKED.items():
        shape = model_shape(ModelConfig(preset=name), tokenizer, 512, "mlm")
        assert sum(parameter.numel() for parameter in shape.parameters()) == published
        assert tokens_of(shape) == 512
        with pytest.raises(PilekitError, match=r"has 512 positions and data\.seq_len is 513"):
            model_shape(ModelConfig(preset=name), tokenizer, 513, "mlm")


def test_a_preset_fits_its_tokenizer_and_row_length(tokenizer: Tokenizer) -> None:
    lm = build_model(ModelConfig(preset="pythia-14m"), tokenizer, seq_len=48, seed=0)
    assert isinstance(lm, CausalLM)
    config = lm.model.config
    assert (config.vocab_size, config.max_position_embeddings, lm.max_length) == (384, 48, 48)
    special = config.eos_token_id, config.bos_token_id, config.pad_token_id
    assert special == (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id)
    assert (lm.model.training, lm.transform, config._attn_implementation) == (True, UNCHANGED, "sdpa")
    assert {parameter.dtype for parameter in lm.model.parameters()} == {torch.float32}
    assert count(ModelConfig(preset="pythia-14m"), tokenizer, 48) == lm.model.num_parameters()
    for name, parameter in lm.model.named_parameters():  # drawn as GPT-NeoX draws them
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
    assert torch.equal(torch.rand(4), drawn)  # building a model does not change torch's generator
    again, other = weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["gpt_neox.embed_in.weight"], other["gpt_neox.embed_in.weight"])


def test_a_config_json_makes_a_fresh_model_and_a_model_dir_keeps_its_weights(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for family in FAMILIES:
        folder = tiny_model_dir(tmp_path / family, family)
        lm = build_model(ModelConfig(path=str(folder)), load_tokenizer(folder), seq_len=32, seed=7)
        expected = tiny_model(family).state_dict()
        assert lm.model.training
        assert all(torch.equal(tensor.cpu(), expected[name]) for name, tensor in lm.model.state_dict().items())
        tiny_model(family).to(torch.bfloat16).config.save_pretrained(folder)
        (folder / "model.safetensors").unlink()
        for named in (folder, folder / "config.json"):
            config = ModelConfig(config=str(named))
            lm = build_model(config, tokenizer, seq_len=32, seed=0)
            assert {parameter.dtype for parameter in lm.model.parameters()} == {torch.float32}
            assert lm.model.training
            assert lm.model.config.pad_token_id == tokenizer.pad_id
            assert count(config, tokenizer, 32) == tiny_model(family).num_parameters()


def test_frozen_parameters_are_named_by_patterns(tokenizer: Tokenizer) -> None:
    for patterns, message in (
        (["*.bias", "nothing"], '"nothing" matches no parameter'),
        (["*"], "all parameters"),
    ):
        with pytest.raises(PilekitError, match=f"^model.freeze: {message}"):
            model_shape(ModelConfig(preset="pythia-14m", freeze=patterns), tokenizer, 48)
    made = build_model(ModelConfig(preset="pythia-14m", freeze=["*.bias", "lm_head.*"]), tokenizer, seq_len=48, seed=0)
    for name, parameter in made.model.named_parameters():
        assert parameter.requires_grad == (not name.endswith(".bias") and name != "lm_head.weight")


def test_sizes_that_do_not_fit_are_refused_with_both_numbers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path / "model", vocab_size=299, max_length=24)
    few = load_tokenizer(tiny_tokenizer(tmp_path / "few", vocab_size=280))
    for kind, field in (("config", "model.config "), ("path", "")):
        config = ModelConfig(**{kind: str(folder)})
        with pytest.raises(PilekitError, match=rf"^{field}{folder}.*: vocabulary larger .* 300 ids and the model 299"):
            build_model(config, tokenizer, seq_len=24, seed=0)
        refused(rf"^{field}{folder}.*: has 24 positions and data.seq_len is 25; set", model_shape, config, few, 25)
        build_model(config, few, seq_len=24, seed=0)


def shape_on_rank(folder: str, tokenizer: str) -> dict[str, Any]:
    made = partial(build_model, ModelConfig(config=folder), load_tokenizer(tokenizer), seq_len=16, seed=3)
    lm = build_on(join(), made)
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


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "gemma2"])
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


class Parts(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def test_blocks_are_the_layers_also_of_odd_models() -> None:
    for family in FAMILIES:
        model = tiny_model(family)
        assert blocks_of(model) == list(model.base_model.h if family == "gpt2" else model.base_model.layers)
    small = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    large = nn.ModuleList([nn.Linear(4, 4), Parts(experts=nn.ModuleList([nn.Linear(9, 9), nn.Linear(9, 9)]))])
    assert blocks_of(Parts(first=small, second=large)) == list(large)
    assert blocks_of(nn.Linear(2, 2)) == []
    shared = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    head = nn.Linear(4, 4)
    head.weight = cast("nn.Linear", shared[1]).weight
    assert blocks_of(Parts(blocks=shared, head=head)) == [shared[0]]
    twins = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])
    cast("nn.Linear", twins[2]).weight = cast("nn.Linear", twins[0]).weight
    assert blocks_of(Parts(blocks=twins)) == [twins[1]]
