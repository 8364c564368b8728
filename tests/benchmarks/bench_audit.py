"""`pilekit stats --audit` beside `pilekit stats --copies` of the same files: MB/s of text, and MB a CPU second.

    python tests/benchmarks/bench_audit.py [--megabytes 600] [--shards PATH...] [--rounds 3] [--json]

Both read all texts and hash them. The audit also counts characters and occurrences of a string, and sorts the hashes,
for the figures in the manifest of the Pile. Each measurement is a process of its own, whose start and first run over a
tiny shard are not counted; the processes of several shards start again in each. `scanned` is the compiled scan, which
long shards get, `decoded` what shorter ones get. At the end the whole commands, from start to end. The two take turns,
because a machine's speed drifts. Without --shards text is generated, as one shard and as four.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from tests.benchmarks.bench_stats import text_bytes, whole  # noqa: E402
from tests.benchmarks.generating import generated  # noqa: E402
from tests.benchmarks.harness import Figures, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.peers import run_peer  # noqa: E402

RUN = """
import json, resource, sys, time
from pilekit import Corpus, audit_corpus, corpus_stats
from pilekit.shards.index import document_rows
tiny, shards = (Corpus(part.split("\\n"), manifest="pile") for part in sys.argv[1:3])
scanned, jobs, amount = map(int, sys.argv[3:6])
document_rows.SCANNED_FROM_BYTES = 0 if scanned else sys.maxsize

def run(corpus):
    WORK

def cpu():
    own, processes = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + processes.ru_utime + processes.ru_stime

if __name__ == "__main__":
    run(tiny)
    started, used = time.perf_counter(), cpu()
    run(shards)
    seconds, cpu_seconds = time.perf_counter() - started, cpu() - used
    memory = max(resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"amount": amount, "seconds": seconds, "cpu_seconds": cpu_seconds, "memory": memory}))
"""
WORK = {
    "stats --copies": "corpus_stats(corpus, copies=True, jobs=jobs)",
    "stats --audit": "audit_corpus(corpus, jobs=jobs)",
}
COPIES = "stats --copies"


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(600, "text in the generated input"))
    parser.add_argument("--shards", type=Path, nargs="+", help="these .jsonl.zst files instead")
    chosen = parser.parse_args()
    tiny = generated("tiny-0", 100_000, 0)
    if chosen.shards:
        inputs = {"these shards": chosen.shards}
    else:
        size = chosen.megabytes * 1_000_000
        several = [generated(f"audited-{chosen.megabytes}-{number}", size // 4, 70 + number) for number in range(4)]
        inputs = {"one shard": [generated(f"audited-{chosen.megabytes}", size, 60)], "four shards": several}
    measured, tables = {}, []
    for name, paths in inputs.items():
        for form in ("scanned", "decoded"):
            contestants = {work: partial(measure, work, tiny, paths, scanned=form == "scanned") for work in WORK}
            measured[f"{name}, {form}"] = take_turns(contestants, chosen.rounds)
        commands = {work: partial(command, work, paths) for work in WORK}
        measured[f"{name}, whole commands"] = take_turns(commands, chosen.rounds)
    for title, rounds in measured.items():
        tables.append(table(title, rounds, COPIES))
    show(chosen, measured, tables)


def measure(work: str, tiny: Path, paths: list[Path], *, scanned: bool) -> Figures:
    """One run over the paths, in a process for each but at most two."""
    shards, amount = "\n".join(str(path.resolve()) for path in paths), sum(map(text_bytes, paths))
    arguments = (str(tiny), shards, str(int(scanned)), str(min(2, len(paths))), str(amount))
    script = RUN.replace("WORK", WORK[work])
    figures: Figures = run_peer(Path(sys.executable), script, *arguments, environment={"PYTHONPATH": str(ROOT)})
    return figures


def command(work: str, paths: list[Path]) -> Figures:
    """The whole command."""
    words = [sys.executable, "-m", "pilekit", *work.split(), "--manifest", "pile", "--json", *map(str, paths)]
    figures, printed = whole(words, paths)
    if not printed:
        raise SystemExit(f"error: {work} failed")
    return figures


if __name__ == "__main__":
    main()
