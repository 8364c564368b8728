"""`model/`: other tools read the same model from it, and it is complete whenever its writer is killed."""

from __future__ import annotations

import json
import shutil
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as HuggingFaceTokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    Qwen2Config,
    StableLmConfig,
)

from pilekit.errors import PilekitError
from pilekit.models.causal import CausalLM, as_causal_lm, load_causal_lm
from pilekit.tokenize import Tokenizer, load_tokenizer
from pilekit.train.model.export import export_model
from tests.kills import in_a_child, kill_at
from tests.small_disk import files_limited_to
from tests.stopping import tree
from tests.tiny.models import SMALL, WORDS, Family, tiny_model, tiny_model_dir, tiny_tokenizer

FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
IDS = torch.tensor([[5, 9, 2, 300, 33, 33, 7, 1]])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer(tmp_path / "tokenizer"))


def model_of(kind: str) -> CausalLM:
    torch.manual_seed(0)
    if kind in ("gpt_neox", "gpt2", "llama"):
        family: Family = kind  # type: ignore[assignment]
        return as_causal_lm(tiny_model(family))
    configs: dict[str, Any] = {
        "tied llama": LlamaConfig(**SMALL, tie_word_embeddings=True),
        "qwen2": Qwen2Config(**SMALL),  # transformers has a tokenizer of its own for it
        "bloom": BloomConfig(vocab_size=320, hidden_size=32, n_layer=1, n_head=4),  # has no longest length
    }
    return as_causal_lm(AutoModelForCausalLM.from_config(configs[kind]))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["gpt2", "tied llama", "bloom"])
def test_other_tools_read_the_same_model(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    lm = model_of(kind)
    lm.model.train()
    export_model(tmp_path / "model", lm, tokenizer)
    assert lm.model.training
    assert {path.name for path in (tmp_path / "model").iterdir()} == FILES
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    lm.model.eval()
    with torch.no_grad():
        expected = lm.model(input_ids=IDS, use_cache=False).logits
        assert torch.equal(loaded(input_ids=IDS).logits, expected)
        ours = load_causal_lm(tmp_path / "model")
        assert torch.equal(ours.model(input_ids=IDS.to(ours.model.device)).logits.cpu(), expected)
    assert type(loaded) is type(lm.model)
    assert loaded.num_parameters() == lm.model.num_parameters()
    assert ours.max_length == lm.max_length


ROTARY = {"rope_type": "default", "rope_theta": 50_000.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("config", "older"),
    [
        (GPTNeoXConfig(**SMALL, rope_parameters=dict(ROTARY)), {"rotary_emb_base": 50_000.0, "rotary_pct": 0.5}),
        (StableLmConfig(**SMALL, rope_parameters=dict(ROTARY)), {"rope_theta": 50_000.0, "partial_rotary_factor": 0.5}),
        (LlamaConfig(**SMALL, rope_parameters={"rope_type": "default", "rope_theta": 5e5}), {"rope_theta": 5e5}),
        (LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}), {}),
        (GPT2Config(vocab_size=320, n_embd=32, n_layer=1, n_head=4), {}),
    ],
    ids=["gpt_neox", "stablelm", "llama", "scaled llama", "gpt2"],
)
def test_rotary_settings_have_their_older_names_too(
    config: Any, older: dict[str, float], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    lm = as_causal_lm(AutoModelForCausalLM.from_config(config))
    for target in (tmp_path / "model", tmp_path / "again"):  # a model read from an export is exported alike
        export_model(target, lm, tokenizer)
        written = json.loads((target / "config.json").read_text())
        names = ("rotary_emb_base", "rotary_pct", "rope_theta", "partial_rotary_factor")
        assert {name: written[name] for name in names if name in written} == older
        loaded = AutoModelForCausalLM.from_pretrained(target).eval()
        assert getattr(loaded.config, "rope_parameters", None) == getattr(config, "rope_parameters", None)
        with torch.no_grad():
            assert torch.equal(loaded(input_ids=IDS).logits, lm.model.eval()(input_ids=IDS).logits)
        lm = as_causal_lm(loaded)


def test_other_tools_read_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_model(tmp_path / "model", model_of("gpt_neox"), tokenizer)
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == tokenizer.path.read_bytes()
    texts = [*(word for word in WORDS if "<|" not in word), "", " lead and trail ", "e\u0301 \r\n\t", "日本" * 9]
    ids, offsets = tokenizer.encode_batch(texts)
    expected = [ids[start:end].tolist() for start, end in pairwise(offsets)]
    other, ours = AutoTokenizer.from_pretrained(tmp_path / "model"), load_tokenizer(tmp_path / "model")
    assert [other.encode(text) for text in texts] == expected
    assert [other.decode(one) for one in expected] == texts
    for role in ("eos", "bos", "pad"):
        number = getattr(tokenizer, f"{role}_id")
        assert getattr(other, f"{role}_token_id") == number, role
        assert getattr(ours, f"{role}_id") == number, role
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (0, None, 1)
    assert ours.fingerprint == tokenizer.fingerprint


def test_special_tokens_that_a_config_names_are_kept(tmp_path: Path) -> None:
    file = tiny_tokenizer(tmp_path / "tokenizer")
    word = HuggingFaceTokenizer.from_file(str(file)).id_to_token(290)
    named = {"eos_token": "<|padding|>", "bos_token": {"content": "<|endoftext|>"}, "pad_token": word}
    file.with_name("tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = load_tokenizer(file)
    expected = (1, 0, 290)
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == expected
    export_model(tmp_path / "model", model_of("gpt2"), tokenizer)
    ours, other = load_tokenizer(tmp_path / "model"), AutoTokenizer.from_pretrained(tmp_path / "model")
    assert (ours.eos_id, ours.bos_id, ours.pad_id) == expected
    assert (other.eos_token_id, other.bos_token_id, other.pad_token_id) == expected


def test_the_config_of_the_run_lies_beside_the_model_and_no_path_of_this_machine(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    lm, config = load_causal_lm(tiny_model_dir(tmp_path / "from")), '[data]\npath = "größe"\n'
    export_model(tmp_path / "model", lm, tokenizer, config=config)
    export_model(tmp_path / "without", lm, tokenizer)
    assert tree(tmp_path / "model") == {**tree(tmp_path / "without"), "config.toml": config.encode()}
    assert all(str(tmp_path).encode() not in raw for raw in tree(tmp_path / "model").values())


@pytest.mark.parametrize(
    "events", [("os.rename", "shutil.rmtree"), pytest.param(("open", "os.", "shutil."), marks=pytest.mark.slow)]
)
def test_a_kill_at_any_moment_leaves_a_whole_model(
    tokenizer: Tokenizer, tmp_path: Path, events: tuple[str, ...]
) -> None:
    """Kill the export at its first file operation, its second, and so on until it finishes."""
    newer, kept, folder = model_of("llama"), tmp_path / "kept", tmp_path / "run" / "model"
    replaced = folder.with_name("model.replaced")
    export_model(kept, newer, tokenizer)
    whole = [{}, tree(kept)]
    shutil.rmtree(kept)
    export_model(kept, model_of("gpt2"), tokenizer)
    whole[0] = tree(kept)
    found: list[int] = []
    repaired = 0
    code = None
    while code != 0:
        shutil.rmtree(folder.parent, ignore_errors=True)
        shutil.copytree(kept, folder)
        code = in_a_child(lambda: (kill_at(len(found), events), export_model(folder, newer, tokenizer)))  # type: ignore[misc]
        assert code in (0, -signal.SIGKILL)
        found.append(whole.index(tree(folder if folder.exists() else replaced)))
        if not folder.exists() or len(found) % 20 == 0:  # leftovers of a kill do not harm the next export
            repaired += not folder.exists()
            export_model(folder, newer, tokenizer)
            assert tree(folder) == whole[1]
            assert names(folder.parent) == ["model"]
    assert found == sorted(found)
    assert {*found[:-1]} == {0, 1}  # it was killed before the renames and after them
    assert repaired  # and between them
    assert names(folder.parent) == ["model"]


def test_a_full_disk_leaves_the_older_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    export_model(folder, model_of("gpt2"), tokenizer)
    older, newer, config = tree(folder), model_of("llama"), "[train]\n" + 6_000 * "#"
    assert len(older["model.safetensors"]) > 100_000

    with files_limited_to(100_000), pytest.raises(PilekitError, match=r"model: cannot be written: "):
        export_model(folder, newer, tokenizer, config=config)
    assert tree(folder) == older
    assert names(tmp_path) == ["model", "tokenizer"]


def test_a_changed_tokenizer_is_not_exported(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tiny_tokenizer(tokenizer.path.parent, vocab_size=290)
    with pytest.raises(PilekitError, match="has changed since it was loaded"):
        export_model(tmp_path / "model", model_of("gpt2"), tokenizer)
    assert names(tmp_path) == ["tokenizer"]
