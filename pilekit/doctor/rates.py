"""How fast this machine is: measure small pieces of work for two or three seconds, and estimate the commands' rates.

The work is on text that Python ships. Rates are 10^6 bytes of text per CPU second, so other load on the machine hardly
changes them. `multiply` is torch's product of matrices, in 10^9 operations per second: float32 per CPU second, or
bfloat16 on a GPU.

The estimates use ratios of docs/benchmarks.md, which were measured on two cores of a server. The ratios depend little
on the machine, and more on the text: an estimate may be wrong by a half.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pilekit.doctor.machine import Fact, facts, import_of

SECONDS = 0.2
"""Each piece of work is repeated for this long; its best round counts."""
DISK_BYTES = 64 << 20
STORED = 1 / 3
"""Compressed bytes per byte of text, as in the Pile's shards."""
TOKENS_PER_BYTE = 0.25

INTO = {
    "read": ("decode", "parse"),
    "sketch": ("decode", "parse", "minhash"),
    "encode": ("decode", "parse", "tokenize"),
}
"""Work that consists of measured parts, done in sequence."""


class Estimate(NamedTuple):
    """A command's rate is `ratio` times the rate of the work `of`, on each core.

    one_core   the command uses one core, however many there are
    reads      bytes that it reads from the disk per byte of text
    writes     bytes that it writes per byte of text
    """

    of: str
    ratio: float
    one_core: bool = False
    reads: float = STORED
    writes: float = 0.0


ESTIMATES = {
    "stats": Estimate("read", 1.17),
    "grep": Estimate("read", 1.06),
    "verify": Estimate("read", 1.09),
    "index": Estimate("read", 1.03),
    "select": Estimate("compress", 1.10, writes=STORED),
    "reframe": Estimate("compress", 0.69, reads=2 * STORED, writes=STORED),
    "assemble": Estimate("compress", 0.36, reads=2 * STORED + 1, writes=STORED + 1),
    "dedup --no-write": Estimate("sketch", 0.45),
    "dedup": Estimate("sketch", 0.25, reads=2 * STORED, writes=STORED),
    "clean --report": Estimate("tokenize", 0.28),
    "decontaminate --no-write": Estimate("encode", 0.62),
    "substrings --no-write": Estimate("tokenize", 0.121),
    "tokenize": Estimate("encode", 0.85, reads=STORED + 2 * TOKENS_PER_BYTE, writes=4 * TOKENS_PER_BYTE),
    "stream": Estimate("encode", 0.74, one_core=True),
}
"""The commands that go through a corpus, with ratios that a test computes again from docs/benchmarks.md."""

TRAINING = {"train": (0.45, 50.5e6), "bpb": (0.35, 16.8e6)}
"""The share of `multiply` that training and scoring a Pythia-14M reach on a CPU, and the operations per token."""


def measured(folder: Path, tokenizer: str | None) -> Iterator[Fact]:
    """The rate of each piece of work, or why it failed. Uses 64 MiB of `folder` for a moment."""
    works: dict[str, Callable[[], float]] = {
        "decode": lambda: _rate(partial(import_of("zstandard").decompress, _stored())),
        "parse": lambda: _rate(lambda: list(map(import_of("orjson").loads, _lines()))),
        "minhash": _minhash,
        "compress": lambda: _rate(partial(import_of("zstandard").compress, b"".join(_lines()), 3)),
        "disk write": partial(_disk, folder, reading=False),
        "disk read": partial(_disk, folder, reading=True),
        "multiply": _multiply,
    }
    if tokenizer is not None:
        works["tokenize"] = partial(_tokenize, tokenizer)
    return facts(works, "cannot be measured")


class Expected(NamedTuple):
    """A command's rate, in 10^6 bytes of text or in tokens per second; `limit` is "CPU" or "disk"."""

    rate: float
    unit: str
    limit: str


def expected(rates: Mapping[str, float | str], cores: int, *, gpu: bool) -> dict[str, Expected]:
    """The rate of each command whose parts were measured; with a GPU, `train` and `bpb` are left out."""
    known = {name: rate for name, rate in rates.items() if isinstance(rate, float)}
    for name, parts in INTO.items():
        if all(part in known for part in parts):
            known[name] = 1 / sum(1 / known[part] for part in parts)
    found: dict[str, Expected] = {}
    for command, estimate in ESTIMATES.items():
        if estimate.of in known:
            on_cores = estimate.ratio * known[estimate.of] * (1 if estimate.one_core else cores)
            disk = estimate.reads / known.get("disk read", 1e9) + estimate.writes / known.get("disk write", 1e9)
            found[command] = min(Expected(on_cores, "MB/s", "CPU"), Expected(1 / disk, "MB/s", "disk"))
    if "multiply" in known and not gpu:
        for command, (share, operations) in TRAINING.items():
            found[command] = Expected(cores * share * known["multiply"] * 1e9 / operations, "tokens/s", "CPU")
    return found


@cache
def _texts() -> list[str]:
    """The language reference, 0.5 MB of prose, or some source files if Python was installed without it."""
    from pilekit.assemble.demo_texts import language_reference, source_files, standard_library

    reference = [text for _, text in language_reference()]
    return reference or [text for _, text in islice(source_files(standard_library()), 50)]


@cache
def _lines() -> list[bytes]:
    return [json.dumps({"text": text, "meta": {"pile_set_name": "Pile-CC"}}).encode() + b"\n" for text in _texts()]


@cache
def _stored() -> Any:
    return import_of("zstandard").compress(b"".join(_lines()))


def _rate(
    work: Callable[[], Any], amount: float | None = None, clock: Callable[[], float] = time.process_time
) -> float:
    """Millions of `amount` per second in the best round of `SECONDS`; a first round warms up.

    amount   bytes of text or operations; None: the bytes of the texts
    """
    work()
    end, best = clock() + SECONDS, math.inf
    while clock() < end or best == math.inf:
        begin = clock()
        work()
        best = min(best, clock() - begin)
    return (sum(len(text.encode()) for text in _texts()) if amount is None else amount) / max(best, 1e-9) / 1e6


def _minhash() -> float:
    import numpy as np

    from pilekit.dedup.sketch.minhash import permutations, signatures

    data = np.frombuffer("".join(_texts()).encode(), np.uint8)
    offsets = np.cumsum([0, *(len(text.encode()) for text in _texts())], dtype=np.int64)
    return _rate(lambda: signatures(data, offsets, 5, *permutations(128)))


def _tokenize(tokenizer: str) -> float:
    return _rate(partial(import_of("pilekit.tokenize").load_tokenizer(tokenizer).encode_batch, _texts()))


def _disk(folder: Path, *, reading: bool) -> float:
    """The rate of writing and flushing a file to the disk, or of reading it after the system was told to forget it."""
    block = os.urandom(1 << 20)  # A file system may compress.
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = time.perf_counter()
        for _ in range(DISK_BYTES >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        if reading:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            begin = time.perf_counter()
            while file.read(1 << 20):
                pass
        return DISK_BYTES / (time.perf_counter() - begin) / 1e6


def _multiply() -> float:
    import torch

    if torch.cuda.is_available():
        one = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
        return _rate(lambda: (one @ one)[0, 0].item(), 2 * len(one) ** 3, time.perf_counter) / 1e3
    one, threads = torch.ones(512, 512), torch.get_num_threads()
    torch.set_num_threads(1)  # Threads that wait for each other take CPU seconds too.
    try:
        return _rate(lambda: one @ one, 2 * len(one) ** 3) / 1e3
    finally:
        torch.set_num_threads(threads)
