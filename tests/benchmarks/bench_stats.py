"""`pilekit stats` beside polars, duckdb and a plain zstandard + orjson loop: the same count of the same files.

    python tests/benchmarks/bench_stats.py [--megabytes 1500] [--shards PATH...] [--rounds 3] [--json]

All count documents and UTF-8 bytes of text per subset. Each measurement is a process of its own that first counts a
tiny shard, so imports, thread pools and first-time work are not timed. If worker processes start again for every call,
the time of counting as many tiny shards is subtracted. The CPU seconds are those of the whole process, with its start.
The last column leaves out those of a process that counts only tiny shards. The measurements go round by round through
all contenders, because a machine's speed drifts; the table shows the best and the median of each. All totals must
agree, or there is no table. Files have been read once before, so they come from the page cache. Peers run in virtual
environments of their own (`.bench/`), made on the first run.

Then pilekit and polars as whole commands, from start to end. At the end pilekit alone: grep as a whole command, and the
memory of a small shard.
"""

from __future__ import annotations

import functools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pilekit.stats.summary import corpus_stats  # noqa: E402
from tests.benchmarks.generating import decompressed, generated  # noqa: E402
from tests.benchmarks.harness import Figures, Rounds, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.peers import peer_environment, run_peer, with_bytecode  # noqa: E402

COMMAND = "pilekit stats"
ABSENT = "pneumonoultramicroscopic"

MEASURE = """
import json, resource, sys, time
def measure(count):
    small, paths = (argument.split("\\n") for argument in sys.argv[1:3])
    count(small)
    begin = time.perf_counter(); count(small); starting = time.perf_counter() - begin
    begin = time.perf_counter(); totals = count(paths); seconds = time.perf_counter() - begin
    memory = max(resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"seconds": seconds, "starting": starting, "memory": memory,
                      "totals": {name: list(map(int, both)) for name, both in totals.items()}}))
"""

PILEKIT = """
from pilekit.shards.index import document_rows
from pilekit.stats.summary import corpus_stats
document_rows.SCANNED_FROM_BYTES = 0  # as for the long shards, so that loading the compiled scan is part of the start
def count(paths):
    stats = corpus_stats(paths, jobs=None if len(paths) > 1 else 1)
    return {subset.name: (subset.documents, subset.bytes) for subset in stats.subsets}
if __name__ == "__main__":
    measure(count)
"""

# Use as many processes for the tiny shards as for the others, to know the time of starting them.
PILEKIT_SEVERAL = PILEKIT.replace("None if len(paths) > 1 else 1", "usable_cpus()").replace(
    "import corpus_stats\n", "import corpus_stats\nfrom pilekit.workers import usable_cpus\n"
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


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(1500, "text in the generated input"))
    parser.add_argument("--shards", type=Path, nargs="+", help="count these .jsonl.zst files instead")
    chosen = parser.parse_args()
    tiny = [generated(f"tiny-{number}", 100_000, number) for number in range(4)]
    if chosen.shards:
        one, several = chosen.shards[:1], chosen.shards
    else:
        size = chosen.megabytes * 1_000_000
        one = [generated(f"one-{chosen.megabytes}", size, 10)]
        several = [generated(f"several-{chosen.megabytes}-{number}", size // 4, 20 + number) for number in range(4)]
    measured = {"one shard": compare(one, tiny[:1], chosen.rounds, PILEKIT)}
    if len(several) > 1:
        measured[f"{len(several)} shards"] = compare(several, tiny, chosen.rounds, PILEKIT_SEVERAL)
    for title, paths in {"one shard": one, f"{len(several)} shards": several}.items():
        whole = {COMMAND: partial(command, paths, "stats"), "polars": partial(polars_alone, paths)}
        measured[f"{title}, whole commands"] = take_turns(whole, chosen.rounds)
    alone = {
        COMMAND: partial(command, one, "stats"),
        "grep of a word": partial(command, one, "grep", "--count", ABSENT),
        "grep -i": partial(command, one, "grep", "--count", "-i", ABSENT),
        "pilekit on a shard of 50 MB": partial(count, PILEKIT, [generated("memory-50", 50_000_000, 30)], tiny[:1]),
    }
    measured["pilekit alone"] = take_turns(alone, chosen.rounds)
    tables = []
    for title, rounds in measured.items():
        extra = {"no start, MB/CPU s": without_start} if "duckdb" in rounds else None
        tables.append(table(title, rounds, "polars" if "polars" in rounds else COMMAND, extra=extra))
    show(chosen, measured, tables)


def without_start(rounds: list[Figures]) -> str:
    """The best speed by CPU time, without the CPU time of a process that counts the tiny shards alone."""
    return f"{max(each['amount'] / (each['cpu_seconds'] - each['cpu_starting']) for each in rounds) / 1e6:,.0f}"


def compare(paths: Sequence[Path], tiny: Sequence[Path], rounds: int, pilekit: str) -> Rounds:
    """Let all contestants take turns, on the shards as they are and decompressed beforehand."""
    polars = polars_environment()
    duckdb = peer_environment("duckdb", ["duckdb==2.0.0"])
    here = Path(sys.executable)
    contestants: dict[str, Callable[[], Figures]] = {}
    for plain in (False, True):
        files, small = ([decompressed(path) if plain else path for path in group] for group in (paths, tiny))
        for name, script, python in (
            ("pilekit", pilekit, here),
            ("polars", POLARS, polars),
            ("duckdb", DUCKDB, duckdb),
            ("zstandard + orjson", PLAIN_LOOP, here),
        ):
            contestants[name + ", decompressed files" * plain] = partial(count, script, files, small, python)
    measured = take_turns(contestants, rounds)
    expected = measured["pilekit"][0]["totals"]
    for name, figures in measured.items():
        if any(figure["totals"] != expected for figure in figures):
            raise SystemExit(f"error: {name} counts something else than pilekit")
    return measured


def polars_environment() -> Path:
    """The Python that has polars."""
    return peer_environment("polars", ["polars==2.1.0"])


def count(script: str, paths: Sequence[Path], tiny: Sequence[Path], python: Path = Path(sys.executable)) -> Figures:
    """Let a script count the tiny shards, then the others; the time of starting is not counted."""

    def run(paths: Sequence[Path]) -> dict[str, Any]:
        groups = ("\n".join(str(path.resolve()) for path in group) for group in (tiny, paths))
        figures: dict[str, Any] = run_peer(python, MEASURE + script, *groups, environment={"PYTHONPATH": str(ROOT)})
        return figures

    figures = run(paths)
    figures["seconds"] -= figures.pop("starting")
    figures["cpu_starting"] = run(tiny)["cpu_seconds"]
    return {"amount": sum(size for _, size in figures["totals"].values()), **figures}


def command(paths: Sequence[Path], *words: str) -> Figures:
    """A command on some shards that prints JSON; grep has exit code 1, because it finds nothing."""
    figures, printed = whole([sys.executable, "-m", "pilekit", *words, "--json", *map(str, paths)], paths)
    if json.loads(printed)["documents"] == 0:
        raise SystemExit(f"error: {' '.join(words)} read nothing")
    return figures


def polars_alone(paths: Sequence[Path]) -> Figures:
    """A process that counts these shards with polars and prints the totals."""
    once = f"import sys\ndef measure(count): print(count(sys.argv[1:]))\n{POLARS}"
    return whole([str(polars_environment()), "-c", once, *map(str, paths)], paths)[0]


def whole(command: Sequence[str], paths: Sequence[Path]) -> tuple[Figures, bytes]:
    """(the figures of a command on these shards, from its start to its end, and its output)."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=False, capture_output=True, cwd=ROOT, env=with_bytecode())
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"amount": sum(map(text_bytes, paths)), "seconds": seconds, "cpu_seconds": cpu}, done.stdout


@functools.cache
def text_bytes(path: Path) -> int:
    """Bytes of text in a shard."""
    return sum(subset.bytes for subset in corpus_stats(path).subsets)


if __name__ == "__main__":
    main()
