"""Counting phrases beside ahocorasick-rs and GNU grep: MB/s of decoded text on one core.

    python tests/benchmarks/bench_count.py [--shard PATH] [--megabytes 50] [--phrases 10000 100000 1000000]

    count           `PhraseTable.find` and `SubsetCounts` on the UTF-8 of documents that were decoded before
    words           the same by words, in two steps: the words of the documents, and the search
    command         `count_phrases` of the shard: reading, building the table, counting, and the table of 200 rows; with
                    the most memory of the process, and the seconds until it reads the shard's first bytes
    ahocorasick-rs  `find_matches_as_indexes(overlapping=True)` of the same texts
    grep            `grep -c -F -f` of the same texts in a file, which counts lines; with its building of the automaton

Phrases have 20 to 60 bytes and are drawn from the shard itself, so nearly all are found. Each measurement is a process
of its own, pinned to one core. Not timed, except for grep and the command: imports, building the table or automaton,
and a first run over a part of the documents. A peer gets --kilobytes of text, because it is slow. Without --shard
text is generated.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from any folder
from pilekit import read
from tests.benchmarks.generating import generated
from tests.benchmarks.harness import DECODED, MEASURE, Figures, options, show, table, take_turns
from tests.benchmarks.peers import peer_environment, run_peer

AHOCORASICK = ["ahocorasick-rs==1.0.3"]
LEAST, MOST = 20, 60

ARGUMENTS = "SHARD, PHRASES, TEXTS = sys.argv[1:]\n"

TABLE = """
from pathlib import Path
import numpy as np
from pilekit.cutting.words import compacted_all
from pilekit.trace.phrase_table import PhraseTable
from pilekit.trace.phrases import Phrases
from pilekit.trace.subset_counts import SubsetCounts
phrases = Phrases.read(Path(PHRASES))
"""

COUNT = """
table = PhraseTable.build(phrases.data, phrases.ends)
def work(batches):
    counts = SubsetCounts(table)
    for batch in batches:
        counts.add(*batch.utf8(), np.zeros(len(batch), np.int64))
for batch in batches:
    batch.utf8()
measure(work, batches, amount, batches[:1])
"""

WORDS = """
sought = phrases.words()
table = PhraseTable.build(sought.data, sought.ends, at_words=True)
def work(batches):
    counts = SubsetCounts(table)
    for batch in batches:
        counts.add(*compacted_all(batch.texts), np.zeros(len(batch), np.int64))
measure(work, batches, amount, batches[:1])
"""

COMMAND = """
import re
from pathlib import Path
from pilekit import count_phrases
count_phrases(SHARD, ["warm-up"], jobs=1)
first = []
started, used = time.perf_counter(), time.process_time()
def advance(amount):
    first.append(time.perf_counter() - started)
str(count_phrases(SHARD, Path(PHRASES), jobs=1, advance=advance))
print(json.dumps({
    "amount": int(TEXTS), "seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used,
    "start": first[0], "memory": int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10,
}))
"""

PEER = """
import ahocorasick_rs
phrases = open(PHRASES, encoding="utf-8", newline="\\n").read().split("\\n")[:-1]
texts = open(TEXTS, encoding="utf-8", newline="\\n").read()
automaton = ahocorasick_rs.AhoCorasick(phrases, ahocorasick_rs.MatchKind.Standard)
def work(texts):
    len(automaton.find_matches_as_indexes(texts, overlapping=True))
measure(work, texts, len(texts.encode()), texts[:1000])
"""

GREP = """
import os, subprocess
started = time.perf_counter()  # `run_peer` adds the CPU seconds, which are those of grep
subprocess.run(["grep", "-c", "-F", "-f", PHRASES, TEXTS], env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE)
print(json.dumps({"amount": os.path.getsize(TEXTS), "seconds": time.perf_counter() - started}))
"""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(50, "text to generate"), kilobytes=(2000, "text for the peers"))
    parser.add_argument("--shard", type=Path, help="count in this .jsonl.zst file instead")
    parser.add_argument("--phrases", type=int, nargs="+", default=[10**4, 10**5, 10**6], help="numbers of phrases")
    chosen = parser.parse_args()
    shard = chosen.shard or generated(f"count-{chosen.megabytes}", chosen.megabytes << 20, 90)
    core = sorted(os.sched_getaffinity(0))[:1]
    peer = peer_environment("ahocorasick", AHOCORASICK)
    with read(str(shard)) as reader:
        text = "\n".join(text for batch in reader for text in batch.texts).encode()
    figures: dict[str, list[Figures]] = {}
    tables = []
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as folder:
        some = Path(folder) / "texts"
        some.write_bytes(text[: chosen.kilobytes * 1000].decode(errors="ignore").encode())

        def run(source: str, phrases: Path, texts: Path | int = some, python: Path = Path(sys.executable)) -> Figures:
            measured: Figures = run_peer(
                python, MEASURE + ARGUMENTS + source, shard.resolve(), phrases, str(texts), cores=core
            )
            return measured

        for number in chosen.phrases:
            phrases = drawn(text, number, Path(folder) / f"phrases-{number}")
            measured = take_turns(
                {
                    f"count {number:,}": partial(run, DECODED + TABLE + COUNT, phrases),
                    f"words {number:,}": partial(run, DECODED + TABLE + WORDS, phrases),
                    f"command {number:,}": partial(run, COMMAND, phrases, len(text)),
                    f"ahocorasick-rs {number:,}": partial(run, PEER, phrases, some, peer),
                    f"grep {number:,}": partial(run, GREP, phrases),
                },
                chosen.rounds,
            )
            figures.update(measured)
            extra = {"start s": start}
            tables.append(table(f"{number:,} phrases", measured, f"ahocorasick-rs {number:,}", extra=extra))
    show(chosen, figures, tables)


def start(rounds: list[Figures]) -> str:
    """The fewest seconds until the first bytes of the shard are read, of contestants that read it."""
    return f"{min(round['start'] for round in rounds):.2f}" if "start" in rounds[0] else ""


def drawn(text: bytes, number: int, path: Path) -> Path:
    """Write as many phrases, pieces of the text without a newline and with a letter, a line each."""
    generator, phrases = np.random.default_rng(number), list[bytes]()
    while len(phrases) < number:
        begin, size = int(generator.integers(0, len(text) - MOST)), int(generator.integers(LEAST, MOST + 1))
        phrase = text[begin : begin + size].decode(errors="ignore")
        if "\n" not in phrase and "\r" not in phrase and any(map(str.isalnum, phrase)):
            phrases.append(phrase.encode())
    path.write_bytes(b"\n".join(phrases) + b"\n")
    return path


if __name__ == "__main__":
    main()
