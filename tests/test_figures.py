"""Figures that must be the same with every version of torch, transformers and numpy: those that were computed once.

`make compat` runs this file with the oldest versions. A change of the stream's order or of the score changes them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xxhash
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from pilekit import PileStream, bits_per_byte
from tests.stream.corpora import mixed
from tests.tiny.models import tiny_tokenizer

CONFIG = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}


def test_batches_and_bits_per_byte_are_those_of_other_versions(tmp_path: Path) -> None:
    corpus = mixed(tmp_path / "corpus", documents=200).folder
    tokenizer = tiny_tokenizer(tmp_path / "model")
    hashed = xxhash.xxh3_64()
    for packing in ("best_fit", "concat"):
        stream = PileStream(corpus, tokenizer=tokenizer, seq_len=64, batch_size=8, packing=packing, seed=1)
        for batch, _ in zip(stream, range(8), strict=False):
            for name in sorted({*batch} - {"stream_state"}):  # its form is the record's own matter
                hashed.update(name.encode() + batch[name].numpy().tobytes())
    assert hashed.hexdigest() == "e3f83ada6a50701a"

    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    rng = np.random.Generator(np.random.PCG64(0))  # versions of transformers draw other weights
    shapes = AutoModelForCausalLM.from_config(LlamaConfig.from_pretrained(tmp_path / "model")).state_dict()
    weights = {name: 0.2 * rng.standard_normal(shapes[name].shape, np.float32) for name in sorted(shapes)}
    save_file(weights, tmp_path / "model/model.safetensors", {"format": "pt"})
    score = bits_per_byte(tmp_path / "model", corpus)
    figures = {name: subset.bpb for name, subset in score.subsets.items()}
    expected = {
        "Pile-CC": 7.223569987,
        "ArXiv": 7.212351369,
        "Github": 7.200263362,
        "Wikipedia (en)": 7.036230488,
        "Recipes": 7.283569990,
        "(none)": 7.315895338,
    }
    assert figures == pytest.approx(expected, rel=1e-7)
