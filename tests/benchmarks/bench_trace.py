"""Tracing texts beside reading alone, the search for n-grams alone, and a suffix array: MB/s of text on one core.

    python tests/benchmarks/bench_trace.py [--shard PATH] [--megabytes 50] [--texts 1000]

    read            `read` of the shard, without looking at its texts
    n-grams         `NGrams.find` of the texts' runs of 8 words in documents that were decoded before, which is the
                    search of `decontaminate`
    passages        `ShardPassages.add` of the same documents: the search, the automaton, the places
    trace           `trace_texts` of the shard: reading, building the tables, searching, adding up, the rows
    suffix array    pydivsufsort of the same texts: the index that must be built first to look passages up in it

Half of the words of each text are three pieces of documents of the shard, the others are words of the shard in no
order. Each measurement is a process of its own, pinned to one core. Not timed, except for trace: imports, building the
tables, and a first run over a part of the documents. Without --shard text is generated. It repeats its sentences, so
more is found in it than in real text.
"""

from __future__ import annotations

import json
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

SUFFIXES = ["pydivsufsort==0.0.20", "numpy==2.3.5"]
PIECES, WORDS = 3, 60
"""Pieces of documents in each text, and the words of each."""

ARGUMENTS = "SHARD, TRACED, TEXTS, AMOUNT = sys.argv[1:]\n"

READ = """
from pilekit import read
def work(shard):
    with read(shard) as reader:
        for batch in reader:
            pass
measure(work, SHARD, int(AMOUNT), TRACED)
"""

TABLES = """
from pathlib import Path
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import compacted
from pilekit.trace.run_automaton import RunAutomaton
from pilekit.trace.shard_passages import ShardPassages
ngrams = NGrams.build((compacted(json.loads(line)["text"]) for line in open(TRACED)), 8)
automaton = RunAutomaton.build(ngrams.numbers, ngrams.first, len(ngrams.keys))
for batch in batches:
    batch.utf8()
"""

FIND = """
def work(batches):
    for batch in batches:
        ngrams.find(batch)
measure(work, batches, amount, batches[:1])
"""

PASSAGES = """
import tempfile
def work(batches):
    with tempfile.TemporaryDirectory() as folder:
        passages = ShardPassages(ngrams, automaton, 10, 1000, Path(folder))
        for batch in batches:
            passages.add(batch)
        passages.write(ngrams.first, Path(folder, "rows.npy"))
measure(work, batches, amount, batches[:1])
"""

TRACE = """
from pilekit import trace_texts
def work(texts):
    trace_texts(SHARD, texts, jobs=1)
measure(work, TRACED, int(AMOUNT), ["a b c d e f g h"])
"""

SUFFIX_ARRAY = """
import numpy as np
from pydivsufsort import divsufsort
data = np.fromfile(TEXTS, np.uint8)
measure(divsufsort, data, len(data), data[:1000])
"""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(50, "text to generate"), texts=(1000, "texts to trace"))
    parser.add_argument("--shard", type=Path, help="search this .jsonl.zst file instead")
    chosen = parser.parse_args()
    shard = chosen.shard or generated(f"count-{chosen.megabytes}", chosen.megabytes << 20, 90)
    core = sorted(os.sched_getaffinity(0))[:1]
    suffixes = peer_environment("suffix-array", SUFFIXES)
    with read(str(shard)) as reader:
        documents = [text for batch in reader for text in batch.texts]
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as folder:
        traced, texts = drawn(documents, chosen.texts, Path(folder) / "traced.jsonl"), Path(folder) / "texts"
        texts.write_bytes("".join(documents).encode())
        amount = texts.stat().st_size

        def run(source: str, python: Path = Path(sys.executable)) -> Figures:
            measured: Figures = run_peer(
                python, MEASURE + ARGUMENTS + source, shard.resolve(), traced, texts, str(amount), cores=core
            )
            return measured

        figures = take_turns(
            {
                "read": partial(run, READ),
                "n-grams": partial(run, DECODED + TABLES + FIND),
                "passages": partial(run, DECODED + TABLES + PASSAGES),
                "trace": partial(run, TRACE),
                "suffix array": partial(run, SUFFIX_ARRAY, suffixes),
            },
            chosen.rounds,
        )
    show(chosen, figures, [table(f"{chosen.texts:,} texts", figures, peer) for peer in ("read", "suffix array")])


def drawn(documents: list[str], number: int, path: Path) -> Path:
    """Write as many texts, of pieces of documents and of single words between them."""
    generator, texts = np.random.default_rng(number), list[str]()
    long = [words for words in (text.split() for text in documents) if len(words) >= WORDS]
    while len(texts) < number:
        parts = list[str]()
        for place in generator.integers(0, len(long), PIECES).tolist():
            words, others = long[place], generator.integers(0, len(long), WORDS).tolist()
            begin = int(generator.integers(0, len(words) - WORDS + 1))
            parts += words[begin : begin + WORDS]
            parts += [long[other][int(generator.integers(0, len(long[other])))] for other in others]
        texts.append(" ".join(parts))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


if __name__ == "__main__":
    main()
