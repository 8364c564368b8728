"""Scripts by which other tools remove near-duplicates from a shard, as short as their documentation suggests.

Each runs in the Python of its own environment, on two shards; the first is tiny and not measured. It reads the shard
with zstandard and orjson (datatrove with its own reader), keeps the first of similar documents if it can choose, and
prints seconds and the numbers of the kept documents.

All use word 5-grams, 128 permutations and a threshold of 0.8, each in its own way:

rensa        words by `re`, as no word is made in Rust; RMinHash and its deduplicator, with 16 and with 32 bands
gaoya        words, n-grams, hashes and index in Rust, on all cores; words end at white space
datasketch   words by `re`; MinHash with affine32 and xxHash, which is its fastest, in bulk; MinHashLSH by its own rule
             for bands; and with those that pilekit chooses, the candidates checked by their signatures
datatrove    signatures, buckets, clusters and filter, one after another in one process, with spaCy's words; 16 x 8
"""

from __future__ import annotations

from dataclasses import dataclass

READ = """
import json, re, sys, time, orjson, zstandard, io
WORDS = re.compile(rb"[a-z0-9_\\x80-\\xff]+")
def texts(path):
    with open(path, "rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        for line in io.BufferedReader(stream, 1 << 20):
            yield orjson.loads(line)["text"]
def shingles(text):
    words = WORDS.findall(text.encode().lower())
    if len(words) < 5:
        return [b" ".join(words) or text.encode()]
    return list({b" ".join(gram) for gram in zip(words, words[1:], words[2:], words[3:], words[4:])})
def batches(path, size=1000):
    batch = []
    for text in texts(path):
        batch.append(text)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
def measure(keep):
    keep(sys.argv[1])
    begin = time.perf_counter()
    kept = keep(sys.argv[2])
    print(json.dumps({"seconds": time.perf_counter() - begin, "kept": [int(number) for number in kept]}))
"""

RENSA = r"""
from rensa import RMinHash, RMinHashDeduplicator
STRINGS = re.compile(r"[a-z0-9_\x80-\U0010ffff]+")
def strings(text):
    words = STRINGS.findall(text.lower())
    if len(words) < 5:
        return [" ".join(words) or text]
    return list({" ".join(gram) for gram in zip(words, words[1:], words[2:], words[3:], words[4:])})
def keep(path):
    index = RMinHashDeduplicator(threshold=0.8, num_perm=128, use_lsh=True, num_bands=BANDS, seed=42)
    kept, number = [], 0
    for batch in batches(path):
        sketches = RMinHash.from_token_sets([strings(text) for text in batch], 128, 42)
        new = index.add_pairs([(str(number + place), sketch) for place, sketch in enumerate(sketches)])
        kept += [number + place for place, is_new in enumerate(new) if is_new]
        number += len(batch)
    return kept
measure(keep)
"""

GAOYA = """
from gaoya.minhash import MinHashStringIndex
def keep(path):
    index = MinHashStringIndex(hash_size=32, jaccard_threshold=0.8, num_bands=None, band_size=None, num_hashes=128,
                               analyzer="word", lowercase=True, ngram_range=(5, 5), id_container="smallvec")
    number = 0
    for batch in batches(path):
        index.par_bulk_insert_docs(list(range(number, number + len(batch))), batch)
        number += len(batch)
    removed, number = set(), 0
    for batch in batches(path):
        for place, similar in enumerate(index.par_bulk_query(batch)):
            if any(other < number + place and other not in removed for other in similar):
                removed.add(number + place)
        number += len(batch)
    return [place for place in range(number) if place not in removed]
measure(keep)
"""

DATASKETCH = """
import xxhash
from datasketch import MinHash, MinHashLSH
def keep(path):
    index = MinHashLSH(threshold=0.8, num_perm=128, params=PARAMS)
    kept = []
    for number, text in enumerate(texts(path)):
        sketch = MinHash(128, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)
        sketch.update_batch(shingles(text))
        if not any(VERIFY for other in index.query(sketch)):
            index.insert(number, sketch)
            sketches[number] = sketch
            kept.append(number)
    return kept
sketches = {}
measure(keep)
"""

DATATROVE = """
import shutil, tempfile
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from loguru import logger
logger.disable("datatrove")
kept = []
class Collect(PipelineStep):
    name, type = "collect", "collect"
    def run(self, data, rank=0, world_size=1):
        for document in data:
            kept.append(int(document.id.rsplit("/", 1)[1]))
            yield document
def keep(path):
    kept.clear()
    config = MinhashConfig(n_grams=5, num_buckets=16, hashes_per_bucket=8)
    folder, _, name = path.rpartition("/")
    out = tempfile.mkdtemp(prefix="pilekit-bench-")
    reader = lambda: JsonlReader(folder, glob_pattern=name, compression="zstd")
    steps = [
        ("signatures", 1, [reader(), MinhashDedupSignature(f"{out}/signatures", config=config)]),
        ("buckets", 16, [MinhashDedupBuckets(f"{out}/signatures", f"{out}/buckets", config=config)]),
        ("clusters", 1, [MinhashDedupCluster(f"{out}/buckets", f"{out}/removed", config=config)]),
        ("filter", 1, [reader(), MinhashDedupFilter(f"{out}/removed"), Collect()]),
    ]
    for title, tasks, pipeline in steps:
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=f"{out}/logs-{title}").run()
    shutil.rmtree(out)
    return list(kept)
measure(keep)
"""

_READING = ["zstandard==0.25.0", "orjson==3.13.0"]


@dataclass(frozen=True)
class Peer:
    """A tool: its environment's name and requirements, its script, and the MB of text that take a minute."""

    environment: str
    requirements: list[str]
    script: str
    megabytes: int


def _rensa(bands: int) -> Peer:
    return Peer("rensa", ["rensa==0.5.0", *_READING], READ + RENSA.replace("BANDS", str(bands)), 500)


def _datasketch(bands: str, check: str) -> Peer:
    code = DATASKETCH.replace("PARAMS", bands).replace("VERIFY", check)
    return Peer("datasketch", ["datasketch==2.0.0", "xxhash==4.1.0", *_READING], READ + code, 250)


PEERS = {
    "rensa, 16 bands": _rensa(16),
    "rensa, 32 bands": _rensa(32),
    "gaoya": Peer("gaoya", ["gaoya==0.2.2", *_READING], READ + GAOYA, 500),
    "datasketch": _datasketch("None", "True"),
    "datasketch, 21 x 6, checked": _datasketch("(21, 6)", "sketches[other].jaccard(sketch) >= 0.8"),
    "datatrove": Peer(
        "datatrove", ["datatrove[io,processing]==0.10.1", "spacy==3.8.18", *_READING], READ + DATATROVE, 30
    ),
}
