"""The tables of docs/benchmarks.md from the figures of gpu.sh, as far as they were measured.

python tests/benchmarks/gpu_table.py FOLDER
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = {
    "bare, labels": "bare loop, the model's own loss",
    "pilekit, blocks": "compiled blocks",
    "pilekit, blocks, varlen": 'compiled blocks, `"varlen"`',
    "pilekit, step, varlen": '`compile = "step"`, `"varlen"`',
    "pilekit, step, varlen, CUDA graphs": "the same with CUDA graphs",
}


def main() -> None:
    """Print the tables of a folder."""
    folder = Path(sys.argv[1])
    trained = [each for path in sorted(folder.glob("train-*.json")) for each in json.loads(path.read_text())]
    scored = [each for path in folder.glob("bpb.json") for each in json.loads(path.read_text())]
    print(*training(trained), "", *scoring(scored), sep="\n")


def training(figures: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of the table of training."""
    yield from about(figures)
    yield "| | s a step | tokens/s | MFU | data wait | idle | memory |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    shape = None
    for each in figures:
        if each["shape"] != shape:
            shape = each["shape"]
            yield f"| **{shape.capitalize()}** | | | | | | |"
        name = NAMES.get(each["name"], each["name"])
        if "failed" in each:
            yield f"| {name} | does not run: {each['failed'][:150].replace('|', ' ')} | | | | | |"
            continue
        wait = "" if each["name"].startswith("bare") else share(each["data_wait_share"])
        seconds, memory = statistics.median(each["step_seconds"]), f"{each['memory'] / 1e9:.1f} GB"
        speed = rounded(each["tokens_per_second"])
        yield f"| {name} | {seconds:.3f} | {speed} | {share(each['mfu'])} | {wait} | {share(each['idle'])} | {memory} |"


def scoring(figures: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of the table of bits per byte."""
    yield from about(figures)
    yield "| `pilekit bpb` | tokens/s | MFU | tokenizing | idle | memory |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for each in figures:
        speed, memory = rounded(each["tokens_per_second"]), f"{each['memory'] / 1e9:.1f} GB"
        shares = " | ".join(share(each[name]) for name in ("mfu", "tokenizing", "idle"))
        yield f"| {each['shape'].capitalize()} | {speed} | {shares} | {memory} |"


def about(figures: list[dict[str, Any]]) -> Iterator[str]:
    """A line with the machine."""
    machines = dict.fromkeys(f"{each['gpu']}, torch {each['torch']}" for each in figures if "torch" in each)
    yield f"{'; '.join(machines) or 'nothing was measured'}\n"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}".replace("%", " %")


def rounded(number: float) -> str:
    """Three digits, as in 299,000."""
    return f"{float(f'{number:.3g}'):,.0f}"


if __name__ == "__main__":
    main()
