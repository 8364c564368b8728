"""Loading models: whole, quietly, in the dtype asked for; and what is no causal language model is refused in a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    Cohere2Config,
    Gemma2Config,
    GPT2Model,
    GPTJConfig,
    GPTNeoXModel,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaModel,
    MambaConfig,
    OPTConfig,
    RecurrentGemmaConfig,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
)

from pilekit.errors import PilekitError
from pilekit.evaluate.model.causal import as_causal_lm, check_vocabulary, isolates_documents, load_causal_lm
from pilekit.evaluate.model.logit_transform import UNCHANGED, LogitTransform
from pilekit.tokenize import load_tokenizer
from tests.tiny import Family, tiny_model, tiny_model_dir, tiny_tokenizer

FAMILIES: list[Family] = ["gpt_neox", "gpt2", "llama"]
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
IDS = torch.tensor([[5, 9, 2, 60, 33, 33, 7, 1]])


def made(config: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def edit_config(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return result


def refused(folder: Path) -> str:
    with pytest.raises(PilekitError) as caught:
        load_causal_lm(folder)
    message = str(caught.value)
    assert message.isprintable()
    assert str(folder) in message
    return message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_model_is_the_saved_one(family: Family, tmp_path: Path) -> None:
    saved = tiny_model(family).eval()
    saved.save_pretrained(tmp_path)
    lm = load_causal_lm(tmp_path)
    assert not lm.model.training
    assert lm.max_length == 32
    assert lm.transform == UNCHANGED
    assert torch.equal(logits(lm.model).cpu(), logits(saved))
    with torch.no_grad():
        hidden = lm.trunk(input_ids=IDS.to(lm.model.device), use_cache=False).last_hidden_state
        assert torch.equal(lm.head(hidden).cpu(), logits(saved))


def test_weights_come_in_the_dtype_asked_for(tmp_path: Path) -> None:
    for stored, asked in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float64),
        (torch.float32, torch.bfloat16),
    ):
        tiny_model("llama").to(stored).save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(stored).removeprefix("torch.")
        parameters = dict(load_causal_lm(tmp_path, dtype=asked).model.named_parameters())
        for name, tensor in load_file(tmp_path / "model.safetensors").items():
            assert parameters[name].dtype == asked
            assert torch.equal(parameters[name].cpu(), tensor.to(asked))


def test_sharded_weights_are_the_same_model(tmp_path: Path) -> None:
    saved = tiny_model().eval()
    saved.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(logits(load_causal_lm(tmp_path).model).cpu(), logits(saved))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_stored_once_and_not_missing(tied: bool, tmp_path: Path) -> None:
    saved = made(LlamaConfig(**LLAMA_LIKE, tie_word_embeddings=tied))
    saved.save_pretrained(tmp_path)
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
    lm = load_causal_lm(tmp_path)
    assert (lm.head.weight is lm.model.get_input_embeddings().weight) is tied
    assert torch.equal(logits(lm.model).cpu(), logits(saved))


def test_a_head_tied_to_the_embedding_needs_no_weights_of_its_own(tmp_path: Path) -> None:
    saved = tiny_model("gpt2").eval()
    trunk = GPT2Model(saved.config)
    trunk.load_state_dict(saved.transformer.state_dict())
    trunk.save_pretrained(tmp_path)
    assert torch.equal(logits(load_causal_lm(tmp_path).model).cpu(), logits(saved))


@pytest.mark.parametrize("base", [GPTNeoXModel, LlamaModel, LlamaForSequenceClassification])
def test_a_model_without_a_head_is_refused(base: Any, tmp_path: Path) -> None:
    base(tiny_model("gpt_neox" if base is GPTNeoXModel else "llama").config).save_pretrained(tmp_path)
    message = refused(tmp_path)
    assert "no language-model head" in message
    assert "lm_head.weight is not among the weights" in message


def test_a_masked_language_model_is_refused(tmp_path: Path) -> None:
    bert = BertConfig(**SMALL, intermediate_size=64, max_position_embeddings=32)
    roberta = RobertaConfig(**SMALL, intermediate_size=64, max_position_embeddings=34)
    BertForMaskedLM(bert).save_pretrained(tmp_path / "bert")
    RobertaForMaskedLM(roberta).save_pretrained(tmp_path / "roberta")
    assert "bert model is not a causal language model" in refused(tmp_path / "bert")
    assert "roberta model is not a causal language model" in refused(tmp_path / "roberta")


def test_the_same_architecture_as_a_decoder_is_taken(tmp_path: Path) -> None:
    made(BertConfig(**SMALL, intermediate_size=64, is_decoder=True)).save_pretrained(tmp_path)
    assert load_causal_lm(tmp_path).transform is None  # a layer stands between trunk and head


@pytest.mark.parametrize("config", [T5Config(d_model=32, vocab_size=64, num_layers=1), BartConfig(d_model=32)])
def test_an_encoder_decoder_model_is_refused(config: Any, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    assert "not a causal language model" in refused(tmp_path)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        *(pytest.param(of, marks=pytest.mark.slow) for of in (torch.float64, torch.bfloat16, torch.float16)),
    ],
)
@pytest.mark.parametrize(
    ("config", "transform"),
    [
        (Gemma2Config(**LLAMA_LIKE, final_logit_softcapping=30.0), LogitTransform(cap=30.0)),
        (Cohere2Config(**LLAMA_LIKE, logit_scale=0.3), LogitTransform(times=0.3)),
        (GraniteConfig(**WITHOUT_HEAD_DIM, logits_scaling=7.0), LogitTransform(over=7.0)),
        (HyperCLOVAXConfig(**WITHOUT_HEAD_DIM, logits_scaling=7.0), LogitTransform(times=7.0)),
        (RecurrentGemmaConfig(**WITHOUT_HEAD_DIM, logits_soft_cap=3.0), LogitTransform(cap=3.0)),
    ],
)
def test_what_is_done_behind_the_head_is_found_out(config: Any, transform: LogitTransform, dtype: torch.dtype) -> None:
    lm = as_causal_lm(made(config).to(dtype))
    assert lm.transform == transform
    with torch.no_grad():
        by_head = lm.head(lm.trunk(input_ids=IDS, use_cache=False).last_hidden_state)
        assert torch.equal(lm.transform(by_head), logits(lm.model))
        assert not torch.equal(by_head, logits(lm.model))


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


def written_over(made: torch.Tensor) -> torch.Tensor:
    made[..., 3] = -1e4
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made + 1,
        lambda made: made.clamp(-50, 50),  # no logit of a fresh model is beyond
        lambda made: made.index_fill(-1, torch.tensor([3]), -1e4),
        written_over,  # in place: the head's own output is changed
        lambda made: made[..., :-1],
        lambda made: made.float() * 0.3,
    ],
)
def test_what_is_done_in_no_known_way_is_left_to_the_model(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = made(LlamaConfig(**LLAMA_LIKE, logit_scale=0.3)).to(torch.bfloat16)
    forward = model.forward

    def changed(*args: Any, **named: Any) -> Any:
        result = forward(*args, **named)
        result.logits = change(result.logits)
        return result

    assert as_causal_lm(model).transform == UNCHANGED
    model.forward = changed
    assert as_causal_lm(model).transform is None


@pytest.mark.parametrize(
    "config",
    [
        GPTJConfig(vocab_size=64, n_embd=32, n_layer=1, n_head=4, rotary_dim=4),  # its head has a bias
        OPTConfig(**SMALL, ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=32),
        BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4),
        MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4),
    ],
)
def test_logits_that_are_the_heads_are_noticed(config: Any) -> None:
    lm = as_causal_lm(made(config))
    assert lm.transform == UNCHANGED
    with torch.no_grad():
        assert torch.equal(lm.head(lm.trunk(input_ids=IDS).last_hidden_state), logits(lm.model))


@pytest.mark.parametrize("training", [True, False])
def test_probing_leaves_the_model_as_it_was(training: bool) -> None:
    model = tiny_model("gpt2").train(training)  # with dropout, which would make any two calls differ
    lm = as_causal_lm(model)
    assert isolates_documents(lm)
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_are_isolated_by_positions_that_start_again(family: Family) -> None:
    lm = as_causal_lm(tiny_model(family).eval())
    assert isolates_documents(lm)
    alone = [logits(lm.model, IDS[:, :3]), logits(lm.model, IDS[:, 3:])]
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        packed = lm.head(lm.trunk(input_ids=IDS, position_ids=positions, use_cache=False).last_hidden_state)
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4),
        MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4),
    ],
)
def test_models_without_positions_do_not_isolate_documents(config: Any) -> None:
    assert not isolates_documents(as_causal_lm(made(config)))


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_tokenizer(tmp_path, vocab_size=300))
    check_vocabulary(tiny_model(vocab_size=300), tokenizer, "M")
    with pytest.raises(PilekitError, match=r"^M: vocabulary larger than the embeddings: .* 300 ids and the model 299;"):
        check_vocabulary(tiny_model(vocab_size=299), tokenizer, "M")


def test_loading_says_nothing_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny_model_dir(tmp_path, "llama")
    capfd.readouterr()
    load_causal_lm(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_stored_tensors_that_are_not_used_are_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_model_dir(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "value_head.weight": torch.zeros(3)}, folder / "model.safetensors", {"format": "pt"})
    load_causal_lm(folder)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("pilekit")] == [
        f"{folder}: 1 stored tensors are not part of the causal language model and are not used: value_head.weight"
    ]


def test_weights_that_do_not_make_up_the_model_are_refused(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path)
    weights = load_file(folder / "model.safetensors")
    name = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"

    save_file({k: v for k, v in weights.items() if k != name}, folder / "model.safetensors", {"format": "pt"})
    assert f"lack 1 of the model's tensors, {name}" in refused(folder)
    save_file({**weights, name: weights[name][:-1].clone()}, folder / "model.safetensors", {"format": "pt"})
    assert f"{name} is stored as [63, 32], config.json makes it [64, 32]" in refused(folder)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    edit_config(folder, num_hidden_layers=1)
    assert "they hold gpt_neox.layers.1.attention.dense.bias, for which" in refused(folder)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for size in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert f"{file}: is not a whole safetensors file" in refused(folder)
    file.write_bytes(b"\xff" * 8 + whole[8:])  # a header of 2^64 bytes
    assert "is not a whole safetensors file" in refused(folder)


def test_shards_that_are_missing_or_elsewhere_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder, max_shard_size="50KB")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first = sorted(folder.glob("*.safetensors"))[0]
    outside = first.rename(tmp_path / first.name)
    assert f"{first.name} is missing" in refused(folder)
    for name in (f"../{first.name}", str(outside), "weights.bin"):
        index.write_text(
            json.dumps({"weight_map": {k: name if v == first.name else v for k, v in content["weight_map"].items()}})
        )
        assert "which is no safetensors file beside it" in refused(folder)
    for damaged in ("{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'):
        index.write_text(damaged)
        assert "model.safetensors.index.json" in refused(folder)


def test_weights_that_would_be_unpickled_are_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    message = refused(folder)
    assert "only pytorch_model.bin" in message
    assert "save_pretrained(folder)" in message
    (folder / "pytorch_model.bin").unlink()
    assert "has no weights (model.safetensors)" in refused(folder)


def test_folders_that_are_no_model_are_told_apart(tmp_path: Path) -> None:
    assert "there is no such model" in refused(tmp_path / "nowhere")
    assert "has no config.json" in refused(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    assert "is a run that has no model/ yet" in refused(tmp_path)
    folder = tiny_model_dir(tmp_path / "model")
    assert f"is a run; its model is {folder}" in refused(tmp_path)
    assert "is a file" in refused(folder / "config.json")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    assert "is an adapter" in refused(tmp_path / "adapter")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("\x00\xff", "is not JSON"),
        ("[]", 'has no "model_type"'),
        ("{}", 'has no "model_type"'),
        ('{"model_type": ["gpt2"]}', 'has no "model_type"'),
        ('{"model_type": "gpt-9"}', 'model_type "gpt-9" is unknown to transformers'),
        ('{"model_type": "\\u001b[31mred"}', r'model_type "\x1b[31mred" is unknown'),
        ('{"model_type": "vit"}', "the vit model is not a causal language model"),
        ('{"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}', "quantised weights"),
    ],
)
def test_a_hostile_configuration_is_refused(content: str, said: str, tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path)
    (folder / "config.json").write_text(content)
    assert said in refused(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "wide"},
        {"hidden_size": -1},
        {"hidden_size": None},
        {"num_attention_heads": 0},
        {"num_attention_heads": 7},
        {"hidden_act": "no_such_function"},
        {"hidden_act": {}},
        {"vocab_size": 10**12},
        {"vocab_size": 10**30},
        {"hidden_size": 10**7},
        {"num_hidden_layers": 10**9},
        {"dtype": "__class__"},
        {"rope_parameters": {"rope_type": "no_such_type"}},
        {"rope_parameters": 3},
    ],
)
def test_a_configuration_that_makes_no_model_of_this_size_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    refused(edit_config(tiny_model_dir(tmp_path), **changes))


def test_a_model_has_layers_and_positions(tmp_path: Path) -> None:
    cases: list[tuple[Family, str, str, int]] = [
        ("gpt_neox", "num_hidden_layers", "layers", 0),
        ("gpt2", "n_layer", "layers", -1),
        ("llama", "max_position_embeddings", "positions", -1),
        ("gpt2", "n_positions", "positions", 0),
    ]
    for family, field, what, number in cases:
        message = refused(edit_config(tiny_model_dir(tmp_path / f"{family} {field}", family), **{field: number}))
        assert f"config.json: names {number} {what}, and a model has at least one" in message


def test_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path, "llama")
    marker = tmp_path / "was-run"
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\nclass A: pass\n"
    (folder / "modeling_own.py").write_text(code)
    (folder / "configuration_own.py").write_text(code)
    own = {"AutoConfig": "configuration_own.A", "AutoModelForCausalLM": "modeling_own.A"}
    load_causal_lm(edit_config(folder, auto_map=own, transformers_weights="elsewhere.safetensors"))
    assert "needs code of its own" in refused(edit_config(folder, model_type="own"))
    assert not marker.exists()


def test_the_labels_of_a_classifier_are_passed_over(tmp_path: Path) -> None:
    folder = edit_config(tiny_model_dir(tmp_path), num_labels=10**9, id2label=3)  # a dictionary of 10^9 would be made
    assert load_causal_lm(folder).max_length == 32


def test_the_configuration_does_not_choose_the_kernel_of_attention(tmp_path: Path) -> None:
    folder = edit_config(tiny_model_dir(tmp_path, "llama"), attn_implementation="someone/kernels")
    edit_config(folder, _attn_implementation="someone/kernels", _attn_implementation_internal="someone/kernels")
    assert load_causal_lm(folder).model.config._attn_implementation == "sdpa"
