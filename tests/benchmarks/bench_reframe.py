"""`pilekit reframe` beside the zstd command: MB/s of text on one core and on two, and the size of the output.

    python tests/benchmarks/bench_reframe.py [--megabytes 1500] [--shards PATH...] [--rounds 3] [--json]

Reframing decompresses, compresses, reads back from disk, decompresses that, compares hashes and makes the index; the
peers do less: `zstd -3` only compresses decompressed text, `zstd -d | zstd -3` decompresses it first. All write to
disk. Each measurement is a process of its own, pinned to its cores. pilekit's process has reframed a tiny shard before,
so imports are not timed (starting the workers for several shards is). Input files have been read once before, so they
come from the page cache; the output that pilekit reads back does not.

Generated text repeats itself over many megabytes, which frames of 1 MiB cannot use: it grows by 8 %, real text by less
than 3 %.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.generating import decompressed, generated  # noqa: E402
from tests.benchmarks.harness import Figures, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.peers import BENCH, run_peer  # noqa: E402

OUT = BENCH / "data" / "reframed"

PILEKIT = """
import json, os, sys, time
if __name__ == "__main__":
    os.sched_setaffinity(0, json.loads(sys.argv[1]))
    from pilekit import Corpus
    from pilekit.shards.index import document_rows
    from pilekit.shards.write.reframe import reframe_corpus
    document_rows.SCANNED_FROM_BYTES = 0  # as for long shards, so that loading the compiled scan is part of the start
    out, tiny, *paths = sys.argv[2:]
    reframe_corpus(Corpus(tiny), out + "/tiny")
    begin, used = time.perf_counter(), sum(os.times()[:4])
    reframed = reframe_corpus(Corpus(paths), out + "/large")
    seconds, cpu_seconds = time.perf_counter() - begin, sum(os.times()[:4]) - used
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds,
                      "amount": sum(shard.content_bytes for shard in reframed),
                      "after": sum(shard.stored_bytes for shard in reframed)}))
"""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(1500, "text in the generated input"))
    parser.add_argument("--shards", type=Path, nargs="+", help="reframe these .jsonl.zst files instead")
    chosen = parser.parse_args()
    if shutil.which("zstd") is None:
        raise SystemExit("error: the zstd command is not installed")
    if chosen.shards:
        several = [path.resolve() for path in chosen.shards]
        one = BENCH / "data" / "joined.jsonl.zst"
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_bytes(b"".join(path.read_bytes() for path in several))
    else:
        size = chosen.megabytes * 1_000_000
        one = generated(f"one-{chosen.megabytes}", size, 10)
        several = [generated(f"half-{chosen.megabytes}-{number}", size // 2, 20 + number) for number in range(2)]
    cores = sorted(os.sched_getaffinity(0))
    contestants: dict[str, Callable[[], Figures]] = {
        "zstd -3": partial(zstd, one, cores[:1], "zstd -3 -qf {plain} -o {out}"),
        "zstd -d | zstd -3": partial(zstd, one, cores[:1], "zstd -dcq {stored} | zstd -3 -qf -o {out}"),
        "pilekit reframe": partial(pilekit, [one], cores[:1]),
    }
    if len(cores) > 1:
        contestants["zstd -3 -T2, two cores"] = partial(zstd, one, cores[:2], "zstd -3 -T2 -qf {plain} -o {out}")
        contestants["pilekit, two cores"] = partial(pilekit, [one], cores[:2])
        if len(several) > 1:
            contestants[f"pilekit, two cores, {len(several)} shards"] = partial(pilekit, several, cores[:2])
    measured = take_turns(contestants, chosen.rounds)
    shutil.rmtree(OUT)
    growth = {"size": lambda rounds: f"{100 * (rounds[0]['after'] / rounds[0]['before'] - 1):+.1f} %"}
    show(chosen, measured, [table("", measured, "zstd -3", extra=growth)])


def pilekit(paths: Sequence[Path], cores: Sequence[int]) -> Figures:
    """Measure one reframing."""
    script = _empty(OUT).parent / "reframing.py"
    script.write_text(PILEKIT)  # a file, because worker processes start from it
    files = [OUT, generated("tiny-0", 100_000, 0), *paths]
    found: Figures = run_peer(
        Path(sys.executable), script, json.dumps(list(cores)), *files, environment={"PYTHONPATH": str(ROOT)}
    )
    return {**found, "before": sum(path.stat().st_size for path in paths)}


def zstd(stored: Path, cores: Sequence[int], command: str) -> Figures:
    """Measure a shell command."""
    plain, out = decompressed(stored), _empty(OUT) / "out.zst"
    filled = ["bash", "-o", "pipefail", "-c", command.format(plain=plain, stored=stored, out=out)]
    begin, used = time.perf_counter(), sum(os.times()[:4])
    subprocess.run(filled, check=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    seconds, cpu_seconds = time.perf_counter() - begin, sum(os.times()[:4]) - used
    sizes = {"before": stored.stat().st_size, "after": out.stat().st_size}
    return {"amount": plain.stat().st_size, "seconds": seconds, "cpu_seconds": cpu_seconds, **sizes}


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    main()
