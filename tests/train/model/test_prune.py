"""Pruning: exactly the smallest weights are 0; a model without heads has the logits of one whose heads are 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    HeliumConfig,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
)
from transformers.pytorch_utils import Conv1D

from pilekit.cli.main import pilekit
from pilekit.errors import PilekitError
from pilekit.train.model.prune import prune_model
from tests.stopping import tree
from tests.tiny.masked import called, roberta_dir
from tests.tiny.models import SMALL, Family, tiny_corpus, tiny_model_dir, tiny_tokenizer

IDS = torch.arange(3, 19).unsqueeze(0)


def loaded(folder: Path, auto: Any = AutoModelForCausalLM) -> Any:
    return auto.from_pretrained(folder).eval()


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama"])
def test_the_smallest_weights_of_each_matrix_are_zero(family: Family, tmp_path: Path) -> None:
    whole = tiny_model_dir(tmp_path / "model", family)
    pruned = prune_model(whole, tmp_path / "out", magnitude=0.3)
    before, after = loaded(whole), loaded(tmp_path / "out")
    matrices = 0
    others = dict(after.named_parameters())
    for name, module in before.base_model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            weight, new = module.weight, others.pop(f"{before.base_model_prefix}.{name}.weight")
            count = round(0.3 * weight.numel())
            smallest = weight.abs().flatten().argsort(stable=True)[:count]
            expected = weight.detach().clone().flatten()
            expected[smallest] = 0
            assert torch.equal(new.flatten(), expected)
            matrices += 1
    assert matrices >= 8
    known = dict(before.named_parameters())
    assert all(torch.equal(parameter, known[name]) for name, parameter in others.items())
    assert pruned.parameters[0] == pruned.parameters[1]
    assert pruned.zeros[1] > pruned.zeros[0] + 0.1
    assert pruned.heads is None
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (whole / "tokenizer.json").read_bytes()


def least(norms: list[float], count: int, group: int) -> list[int]:
    """The heads of the groups with the smallest norms."""
    by_group = [sum(norm**2 for norm in norms[at : at + group]) for at in range(0, len(norms), group)]
    gone = sorted(range(len(by_group)), key=lambda at: by_group[at])[: count // group]
    return [at * group + i for at in gone for i in range(group)]


def saved(config: Any, folder: Path) -> Path:
    """The model_dir of a random model of `config`."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def set_heads_to_zero(model: Any, heads: int, group: int) -> None:
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in ("o_proj", "dense") or name.endswith("attn.c_proj"):
            columns = module.weight.data.T if isinstance(module, Conv1D) else module.weight.data
            norms = [float(columns[:, 8 * head : 8 * head + 8].norm()) for head in range(4)]
            for head in least(norms, heads, group):
                columns[:, 8 * head : 8 * head + 8] = 0


@pytest.mark.parametrize(
    ("family", "heads", "how"), [("llama", 2, "cut"), ("gpt_neox", 1, "zeroed"), ("gpt2", 3, "zeroed")]
)
def test_without_heads_the_logits_are_those_of_heads_set_to_zero(
    family: Family, heads: int, how: str, tmp_path: Path
) -> None:
    whole = tiny_model_dir(tmp_path / "model", family)
    pruned = prune_model(whole, tmp_path / "out", heads=heads)
    assert pruned.heads == how
    set_heads_to_zero(reference := loaded(whole), heads, 2 if family == "llama" else 1)
    after = loaded(tmp_path / "out")
    torch.testing.assert_close(called(after, IDS), called(reference, IDS), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(called(after, IDS), called(loaded(whole), IDS), atol=1e-3)
    if how == "cut":
        assert (after.config.num_attention_heads, after.config.num_key_value_heads) == (2, 1)
        assert pruned.parameters[1] < pruned.parameters[0]
        assert pruned.bytes[1] < pruned.bytes[0]
    else:
        assert pruned.parameters[1] == pruned.parameters[0]


@pytest.mark.parametrize(
    ("config", "heads", "how"),
    [
        (MixtralConfig(**SMALL), 2, "cut"),  # its config.json states no width of a head
        (LlamaConfig(**SMALL | {"num_key_value_heads": 4}), 1, "zeroed"),  # Llama refuses 3 heads in a width of 32
        (LlamaConfig(**SMALL | {"num_key_value_heads": 1}), 1, "zeroed"),  # all heads share their keys
        (HeliumConfig(**SMALL | {"head_dim": 8}), 2, "zeroed"),  # its output is as wide as the model
    ],
    ids=["mixtral", "llama-3-of-4", "llama-one-key", "helium"],
)
def test_heads_are_cut_only_where_the_smaller_model_loads(config: Any, heads: int, how: str, tmp_path: Path) -> None:
    whole = saved(config, tmp_path / "model")
    assert prune_model(whole, tmp_path / "out", heads=heads).heads == how
    set_heads_to_zero(reference := loaded(whole), heads, 2 if config.num_key_value_heads == 2 else 1)
    torch.testing.assert_close(called(loaded(tmp_path / "out"), IDS), called(reference, IDS), rtol=1e-5, atol=1e-5)


def test_the_matrices_of_experts_are_pruned_and_a_model_without_heads_is_refused(tmp_path: Path) -> None:
    whole = saved(MixtralConfig(**SMALL | {"num_local_experts": 4}), tmp_path / "model")
    prune_model(whole, tmp_path / "out", magnitude=0.5)
    experts = [p for name, p in loaded(tmp_path / "out").named_parameters() if ".experts." in name]
    assert len(experts) >= 4
    assert all(float((p == 0).float().mean()) == 0.5 for p in experts)
    mamba = saved(MambaConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, state_size=4), tmp_path / "mamba")
    with pytest.raises(PilekitError, match=r"^the heads of this model's attention cannot be told"):
        prune_model(mamba, tmp_path / "new", heads=1)


def test_a_masked_model_and_wrong_arguments(tmp_path: Path) -> None:
    whole = roberta_dir(tiny_corpus(tmp_path / "corpus", documents=9), tmp_path / "model")
    assert prune_model(whole, tmp_path / "out", heads=1).heads == "zeroed"
    assert loaded(tmp_path / "out", AutoModelForMaskedLM).config.num_attention_heads > 1
    llama = tiny_model_dir(tmp_path / "llama", "llama")
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "^give magnitude or heads, one of the two$"),
        ({"magnitude": 1.0}, "^magnitude is 1, but it is a share above 0 and below 1$"),
        ({"heads": 4}, "^heads is 4, but a layer has 4; give 1 to 3$"),
        ({"heads": 1}, "^heads is 1, but 2 heads of this model share their keys; give a multiple of 2$"),
        ({"heads": 2, "out": tmp_path / "out"}, "out: exists already; name a new folder$"),
    ]
    for options, message in refused:
        with pytest.raises(PilekitError, match=message):
            prune_model(llama, **{"out": tmp_path / "new", **options})
    assert not (tmp_path / "new").exists()


def test_the_command_compares_both_models(tmp_path: Path) -> None:
    whole, corpus = tiny_model_dir(tmp_path / "model"), tiny_corpus(tmp_path / "corpus", documents=15)
    arguments = ["prune", str(whole), str(corpus), "--magnitude", "0.9", "--out"]
    result = CliRunner().invoke(pilekit, [*arguments, str(tmp_path / "a"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["comparison"]["overall"]["documents"] == 30
    assert found["comparison"]["overall"]["difference"] != 0
    assert len(found["tokens_per_second"]) == 2
    before = tree(tmp_path / "a")
    again = CliRunner().invoke(pilekit, [*arguments, str(tmp_path / "a"), "--json"])  # as after a kill while it scored
    assert json.loads(again.stdout)["pruned"] == found["pruned"]
    assert tree(tmp_path / "a") == before
    other = [*arguments[:4], "0.5", "--out", str(tmp_path / "a")]
    assert "exists already" in str(CliRunner().invoke(pilekit, other).exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "corpus", "model"]
    result = CliRunner().invoke(pilekit, [*arguments, str(tmp_path / "b"), "--limit", "2"])
    assert result.exit_code == 0, result.output
    assert "Zeros %" in result.stdout
    assert "BPB on the same documents: B against A" in result.stdout
    assert CliRunner().invoke(pilekit, ["prune", str(whole), "--out", str(tmp_path / "c")]).exit_code == 2
