"""`pilekit dedup` beside rensa, gaoya, datasketch and datatrove: MB/s of text, recall and precision.

    python tests/benchmarks/bench_dedup.py [--megabytes 1000] [--quality-megabytes 20] [--shards PATH...]
        [--only NAME...] [--rounds 1] [--growth MEGABYTES] [--json]
    python tests/benchmarks/bench_dedup.py --recall [--pairs 6000]

All compare word 5-grams by 128 permutations at a threshold of 0.8, as nearly as each tool allows (see
`dedup/dedup_peers.py`). pilekit runs with `--no-write`, which is the work of the other tools, and once with clean
shards, which no other tool writes. `zstd, level 3` only compresses the text, in frames of 1 MiB and by all cores.
`zstd, decode and level 3` decodes it before, as whoever leaves lines out must. Most frames of this input lose a line,
so clean shards cannot be written in less CPU time than `--no-write` and the latter take together. Reading,
decompressing and parsing are timed for all others. Starting is not timed: each measurement is a process of its own that
has deduplicated a tiny shard before. All may use all cores, and a few do.

Speed is measured on at most as much of the input as a contender processes in about a minute. Recall and precision are
measured on the input's beginning, the same for all, where every pair of documents is compared exactly:

recall      the share of pairs with a similarity of 0.8 or more that lost at least one document
precision   the share of removed documents that are so similar to a kept document

The generated input has no exact copies; a fifth of its documents are edited copies of another, with similarities evenly
over 0.5 to 0.99. `--shards` takes other input. `--growth` measures pilekit alone, on that many MB, and on 4 and 16
times as many: time per MB and peak memory should not grow. Files have been written just before, so they come from the
page cache.

`--recall` measures no speed. It plants `--pairs` pairs and uses thresholds of 0.5, 0.7, 0.8 and 0.9. By similarity, it
prints the share of the pairs that the theory of bands promises, that pilekit compares, and that lost a document.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.dedup.dedup_input import similar_pairs, write_beginning, write_shard_with_copies  # noqa: E402
from tests.benchmarks.dedup.dedup_peers import PEERS  # noqa: E402
from tests.benchmarks.harness import Figures, options, show, table, take_turns  # noqa: E402
from tests.benchmarks.peers import BENCH, peer_environment, run_peer  # noqa: E402
from tests.dedup.test_recall import BINS, outcomes  # noqa: E402

DATA = BENCH / "data" / "dedup"
THRESHOLD = 0.8
PILEKIT = ("pilekit dedup --no-write", "pilekit dedup, clean shards")
COMPRESSION = {"zstd, level 3": "memory", "zstd, decode and level 3": "shard"}

DEDUPLICATE = """
import json, resource, shutil, sys, time
if __name__ == "__main__":
    from pilekit.dedup.run import dedup_corpus
    out, write, tiny, shard = sys.argv[1:]
    dedup_corpus(tiny, out=out + "/tiny", write=write == "True")
    begin = time.perf_counter()
    result = dedup_corpus(shard, out=out + "/large", write=write == "True")
    seconds = time.perf_counter() - begin
    removed = set(result.removed["number"].to_pylist())
    usage = [resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"seconds": seconds, "memory": max(usage), "amount": result.summary["bytes"]["read"],
                      "kept": [number for number in range(result.summary["read"]) if number not in removed]}))
"""

COMPRESS = """
import json, os, sys, time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
import zstandard

source, shard = sys.argv[1:]
frame_bytes, cores = 1 << 20, os.cpu_count()

def frames():
    with zstandard.open(shard, "rb") as file:
        while frame := file.read(frame_bytes):
            yield frame

def compress(frame):
    return len(zstandard.ZstdCompressor(level=3, write_checksum=True).compress(frame))

texts, waiting, written = list(frames()) if source == "memory" else frames(), deque(), 0
with ThreadPoolExecutor(cores) as threads:
    begin, used = time.perf_counter(), time.process_time()
    for text in texts:
        waiting.append(threads.submit(compress, text))
        if len(waiting) > 3 * cores:
            written += waiting.popleft().result()
    written += sum(future.result() for future in waiting)
    print(json.dumps({"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - used,
                      "written": written}))
"""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=1, megabytes=(1000, "most text for anyone"), pairs=(6000, "for --recall"))
    parser.add_argument("--quality-megabytes", type=int, default=20, help="text for recall and precision (default: 20)")
    parser.add_argument("--shards", type=Path, nargs="+", help="deduplicate the beginning of these .jsonl.zst instead")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only contenders whose names begin so")
    parser.add_argument("--growth", type=int, metavar="MEGABYTES", help="pilekit alone on 1, 4 and 16 times as much")
    parser.add_argument("--recall", action="store_true", help="pilekit alone on planted pairs: recall and theory")
    chosen = parser.parse_args()

    if chosen.recall:
        print_recall(chosen.pairs)
        return
    if chosen.growth:
        shards = [generated(factor * chosen.growth) for factor in (1, 4, 16)]
        runs = {shard.name: [deduplicated(PILEKIT[0], Path(sys.executable), shard)[0]] for shard in shards}
        show(chosen, runs, [table("growth", runs, shards[0].name)])
        return
    source = tuple(path.resolve() for path in chosen.shards or [generated(chosen.megabytes)])
    names = [*PILEKIT, *COMPRESSION, *PEERS]
    if chosen.only:
        names = [name for name in names if name.startswith(tuple(chosen.only))]
    limits = [name for name in names if name in COMPRESSION]
    names = [name for name in names if name not in COMPRESSION]
    found = {name: environment(name) for name in names}
    pythons = {name: python for name, python in found.items() if python is not None}

    small, _ = beginning(source, chosen.quality_megabytes)
    print(f"comparing all documents of {small.name} with each other", file=sys.stderr)
    documents, pairs = similar_pairs(small, THRESHOLD)
    quality = {}
    for name, python in pythons.items():
        print(f"how right is {name}?", file=sys.stderr)
        quality[name] = judged(documents, pairs, set(deduplicated(name, python, small)[1]))

    def run(name: str) -> Figures:
        most = chosen.megabytes if name in PILEKIT else min(chosen.megabytes, PEERS[name].megabytes)
        shard, size = beginning(source, most)
        return {**deduplicated(name, pythons[name], shard)[0], **quality[name], "amount": size}

    def compress(name: str) -> Figures:
        shard, size = beginning(source, chosen.megabytes)
        return {**run_peer(Path(sys.executable), COMPRESS, COMPRESSION[name], shard), "amount": size}

    contenders = {name: partial(run, name) for name in pythons} | {name: partial(compress, name) for name in limits}
    measured = take_turns(contenders, chosen.rounds)
    extra = {
        "MB": lambda rounds: f"{rounds[0]['amount'] / 1e6:,.0f}",
        "kept": lambda rounds: f"{rounds[0]['kept']:,} of {documents:,}" if "kept" in rounds[0] else "",
        **{name: lambda rounds, name=name: share(rounds[0].get(name)) for name in ("recall", "precision")},
    }
    show(chosen, measured, [table("", measured, PILEKIT[0], extra=extra)])


def environment(name: str) -> Path | None:
    """The Python that runs a contender; None, with a message, if it cannot be installed."""
    if name in PILEKIT:
        return Path(sys.executable)
    try:
        return peer_environment(f"dedup-{PEERS[name].environment}", PEERS[name].requirements)
    except subprocess.CalledProcessError:
        print(f"{name}: cannot be installed here, so it is left out", file=sys.stderr)
        return None


def judged(documents: int, pairs: set[tuple[int, int]], kept: set[int]) -> Figures:
    """How many documents an answer keeps, and its recall and precision; None where there is nothing to count."""
    removed = set(range(documents)) - kept
    proven = {one for pair in pairs for one, other in (pair, pair[::-1]) if one in removed and other in kept}
    return {
        "kept": len(kept),
        "recall": sum(not kept.issuperset(pair) for pair in pairs) / len(pairs) if pairs else None,
        "precision": len(proven) / len(removed) if removed else None,
    }


def deduplicated(name: str, python: Path, shard: Path) -> tuple[Figures, list[int]]:
    """Let a contender deduplicate one shard; its figures, and the documents that it keeps."""
    tiny = generated_file("tiny", 0.1)
    if name not in PILEKIT:
        answer = run_peer(python, PEERS[name].script, tiny, shard, environment={"TQDM_DISABLE": "1"})
        return answer, answer.pop("kept")
    out = DATA / "out"
    shutil.rmtree(out, ignore_errors=True)
    source = DATA / "deduplicate.py"
    source.write_text(DEDUPLICATE)  # a file, because worker processes start from it
    answer = run_peer(python, source, out, str(name == PILEKIT[1]), tiny, shard, environment={"PYTHONPATH": str(ROOT)})
    shutil.rmtree(out)
    return answer, answer.pop("kept")


def generated(megabytes: float) -> Path:
    """The generated shard with this many MB of text."""
    return generated_file(f"generated-{megabytes:g}", megabytes)


def generated_file(name: str, megabytes: float) -> Path:
    """A generated shard by name, made if it is not there."""
    path = DATA / f"{name}.jsonl.zst"
    if not path.exists():
        print(f"generating {path.relative_to(ROOT)}", file=sys.stderr)
        write_shard_with_copies(path, int(megabytes * 1e6), seed=int(megabytes))
    return path


@functools.cache
def beginning(source: tuple[Path, ...], megabytes: int) -> tuple[Path, int]:
    """(a shard with the first MB of text of the source, how many bytes of text it has)."""
    path = DATA / f"first-{megabytes}-of-{source[0].name.split('.')[0]}.jsonl.zst"
    print(f"cutting {path.relative_to(ROOT)}", file=sys.stderr)
    return path, write_beginning(source, path, megabytes * 1_000_000)


def print_recall(pairs: int) -> None:
    """For each of some thresholds, a line for each bin of similarities."""
    for threshold in (0.5, 0.7, 0.8, 0.9):
        with tempfile.TemporaryDirectory() as folder:
            found = outcomes(Path(folder), threshold, pairs)
        print(f"threshold {threshold}: similarity, pairs, theory, compared, removed")
        for least, below in BINS:
            some = [one for one in found if least <= one.similarity < below]
            sums = [sum(column) / len(some) for column in list(zip(*some, strict=True))[2:]]
            print(f"{least:.2f}-{below:.2f} {len(some):6,}", *(f"{100 * one:6.1f} %" for one in sums))


def share(value: float | None) -> str:
    """A percentage, or a dash where there is nothing to count."""
    return "–" if value is None else f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
