"""Two local processes beside a Ray cluster of two nodes with one CPU each, on the same machine and the same shards.

    python tests/benchmarks/bench_cluster.py [--megabytes 1000] [--shards PATH...] [--datatrove 4] [--rounds 3] [--json]

`stats`, `reframe` and `dedup` run with two jobs, `verify`, `index` and `select` only locally,
for their MB a CPU second. Each measurement is a process of its own, which starts its cluster and first works on two of
the shards: then the cluster stands, and workers have loaded what they need (`stats` loads a kernel in 0.5 s, but not
for small shards). A measurement repeats the command for six seconds. CPU seconds include those of Ray itself.
`items` is a function that does nothing, on 200 items. datatrove is its MinHash on its Ray executor, on such a cluster,
with the first megabytes of the same text (--datatrove).

Both nodes share one disk and its cache, so this shows what Ray costs, not what a second machine gains.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import zstandard

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.generating import generated  # noqa: E402
from tests.benchmarks.harness import Figures, Rounds, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.peers import BENCH, peer_environment, run_peer  # noqa: E402

RAY = "ray==2.60.0"
SHARDS, ITEMS = 8, 200

MEASURE = """
import json, os, sys, time

def cpu_seconds():
    # Of this process and all below it, and of those that they have waited for.
    parents, ticks = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(pid)], ticks[int(pid)] = int(fields[1]), sum(map(int, fields[11:15]))
    def is_ours(pid):
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()
    return sum(used for pid, used in ticks.items() if is_ours(pid)) / os.sysconf("SC_CLK_TCK")

def cluster():
    from ray.cluster_utils import Cluster
    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    del node["include_dashboard"]
    cluster.add_node(**node)
    return cluster

def measure(work, first, corpus, amount):
    work(first, 0)
    begin, used, runs, seconds = time.perf_counter(), cpu_seconds(), 0, 0.0
    while seconds < 6:
        runs += 1
        work(corpus, runs)
        seconds = time.perf_counter() - begin
    figures = {"amount": amount, "seconds": seconds / runs, "cpu_seconds": (cpu_seconds() - used) / runs}
    print(json.dumps(figures), flush=True)
"""

PILEKIT = """
COMMAND, PLACE, FIRST, CORPUS, OUT, AMOUNT = sys.argv[1:]

def nothing(item, advance):
    pass

if __name__ == "__main__":
    from contextlib import nullcontext
    from pathlib import Path
    from pilekit import Ray, corpus_stats, dedup_corpus, reframe_corpus, select_corpus
    from pilekit.workers import map_shards
    from pilekit.shards.index.build import index_corpus
    from pilekit.shards.verify.verify import verify_corpus
    with Ray(cluster().address) if PLACE == "ray" else nullcontext() as ray:
        options = {"jobs": 2} | ({"cluster": ray} if ray else {})
        def work(corpus, number):
            if COMMAND == "items":
                map_shards(nothing, range(2 if corpus == FIRST else int(AMOUNT)), **options)
            elif COMMAND == "stats":
                corpus_stats(corpus, **options)
            elif COMMAND == "reframe":
                reframe_corpus(corpus, f"{OUT}/{number}", **options)
            elif COMMAND == "verify":
                verify_corpus(corpus, **options)
            elif COMMAND == "select":
                select_corpus(corpus, f"{OUT}/{number}", sample=0.5, **options)
            elif COMMAND == "index":
                links = Path(OUT) / str(number)
                links.mkdir()
                for shard in Path(corpus).iterdir():
                    (links / shard.name).symlink_to(shard.resolve())
                index_corpus(links, **options)
            else:
                dedup_corpus(corpus, out=f"{OUT}/{number}", **options)
        measure(work, FIRST, CORPUS, int(AMOUNT))
"""

DATATROVE = """
import ray
from datatrove.executor import RayPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from loguru import logger
logger.remove()
FIRST, CORPUS, OUT, AMOUNT = sys.argv[1:]

def work(corpus, number):
    config, out = MinhashConfig(n_grams=5, num_buckets=16, hashes_per_bucket=8), f"{OUT}/{number}"
    reader = lambda: JsonlReader(corpus, compression="zstd")
    for title, tasks, pipeline in [
        ("signatures", 2, [reader(), MinhashDedupSignature(f"{out}/signatures", config=config)]),
        ("buckets", 16, [MinhashDedupBuckets(f"{out}/signatures", f"{out}/buckets", config=config)]),
        ("clusters", 1, [MinhashDedupCluster(f"{out}/buckets", f"{out}/removed", config=config)]),
        ("filter", 2, [reader(), MinhashDedupFilter(f"{out}/removed"), JsonlWriter(f"{out}/kept")]),
    ]:
        RayPipelineExecutor(pipeline, tasks=tasks, mem_per_cpu_gb=1, logging_dir=f"{out}/logs-{title}").run()
        if len(os.listdir(f"{out}/logs-{title}/completions")) != tasks:
            raise SystemExit(f"{title}: not all tasks have succeeded")

ray.init(cluster().address, logging_level="ERROR", log_to_driver=False)
measure(work, FIRST, CORPUS, int(AMOUNT))
"""


def main() -> None:
    """Measure and print."""
    numbers = {
        "megabytes": (1000, "text in the generated shards"),
        "datatrove": (4, "MB of text for datatrove; 0: none"),
    }
    parser = options(__doc__, **numbers)
    parser.add_argument("--shards", type=Path, nargs="+", help="take these .jsonl.zst files instead")
    chosen = parser.parse_args()
    size = chosen.megabytes * 1_000_000 // SHARDS
    shards = [path.resolve() for path in chosen.shards or ()]
    shards = shards or [generated(f"cluster-{chosen.megabytes}-{n}", size, 60 + n) for n in range(SHARDS)]
    tiny = folder_of("tiny", [generated(f"tiny-{number}", 100_000, number) for number in range(2)])
    first = folder_of("first", shards[:2])
    corpus, amount = folder_of("corpus", shards), sum(map(text_of, shards))
    python = peer_environment("cluster", [RAY], on_top=True)
    runs = [(command, place) for command in ("stats", "reframe", "dedup") for place in ("local", "ray")]
    contestants = {
        f"{command}, {place}": partial(measured, python, PILEKIT, command, place, first, corpus, amount=amount)
        for command, place in [*runs, *((command, "local") for command in ("verify", "index", "select"))]
    }
    contestants["items, ray"] = partial(measured, python, PILEKIT, "items", "ray", first, corpus, amount=ITEMS)
    if chosen.datatrove:
        needs = ["datatrove[io,processing]==0.10.1", "spacy==3.8.18", "zstandard==0.25.0", "orjson==3.13.0", RAY]
        peer = peer_environment("cluster-datatrove", needs)
        starts = [
            beginning(shard, chosen.datatrove * 500_000, f"start-{place}") for place, shard in enumerate(shards[:2])
        ]
        small, amount = folder_of("starts", starts), sum(map(text_of, starts))
        contestants["dedup, datatrove"] = partial(measured, peer, DATATROVE, tiny, small, amount=amount)
    rounds = take_turns(contestants, chosen.rounds)
    items = [figures["seconds"] for figures in rounds.pop("items, ray", [])]
    tables = [table("", {name: rounds[name] for name in names}, names[0]) for names in pairs(rounds)]
    tables.append(f"an item: {1e3 * statistics.median(items) / ITEMS:.1f} ms" if items else "items: do not run")
    if chosen.datatrove and "dedup, datatrove" not in rounds:
        tables.append("datatrove's Ray executor does not run here")
    show(chosen, {**rounds, "items": items}, tables)


def pairs(rounds: Rounds) -> list[list[str]]:
    """The names of the contestants of each command."""
    return [list(names) for _, names in itertools.groupby(sorted(rounds), lambda name: name.partition(",")[0])]


def measured(python: Path, script: str, *arguments: str | Path, amount: int) -> Figures:
    """Measure one run, in a home of its own: a cluster writes a token there."""
    out = BENCH / "data" / "cluster-out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as short:  # Sockets need a short path.
        program = Path(short) / "program.py"
        program.write_text(MEASURE + script)  # a file, because worker processes start from it
        environment = {
            "HOME": short,
            "RAY_TMPDIR": short,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_worker_niceness": "0",  # local processes are not niced either
            "PYTHONPATH": str(ROOT) if script is PILEKIT else "",
            "NUMBA_CACHE_DIR": str(BENCH / "data" / "numba"),
        }
        found: Figures = run_peer(python, program, *arguments, out, str(amount), environment=environment)
    shutil.rmtree(out)
    return found


def folder_of(name: str, shards: list[Path]) -> Path:
    """A folder with links to the shards."""
    folder = BENCH / "data" / f"cluster-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for shard in shards:
        (folder / shard.name).symlink_to(shard)
    return folder


def text_of(shard: Path) -> int:
    """The decompressed bytes."""
    with shard.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return sum(map(len, iter(partial(reader.read, 1 << 20), b"")))


def beginning(shard: Path, size: int, name: str) -> Path:
    """The first lines of a shard."""
    path = BENCH / "data" / f"cluster-{name}.jsonl.zst"
    with shard.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read(size)
    path.write_bytes(zstandard.compress(text[: text.rindex(b"\n") + 1], 3))
    return path


if __name__ == "__main__":
    main()
