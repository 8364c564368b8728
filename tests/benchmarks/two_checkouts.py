"""The commands of this checkout beside those of an earlier one: whether a change has cost speed.

    git worktree add --detach /tmp/earlier COMMIT
    python tests/benchmarks/two_checkouts.py /tmp/earlier FOLDER [--copies 6] [--rounds 5] [--only NAME...] [--json]

FOLDER holds `minipile-00.jsonl.zst`, or another shard of that name, and `20B_tokenizer.json`. The shard is repeated
`--copies` times. Each measurement is a process of its own: wall seconds, CPU seconds of it and its children, and the
memory of the largest of them (or of this script, 70 MB, if that is more). Each has run once before, which compiles
kernels. The checkouts take turns, and which begins changes with each round.

The table shows the medians, and the median of the rounds' ratios earlier / this: over 1 is faster, or smaller, now.

The last rows are start-up alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zstandard

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.digests import RUN, SHAPE  # noqa: E402

STREAM = """
import sys, torch
torch.set_num_threads(1)
from itertools import islice
from pilekit import PileStream
for batch in islice(PileStream(sys.argv[1], sys.argv[2], seq_len=2048, batch_size=8), int(sys.argv[3])):
    pass
"""
TRAIN = ["train", "run.toml", "--set", "data.path=indexed", "--set", "data.seq_len=512"]
TRAIN += ["--set", "train.global_batch_size=8", "--set", "train.micro_batch_size=8"]
LARGER_SHAPE = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
COMMANDS: dict[str, list[str]] = {
    "stats": ["stats", "big.jsonl.zst", "--jobs", "1"],
    "index": ["index", "fresh/*.jsonl.zst", "--jobs", "1"],
    "verify": ["verify", "big.jsonl.zst", "--jobs", "1"],
    "grep": ["grep", "zebrafish", "big.jsonl.zst"],
    "select": ["select", "big.jsonl.zst", "--subsets", "Wikipedia", "--jobs", "1", "--out", "OUT"],
    "reframe": ["reframe", "big.jsonl.zst", "--jobs", "1", "--out", "OUT"],
    "dedup": ["dedup", "big.jsonl.zst", "--no-write", "--jobs", "1", "--out", "OUT"],
    "clean": ["clean", "SHARD", "--rules", "gopher-quality,c4", "--jobs", "1", "--out", "OUT"],
    "decontaminate": ["decontaminate", "big.jsonl.zst", "--against", "asked.jsonl", "--jobs", "1", "--out", "OUT"],
    "substrings": ["substrings", "SHARD", "--jobs", "1", "--out", "OUT"],
    "tokenize": ["tokenize", "big.jsonl.zst", "--tokenizer", "TOKENIZER", "--jobs", "1", "--out", "OUT/t"],
    "stream, raw": ["-c", STREAM, "big.jsonl.zst", "TOKENIZER", "BATCHES"],
    "stream, indexed": ["-c", STREAM, "indexed", "TOKENIZER", "BATCHES"],
    "stream, tokens": ["-c", STREAM, "tokens/t", "TOKENIZER", "MANY"],
    "train": [*TRAIN, "--set", "train.steps=12", "--out", "OUT"],
    "bpb": ["bpb", "model/model", "SHARD", "--limit", "12", "--device", "cpu", "--subsets", "Pile-CC,PubMed Abstracts"],
    "help": ["--help"],
    "import": ["-c", "import pilekit"],
    "stats of ten documents": ["stats", "ten.jsonl.zst"],
}
MANY = {"help": 10, "import": 10, "stats of ten documents": 5}
"""How often a measurement runs what takes milliseconds."""


def main() -> None:
    """Make the material with the earlier checkout, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--copies", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    checkouts = {"earlier": chosen.earlier.absolute(), "this": ROOT}
    places = {
        "SHARD": str((chosen.folder / "minipile-00.jsonl.zst").absolute()),
        "TOKENIZER": str((chosen.folder / "20B_tokenizer.json").absolute()),
        "BATCHES": str(chosen.copies * 12),
        "MANY": str(chosen.copies * 400),
    }
    with tempfile.TemporaryDirectory(prefix="pilekit-checkouts-") as folder:
        os.chdir(folder)
        # In a process of its own: the system counts the memory of the process that starts another as the other's.
        making = multiprocessing.Process(target=make_material, args=(checkouts["earlier"], places, chosen.copies))
        making.start()
        making.join()
        if making.exitcode:
            sys.exit(making.exitcode)
        measured: dict[str, Any] = {}
        for name in chosen.only:
            for checkout in checkouts.values():  # compiled kernels and byte code are kept
                measure(name, checkout, places)
            rounds: list[dict[str, dict[str, float]]] = []
            for number in range(chosen.rounds):
                order = list(checkouts.items())[:: 1 if number % 2 else -1]
                rounds.append({which: measure(name, checkout, places) for which, checkout in order})
            measured[name] = rounds
            print(row(name, rounds), file=sys.stderr if chosen.json else sys.stdout, flush=True)
        os.chdir("/")
    if chosen.json:
        print(json.dumps(measured, indent=1))


def make_material(earlier: Path, places: dict[str, str], copies: int) -> None:
    """Fill the working folder: shards, an indexed one, token files, evaluation texts, a model, a config."""
    with Path(places["SHARD"]).open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    Path("big.jsonl.zst").write_bytes(zstandard.compress(text * copies, 3))
    lines = text.splitlines(keepends=True)
    Path("ten.jsonl.zst").write_bytes(zstandard.compress(b"".join(lines[:10])))
    texts = [json.loads(line)["text"] for line in lines[:2000]]
    questions = "".join(json.dumps({"text": passage[200:600]}) + "\n" for passage in texts)
    Path("asked.jsonl").write_text(questions)
    Path("run.toml").write_text(RUN.replace("TOKENIZER", places["TOKENIZER"]))
    Path("config.json").write_text(json.dumps({**SHAPE, **LARGER_SHAPE, "max_position_embeddings": 512}))
    tokens = ("tokenize", "big.jsonl.zst", "--tokenizer", places["TOKENIZER"], "--out", "tokens/t")
    for words in (
        ("reframe", "big.jsonl.zst", "--out", "indexed"),
        tokens,
        (*TRAIN, "--set", "train.steps=1", "--out", "model"),
    ):
        run(earlier, ["-m", "pilekit", *words])


def measure(name: str, checkout: Path, places: dict[str, str]) -> dict[str, float]:
    """Wall and CPU seconds, and megabytes of memory, of one measurement."""
    shutil.rmtree("out", ignore_errors=True)
    if name == "index":
        shutil.rmtree("fresh", ignore_errors=True)
        Path("fresh").mkdir()
        shutil.copy("big.jsonl.zst", "fresh")
    words = [places.get(word, word).replace("OUT", "out") for word in COMMANDS[name]]
    words = words if words[0] == "-c" else ["-m", "pilekit", *words]
    start = time.perf_counter()
    usages = [run(checkout, words) for _ in range(MANY.get(name, 1))]
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds / len(usages),
        "cpu_seconds": statistics.mean(usage.ru_utime + usage.ru_stime for usage in usages),
        "megabytes": max(usage.ru_maxrss for usage in usages) * 1024 / 1e6,
    }


def run(checkout: Path, words: list[str]) -> resource.struct_rusage:
    """Run Python with these words, and with the package of this checkout; returns what it used."""
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}  # more wait for each other
    own = {"PYTHONPATH": str(checkout), "PILEKIT_CACHE": "cache", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **one_thread, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            last = errors.read()[-2000:]
            sys.exit(f"{checkout}: {' '.join(words)[-300:]}: exit code {process.returncode}: {last}")
    return usage


def row(name: str, rounds: list[dict[str, dict[str, float]]]) -> str:
    """The medians of a command, and the medians of its ratios."""
    cells = []
    for figure in ("seconds", "cpu_seconds", "megabytes"):
        earlier, this = ([turn[which][figure] for turn in rounds] for which in ("earlier", "this"))
        ratios = [before / now for before, now in zip(earlier, this, strict=True)]
        cells.append(" ".join(f"{statistics.median(values):8.3f}" for values in (earlier, this, ratios)))
    return f"{name:24} wall {cells[0]}   CPU {cells[1]}   MB {cells[2]}"


if __name__ == "__main__":
    main()
