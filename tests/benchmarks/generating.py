"""Shards of any size for benchmarks, made at the speed of compression: distinct documents of English-like words.

A pool of sentences is drawn once; a document is its number and a run of sentences from a random place, so no two are
equal. The pool is larger than zstd's window, so documents compress about as well as text. A fifth of the documents
holds characters beyond ASCII, as about a quarter of the Pile's do. Labels come with the shares and the mean sizes that
the Pile's manifest gives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import zstandard

from pilekit.corpus import load_manifest
from tests.benchmarks.peers import BENCH

POOL_SENTENCES = 120_000


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


def write_shard(path: Path, text_bytes: int, *, seed: int = 0) -> int:
    """Write a `.jsonl.zst` of about `text_bytes` bytes of text in one frame without checksum; returns its documents."""
    generator = np.random.default_rng(seed)
    pools = [_pool(generator, ascii_only=ascii_only) for ascii_only in (True, False)]
    subsets = [subset for subset in load_manifest().subsets if subset.weight_percent and subset.mean_kib]
    sizes = np.array([1024 * (subset.mean_kib or 0) for subset in subsets])
    chances = np.array([subset.weight_percent or 0 for subset in subsets]) / sizes
    endings = [f'", "meta": {{"pile_set_name": "{subset.name}"}}}}\n'.encode() for subset in subsets]
    partial = path.with_name(path.name + ".partial")
    written = documents = 0
    compressor = zstandard.ZstdCompressor(level=3, threads=os.cpu_count() or 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file, compressor.stream_writer(file) as frame:
        while written < text_bytes:
            labels = generator.choice(len(subsets), size=1000, p=chances / chances.sum())
            lengths = sizes[labels] * generator.lognormal(-0.5, 1, 1000)
            for label, length, place, kind in zip(
                labels, lengths, generator.random(1000), generator.random(1000) < 0.2, strict=True
            ):
                text, begins = pools[int(kind)]
                begin = int(place * max(len(text) - length, 1))
                first, last = np.searchsorted(begins, [begin, begin + length])
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


def trained_tokenizer(shard: Path, path: Path) -> Path:
    """The tokenizer.json `path` of 16,000 ids, trained on the shard if it is not there."""
    from pilekit.tokenize import train_tokenizer

    if not path.exists():
        train_tokenizer(shard, 16_000, path, sample_bytes=10_000_000)
    return path
