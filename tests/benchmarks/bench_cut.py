"""Decontamination beside fastokens, Janitor and datatrove's filter, substrings beside a suffix array: MB/s on one core.

    python tests/benchmarks/bench_cut.py [decontaminate] [substrings] [--shard PATH] [--evaluation PATH] [--tokenizer F]
                                         [--megabytes 50] [--kilobytes 400] [--largest 1000]

    kernel          the kernel alone, on the UTF-8 of documents that were decoded before
    n-grams         `NGrams.find` in the same: UTF-8, kernel, comparing words
    fastokens       encoding the same documents
    Janitor         `clean_python` of some documents (--kilobytes); its 13-grams are those of the evaluation
    datatrove       `NGramsDecontFilter.filter` of the same, with 800,000 hashes of no n-gram
    decontaminate   `decontaminate_corpus` of the shard with `write=False`: reading, searching, tables, cutting
    verdicts        the same with `question` and `answer`; each record's answer is its tenth word
    short questions, short verdicts   the same for questions of 5 to 12 words of the evaluation, without and with their
                    answers, the two words behind each
    stats           `corpus_stats` of the shard with a tokenizer

    substrings      `substrings_corpus` of the shard with `write=False`: reading three times, sorting, the table
    suffix array    pydivsufsort and its LCP array, on the texts of the shard in memory, one after the other
    16x, 4x, 1x     `substrings_corpus` of --largest MB, a quarter and a sixteenth of it, with 256 MB to sort and,
                    beside what the imports take, at most 1 GB of memory in all; words drawn at random, in each fifth
                    document one of 200 notices

Each measurement is a process of its own, pinned to one core. Not timed: imports, registering the evaluation (except in
`decontaminate_corpus`), and a first run over a part of the documents (fastokens: all of them). Without --shard and
--evaluation, text is generated: an evaluation of about 800,000 n-grams.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from any folder
from pilekit import read
from tests.benchmarks.generating import generated, trained_tokenizer
from tests.benchmarks.harness import DECODED, FASTOKENS, MEASURE, Figures, options, show, table, take_turns
from tests.benchmarks.peers import BENCH, peer_environment, run_peer

DATATROVE = ["datatrove[processing]==0.10.1", "spacy==3.8.18", "orjson==3.13.0", "xxhash==3.5.0"]
JANITOR = ["lm_eval==0.4.13"]
SUFFIXES = ["pydivsufsort==0.0.20", "numpy==2.3.5"]

ARGUMENTS = "SHARD, EVALUATION, TOKENIZER, TEXTS, FOLDER = sys.argv[1:]\n"

NGRAMS = """
from pathlib import Path
import numpy as np
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import compacted
with read(EVALUATION) as reader:
    NGrams.build((compacted(text) for batch in reader for text in batch.texts), 13).save(Path(FOLDER))
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

COMMAND = """
from pilekit import decontaminate_corpus
def work(out):
    decontaminate_corpus(SHARD, against=EVALUATION, out=f"{FOLDER}/{out}", write=False, jobs=1)
measure(work, "out", amount, "warm-up")
"""

VERDICTS = """
from pathlib import Path
from pilekit import decontaminate_corpus
quiz, item = Path(FOLDER) / "quiz.jsonl", {"question": "text", "answer": "answer"}
with read(EVALUATION) as reader, quiz.open("w") as file:
    for text in (text for batch in reader for text in batch.texts):
        file.write(json.dumps({"text": text, "answer": " ".join(text.split()[9:10])}) + "\\n")
def work(out):
    decontaminate_corpus(SHARD, against=quiz, out=f"{FOLDER}/{out}", write=False, jobs=1, **item)
measure(work, "out", amount, "warm-up")
"""

SHORT = """
import random
from pathlib import Path
from pilekit import decontaminate_corpus
quiz, rng = Path(FOLDER) / "short.jsonl", random.Random(3)
with read(EVALUATION) as reader, quiz.open("w") as file:
    for words in (text.split() for batch in reader for text in batch.texts):
        for at in range(0, len(words) - 14, 60):
            end = at + rng.randrange(5, 13)
            item = {"question": " ".join(words[at:end]), "answer": " ".join(words[end : end + 2])}
            file.write(json.dumps(item) + "\\n")
def work(out):
    decontaminate_corpus(SHARD, against=quiz, out=f"{FOLDER}/{out}", write=False, jobs=1, **OPTIONS)
measure(work, "out", amount, "warm-up")
"""
SHORT_QUESTIONS = 'OPTIONS = {"fields": "question"}' + SHORT
SHORT_VERDICTS = 'OPTIONS = {"question": "question", "answer": "answer"}' + SHORT

SUBSTRINGS = """
from pilekit import substrings_corpus
def work(out):
    substrings_corpus(SHARD, out=f"{FOLDER}/{out}", write=False, jobs=1, memory=256_000_000)
measure(work, "out", amount, "warm-up")
"""

SUFFIX_ARRAY = """
import numpy as np
from pydivsufsort import divsufsort, kasai
data = np.fromfile(TEXTS, np.uint8)
def work(data):
    kasai(data, divsufsort(data))
measure(work, data, len(data), data[:1000])
"""

LARGE = """
import resource, re
from pilekit import substrings_corpus
substrings_corpus(EVALUATION, out=f"{FOLDER}/warm-up", write=False, jobs=1)
taken = int(re.search("VmData:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (taken + 10**9,) * 2)
def work(out):
    if out:
        substrings_corpus(SHARD, out=f"{FOLDER}/{out}", write=False, jobs=1, memory=256_000_000)
measure(work, "out", int(TOKENIZER), "")
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
    parser = options(
        __doc__,
        megabytes=(50, "text to generate"),
        kilobytes=(400, "text for the slow peers"),
        largest=(1000, "MB of generated text for substrings"),
    )
    parser.add_argument("parts", nargs="*", default=["decontaminate", "substrings"])
    parser.add_argument("--shard", type=Path, help="search this .jsonl.zst file instead")
    parser.add_argument("--evaluation", type=Path, help="for the n-grams of this .jsonl.zst file")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: trained on the shard)")
    chosen = parser.parse_args()
    shard = chosen.shard or generated(f"cut-{chosen.megabytes}", chosen.megabytes << 20, 80)
    evaluation = chosen.evaluation or generated("cut-evaluation", 5 << 20, 81)
    core = sorted(os.sched_getaffinity(0))[:1]
    figures: dict[str, list[Figures]] = {}
    tables = []
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as folder:
        tokenizer = chosen.tokenizer or trained_tokenizer(shard, Path(folder) / "tokenizer.json")
        some = Path(folder) / "texts"

        def run(source: str, python: Path = Path(sys.executable), of: Path = shard, text: str = "") -> Figures:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                files = (of.resolve(), evaluation.resolve(), text or tokenizer, some, scratch)
                environment = {"RAYON_NUM_THREADS": "1"}
                script = MEASURE + ARGUMENTS + source
                measured: Figures = run_peer(python, script, *files, environment=environment, cores=core)
                return measured

        def measure(peers: list[str], rounds: int, **contestants: Callable[[], Figures]) -> None:
            measured = take_turns({name.replace("_", " "): of for name, of in contestants.items()}, rounds)
            figures.update(measured)
            tables.extend(table("", measured, peer) for peer in peers)

        if "decontaminate" in chosen.parts:
            janitor = peer_environment("janitor", JANITOR, ["--no-deps"], on_top=True)
            datatrove = peer_environment("datatrove-decontamination", DATATROVE)
            write_some(shard, some, chosen.kilobytes * 1000)
            measure(
                ["fastokens", "Janitor", "datatrove"],
                chosen.rounds,
                kernel=partial(run, DECODED + NGRAMS + KERNEL),
                n_grams=partial(run, DECODED + NGRAMS + FIND),
                fastokens=partial(run, DECODED + FASTOKENS + "measure(work, batches, amount, batches)"),
                Janitor=partial(run, SOME + JANITOR_CODE, janitor),
                datatrove=partial(run, SOME + DATATROVE_CODE, datatrove),
            )
            sources = {"decontaminate": COMMAND, "verdicts": VERDICTS, "stats": STATS}
            commands = {name: partial(run, DECODED + source) for name, source in sources.items()}
            measure(["stats", "decontaminate"], chosen.rounds, **commands)
            short = {"short_questions": SHORT_QUESTIONS, "short_verdicts": SHORT_VERDICTS}
            commands = {name: partial(run, DECODED + source) for name, source in short.items()}
            measure(["short questions"], chosen.rounds, **commands)
        if "substrings" in chosen.parts:
            suffixes = peer_environment("suffix-array", SUFFIXES)
            with read(str(shard)) as batches:
                some.write_bytes(b"".join(text.encode() for batch in batches for text in batch.texts))
            measure(
                ["suffix array"],
                chosen.rounds,
                substrings=partial(run, DECODED + SUBSTRINGS),
                suffix_array=partial(run, SUFFIX_ARRAY, suffixes),
            )
            sizes = {f"{times}x": chosen.largest * 1_000_000 * times // 16 for times in (16, 4, 1)}
            shards = {name: (distinct(f"distinct-{size}", size), str(size)) for name, size in sizes.items()}
            large = {name: partial(run, LARGE, of=of, text=text) for name, (of, text) in shards.items()}
            measure(["1x"], 1, **large)
    show(chosen, figures, tables)


def distinct(name: str, size: int) -> Path:
    """A shard of about `size` bytes of words drawn at random; every fifth document begins with one of 200 notices."""
    path = BENCH / "data" / f"{name}.jsonl.zst"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(5)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    words = np.array(["".join(generator.choice(letters, length)) for length in generator.integers(2, 11, 20_000)])
    notices = [" ".join(generator.choice(words, 60)) for _ in range(200)]
    written = 0
    with path.with_suffix(".part").open("wb") as file, zstandard.ZstdCompressor(1).stream_writer(file) as frame:
        while written < size:
            drawn = " ".join(words[(generator.random(100_000) ** 3 * len(words)).astype(np.int64)])
            for at in range(0, len(drawn), 3000):
                notice = notices[written % 200] + "\n" if at % 15_000 == 0 else ""
                text = notice + drawn[at : at + 3000]
                frame.write(json.dumps({"text": text}).encode() + b"\n")
                written += len(text)
    path.with_suffix(".part").rename(path)
    return path


def write_some(shard: Path, path: Path, size: int) -> None:
    """Write texts of about `size` characters, from the whole shard, as lines of JSON strings."""
    with read(str(shard)) as batches:
        texts = [text for batch in batches for text in batch.texts]
    texts = texts[:: max(1, sum(map(len, texts)) // size)]
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))


if __name__ == "__main__":
    main()
