"""`pilekit reframe` beside the zstd command: MB/s of text on one core and on two, and the size of the output.

    python tests/benchmarks/bench_reframe.py [--megabytes 1500] [--shards PATH...] [--rounds 3] [--json]

Reframing decompresses, compresses, reads back from disk, decompresses that, compares hashes and makes the index; the
peers do less: `zstd -3` only compresses decompressed text, `zstd -d | zstd -3` decompresses it first. All write to
disk. Each measurement is a process of its own, pinned to its cores. pilekit's process has reframed a tiny shard before,
so imports are not timed (starting the workers for several shards is). The measurements go round by round through all
contenders, because a machine's speed drifts. The table shows the best and the median of each, and the best by CPU time,
which other load on the machine disturbs less. Input files have been read once before, so they come from the page cache;
the output that pilekit reads back does not.

Generated text repeats itself over many megabytes, which frames of 1 MiB cannot use: it grows by 8 %, real text by less
than 3 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.bench_stats import decompressed, generated  # noqa: E402
from tests.benchmarks.peers import BENCH, run_peer  # noqa: E402

OUT = BENCH / "data" / "reframed"

PILEKIT = """
import json, os, sys, time
if __name__ == "__main__":
    os.sched_setaffinity(0, json.loads(sys.argv[1]))
    from pilekit import Corpus
    from pilekit.shards.index import scan as index_scan
    from pilekit.shards.write.reframe import reframe_corpus
    index_scan.SCANNED_FROM_BYTES = 0  # as for the long shards, so that loading the compiled scan is part of the start
    out, tiny, *paths = sys.argv[2:]
    reframe_corpus(Corpus(tiny), out + "/tiny")
    begin, used = time.perf_counter(), sum(os.times()[:4])
    reframed = reframe_corpus(Corpus(paths), out + "/large")
    seconds, cpu_seconds = time.perf_counter() - begin, sum(os.times()[:4]) - used
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds,
                      "text": sum(shard.content_bytes for shard in reframed),
                      "stored": sum(shard.stored_bytes for shard in reframed)}))
"""


@dataclass(frozen=True)
class Measured:
    """One measurement: seconds of the clock and of all CPUs together, bytes of text, stored bytes before and after."""

    seconds: float
    cpu_seconds: float
    text: int
    before: int
    after: int


@dataclass
class Result:
    """The measurements of one contender: MB/s, MB per second of CPU time, and the growth of its file."""

    speeds: list[float] = field(default_factory=list)
    cpu_speeds: list[float] = field(default_factory=list)
    larger_percent: float = 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1500, help="text in the generated input (default: 1500)")
    parser.add_argument("--shards", type=Path, nargs="+", help="reframe these .jsonl.zst files instead")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each contender (default: 3)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if shutil.which("zstd") is None:
        raise SystemExit("error: the zstd command is not installed")

    tiny = generated("tiny-0", 100_000, 0)
    if arguments.shards:
        several = [path.resolve() for path in arguments.shards]
        one = several if len(several) == 1 else [joined(several)]
    else:
        size = arguments.megabytes * 1_000_000
        one = [generated(f"one-{arguments.megabytes}", size, 10)]
        several = [generated(f"half-{arguments.megabytes}-{number}", size // 2, 20 + number) for number in range(2)]
    cores = sorted(os.sched_getaffinity(0))
    contenders: dict[str, Callable[[], Measured]] = {
        "zstd -3": lambda: zstd(one[0], cores[:1], "zstd -3 -qf {plain} -o {out}"),
        "zstd -d | zstd -3": lambda: zstd(one[0], cores[:1], "zstd -dcq {stored} | zstd -3 -qf -o {out}"),
        "pilekit reframe": lambda: pilekit(one, tiny, cores[:1]),
    }
    if len(cores) > 1:
        contenders["zstd -3 -T2, two cores"] = lambda: zstd(one[0], cores[:2], "zstd -3 -T2 -qf {plain} -o {out}")
        contenders["pilekit, two cores"] = lambda: pilekit(one, tiny, cores[:2])
        if len(several) > 1:
            contenders[f"pilekit, two cores, {len(several)} shards"] = lambda: pilekit(several, tiny, cores[:2])
    results = measure(contenders, arguments.rounds)
    if arguments.json:
        print(json.dumps({name: asdict(result) for name, result in results.items()}, indent=2))
    else:
        print(table(results))


def joined(paths: Sequence[Path]) -> Path:
    """The shards, one after the other, in one file."""
    path = BENCH / "data" / "joined.jsonl.zst"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for part in paths:
            file.write(part.read_bytes())
    return path


def measure(contenders: dict[str, Callable[[], Measured]], rounds: int) -> dict[str, Result]:
    """Measure all contenders, round by round."""
    results = {name: Result() for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            print(f"round {number + 1} of {rounds}: {name}      ", end="\r", file=sys.stderr)
            shutil.rmtree(OUT, ignore_errors=True)
            OUT.mkdir(parents=True)
            measured = contender()
            results[name].speeds.append(measured.text / measured.seconds / 1e6)
            results[name].cpu_speeds.append(measured.text / measured.cpu_seconds / 1e6)
            results[name].larger_percent = 100 * (measured.after / measured.before - 1)
    shutil.rmtree(OUT)
    return results


def pilekit(paths: Sequence[Path], tiny: Path, cores: Sequence[int]) -> Measured:
    """Measure one reframing."""
    arguments = [json.dumps(list(cores)), str(OUT), str(tiny), *map(str, paths)]
    found = run_peer(Path(sys.executable), script(), *arguments, environment={"PYTHONPATH": str(ROOT)})
    before = sum(path.stat().st_size for path in paths)
    return Measured(found["seconds"], found["cpu_seconds"], found["text"], before, found["stored"])


def script() -> Path:
    """The script of the pilekit process, as a file, because worker processes start from it."""
    path = BENCH / "data" / "reframing.py"
    path.write_text(PILEKIT)
    return path


def zstd(stored: Path, cores: Sequence[int], command: str) -> Measured:
    """Measure a shell command."""
    plain, out = decompressed(stored), OUT / "out.zst"
    filled = ["bash", "-o", "pipefail", "-c", command.format(plain=plain, stored=stored, out=out)]
    begin, used = time.perf_counter(), sum(os.times()[:4])
    subprocess.run(filled, check=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    seconds, cpu_seconds = time.perf_counter() - begin, sum(os.times()[:4]) - used
    return Measured(seconds, cpu_seconds, plain.stat().st_size, stored.stat().st_size, out.stat().st_size)


def table(results: dict[str, Result]) -> str:
    """Best and median speed of each contender, also of `zstd -3` on one core, and the growth of its file."""
    lines = [f"{'':34} {'MB/s':>6} {'median':>7} {'× zstd -3':>10} {'MB/CPU s':>9} {'× zstd -3':>10} {'size':>8}"]
    peer = next(iter(results.values()))
    for name, result in results.items():
        lines.append(
            f"{name:34} {max(result.speeds):6,.0f} {statistics.median(result.speeds):7,.0f} "
            f"{max(result.speeds) / max(peer.speeds):10.2f} {max(result.cpu_speeds):9,.0f} "
            f"{max(result.cpu_speeds) / max(peer.cpu_speeds):10.2f} {result.larger_percent:+7.1f} %"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
