"""Text, a tokenizer and models for benchmarks: real text if `$PILEKIT_REAL_CORPUS` names some, else generated text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pilekit.train.model.presets import PRESETS
from tests.benchmarks.generating import generated
from tests.benchmarks.peers import BENCH


def text_and_tokenizer(name: str) -> tuple[Path, Path]:
    """(shard, tokenizer.json): the real shard of this name, if real text is given; else both are made."""
    real = os.environ.get("PILEKIT_REAL_CORPUS")
    if real:
        return Path(real) / name, Path(real) / "20B_tokenizer.json"
    shard, tokenizer = generated("generated-text", 10_000_000, seed=40), BENCH / "data" / "tokenizer-16k.json"
    if not tokenizer.exists():
        from pilekit import Corpus, train_tokenizer

        train_tokenizer(Corpus(shard), 16_000, tokenizer, sample_bytes=10_000_000)
    return shard, tokenizer


def pythia(folder: Path, tokenizer: Path, preset: str, max_length: int) -> Path:
    """A model folder: the shape of a published Pythia model with random weights, and `tokenizer`."""
    import torch
    from transformers import AutoModelForCausalLM, GPTNeoXConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    width, blocks, heads = PRESETS[preset]
    config = GPTNeoXConfig(
        vocab_size=50304,
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=max_length,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM
    model.from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder
