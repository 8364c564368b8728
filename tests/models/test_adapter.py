"""A model is what is named: the base alone, or with the adapter that is named; nothing else in a folder counts."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pilekit.models import folder as folder_module
from pilekit.models.causal import load_causal_lm
from pilekit.models.folder import check_folder
from pilekit.models.load import MASKED, load_model, outline
from tests.refusing import refused
from tests.tiny.adapters import adapted_model, tiny_adapter
from tests.tiny.masked import called, config_of, made_of
from tests.tiny.models import Family, tiny_model, tiny_model_dir

IDS = torch.arange(2, 22).reshape(1, 20)


def refusal(model: Path, adapter: Path) -> str:
    """The line for an adapter that does not fit, which the outline shows before weights are read."""
    return refused(f"^{re.escape(str(adapter))}(/adapter_config.json)?: ", outline, model, adapter=adapter)


def edit(adapter: Path, **changes: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_an_adapter_beside_the_weights_is_left_out_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_model_dir(tmp_path)
    both = tiny_adapter(folder)
    base = tiny_model().eval()
    assert not torch.allclose(called(both, IDS), called(base, IDS), atol=0.1)
    assert torch.equal(called(load_causal_lm(folder).model, IDS), called(base, IDS))
    [record] = [record for record in caplog.records if record.name.startswith("pilekit")]
    assert record.levelno == logging.WARNING
    assert f"{folder}: an adapter lies beside the weights, and is left out" in record.getMessage()
    caplog.clear()
    torch.testing.assert_close(called(load_causal_lm(folder, adapter=folder).model, IDS), called(both, IDS))
    assert not caplog.records


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"target_modules": "all-linear", "use_rslora": True},
        {"use_dora": True},
        {"bias": "all"},
        {"rank_pattern": {"0.attention.query_key_value": 5, "0.attn.c_attn": 5, "^model.layers.0.self_attn.q_proj": 5}},
        {"alpha_pattern": {"query_key_value": 9, "c_attn": 9, "q_proj": 9}, "init_lora_weights": "gaussian"},
        {"modules_to_save": ["mlp"]},
    ],
    ids=str,
)
def test_base_and_adapter_are_what_peft_makes_of_them(family: Family, settings: Any, tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path / "base", family)
    both = tiny_adapter(tmp_path / "adapter", family, **settings)
    drawn = torch.random.get_rng_state()
    model = load_model(folder, dtype=torch.float32, adapter=tmp_path / "adapter")
    assert torch.equal(torch.random.get_rng_state(), drawn)
    torch.testing.assert_close(called(model, IDS), called(both, IDS), rtol=1e-4, atol=1e-4)
    base = outline(folder)
    assert type(model) is type(base)
    assert [(n, p.shape) for n, p in model.named_parameters()] == [(n, p.shape) for n, p in base.named_parameters()]
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.training
    assert not hasattr(model, "peft_config")


def test_masked_models_have_adapters_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = made_of(config_of("roberta"))
    base.save_pretrained(tmp_path / "base")
    adapted_model(base, target_modules=["query", "value"]).save_pretrained(str(tmp_path / "base"))
    torch.manual_seed(0)
    plain = made_of(config_of("roberta")).eval()
    load = {"dtype": plain.dtype, "kind": MASKED}
    assert torch.equal(called(load_model(tmp_path / "base", **load), IDS), called(plain, IDS))
    both = load_model(tmp_path / "base", adapter=tmp_path / "base", **load)
    torch.testing.assert_close(called(both, IDS), called(base.eval(), IDS))


def test_an_adapter_that_does_not_fit_is_told_before_weights_are_read(tmp_path: Path) -> None:
    base, adapter = tiny_model_dir(tmp_path / "base"), tmp_path / "adapter"
    for family in ("gpt2", "llama"):
        tiny_adapter(adapter, family)
        assert "the model has no layer" in refusal(base, adapter)
    tiny_adapter(adapter)
    (other := tiny_model(vocab_size=320).config).update({"hidden_size": 64})
    type(tiny_model())(other).save_pretrained(tmp_path / "wider")
    assert re.search(
        r"lora_A.weight is \[3, 32\], and the model's place for it is \[3, 64\]", refusal(tmp_path / "wider", adapter)
    )
    file = adapter / "adapter_model.safetensors"
    whole = load_file(file)
    first = next(iter(whole))
    for changed, said in (
        ({name: value for name, value in whole.items() if name != first}, f"{first} is none, and"),
        (
            {**whole, "base_model.model.score.weight": torch.zeros(2)},
            "score.weight is [2], and the model's place for it is none",
        ),
        ({}, "has no matrices of LoRA"),
    ):
        save_file(changed, file)
        assert said in refusal(base, adapter)
    file.write_bytes(b"\xff" * 100)
    assert "peft cannot add this adapter" in refusal(base, adapter)
    save_file({name: torch.full_like(value, float("nan")) for name, value in whole.items()}, file)
    assert "peft cannot add this adapter: NaNs" in refused(".*", load_causal_lm, base, adapter=adapter)


def test_weights_that_embedding_and_head_share_stay_shared(tmp_path: Path) -> None:
    for settings in ({"target_modules": ["wte"]}, {"modules_to_save": ["lm_head"]}, {"modules_to_save": ["wte"]}):
        base = tiny_model_dir(tmp_path / "base", "gpt2")
        tiny_adapter(tmp_path / "adapter", "gpt2", **settings)
        assert "whose weight is embedding and head at once" in refusal(base, tmp_path / "adapter")


def test_a_hostile_adapter_runs_nothing_and_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapter, marker = tiny_model_dir(tmp_path / "base"), tmp_path / "adapter", tmp_path / "was-run"
    both = tiny_adapter(adapter)
    (tmp_path / "own_module.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {"base_model_name_or_path": "someone/base", "revision": "main", "megatron_core": "own_module"}
    mapping = {"base_model_class": "A", "parent_library": "own_module"}
    edit(adapter, **names, auto_mapping=mapping, target_modules="(.+)+(.+)+(.+)+!", layers_pattern="(a+)+!")
    torch.testing.assert_close(called(load_causal_lm(base, adapter=adapter).model, IDS), called(both, IDS))
    plain = (adapter / "adapter_config.json").read_text()
    for changes, said in (
        ({"megatron_config": {"a": 1}}, "megatron_config is not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is not supported"),
        ({"an_option_of_tomorrow": 1}, "an_option_of_tomorrow is not supported"),
        ({"init_lora_weights": "pissa"}, '"pissa"'),
        ({"peft_type": "IA3"}, '"IA3"'),
        ({"peft_type": "\x1b[31m"}, r"\u001b[31m"),
        ({"r": 0}, "r = "),
        ({"r": 2**40}, "r = "),
        ({"lora_alpha": "much"}, "lora_alpha = "),
        ({"rank_pattern": {"(a+)+!": 3}}, "rank_pattern"),
        ({"alpha_pattern": {"(a+)+!": 3}}, "alpha_pattern"),
        ({"r": 7}, "and the model's place for it is [7, 32]"),
        ({"lora_alpha": 10**400}, ""),
    ):
        edit(adapter, **changes)
        assert said in refusal(base, adapter), changes
        (adapter / "adapter_config.json").write_text(plain)
    for text in ("{", "[]", "\x00", "[" * 100_000, '{"r": ' * 100_000):
        (adapter / "adapter_config.json").write_text(text)
        refusal(base, adapter)
    (adapter / "adapter_config.json").write_text(plain)
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    assert "has no adapter_model.safetensors, so it is no adapter" in refusal(base, adapter)
    assert not marker.exists()
    assert "own_module" not in sys.modules


def test_an_adapter_needs_its_model_and_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_model_dir(tmp_path / "base")
    tiny_adapter(tmp_path / "run" / "adapter")
    for folder in (tmp_path / "run", tmp_path / "run" / "adapter"):
        said = refused(f"^{re.escape(str(tmp_path / 'run' / 'adapter'))}: is an adapter, without", check_folder, folder)
        assert "with --adapter" in said
    assert "has no adapter_config.json" in refused(".*", check_folder, base, base)
    assert "has no adapter_config.json" in refused(".*", check_folder, base, tmp_path / "nowhere")
    monkeypatch.setattr(folder_module, "find_spec", lambda name: None)
    check_folder(base)
    said = refused(".*", check_folder, base, tmp_path / "run" / "adapter")
    assert said == f"the adapter {tmp_path}/run/adapter needs the package peft: pip install 'pilekit[peft]'"
