"""What the whole Pile costs on one machine and on clusters: the table of docs/scale.md, computed.

    python tests/benchmarks/cluster_cost.py

The rates are read from docs/benchmarks.md and docs/dedup.md, which say how they were measured. A step takes as long as
the slowest of four: its CPU seconds on all CPUs; the longest shard, which one task reads; what it reads and writes, on
the disk; and what one node does alone.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"

TEXT, STORED, DOCUMENTS, SHARDS = 1.3e12, 0.45e12, 210.6e6, 30
CANDIDATES, REMOVED = 0.2, 0.15
"""Of the text, and of the documents: assumed."""
COMPARING = 8
"""Threads that comparing can use: assumed."""


@dataclass(frozen=True)
class Cluster:
    """Nodes, the CPUs of each, and what the disk that all share reads and writes in a second."""

    name: str
    nodes: int
    cpus: int
    disk: float


CLUSTERS = (
    Cluster("1 × 16, own disk of 3 GB/s", 1, 16, 3e9),
    Cluster("4 × 32, shared 8 GB/s", 4, 32, 8e9),
    Cluster("16 × 64, shared 8 GB/s", 16, 64, 8e9),
)


@dataclass(frozen=True)
class Step:
    """CPU seconds, seconds of one node alone, bytes through the disk, and whether each shard is read by one task."""

    cpu: float = 0.0
    alone: float = 0.0
    disk: float = 0.0
    by_shard: bool = True


def figure(page: str, pattern: str) -> float:
    """The number that the pattern captures on the page."""
    text = re.sub(r"\s+", " ", (DOCS / page).read_text())
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"{page} has no {pattern!r}")
    return float(found[1].replace(",", ""))


def commands() -> dict[str, list[Step]]:
    """The steps of each command."""

    rate = 1e6 * figure("benchmarks.md", r"pilekit `reframe`, one core (?:\| [0-9.]+ ){2}\| (\d+) \|")
    passes = {}
    # `reframe` reads, writes and reads back; `select` of half of the documents
    for place, (name, files) in enumerate({"stats": 1, "verify": 1, "index": 1, "select": 1.5, "reframe": 3}.items()):
        slower = figure("benchmarks.md", rf"× those of `reframe` (?:\| [0-9.]+ ){{{place}}}\| ([0-9.]+) ")
        passes[name] = [Step(slower * TEXT / rate, disk=files * STORED)]
    cost = {
        "sketch": figure("dedup.md", r"sketch \|[^|]*\((\d+) MB/s a core"),
        "match": figure("dedup.md", r"match \|[^|]*\((\d+) s for 20 million documents"),
        "decode": figure("dedup.md", r"decompression, ([0-9.]+) core-hours"),
        "sets": figure("dedup.md", r"sets at (\d+) MB/s a core"),
        "compare": figure("dedup.md", r"comparing at (\d+) MB/s a core"),
        "clean": figure("dedup.md", r"clean shards \| about ([0-9.]+) core-hours"),
        "exact": figure("dedup.md", r"exact copies \| ([0-9.]+) µs a document on one core"),
        "masks": figure("dedup.md", r"masks \| ([0-9.]+) µs a document on one core"),
        "removed": figure("dedup.md", r"([0-9.]+) µs a removed document"),
        "sketches": figure("dedup.md", r"disk for sketches \|[^|]*\((\d+) bytes a document"),
        "stored": figure("dedup.md", r"([0-9.]+) bytes for each byte of the candidates' text"),
    }
    sketches, sets = cost["sketches"] * DOCUMENTS, cost["stored"] * CANDIDATES * TEXT
    dedup = [
        Step(TEXT / cost["sketch"] / 1e6, disk=STORED + sketches),
        Step(cost["match"] / 20e6 * DOCUMENTS, disk=2 * sketches, by_shard=False),
        Step(3600 * cost["decode"] + CANDIDATES * TEXT / cost["sets"] / 1e6, disk=STORED + sets),
        Step(alone=CANDIDATES * TEXT / cost["compare"] / 1e6 / COMPARING, disk=sets, by_shard=False),
        Step(cost["masks"] * DOCUMENTS / 1e6, alone=REMOVED * cost["removed"] * DOCUMENTS / 1e6, by_shard=False),
        # A node that takes a part of the copies reads the hashes of all documents, so parts save nearly nothing.
        Step(alone=cost["exact"] * DOCUMENTS / 1e6, by_shard=False),
        Step(3600 * cost["clean"], disk=(2 - REMOVED) * STORED),
    ]
    return {**passes, "dedup": dedup}


def times(step: Step, cluster: Cluster) -> dict[str, float]:
    """The seconds that each cause alone would take."""
    shard = 1e6 * figure("dedup.md", r"a shard is read at (\d+) MB/s at most")
    at_once = min(SHARDS, cluster.nodes * cluster.cpus)
    return {
        "CPUs": step.cpu / (cluster.nodes * cluster.cpus),
        "shards": TEXT / at_once / shard if step.by_shard else 0.0,
        "disk": step.disk / cluster.disk,
        "one node": step.alone,
    }


def table() -> str:
    """The table as Markdown: minutes, and what takes most of them."""
    megabytes = figure("dedup.md", r"`--memory`, (\d+) MB a process")
    rows = [["", *(cluster.name for cluster in CLUSTERS), "through the disk"], ["---"] * (2 + len(CLUSTERS))]
    for command, steps in commands().items():
        cells = []
        for cluster in CLUSTERS:
            causes: Counter[str] = Counter()
            for step in steps:
                cause, seconds = max(times(step, cluster).items(), key=lambda item: item[1])
                causes[cause] += seconds  # type: ignore[assignment]
            cells.append(f"{max(1, round(causes.total() / 60))} ({causes.most_common(1)[0][0]})")
        rows.append([f"`{command}`", *cells, f"{sum(step.disk for step in steps) / 1e12:.1f} TB"])
    for name, more in (("memory of a node", 0.0), ("the same, `dedup`", 4.0)):
        processes = [min(cluster.cpus, -(-SHARDS // cluster.nodes)) for cluster in CLUSTERS]
        rows.append([name, *(f"{number * megabytes / 1000 + more:.1f} GB" for number in processes), ""])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
