"""Shards of any size for benchmarks, made at the speed of compression: distinct documents of English-like words.

A pool of sentences is drawn once; a document is its number and a run of sentences from a random place, so no two are
equal. The pool is larger than zstd's window, so documents compress about as well as text. A fifth of the documents
holds characters beyond ASCII, as about a quarter of the Pile's do. Labels come with the shares and the mean sizes that
the Pile's manifest gives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from pilekit.corpus import load_manifest
from tests.benchmarks.peers import BENCH

POOL_SENTENCES = 120_000

Floats = npt.NDArray[np.float64]


def _pool(generator: np.random.Generator, *, ascii_only: bool) -> tuple[bytes, np.ndarray]:
    """(JSON-escaped sentences one after the other, where each begins)."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    weights = 1 / np.arange(2, 28)
    words = [
        "".join(generator.choice(letters, size=length, p=weights / weights.sum()))
        for length in generator.integers(1, 11, 20_000)
    ]
    if not ascii_only:
        words[::40] = [f"“{word}é”" for word in words[::40]]
    popularity = 1 / np.arange(10, len(words) + 10)
    drawn = generator.choice(len(words), size=POOL_SENTENCES * 15, p=popularity / popularity.sum())
    lengths = generator.integers(5, 26, POOL_SENTENCES)
    ends = np.minimum(np.cumsum(lengths), len(drawn))
    sentences = []
    for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        mark = (". ", ".\\n", ", ", '? \\"')[number % 4]
        sentences.append((" ".join([words[word] for word in drawn[begin:end]]) + mark).encode())
    return b"".join(sentences), np.cumsum([0, *map(len, sentences)])


def labels_of_the_pile() -> tuple[list[str], Floats, Floats]:
    """(subsets, their mean documents' bytes, the chance that a document is of each), by the Pile's manifest."""
    subsets = [subset for subset in load_manifest().subsets if subset.weight_percent and subset.mean_kib]
    sizes = np.array([1024 * (subset.mean_kib or 0) for subset in subsets])
    chances = np.array([subset.weight_percent or 0 for subset in subsets]) / sizes
    return [subset.name for subset in subsets], sizes, chances / chances.sum()


def write_shard(path: Path, text_bytes: int, *, seed: int = 0) -> int:
    """Write a `.jsonl.zst` of about `text_bytes` bytes of text in one frame without checksum; returns its documents."""
    generator = np.random.default_rng(seed)
    pools = [_pool(generator, ascii_only=ascii_only) for ascii_only in (True, False)]
    subsets, sizes, chances = labels_of_the_pile()
    endings = [f'", "meta": {{"pile_set_name": "{subset}"}}}}\n'.encode() for subset in subsets]
    partial = path.with_name(path.name + ".partial")
    written = documents = 0
    compressor = zstandard.ZstdCompressor(level=3, threads=os.cpu_count() or 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file, compressor.stream_writer(file) as frame:
        while written < text_bytes:
            labels = generator.choice(len(subsets), size=1000, p=chances)
            lengths = sizes[labels] * generator.lognormal(-0.5, 1, 1000)
            for label, length, place, kind in zip(
                labels, lengths, generator.random(1000), generator.random(1000) < 0.2, strict=True
            ):
                text, begins = pools[int(kind)]
                begin = int(place * max(len(text) - length, 1))
                first, last = np.searchsorted(
                    begins[:-1], [begin, begin + length]
                )  # A document may be longer than all sentences.
                line = b'{"text": "%d ' % documents + text[begins[first] : begins[last]] + endings[label]
                frame.write(line)
                written += len(line)
                documents += 1
                if written >= text_bytes:
                    break
    partial.replace(path)
    return documents


def generated(name: str, text_bytes: int, seed: int) -> Path:
    """The generated shard `.bench/data/<name>.jsonl.zst`, made if it is not there."""
    path = BENCH / "data" / f"{name}.jsonl.zst"
    if not path.exists():
        print(f"generating {path.name}", file=sys.stderr)
        write_shard(path, text_bytes, seed=seed)
    return path


def decompressed(path: Path) -> Path:
    """The same shard as plain `.jsonl`, in `.bench/data`."""
    plain = BENCH / "data" / "plain" / path.name.removesuffix(".zst")
    if not plain.exists() or plain.stat().st_mtime < path.stat().st_mtime:
        plain.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["zstd", "-dqf", str(path), "-o", str(plain)], check=True)
    return plain


def trained_tokenizer(shard: Path, path: Path, vocabulary: int = 16_000) -> Path:
    """The tokenizer.json `path` of `vocabulary` ids, trained on the shard if it is not there."""
    from pilekit.tokenize import train_tokenizer

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        train_tokenizer(shard, vocabulary, path, sample_bytes=10_000_000)
    return path


def real_or_generated(name: str) -> tuple[Path, Path]:
    """(shard, tokenizer.json): the real shard of this name, if real text is given; else both are made."""
    real = os.environ.get("PILEKIT_REAL_CORPUS")
    if real:
        return Path(real) / name, Path(real) / "20B_tokenizer.json"
    shard = generated("generated-text", 10_000_000, 40)
    return shard, trained_tokenizer(shard, BENCH / "data" / "tokenizer-16k.json")


def pythia_model(preset: str, *, vocabulary: int = 50304, seq_len: int) -> Any:
    """A model of the shape of a published Pythia model with random weights, float32, on the GPU if there is one."""
    import torch
    from transformers import AutoModelForCausalLM, GPTNeoXConfig

    from pilekit.models.presets import PRESETS

    width, layers, heads = PRESETS[preset]
    config = GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=seq_len,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def pythia_dir(folder: Path, tokenizer: Path, preset: str, *, vocabulary: int = 50304, seq_len: int) -> Path:
    """A model_dir of `pythia_model`, and `tokenizer`."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    pythia_model(preset, vocabulary=vocabulary, seq_len=seq_len).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder
