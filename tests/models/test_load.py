"""Loading models: whole, quietly, in the given dtype, and without running any code of the folder."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load, load_file, save_file
from transformers import (
    AlbertConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BartConfig,
    GPT2Model,
    LlamaForSequenceClassification,
    LlamaModel,
)

from pilekit.errors import PilekitError
from pilekit.models import load as load_module
from pilekit.models.causal import load_causal_lm
from pilekit.models.load import CAUSAL, MASKED, kind_of, outline, read_config, stored_dtype
from pilekit.models.logit_transform import UNCHANGED
from tests.refusing import refused
from tests.tiny.masked import called
from tests.tiny.models import Family, tiny_model, tiny_model_dir

OLD = transformers.__version__.startswith("4.")  # it tells no shapes
IDS = torch.tensor([[5, 9, 2, 60, 33, 33, 7, 1]])


def edit_config(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def refusal(folder: Path) -> str:
    return refused(re.escape(str(folder)), load_causal_lm, folder)


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama"])
def test_a_loaded_model_is_the_saved_one(family: Family, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved = tiny_model(family).eval()
    saved.save_pretrained(tmp_path)
    capfd.readouterr()
    lm = load_causal_lm(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert (lm.model.training, lm.max_length, lm.transform) == (False, 32, UNCHANGED)
    assert torch.equal(called(lm.model, IDS), called(saved, IDS))
    with torch.no_grad():
        hidden = lm.trunk(input_ids=IDS, use_cache=False).last_hidden_state
        torch.testing.assert_close(lm.head(hidden), called(saved, IDS))  # torch 2.6 has another rounding
    found = outline(tmp_path)
    assert {parameter.device.type for parameter in found.parameters()} == {"meta"}
    assert [one.shape for one in found.parameters()] == [one.shape for one in saved.parameters()]


def test_a_model_may_have_more_layers_than_tensors(tmp_path: Path) -> None:
    """All layers of ALBERT share their weights."""
    small: dict[str, Any] = {"vocab_size": 64, "embedding_size": 8, "hidden_size": 16, "intermediate_size": 8}
    config = AlbertConfig(**small, num_hidden_layers=40, num_attention_heads=2, max_position_embeddings=16)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    assert outline(tmp_path, MASKED).config.num_hidden_layers == 40


def test_weights_come_in_the_dtype_asked_for(tmp_path: Path) -> None:
    for stored, asked in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float64),
        (torch.float32, torch.bfloat16),
    ):
        tiny_model("llama").to(stored).save_pretrained(tmp_path)
        assert stored_dtype(tmp_path) is stored
        parameters = dict(load_causal_lm(tmp_path, dtype=asked).model.named_parameters())
        for name, tensor in load_file(tmp_path / "model.safetensors").items():
            assert parameters[name].dtype == asked
            assert torch.equal(parameters[name], tensor.to(asked))
    tensors = {"a": torch.zeros(3, dtype=torch.bfloat16), "b": torch.zeros(9), "c": torch.zeros(99, dtype=torch.int64)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert stored_dtype(tmp_path) is torch.float32


def test_sharded_and_tied_weights_are_whole(tmp_path: Path) -> None:
    saved = tiny_model().eval()
    saved.save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    assert torch.equal(called(load_causal_lm(tmp_path / "sharded").model, IDS), called(saved, IDS))
    for tied in (True, False):
        config: Any = tiny_model("llama").config
        config.tie_word_embeddings = tied
        model: Any = AutoModelForCausalLM.from_config(config).eval()
        model.save_pretrained(tmp_path / "tied")
        assert ("lm_head.weight" in load_file(tmp_path / "tied" / "model.safetensors")) is not tied
        lm = load_causal_lm(tmp_path / "tied")
        assert (lm.head.weight is lm.model.get_input_embeddings().weight) is tied
        assert torch.equal(called(lm.model, IDS), called(model, IDS))
    saved = tiny_model("gpt2").eval()  # whose head is the embedding
    trunk = GPT2Model(saved.config)
    trunk.load_state_dict(saved.transformer.state_dict())
    trunk.save_pretrained(tmp_path / "trunk")
    assert torch.equal(called(load_causal_lm(tmp_path / "trunk").model, IDS), called(saved, IDS))


def test_incomplete_weights_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for base in (LlamaModel, LlamaForSequenceClassification):
        base(tiny_model("llama").config).save_pretrained(tmp_path / "base")
        assert "lm_head.weight is missing; copy the whole AutoModelForCausalLM" in refusal(tmp_path / "base")
    folder = tiny_model_dir(tmp_path / "model")
    file = folder / "model.safetensors"
    weights, name = load(file.read_bytes()), "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    save_file({k: v for k, v in weights.items() if k != name}, file, {"format": "pt"})
    assert f"the weights do not fit config.json: {name} is missing" in refusal(folder)
    save_file({**weights, name: weights[name][:-1].clone()}, file, {"format": "pt"})
    assert f"{name} is stored " + ("in another shape" if OLD else "as [63, 32], not [64, 32]") in refusal(folder)
    save_file({**weights, "value_head.weight": torch.zeros(3)}, file, {"format": "pt"})
    caplog.clear()
    load_causal_lm(folder)
    said = f"{folder}: 1 stored tensors are not part of the causal language model: value_head.weight"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("pilekit")] == [said]
    edit_config(folder, num_hidden_layers=1)
    assert "gpt_neox.layers.1.attention.dense.bias has no place in the model (" in refusal(folder)
    whole = file.read_bytes()
    # The last one has a header of 2^64 bytes.
    for damaged in (*(whole[:size] for size in (0, 7, 100, len(whole) - 1)), b"\xff" * 8 + whole[8:]):
        file.write_bytes(damaged)
        assert f"{file}: is not a whole safetensors file" in refusal(folder)


def test_shards_that_are_missing_or_elsewhere_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder, max_shard_size="50KB")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())["weight_map"]
    first = sorted(folder.glob("*.safetensors"))[0]
    outside = first.rename(tmp_path / first.name)
    assert f"{first.name}: is missing" in refusal(folder)
    for name in (f"../{first.name}", str(outside), "weights.bin"):
        index.write_text(json.dumps({"weight_map": {k: name if v == first.name else v for k, v in content.items()}}))
        assert "names no files beside it" in refusal(folder)
    for damaged in ("{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'):
        index.write_text(damaged)
        assert "model.safetensors.index.json" in refusal(folder)


def test_nothing_in_a_model_folder_is_run_or_unpickled(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path, "llama")
    marker = tmp_path / "was-run"
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\nclass A: pass\n"
    (folder / "modeling_own.py").write_text(code)
    (folder / "configuration_own.py").write_text(code)
    own = {"AutoConfig": "configuration_own.A", "AutoModelForCausalLM": "modeling_own.A"}
    edit_config(folder, auto_map=own, transformers_weights="elsewhere.safetensors", num_labels=10**9, id2label=3)
    kernel = "someone/kernels"
    edit_config(folder, attn_implementation=kernel, _attn_implementation=kernel, _attn_implementation_internal=kernel)
    assert load_causal_lm(folder).model.config._attn_implementation == "sdpa"
    assert "needs code of its own is refused" in refusal(edit_config(folder, model_type="own"))
    assert not marker.exists()
    edit_config(folder, model_type="llama")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "has no weights (model.safetensors)" in refusal(folder)


def test_folders_that_are_no_model_are_told_apart(tmp_path: Path) -> None:
    assert "there is no such model" in refusal(tmp_path / "nowhere")
    assert "has no config.json" in refusal(tmp_path)
    folder = tiny_model_dir(tmp_path / "model")
    assert f"is a run; its model is {folder}" in refusal(tmp_path)
    assert "there is no such model" in refusal(folder / "config.json")


def test_a_hostile_configuration_is_refused(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path / "model")
    for content, said in (
        ("{", "is not JSON"),
        ("\x00\xff", "is not JSON"),
        ("[]", 'model_type "None" is unknown'),
        ('{"model_type": ["gpt2"]}', "is unknown to transformers"),
        ('{"model_type": "\\u001b[31mred"}', r'model_type "\x1b[31mred" is unknown to transformers'),
        ('{"model_type": "vit"}', "the vit model is not a causal language model"),
        ('{"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}', "quantised weights"),
    ):
        (folder / "config.json").write_text(content)
        assert said in refusal(folder)
    BartConfig(d_model=32).save_pretrained(folder)
    assert "not a causal language model" in refusal(folder)
    changes: list[dict[str, Any]] = [
        *({"hidden_size": value} for value in ("wide", -1)),
        *({"vocab_size": value} for value in (10**12, 10**30)),
        *({"num_hidden_layers": value} for value in (10**9, 0)),
        {"num_attention_heads": 0},
        {"hidden_act": "no_such_function"},
        {"dtype": "__class__"},
        {"rope_parameters": {"rope_type": "no_such_type"}},
    ]
    tiny_model("llama").save_pretrained(folder)
    original = (folder / "config.json").read_text()
    for change in changes:
        (folder / "config.json").write_text(original)
        refusal(edit_config(folder, **change))


def test_transformers_4_gets_only_rotary_settings_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module.transformers, "__version__", "4.57.6")
    plain, scaled = ({"rope_type": kind, "rope_theta": 5e5, "factor": 2.0} for kind in ("default", "linear"))
    for content, is_refused in (
        ({"model_type": "llama", "rope_parameters": plain}, True),
        ({"model_type": "llama", "rope_parameters": plain, "rope_theta": 5e5}, False),
        ({"model_type": "gpt_neox", "rope_parameters": plain, "rotary_emb_base": 5e5, "rotary_pct": 0.25}, False),
        ({"model_type": "llama", "rope_parameters": scaled, "rope_theta": 5e5}, True),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": plain}, "rope_theta": 5e5}, True),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content))
        with pytest.raises(PilekitError, match="rope_parameters, which change") if is_refused else nullcontext():
            read_config(tmp_path)


def test_the_kind_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    for content, expected in (
        ({"model_type": "gpt2"}, CAUSAL),
        ({"model_type": "distilbert"}, MASKED),
        ({"model_type": "roberta", "architectures": ["RobertaForMaskedLM"]}, MASKED),
        ({"model_type": "roberta", "architectures": ["RobertaForCausalLM"]}, CAUSAL),
        ({"model_type": "roberta"}, MASKED),
        ({"model_type": "bert", "is_decoder": True}, CAUSAL),
        ({"model_type": "bert", "is_decoder": True, "architectures": ["BertForMaskedLM"]}, MASKED),
        ({"model_type": "gpt2", "architectures": ["BertForMaskedLM"]}, CAUSAL),
        ({"model_type": 3}, CAUSAL),
        ({"model_type": "bert", "architectures": [{}]}, MASKED),
        ([], CAUSAL),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert kind_of(tmp_path) is expected
