"""Decontamination beside fastokens, lm-eval's Janitor and datatrove's filter: MB/s on one core.

    python tests/benchmarks/bench_cut.py [--shard PATH] [--evaluation PATH] [--tokenizer F] [--megabytes 50]
                                         [--kilobytes 400]

    kernel          the kernel alone, on the UTF-8 of documents that were decoded before
    n-grams         `NGrams.find` in the same: UTF-8, kernel, comparing words
    fastokens       encoding the same documents
    Janitor         `clean_python` of some documents (--kilobytes); its 13-grams are those of the evaluation
    datatrove       `NGramsDecontFilter.filter` of the same, with 800,000 hashes of no n-gram
    decontaminate   `decontaminate` of the shard with `write=False`: reading, searching, tables, cutting
    stats           `corpus_stats` of the shard with a tokenizer

Each measurement is a process of its own, pinned to one core. Not timed: imports, registering the evaluation (except in
`decontaminate`), and a first run over a part of the documents (fastokens: all of them). Without --shard and
--evaluation, text is generated: an evaluation of about 800,000 n-grams.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from any folder
from pilekit import read
from tests.benchmarks.generating import generated, trained_tokenizer
from tests.benchmarks.harness import Figures, options, show, table, take_turns
from tests.benchmarks.peers import peer_environment, run_peer

DATATROVE = ["datatrove[processing]==0.10.1", "spacy==3.8.18", "orjson==3.13.0", "xxhash==3.5.0"]
JANITOR = ["lm_eval==0.4.13"]

MEASURE = """
import json, sys, time
SHARD, EVALUATION, TOKENIZER, TEXTS, FOLDER = sys.argv[1:]

def measure(work, items, amount, warm_up):
    work(warm_up)
    started, used = time.perf_counter(), time.process_time()
    work(items)
    print(json.dumps({
        "amount": amount, "seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used,
    }))
"""

DECODED = """
from pilekit import read
with read(SHARD) as reader:
    batches = list(reader)
amount = sum(int(batch.text_bytes().sum()) for batch in batches)
"""

NGRAMS = """
from pathlib import Path
import numpy as np
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import normalised
with read(EVALUATION) as reader:
    NGrams.build((normalised(text) for batch in reader for text in batch.texts), 13).save(Path(FOLDER))
ngrams = NGrams.load(Path(FOLDER))
print(f"{len(ngrams.keys):,} n-grams", file=sys.stderr)
"""

FIND = """
def work(batches):
    for batch in batches:
        for _ in ngrams.find(batch.take(range(len(batch)))):  # a new batch, which has no UTF-8 yet
            pass
measure(work, batches, amount, batches[:1])
"""

KERNEL = """
found = np.empty((100000, 5), np.int64)
def work(batches):
    for batch in batches:
        ngrams.candidates(*batch.utf8(), found)
measure(work, batches, amount, batches)
"""

FASTOKENS = """
import fastokens
tokenizer = fastokens.Tokenizer.from_file(TOKENIZER)
def work(batches):
    for batch in batches:
        tokenizer.encode_batch_flat(batch.texts, split_special_tokens=True)
measure(work, batches, amount, batches)
"""

COMMAND = """
from pilekit import decontaminate
def work(out):
    decontaminate(SHARD, against=EVALUATION, out=f"{FOLDER}/{out}", write=False, jobs=1)
measure(work, "out", amount, "warm-up")
"""

STATS = """
from pilekit import corpus_stats, load_tokenizer
tokenizer = load_tokenizer(TOKENIZER)
def work(shard):
    corpus_stats(shard, tokenizer=tokenizer, jobs=1)
measure(work, SHARD, amount, EVALUATION)
"""

SOME = """
texts = [json.loads(line) for line in open(TEXTS)]
amount = sum(len(text.encode()) for text in texts)
"""

JANITOR_CODE = """
import importlib.util, io, os
import zstandard
package = importlib.util.find_spec("lm_eval").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("janitor", os.path.join(package, "decontamination/janitor.py"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
janitor = module.Janitor()
with open(EVALUATION, "rb") as file:
    for line in io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)):
        janitor.register_contaminant_python(json.loads(line)["text"])
def work(texts):
    for text in texts:
        janitor.clean_python(text)
measure(work, texts, amount, texts[:2])
"""

DATATROVE_CODE = """
import random
from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import NGramsDecontFilter
one = NGramsDecontFilter(FOLDER)
one._index_hashes = dict.fromkeys((random.getrandbits(64) for _ in range(800_000)), "evaluation")
def work(texts):
    for text in texts:
        one.filter(Document(text=text, id=""))
measure(work, texts, amount, texts[:2])
"""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(50, "text to generate"), kilobytes=(400, "text for the slow peers"))
    parser.add_argument("--shard", type=Path, help="search this .jsonl.zst file instead")
    parser.add_argument("--evaluation", type=Path, help="for the n-grams of this .jsonl.zst file")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: trained on the shard)")
    chosen = parser.parse_args()
    shard = chosen.shard or generated(f"cut-{chosen.megabytes}", chosen.megabytes << 20, 80)
    evaluation = chosen.evaluation or generated("cut-evaluation", 5 << 20, 81)
    core = sorted(os.sched_getaffinity(0))[:1]
    janitor = peer_environment("janitor", JANITOR, ["--no-deps"], on_top=True)
    datatrove = peer_environment("datatrove-decontamination", DATATROVE)
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as folder:
        tokenizer = chosen.tokenizer or trained_tokenizer(shard, Path(folder) / "tokenizer.json")
        some = Path(folder) / "texts.jsonl"
        write_some(shard, some, chosen.kilobytes * 1000)

        def run(source: str, python: Path = Path(sys.executable)) -> Figures:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                files = (shard.resolve(), evaluation.resolve(), tokenizer, some, scratch)
                environment = {"RAYON_NUM_THREADS": "1"}
                figures: Figures = run_peer(python, MEASURE + source, *files, environment=environment, cores=core)
                return figures

        contestants = {
            "kernel": partial(run, DECODED + NGRAMS + KERNEL),
            "n-grams": partial(run, DECODED + NGRAMS + FIND),
            "fastokens": partial(run, DECODED + FASTOKENS),
            "Janitor": partial(run, SOME + JANITOR_CODE, janitor),
            "datatrove": partial(run, SOME + DATATROVE_CODE, datatrove),
        }
        kernel = take_turns(contestants, chosen.rounds)
        commands = {"decontaminate": partial(run, DECODED + COMMAND), "stats": partial(run, DECODED + STATS)}
        whole = take_turns(commands, chosen.rounds)
    tables = [*(table("", kernel, peer) for peer in ("fastokens", "Janitor", "datatrove")), table("", whole, "stats")]
    show(chosen, kernel | whole, tables)


def write_some(shard: Path, path: Path, size: int) -> None:
    """Write texts of about `size` characters, from the whole shard, as lines of JSON strings."""
    with read(str(shard)) as batches:
        texts = [text for batch in batches for text in batch.texts]
    texts = texts[:: max(1, sum(map(len, texts)) // size)]
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))


if __name__ == "__main__":
    main()
