"""`pilekit stats` beside polars, duckdb and a plain zstandard + orjson loop: the same count of the same files.

    python tests/benchmarks/bench_stats.py [--megabytes 1500] [--shards PATH...] [--rounds 3] [--json]

All count documents and UTF-8 bytes of text per subset. Each measurement is a process of its own that first counts a
tiny shard, so imports, thread pools and first-time work are not timed. If worker processes start again for every call,
the time of counting as many tiny shards is subtracted. The measurements go round by round through all contenders,
because a machine's speed drifts; the table shows the best and the median of each. All totals must agree, or there is no
table. Files have been read once before, so they come from the page cache.

Peers run in virtual environments of their own (`.bench/`), made on the first run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.generating import write_shard  # noqa: E402
from tests.benchmarks.peers import BENCH, peer_environment, run_peer  # noqa: E402

MEASURE = """
import json, resource, sys, time
def measure(count):
    small, paths = (argument.split("\\n") for argument in sys.argv[1:3])
    count(small)
    begin = time.perf_counter(); count(small); starting = time.perf_counter() - begin
    begin = time.perf_counter(); totals = count(paths); seconds = time.perf_counter() - begin
    usage = [resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"seconds": seconds, "starting": starting, "memory": usage[0], "memory_of_child": usage[1],
                      "totals": {name: list(map(int, both)) for name, both in totals.items()}}))
"""

PILEKIT = """
from pilekit.stats import summary
from pilekit.stats.summary import corpus_stats
summary.SCANNED_FROM_BYTES = 0  # as for the long shards, so that loading the compiled scan is part of the start
def count(paths):
    stats = corpus_stats(paths, jobs=None if len(paths) > 1 else 1)
    return {subset.name: (subset.documents, subset.bytes) for subset in stats.subsets}
if __name__ == "__main__":
    measure(count)
"""

# Use as many processes for the tiny shards as for the others, to know the time of starting them.
PILEKIT_SEVERAL = PILEKIT.replace("None if len(paths) > 1 else 1", "usable_cpus()").replace(
    "import corpus_stats\n", "import corpus_stats\nfrom pilekit.engine import usable_cpus\n"
)

POLARS = """
import polars as pl
label = pl.col("meta").struct.field("pile_set_name")
def count(paths):
    schema = {"text": pl.String, "meta": pl.Struct({"pile_set_name": pl.String})}
    counts = [pl.len(), pl.col("text").str.len_bytes().sum().alias("bytes")]
    rows = pl.scan_ndjson(paths, schema=schema).group_by(label).agg(counts).collect().rows()
    return {row[0]: row[1:] for row in rows}
measure(count)
"""

DUCKDB = """
import duckdb
duckdb.execute("set enable_progress_bar = false")
def count(paths):
    query = '''select meta.pile_set_name, count(*), sum(strlen(text)) from read_json(?, format='newline_delimited',
        columns={text: 'VARCHAR', meta: 'STRUCT(pile_set_name VARCHAR)'}, maximum_object_size=1073741824) group by 1'''
    return {row[0]: row[1:] for row in duckdb.execute(query, [paths]).fetchall()}
measure(count)
"""

PLAIN_LOOP = """
import io, orjson, zstandard
def count(paths):
    totals = {}
    for path in paths:
        with open(path, "rb") as file:
            if path.endswith(".zst"):
                file = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            for line in io.BufferedReader(file, 1 << 20):
                record = orjson.loads(line)
                both = totals.setdefault(record["meta"]["pile_set_name"], [0, 0])
                both[0] += 1
                both[1] += len(record["text"].encode())
    return totals
measure(count)
"""


@dataclass(frozen=True)
class Contender:
    """A way to count: its Python, its script, and whether it reads the shards decompressed beforehand."""

    name: str
    python: Path
    script: str
    plain: bool = False


@dataclass
class Result:
    """The measurements of one contender on one input."""

    contender: str
    megabytes_per_second: list[float]
    memory: int
    """Peak resident bytes, of the process or of its largest child."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Of all processes of a measurement, start and tiny shards included."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1500, help="text in the generated input (default: 1500)")
    parser.add_argument("--shards", type=Path, nargs="+", help="count these .jsonl.zst files instead")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each contender (default: 3)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()

    tiny = [generated(f"tiny-{number}", 100_000, number) for number in range(4)]
    if arguments.shards:
        one, several = arguments.shards[:1], arguments.shards
    else:
        size = arguments.megabytes * 1_000_000
        one = [generated(f"one-{arguments.megabytes}", size, 10)]
        several = [generated(f"several-{arguments.megabytes}-{number}", size // 4, 20 + number) for number in range(4)]
    results = {"one shard": compare(one, tiny[:1], arguments.rounds, PILEKIT)}
    if len(several) > 1:
        results[f"{len(several)} shards"] = compare(several, tiny, arguments.rounds, PILEKIT_SEVERAL)
    command = command_line_speed(one)
    memory = memory_by_size(one, [generated("memory-50", 50_000_000, 30)])

    if arguments.json:
        figures: dict[str, Any] = {
            title: [
                {
                    "name": result.contender,
                    "MB/s": result.megabytes_per_second,
                    "CPU seconds": result.cpu_seconds,
                    "memory": result.memory,
                }
                for result in measured
            ]
            for title, measured in results.items()
        }
        print(json.dumps({**figures, "command line MB/s": command, "memory": memory}, indent=2))
        return
    for title, measured in results.items():
        print(table(title, measured))
    print(f"`pilekit stats` as a command on the one shard, its start included: {command:,.0f} MB/s\n")
    for name, peak in memory.items():
        print(f"pilekit's peak memory, {name}: {peak / 1e6:,.0f} MB")


def generated(name: str, text_bytes: int, seed: int) -> Path:
    """The generated shard `.bench/data/<name>.jsonl.zst`, made if it is not there."""
    path = BENCH / "data" / f"{name}.jsonl.zst"
    if not path.exists():
        print(f"generating {path.relative_to(ROOT)}", file=sys.stderr)
        write_shard(path, text_bytes, seed=seed)
    return path


def decompressed(path: Path) -> Path:
    """The same shard as plain `.jsonl`, in `.bench/data`."""
    plain = BENCH / "data" / "plain" / path.name.removesuffix(".zst")
    if not plain.exists() or plain.stat().st_mtime < path.stat().st_mtime:
        plain.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["zstd", "-dqf", str(path), "-o", str(plain)], check=True)
    return plain


def compare(paths: Sequence[Path], tiny: Sequence[Path], rounds: int, pilekit: str) -> list[Result]:
    """Measure all contenders, round by round."""
    here = Path(sys.executable)
    polars = peer_environment("polars", ["polars==2.1.0"])
    duckdb = peer_environment("duckdb", ["duckdb==2.0.0"])
    contenders = [
        Contender("pilekit", here, pilekit),
        Contender("polars", polars, POLARS),
        Contender("duckdb", duckdb, DUCKDB),
        Contender("zstandard + orjson", here, PLAIN_LOOP),
        Contender("pilekit, decompressed files", here, pilekit, plain=True),
        Contender("polars, decompressed files", polars, POLARS, plain=True),
        Contender("duckdb, decompressed files", duckdb, DUCKDB, plain=True),
    ]
    results = {contender.name: Result(contender.name, [], 0) for contender in contenders}
    expected: Any = None
    for number in range(rounds):
        for contender in contenders:
            print(f"round {number + 1} of {rounds}: {contender.name}      ", end="\r", file=sys.stderr)
            small, large = (
                "\n".join(str((decompressed(path) if contender.plain else path).resolve()) for path in group)
                for group in (tiny, paths)
            )
            measured = run_peer(
                contender.python, MEASURE + contender.script, small, large, environment={"PYTHONPATH": str(ROOT)}
            )
            expected = expected or measured["totals"]
            if measured["totals"] != expected:
                raise SystemExit(f"error: {contender.name} counts something else than {contenders[0].name}")
            seconds = measured["seconds"] - measured["starting"]
            text = sum(size for _, size in measured["totals"].values())
            results[contender.name].megabytes_per_second.append(text / seconds / 1e6)
            results[contender.name].cpu_seconds.append(measured["cpu_seconds"])
            results[contender.name].memory = max(
                results[contender.name].memory, measured["memory"], measured["memory_of_child"]
            )
    return list(results.values())


def command_line_speed(paths: Sequence[Path]) -> float:
    """MB/s of text of the best of three runs of the command, start-up included."""
    command = [sys.executable, "-m", "pilekit.cli.main", "stats", "--json", *map(str, paths)]
    best = 0.0
    for _ in range(3):
        begin = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        best = max(best, json.loads(done.stdout)["bytes"] / (time.perf_counter() - begin) / 1e6)
    return best


def memory_by_size(large: Sequence[Path], small: Sequence[Path]) -> dict[str, int]:
    """Peak resident bytes of counting one large and one small shard, by the text in them."""
    peaks = {}
    for path in (small[0], large[0]):
        measured = run_peer(
            Path(sys.executable), MEASURE + PILEKIT, str(small[0]), str(path), environment={"PYTHONPATH": str(ROOT)}
        )
        text = sum(size for _, size in measured["totals"].values())
        peaks[f"{text / 1e6:,.0f} MB of text in one frame"] = measured["memory"]
    return peaks


def table(title: str, results: Sequence[Result]) -> str:
    """Best and median speed of each contender, their ratio to polars on the same files, and the peak memory."""
    by_name = {result.contender: result for result in results}
    lines = [
        f"{title:28} {'best MB/s':>10} {'median':>8} {'× polars':>9} {'(median)':>9} {'CPU s':>7} {'memory MB':>10}"
    ]
    for result in results:
        polars = by_name["polars, decompressed files" if result.contender.endswith("files") else "polars"]
        best, middle = (
            (pick(result.megabytes_per_second), pick(polars.megabytes_per_second)) for pick in (max, statistics.median)
        )
        lines.append(
            f"{result.contender:28} {best[0]:10,.0f} {middle[0]:8,.0f} {best[0] / best[1]:9.2f} "
            f"{middle[0] / middle[1]:9.2f} {statistics.median(result.cpu_seconds):7.1f} {result.memory / 1e6:10,.0f}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
