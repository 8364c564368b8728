"""`pilekit assemble` beside `pilekit reframe` of the same text on the same cores: wall and CPU time, and growth.

    python tests/benchmarks/bench_assemble.py [--megabytes 200] [--rounds 3] [--json]

`assemble` reads the sources twice and writes every line twice, once to scratch; `reframe` reads once, writes once and
reads that back. Both compress at level 3 and make the index. The corpus is cut into 1, 4 and 16 times the same shard,
each with other text, which become two subsets with one epoch and 4 train shards. Each measurement is a process of its
own, pinned to its cores; it has done a tiny corpus before, so imports are not timed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.generating import generated  # noqa: E402
from tests.benchmarks.harness import Figures, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.peers import BENCH, run_peer  # noqa: E402

OUT = BENCH / "data" / "assembled"

SCRIPT = """
import json, os, shutil, sys, time
from pathlib import Path

if __name__ == "__main__":
    os.sched_setaffinity(0, json.loads(sys.argv[1]))
    from pilekit import Corpus, assemble_corpus, corpus_stats, reframe_corpus
    from pilekit.shards.index import document_rows

    document_rows.SCANNED_FROM_BYTES = 0  # as for long shards, so that loading the compiled scan is part of the start
    command, out, tiny, *paths = sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]

    def run(paths, out):
        if command == "reframe":
            reframe_corpus(Corpus(paths), out)
            return
        parts = [paths[::2], paths[1::2]] if len(paths) > 1 else [paths]
        subsets = "".join(f'[[subsets]]\\nname = "{n}"\\nsources = {json.dumps(p)}\\n' for n, p in enumerate(parts))
        (out.parent / "mine.toml").write_text(f'name = "mine"\\n[assemble]\\nshards = 4\\n{subsets}')
        assemble_corpus(out.parent / "mine.toml", out)

    run([tiny], out / "tiny")
    begin, used = time.perf_counter(), sum(os.times()[:4])
    run(paths, out / "large")
    seconds, cpu_seconds = time.perf_counter() - begin, sum(os.times()[:4]) - used
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}))
"""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(200, "text in each shard"))
    chosen = parser.parse_args()
    size = chosen.megabytes * 1_000_000
    shards = [generated(f"assembled-{chosen.megabytes}-{number}", size, 30 + number) for number in range(16)]
    cores = sorted(os.sched_getaffinity(0))[:2]
    contestants: dict[str, Callable[[], Figures]] = {}
    for times in (1, 4, 16):
        for command in ("reframe", "assemble"):
            contestants[f"{command}, {times}x"] = partial(measured, command, shards[:times], size * times, cores)
    found = take_turns(contestants, chosen.rounds)
    shutil.rmtree(OUT)
    show(chosen, found, [table("", found, "reframe, 1x")])


def measured(command: str, paths: Sequence[Path], amount: int, cores: Sequence[int]) -> Figures:
    """One run of one command."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    script = OUT.parent / "assembling.py"
    script.write_text(SCRIPT)  # a file, because worker processes start from it
    files = [OUT, generated("tiny-0", 100_000, 0), *paths]
    environment = {"PYTHONPATH": str(ROOT)}
    figures: Figures = run_peer(
        Path(sys.executable), script, json.dumps(list(cores)), command, *files, environment=environment
    )
    return {**figures, "amount": amount}


if __name__ == "__main__":
    main()
