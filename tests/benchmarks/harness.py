"""What the benchmarks share: options, contestants that take turns, and a table of their best and median rounds.

    chosen = options(__doc__, megabytes=(1500, "text in the generated input")).parse_args()
    rounds = take_turns({"pilekit": lambda: run_peer(...), "polars": lambda: run_peer(...)}, chosen.rounds)
    show(chosen, rounds, [table("one shard", rounds, "polars")])

A contestant is a function that measures one run and returns its figures: `amount` (bytes, tokens), `seconds`, and
`cpu_seconds` and `memory` if it knows them. The contestants take turns, because a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

MEASURE = """
import json, sys, time

def measure(work, items, amount, warm_up):
    work(warm_up)
    started, used = time.perf_counter(), time.process_time()
    work(items)
    print(json.dumps({
        "amount": amount, "seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used,
    }))
"""
DECODED = """
from pilekit import read
with read(SHARD) as reader:
    batches = list(reader)
amount = sum(int(batch.text_bytes().sum()) for batch in batches)
"""
FASTOKENS = """
import fastokens
tokenizer = fastokens.Tokenizer.from_file(TOKENIZER)
def work(batches):
    for batch in batches:
        tokenizer.encode_batch_flat(batch.texts, split_special_tokens=True)
"""
"""Parts of the scripts of contestants on one core; a benchmark names its arguments SHARD, TOKENIZER and so on."""

Figures = dict[str, Any]
Rounds = dict[str, list[Figures]]
"""The figures of each round, by contestant."""


def options(description: str | None, *, rounds: int = 3, **numbers: tuple[int, str]) -> argparse.ArgumentParser:
    """A parser with `--rounds`, `--json` and these whole numbers, given as (default, help)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers |= {"rounds": (rounds, "measurements of each contestant")}
    for name, (default, help) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{help} (default: {default})")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser


def take_turns(contestants: Mapping[str, Callable[[], Figures]], rounds: int) -> Rounds:
    """Measure all contestants, round by round. A contestant that fails is named and left out."""
    measured: Rounds = {name: [] for name in contestants}
    for number in range(1, rounds + 1):
        for name in list(measured):
            print(f"round {number} of {rounds}: {name:40}", end="\r", file=sys.stderr)
            try:
                measured[name].append(contestants[name]())
            except subprocess.CalledProcessError as error:
                del measured[name]
                print(f"{name} does not run: exit code {error.returncode}", file=sys.stderr)
    print(" " * 80, end="\r", file=sys.stderr)
    return measured


def speeds(rounds: list[Figures], seconds: str = "seconds") -> list[float]:
    """The amount in a second (`seconds="cpu_seconds"`: in a second of CPU time) of each round."""
    return [figures["amount"] / figures[seconds] for figures in rounds]


def table(
    title: str,
    measured: Rounds,
    peer: str,
    *,
    unit: str = "MB",
    scale: float = 1e6,
    extra: Mapping[str, Callable[[list[Figures]], str]] | None = None,
) -> str:
    """A row for each contestant: best and median speed, speed by CPU time, the most memory, and `extra` columns.

    Beside each speed stands its ratio to `peer`.
    """
    ratio, memory = f"× {peer}", "memory MB"
    rows = [[title, f"{unit}/s", ratio, "median", ratio, f"{unit}/CPU s", ratio, memory, *(extra or {})]]
    beside = measured.get(peer) or [{}]
    for name, rounds in measured.items():
        cells = []
        for of, pick in (("seconds", max), ("seconds", statistics.median), ("cpu_seconds", max)):
            own, other = (pick(speeds(figures, of)) if of in figures[0] else math.nan for figures in (rounds, beside))
            cells += [own / scale, own / other]
        cells.append(max(figures.get("memory", math.nan) for figures in rounds) / 1e6)
        texts = [f"{cell:,.4g}".replace("nan", "") for cell in cells]
        rows.append([name, *texts, *(write(rounds) for write in (extra or {}).values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def show(chosen: argparse.Namespace, figures: Mapping[str, Any], tables: list[str]) -> None:
    """Print the tables, or all figures with `--json`."""
    print(json.dumps(figures, indent=2) if chosen.json else "\n\n".join(tables))
