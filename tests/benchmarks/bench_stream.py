"""How fast raw shards become packed tensors: pilekit beside a bare loop and two other loaders, on one core, in one run.

    python tests/benchmarks/bench_stream.py [--shard PATH] [--tokenizer F] [--megabytes N]

Each contestant is a process pinned to the same core, with one tokenizer thread. It makes int64 batches of 8 x 2048
tokens of the same text. (`datasets` is slow, so it gets only the beginning.) They take turns, and the best round of
each counts, in wall seconds and in CPU seconds. Not timed: imports, compiling, loading the tokenizer, opening the data,
and a first pass over one megabyte or, in a stream, filling every lane's window.

    bare loop     only zstandard, orjson and fastokens: no packing, no tensors. The upper limit
    PileStream    this package: adds packing, labels, positions, resumable state, and an order that no topology
                  changes; from the original shard and from the same shard reframed (random access), best_fit and
                  concat. It is endless, so it runs until it has encoded and yielded as many tokens as the shard has.
                  The lesser of both counts, so windows that were filled before do not count as work
    HF datasets   `load_dataset(streaming=True)`, `tokenizers`, concatenated and cut into rows: input_ids only
    MosaicML MDS  StreamingDataset over the same rows, *tokenized, packed and written beforehand*: input_ids only

Then pilekit alone: two workers on two cores beside one on one core; the time to record a batch with 512 lanes; the
memory of a process with 64 lanes above one that has only imported; the time from construction to the first batch on 30
indexed shards.

Without --shard, text is generated; without --tokenizer, one is trained on it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from any folder
from tests.benchmarks.peers import peer_environment, run_peer

SEQ_LEN = 2048
BATCH_SIZE = 8

COMMON = f"""
import json, os, resource, sys, time
SHARD, TOKENIZER, WARM_UP, FOLDER, REFRAMED, TOKENS = sys.argv[1:7]
SEQ_LEN, BATCH_SIZE = {SEQ_LEN}, {BATCH_SIZE}
"""

# Each contestant defines `prepare(path)`, which opens the data and returns an iterator of numbers of tokens.
TIMING = """
sum(prepare(WARM_UP))
contestant = prepare(SHARD)
started, used = time.perf_counter(), time.process_time()
tokens = sum(contestant)
seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - used
print(json.dumps({"tokens": tokens, "seconds": seconds, "cpu_seconds": cpu_seconds}))
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

# `SETTINGS` comes before this; TOKENS is how many tokens the shard has.
PILEKIT = (
    STREAM
    + """
stream = stream_of(REFRAMED if SETTINGS.pop("reframed") else SHARD, **SETTINGS)
state = stream.state_dict()["plan"]
batches = iter(stream)
for _ in range(4 * state["columns"]):
    next(batches)
first, first_encoded, started, used = given(stream), encoded, time.perf_counter(), time.process_time()
tokens = 0
while tokens < int(TOKENS):
    for _ in range(64):
        next(batches)
    tokens = min(given(stream) - first, encoded - first_encoded)
seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - used
print(json.dumps({"tokens": tokens, "seconds": seconds, "cpu_seconds": cpu_seconds, "plan": state["name"]}))
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
print(json.dumps({"tokens": given(stream) - first, "seconds": time.perf_counter() - started}))
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
print(json.dumps({"milliseconds": (time.perf_counter() - started) / 200 * 1e3}))
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
print(json.dumps({"megabytes": resident() - idle}))
"""
)

FIRST_BATCH = (
    STREAM
    + """
tokenizer = load_tokenizer(TOKENIZER)
next(iter(stream_of(WARM_UP)))
started = time.perf_counter()
next(iter(stream_of(FOLDER + "/thirty")))
print(json.dumps({"seconds": time.perf_counter() - started}))
"""
)

DATASETS = """
import datasets, tokenizers, torch
tokenizer = tokenizers.Tokenizer.from_file(TOKENIZER)
tokenizer.encode_special_tokens = True
eos_id = tokenizer.token_to_id("<|endoftext|>")

def rows(texts):
    flat = []
    for encoding in tokenizer.encode_batch_fast(texts["text"], add_special_tokens=False):
        flat += encoding.ids
        flat.append(eos_id)
    return {"input_ids": [flat[i : i + SEQ_LEN] for i in range(0, len(flat) - SEQ_LEN + 1, SEQ_LEN)]}

def prepare(path):
    data = datasets.load_dataset("json", data_files=path, split="train", streaming=True)
    data = data.map(rows, batched=True, batch_size=256, remove_columns=["text", "meta"])
    return (torch.tensor(batch["input_ids"]).numel() for batch in data.iter(BATCH_SIZE))
"""
DATASETS_REQUIREMENTS = ["datasets==5.2.0", "tokenizers==0.23.3", "torch==2.13.0", "numpy==2.4.6", "zstandard==0.25.0"]

ROWS = """
import numpy
from pilekit import PileStream
settings = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, "packing": "concat", "epochs": 1, "shuffle": False}
stream = PileStream(SHARD, tokenizer=TOKENIZER, **settings)
numpy.save(FOLDER + "/rows.npy", numpy.concatenate([batch["input_ids"].numpy().astype("int32") for batch in stream]))
print(0)
"""

WRITE_MDS = """
import numpy
from streaming import MDSWriter
rows = numpy.load(FOLDER + "/rows.npy", mmap_mode="r")
for path, part in ((WARM_UP, rows[:64]), (SHARD, rows)):
    with MDSWriter(out=path + ".mds", columns={"input_ids": "ndarray:int32:%d" % SEQ_LEN}) as writer:
        for row in part:
            writer.write({"input_ids": numpy.ascontiguousarray(row)})
print(0)
"""

MOSAIC = """
import torch
from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

def collate(samples):
    return torch.stack([torch.from_numpy(sample["input_ids"].astype("int64")) for sample in samples])

def prepare(path):
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=path + ".mds", batch_size=BATCH_SIZE, shuffle=False)
    return (batch.numel() for batch in DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=collate))
"""

# Its own requirements pin old transformers and xxhash, on which pip searches for minutes. So it gets, with --no-deps,
# the packages that its import needs; but torchvision, for its image datasets, is a stand-in, because each version fits
# one build of torch only.
MOSAIC_STAND_IN = """
import types
import transformers.feature_extraction_utils  # looks for torchvision too, and must not find the stand-in
vision = {name: types.ModuleType(name) for name in (
    "torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")}
vision["torchvision.datasets"].VisionDataset = object
vision["torchvision.transforms.functional"].to_tensor = None
sys.modules.update(vision)
"""
MOSAIC_REQUIREMENTS = [
    "mosaicml-streaming==0.13.0",
    "annotated-doc==0.0.7",
    "anyio==4.16.0",
    "brotli==1.2.1",
    "catalogue==2.0.10",
    "certifi==2026.10.18",
    "click==8.5.1",
    "cramjam==2.14.0",
    "filelock==4.2.11",
    "fsspec==2026.9.0",
    "h11==0.16.0",
    "hf-xet==1.8.0",
    "httpcore2==2.16.2",
    "httpx2==2.16.2",
    "huggingface_hub==2.4.0",
    "idna==3.20",
    "Jinja2==3.1.6",
    "MarkupSafe==3.0.4",
    "mpmath==1.3.0",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "packaging==26.3",
    "pillow==13.0.0",
    "python-snappy==0.7.3",
    "PyYAML==6.0.3",
    "regex==2026.11.15",
    "safetensors==0.8.0",
    "sympy==1.14.0",
    "tokenizers==0.23.3",
    "torch==2.13.0",
    "tqdm==4.70.1",
    "transformers==5.23.0",
    "truststore==0.10.5",
    "typer==0.29.2",
    "typing_extensions==4.16.0",
    "xxhash==4.1.0",
    "zstd==1.5.7.2",
]


def main() -> None:
    """Make the shard, let the contestants take turns, print a table and a line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shard", type=Path, help="a .jsonl.zst shard (generated text by default)")
    arguments.add_argument("--tokenizer", type=Path, help="a tokenizer.json (trained on the shard by default)")
    arguments.add_argument(
        "--megabytes", type=int, default=200, help="how much text to generate, or to take of --shard"
    )
    arguments.add_argument("--slow-megabytes", type=int, default=5, help="how much of it HF datasets gets")
    arguments.add_argument("--rounds", type=int, default=3, help="how often each is timed; the best counts")
    arguments.add_argument("--no-peers", action="store_true", help="only the bare loop and PileStream")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as temporary:
        _compare(Path(temporary), chosen)


def _compare(folder: Path, chosen: argparse.Namespace) -> None:
    from pilekit.shards.write.reframe import reframe_corpus

    lines = _some_lines(chosen.shard, chosen.megabytes << 20)
    shard, slow, warm_up = (folder / f"{name}.jsonl.zst" for name in ("whole", "slow", "warm-up"))
    _write(shard, lines)
    _write(slow, _first(lines, chosen.slow_megabytes << 20))
    _write(warm_up, _first(lines, 1 << 20))
    reframe_corpus(shard, folder / "reframed")
    for number in range(30):
        _write(folder / "parts" / f"{number:02d}.jsonl.zst", lines[number::30])
    reframe_corpus(folder / "parts", folder / "thirty")
    tokenizer = chosen.tokenizer if chosen.tokenizer is not None else _train(shard, folder)
    cores = sorted(os.sched_getaffinity(0))
    tokens = 0

    def run(python: Path, source: str, path: Path = shard, on: int | None = 1) -> Any:
        """Run a script on the first `on` cores, or on all."""
        arguments = (path, tokenizer, warm_up, folder, folder / "reframed", str(tokens))
        environment = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return run_peer(python, COMMON + source, *arguments, environment=environment, cores=cores[:on])

    ours = Path(sys.executable)
    contestants = {"bare loop": (ours, BARE + TIMING, shard)}
    for reframed in (False, True):
        for packing in ("best_fit", "concat"):
            settings = {"packing": packing, "reframed": reframed}
            name = f"PileStream {'reframed' if reframed else 'raw'} {packing}"
            contestants[name] = (ours, f"SETTINGS = {settings}\n" + PILEKIT, shard)
    if not chosen.no_peers:
        mosaic = peer_environment("mosaic", MOSAIC_REQUIREMENTS, ["--no-deps"])
        run(ours, ROWS, on=None)
        run(mosaic, MOSAIC_STAND_IN + WRITE_MDS, on=None)
        datasets = peer_environment("datasets", DATASETS_REQUIREMENTS)
        contestants["HF datasets"] = (datasets, DATASETS + TIMING, slow)
        contestants["MosaicML MDS"] = (mosaic, MOSAIC_STAND_IN + MOSAIC + TIMING, shard)

    rates: dict[str, float] = {}
    cpu_rates: dict[str, float] = {}
    plans: dict[str, str] = {}
    for _ in range(chosen.rounds):
        for name, (python, source, path) in contestants.items():
            timed = run(python, source, path)
            tokens = tokens or timed["tokens"]
            rates[name] = max(rates.get(name, 0), timed["tokens"] / timed["seconds"])
            cpu_rates[name] = max(cpu_rates.get(name, 0), timed["tokens"] / timed["cpu_seconds"])
            plans[name] = timed.get("plan", "")
    size = sum(map(len, lines)) / 1e6
    print(f"{size:.0f} MB of JSON lines to rows of {SEQ_LEN} in batches of {BATCH_SIZE}, on one core")
    print(f"{'':<29}{'M tokens/s':>11}{'x bare loop':>13}{'CPU s/M tokens':>16}{'x bare loop':>13}")
    for name, rate in rates.items():
        ratios = rate / rates["bare loop"], cpu_rates["bare loop"] / cpu_rates[name]
        plan = f"  {plans[name]} plan" if plans[name] else ""
        print(f"{name:<29}{rate / 1e6:>11.2f}{ratios[0]:>13.2f}{1e6 / cpu_rates[name]:>16.4f}{ratios[1]:>13.2f}{plan}")

    figures: dict[str, float] = {}
    for workers in (1, 2)[: len(cores)]:
        for _ in range(chosen.rounds):
            timed = run(ours, f"WORKERS = {workers}\n" + WORKING, on=workers)
            name = f"tokens per second, {workers} worker{'s' * (workers > 1)}"
            figures[name] = max(figures.get(name, 0), timed["tokens"] / timed["seconds"])
    for name, source in (
        ("milliseconds to record a batch, 512 lanes", RECORDING),
        ("MiB beyond an idle process, 64 lanes", MEMORY),
        ("seconds to the first batch, 30 shards", FIRST_BATCH),
    ):
        values = (run(ours, source) for _ in range(chosen.rounds))
        figures[name] = min(next(iter(value.values())) for value in values)
    for name, figure in figures.items():
        print(f"{name:<45}{figure:>14,.3f}")
    by_cpu = {f"{name}, tokens per CPU second": round(rate) for name, rate in cpu_rates.items()}
    print(json.dumps({**{name: round(rate) for name, rate in rates.items()}, **by_cpu, **figures}))


def _some_lines(shard: Path | None, size: int) -> list[bytes]:
    """About `size` bytes of JSON lines: the first of `shard`, or made up of Zipf-distributed words."""
    if shard is not None:
        with shard.open("rb") as file:
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(file, read_across_frames=True)
            lines = reader.read(size).split(b"\n")
        return [line for line in lines[:-1] if line]
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = ["".join(rng.choice(letters, n)) for n in rng.integers(1, 11, 50_000)]
    lines, made = [], 0
    while made < size:
        count = int(min(20_000, rng.lognormal(5.5, 1.3)) + 1)
        text = " ".join(words[i] for i in np.minimum(rng.zipf(1.2, count), len(words)) - 1)
        lines.append(orjson.dumps({"text": text, "meta": {"pile_set_name": "Pile-CC"}}))
        made += len(lines[-1])
    return lines


def _first(lines: list[bytes], size: int) -> list[bytes]:
    ends = np.cumsum([len(line) for line in lines])
    return lines[: int(np.searchsorted(ends, size)) + 1]


def _write(path: Path, lines: list[bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zstandard.compress(b"\n".join(lines) + b"\n"))


def _train(shard: Path, folder: Path) -> Path:
    from pilekit import Corpus
    from pilekit.tokenize import train_tokenizer

    out = folder / "tokenizer.json"
    train_tokenizer(Corpus(shard), 16_000, out, sample_bytes=10_000_000)
    return out


if __name__ == "__main__":
    main()
