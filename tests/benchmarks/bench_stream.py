"""How fast raw shards become packed tensors: pilekit beside a bare loop and two other loaders, on one core, in one run.

    python tests/benchmarks/bench_stream.py [--shard PATH] [--tokenizer F] [--megabytes N]

Each contestant is a process pinned to the same core, with one tokenizer thread. It makes int64 batches of 8 x 2048
tokens of the same text. (`datasets` is slow, so it gets only the beginning.) They take turns. Not timed: imports,
compiling, loading the tokenizer, opening the data, and a first pass over one megabyte or, in a stream, filling every
lane's window.

    bare loop     only zstandard, orjson and fastokens: no packing, no tensors. The upper limit
    bare units    the same three, for the units that PileStream reads from the reframed shard, in its order: the upper
                  limit of random access to a corpus that does not fit in memory. A frame is decoded for each
                  unit that needs some of its lines
    PileStream    this package: adds packing, labels, positions, resumable state, and an order that no topology
                  changes; from the original shard and from the same shard reframed (random access), in frames of
                  1 MiB and of 256 KiB, best_fit and concat. It is endless, so it runs until it has encoded and yielded
                  as many tokens as the shard has. The lesser of both counts, so windows that were filled before do not
                  count as work
    from tokens   PileStream from the token file of the shard instead: the same, without decoding and tokenizing
    HF datasets   `load_dataset(streaming=True)`, `tokenizers`, concatenated and cut into rows: input_ids only
    MosaicML MDS  StreamingDataset over the same rows, *tokenized, packed and written beforehand*: input_ids only

Then pilekit alone: two workers on two cores beside one on one core; the time to record a batch with 512 lanes; the
memory of a process with 64 lanes above one that has only imported; the time from construction to the first batch on 30
indexed shards.

Without --shard, text is generated; without --tokenizer, one is trained on it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from any folder
from tests.benchmarks.generating import generated, trained_tokenizer
from tests.benchmarks.harness import Figures, options, show, table, take_turns
from tests.benchmarks.peers import peer_environment, run_peer
from tests.benchmarks.stream_peers import (
    DATASETS,
    DATASETS_REQUIREMENTS,
    MOSAIC,
    MOSAIC_REQUIREMENTS,
    MOSAIC_STAND_IN,
    ROWS,
    WRITE_MDS,
)

SEQ_LEN = 2048
BATCH_SIZE = 8

COMMON = f"""
import json, os, resource, sys, time
SHARD, TOKENIZER, WARM_UP, FOLDER, REFRAMED, TOKENS = sys.argv[1:7]
SMALL_FRAMES = FOLDER + "/small-frames"
SEQ_LEN, BATCH_SIZE = {SEQ_LEN}, {BATCH_SIZE}
"""

# Each contestant defines `prepare(path)`, which opens the data and returns an iterator of numbers of tokens.
TIMING = """
sum(prepare(WARM_UP))
contestant = prepare(SHARD)
started, used = time.perf_counter(), time.process_time()
tokens = sum(contestant)
seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - used
print(json.dumps({"amount": tokens, "seconds": seconds, "cpu_seconds": cpu_seconds}))
"""

BARE = """
import fastokens, numpy, orjson, zstandard
tokenizer = fastokens.Tokenizer.from_file(TOKENIZER)

def prepare(path):
    rest = b""
    with open(path, "rb") as file:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(file, read_across_frames=True)
        while piece := reader.read(2 << 20):
            lines = (rest + piece).split(b"\\n")
            rest = lines.pop()
            texts = [orjson.loads(line)["text"] for line in lines]
            ids, offsets = tokenizer.encode_batch_flat(texts, split_special_tokens=True)
            yield len(numpy.frombuffer(ids, numpy.uint32)) + len(texts)
"""

STREAM = """
from pilekit import PileStream, load_tokenizer
from pilekit.tokenize import Tokenizer

encoded = 0
encode_batch = Tokenizer.encode_batch

def counting(self, texts):
    global encoded
    ids, offsets = encode_batch(self, texts)
    encoded += len(ids) + len(texts)
    return ids, offsets

Tokenizer.encode_batch = counting

def stream_of(path, **settings):
    settings = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, **settings}
    return PileStream(path, tokenizer=load_tokenizer(TOKENIZER), **settings)

def given(stream):
    return sum(tokens for documents, tokens in stream.state_dict()["counts"]["subsets"].values())
"""

# `FRAMES`, the folder of the reframed shard, comes before this. All lines of the shard are documents.
BARE_UNITS = (
    STREAM
    + """
import fastokens, numpy, orjson, zstandard
tokenizer = fastokens.Tokenizer.from_file(TOKENIZER)
stream = stream_of(FRAMES)
source = stream._iteration.builder.source  # a RandomAccess
index, decompressor = source.selected.plan.indexes[0], zstandard.ZstdDecompressor()
offsets, first_lines = numpy.append(index.frames.offset, index.header.size).tolist(), index.frames.line.tolist()
sizes = numpy.diff(index.frames.text_offset, append=index.header.content_bytes).tolist()

def prepare(path):
    with open(stream.corpus.shards[0].path, "rb", buffering=0) as file:
        done = position = 0
        while done < (int(TOKENS) if path == SHARD else 1):
            unit = source.sequence.at(position)
            first, last = (index.frames.frame_of(number) for number in (unit.begin, unit.end - 1))
            file.seek(offsets[first])
            stored = memoryview(file.read(offsets[last + 1] - offsets[first]))
            begins = [offset - offsets[first] for offset in offsets[first : last + 2]]
            text = b"".join(
                decompressor.decompress(stored[begin:end], max_output_size=size)
                for begin, end, size in zip(begins, begins[1:], sizes[first : last + 1])
            )
            lines = text.split(b"\\n")[unit.begin - first_lines[first] : unit.end - first_lines[first]]
            texts = [orjson.loads(line)["text"] for line in lines]
            ids, offsets_of_texts = tokenizer.encode_batch_flat(texts, split_special_tokens=True)
            yield (encoded := len(numpy.frombuffer(ids, numpy.uint32)) + len(texts))
            done, position = done + encoded, position + 1
"""
)

# `SETTINGS` comes before this; TOKENS is how many tokens the shard has.
PILEKIT = (
    STREAM
    + """
path = SETTINGS.pop("path")
stream = stream_of({
    "raw": SHARD, "reframed": REFRAMED, "256 KiB frames": SMALL_FRAMES, "from tokens": FOLDER + "/tokens"
}[path], **SETTINGS)
grid = stream.grid
batches = iter(stream)
for _ in range(4 * grid.columns):
    next(batches)
first, first_encoded, started, used = given(stream), encoded, time.perf_counter(), time.process_time()
tokens = 0
while tokens < int(TOKENS):
    for _ in range(64):
        next(batches)
    tokens = given(stream) - first
    tokens = tokens if path == "from tokens" else min(tokens, encoded - first_encoded)
seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - used
print(json.dumps({"amount": tokens, "seconds": seconds, "cpu_seconds": cpu_seconds, "plan": grid.plan}))
"""
)

# As PILEKIT, in `WORKERS` workers; the tokens are those that are handed out.
WORKING = (
    STREAM
    + """
stream = stream_of(REFRAMED)
batches = iter(stream.loader(num_workers=WORKERS))
for _ in range(64):
    next(batches)
first, started = given(stream), time.perf_counter()
while given(stream) - first < int(TOKENS):
    for _ in range(64):
        next(batches)
print(json.dumps({"amount": given(stream) - first, "seconds": time.perf_counter() - started}))
"""
)

RECORDING = (
    STREAM
    + """
stream, other = (stream_of(REFRAMED, seq_len=64, batch_size=128, lanes=(128, 4), window=16) for _ in range(2))
batches = [batch for _, batch in zip(range(200), stream)]
started = time.perf_counter()
for batch in batches:
    other.advance(batch)
print(json.dumps({"figure": (time.perf_counter() - started) / 200 * 1e3}))
"""
)

MEMORY = (
    STREAM
    + """
import torch
def resident():  # getrusage would begin with the peak of the process that started this one
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
idle = resident()
stream = stream_of(REFRAMED, batch_size=16, lanes=(16, 4))
for _ in zip(range(400), stream):
    pass
print(json.dumps({"figure": resident() - idle}))
"""
)

FIRST_BATCH = (
    STREAM
    + """
tokenizer = load_tokenizer(TOKENIZER)
next(iter(stream_of(WARM_UP)))
started = time.perf_counter()
next(iter(stream_of(FOLDER + "/thirty")))
print(json.dumps({"figure": time.perf_counter() - started}))
"""
)

ALONE = {
    "milliseconds to record a batch, 512 lanes": RECORDING,
    "MiB beyond an idle process, 64 lanes": MEMORY,
    "seconds to the first batch, 30 shards": FIRST_BATCH,
}


def main() -> None:
    """Make the shards, let the contestants take turns, and print."""
    parser = options(__doc__, megabytes=(200, "text to generate, or to take of --shard"))
    parser.add_argument("--slow-megabytes", type=int, default=5, help="how much of it HF datasets gets (default: 5)")
    parser.add_argument("--shard", type=Path, help="a .jsonl.zst shard (default: generated text)")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: trained on the shard)")
    parser.add_argument("--no-peers", action="store_true", help="only the bare loop and PileStream")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        compare(Path(temporary), chosen)


def compare(folder: Path, chosen: argparse.Namespace) -> None:
    """Measure and print, with all files in `folder`."""
    from pilekit import tokenize_corpus
    from pilekit.shards.write.reframe import reframe_corpus

    lines = some_lines(chosen.shard or generated(f"stream-{chosen.megabytes}", chosen.megabytes << 20, 50), chosen)
    shard, slow, warm_up = (folder / f"{name}.jsonl.zst" for name in ("whole", "slow", "warm-up"))
    write(shard, lines)
    write(slow, first(lines, chosen.slow_megabytes << 20))
    write(warm_up, first(lines, 1 << 20))
    reframe_corpus(shard, folder / "reframed")
    reframe_corpus(shard, folder / "small-frames", frame_bytes=256 << 10)
    for number in range(30):
        write(folder / "parts" / f"{number:02d}.jsonl.zst", lines[number::30])
    reframe_corpus(folder / "parts", folder / "thirty")
    tokenizer = chosen.tokenizer or trained_tokenizer(shard, folder / "tokenizer.json")
    tokenize_corpus(shard, folder / "tokens", tokenizer)
    cores = sorted(os.sched_getaffinity(0))
    tokens = 0

    def run(source: str, python: Path = Path(sys.executable), path: Path = shard, on: int | None = 1) -> Any:
        """Run a script on the first `on` cores, or on all. The bare loop, which runs first, counts the tokens."""
        nonlocal tokens
        arguments = (path, tokenizer, warm_up, folder, folder / "reframed", str(tokens))
        environment = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        found = run_peer(python, COMMON + source, *arguments, environment=environment, cores=cores[:on])
        tokens = tokens or (found["amount"] if isinstance(found, dict) else 0)
        return found

    contestants: dict[str, Callable[[], Figures]] = {"bare loop": partial(run, BARE + TIMING)}
    for name, frames in (("bare units", "REFRAMED"), ("bare units, 256 KiB frames", "SMALL_FRAMES")):
        contestants[name] = partial(run, f"FRAMES = {frames}\n" + BARE_UNITS + TIMING)
    paths = ("raw", "reframed", "256 KiB frames", "from tokens")
    for path, packing in itertools.product(paths, ("best_fit", "concat")):
        settings = {"packing": packing, "path": path}
        name = f"PileStream {path} {packing}"
        contestants[name] = partial(run, f"SETTINGS = {settings}\n" + PILEKIT)
    if not chosen.no_peers:
        mosaic = peer_environment("mosaic", MOSAIC_REQUIREMENTS, ["--no-deps"])
        run(ROWS, on=None)
        run(MOSAIC_STAND_IN + WRITE_MDS, mosaic, on=None)
        datasets = peer_environment("datasets", DATASETS_REQUIREMENTS)
        contestants["HF datasets"] = partial(run, DATASETS + TIMING, datasets, slow)
        contestants["MosaicML MDS"] = partial(run, MOSAIC_STAND_IN + MOSAIC + TIMING, mosaic)
    beside = take_turns(contestants, chosen.rounds)
    workers = {
        f"{count} worker{'s' * (count > 1)}": partial(run, f"WORKERS = {count}\n" + WORKING, on=count)
        for count in (1, 2)[: len(cores)]
    }
    working = take_turns(workers, chosen.rounds)
    for figures in itertools.chain.from_iterable(working.values()):
        del figures["cpu_seconds"]  # that of the whole script, its start included
    alone = take_turns({name: partial(run, source) for name, source in ALONE.items()}, chosen.rounds)
    others = {name: min(one["figure"] for one in rounds) for name, rounds in alone.items()}
    title = f"{sum(map(len, lines)) / 1e6:.0f} MB of JSON lines to rows of {SEQ_LEN} in batches of {BATCH_SIZE}"
    plan = {"plan": lambda rounds: rounds[0].get("plan", "")}
    tables = [
        table(title, beside, "bare loop", unit="M tokens", extra=plan),
        table("PileStream.loader, a core for each worker", working, "1 worker", unit="M tokens"),
        "\n".join(f"{name:<45}{figure:>14,.3f}" for name, figure in others.items()),
    ]
    show(chosen, {"beside": beside, "working": working, **others}, tables)


def some_lines(shard: Path, chosen: argparse.Namespace) -> list[bytes]:
    """The first lines of the shard, with the wanted size together."""
    with shard.open("rb") as file:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(file, read_across_frames=True)
        return [line for line in reader.read(chosen.megabytes << 20).split(b"\n")[:-1] if line]


def first(lines: list[bytes], size: int) -> list[bytes]:
    """Lines until they have `size` bytes together."""
    ends = np.cumsum([len(line) for line in lines])
    return lines[: int(np.searchsorted(ends, size)) + 1]


def write(path: Path, lines: list[bytes]) -> None:
    """A shard of one frame."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zstandard.compress(b"\n".join(lines) + b"\n"))


if __name__ == "__main__":
    main()
