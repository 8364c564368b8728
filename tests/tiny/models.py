"""Tiny models, tokenizers and corpora, made for the tests; only their size is unrealistic."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Literal

import torch
import zstandard
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig

from tests.tokenize.making import byte_level_bpe

Family = Literal["gpt_neox", "gpt2", "llama"]

WORDS = ["the", "quick", "brown fox", "läuft über die Straße\n\t", "12345", "日本語", "<|endoftext|>", "def f(x):"]
SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
"""The shape of a model of some 40,000 parameters, in the words of most families."""
SMALL: dict[str, Any] = {
    **SHAPE,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""The configuration of a model like Llama's."""
LABELS = ["Pile-CC", "Github", "ArXiv"]


def tiny_tokenizer(folder: Path, vocab_size: int = 300) -> Path:
    """A byte-level BPE `tokenizer.json` in `folder`; `<|endoftext|>` is token 0, `<|padding|>` token 1."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tokenizer.json"
    byte_level_bpe(vocab_size).save(str(file))
    return file


def tiny_model(family: Family = "gpt_neox", *, vocab_size: int = 320, max_length: int = 32, seed: int = 0) -> Any:
    """A randomly initialised causal language model of some 40,000 parameters whose predictions are far from uniform."""
    common: dict[str, Any] = {"vocab_size": vocab_size, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.2}
    config: Any
    if family == "gpt_neox":
        config = tiny_neox_config(**common, max_position_embeddings=max_length)
    elif family == "gpt2":
        config = GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, n_positions=max_length)
    else:
        config = LlamaConfig(**SMALL | common | {"max_position_embeddings": max_length})
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def tiny_model_dir(folder: Path, family: Family = "gpt_neox", **settings: Any) -> Path:
    """A model_dir as users have it: config.json, model.safetensors, tokenizer.json."""
    tiny_model(family, **settings).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def tiny_corpus(folder: Path, *, shards: int = 2, documents: int = 30, seed: int = 0) -> Path:
    """Shards `00.jsonl.zst`, ... with short, long and empty texts of three subsets, and a few without a label."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    for shard in range(shards):
        lines = []
        for _ in range(documents):
            text = " ".join(rng.choices(WORDS, k=rng.choice([0, 1, 3, 10, 30, 80])))
            label = rng.choice([*LABELS, None])
            lines.append(json.dumps({"text": text, "meta": {} if label is None else {"pile_set_name": label}}))
        (folder / f"{shard:02d}.jsonl.zst").write_bytes(zstandard.compress(("\n".join(lines) + "\n").encode()))
    return folder


def tiny_neox_config(**changes: Any) -> GPTNeoXConfig:
    """The shape of a two-layer GPT-NeoX for 320 tokens and rows of 32, with these changes."""
    return GPTNeoXConfig(**SHAPE | {"max_position_embeddings": 32} | changes)
