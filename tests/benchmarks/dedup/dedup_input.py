"""Input for the dedup benchmark: documents of made-up words, a fifth of them edited copies; and all pairs among them.

Each document draws its own words, so hardly any 5-gram occurs twice except in copies, and no exact copy is made. Sizes
and labels follow the Pile's manifest. Copies are edited as in `tests/dedup/planted.py` (inserted, appended, put before,
cut off, replaced), to similarities evenly over 0.5 to 0.99.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from pilekit.dedup.sketch.shingles import jaccard, shingle_set
from pilekit.shards.read.reader import read
from tests.benchmarks.generating import labels_of_the_pile
from tests.dedup.planted import EDITS, LEAST, MOST

COPIES = 0.2
LONGEST = 20_000
"""Longer documents, in words, are not copied: editing them would take most of the time."""
HELD = 500
"""The originals of copies are drawn from this many documents, a sample of all earlier ones."""


def write_shard_with_copies(path: Path, text_bytes: int, *, seed: int = 0) -> int:
    """Write a `.jsonl.zst` of about `text_bytes` bytes of text, in one frame; returns its documents."""
    generator, random = np.random.default_rng(seed), Random(seed)
    letters = list("etaoinshrdlucmfwypvbgkqjxz")
    weights = 1 / np.arange(2, 28)
    lengths = generator.integers(2, 11, 20_000)
    vocabulary = ["".join(generator.choice(letters, length, p=weights / weights.sum())) for length in lengths]
    words = np.array(vocabulary, dtype=object)
    popularity = 1 / np.arange(10, len(words) + 10) ** 0.7
    cumulated = np.cumsum(popularity / popularity.sum())
    mean_word = 1 + float(lengths @ (popularity / popularity.sum()))
    subsets, sizes, chances = labels_of_the_pile()
    held: list[list[str]] = []
    edits = list(EDITS.values())
    written = documents = 0
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    compressor = zstandard.ZstdCompressor(level=3, threads=os.cpu_count() or 1)
    with partial.open("wb") as file, compressor.stream_writer(file) as frame:
        while written < text_bytes:
            label = int(generator.choice(len(subsets), p=chances))
            if held and random.random() < COPIES:
                original = random.choice(held)
                text = random.choice(edits)(original, random.uniform(LEAST, MOST), random, vocabulary)
            else:
                count = max(10, int(sizes[label] * generator.lognormal(-0.5, 1) / mean_word))
                text = words[np.searchsorted(cumulated, generator.random(count))].tolist()
                if count <= LONGEST and len(held) < HELD:
                    held.append(text)
                elif count <= LONGEST and random.random() < 0.2:
                    held[random.randrange(HELD)] = text
            joined = " ".join(text)
            record = {"text": joined, "meta": {"pile_set_name": subsets[label]}}
            frame.write(orjson.dumps(record) + b"\n")
            written += len(joined)
            documents += 1
    partial.replace(path)
    return documents


def write_beginning(source: Iterable[Path], path: Path, text_bytes: int) -> int:
    """Write the first lines of shards as one shard until it has `text_bytes` bytes of text; returns its bytes of
    text."""
    written = 0
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as frame:
        for shard in source:
            with read(shard) as batches:
                for batch in batches:
                    for line, size in zip(batch.raw_lines(), batch.text_bytes().tolist(), strict=True):
                        if written >= text_bytes:
                            break
                        frame.write(bytes(line) + b"\n")
                        written += size
            if written >= text_bytes:
                break
    partial.replace(path)
    return written


def similar_pairs(shard: Path, threshold: float) -> tuple[int, set[tuple[int, int]]]:
    """How many documents a shard has, and all pairs (earlier, later) whose similarity reaches the threshold; exact.

    Two sets so similar share one of the rarest shingles of either: of n shingles, one of the n - threshold n + 1 rarest
    (prefix filtering). So pairs that share none of these need no comparison.
    """
    sets = [shingle_set(np.frombuffer(text.encode(), dtype=np.uint8)) for batch in read(shard) for text in batch.texts]
    shingles, ranks, counts = np.unique(np.concatenate(sets), return_inverse=True, return_counts=True)
    order = np.argsort(counts, kind="stable")
    rarity = np.empty(len(shingles), dtype=np.int64)
    rarity[order] = np.arange(len(shingles))
    ends = np.cumsum([len(one) for one in sets])
    rarest: list[npt.NDArray[np.int64]] = []
    for one, end in zip(sets, ends.tolist(), strict=True):
        own = np.sort(rarity[ranks[end - len(one) : end]])
        rarest.append(own[: len(own) - int(np.ceil(threshold * len(own) - 1e-9)) + 1])
    keys = np.concatenate(rarest)
    owners = np.repeat(np.arange(len(sets)), [len(one) for one in rarest])
    sorted_by = np.argsort(keys, kind="stable")
    keys, owners = keys[sorted_by], owners[sorted_by]
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    lengths = np.diff([*begins, len(keys)])
    candidates: set[tuple[int, int]] = set()
    for begin, length in zip(begins[lengths > 1].tolist(), lengths[lengths > 1].tolist(), strict=True):
        run = owners[begin : begin + length].tolist()
        candidates.update((one, other) for place, one in enumerate(run) for other in run[place + 1 :])
    return len(sets), {
        (one, other)
        for one, other in candidates
        if min(len(sets[one]), len(sets[other])) >= threshold * max(len(sets[one]), len(sets[other])) - 1e-9
        and jaccard(sets[one], sets[other]) >= threshold
    }
