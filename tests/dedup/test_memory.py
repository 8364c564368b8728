"""Twelve million documents in 144 MB, under a limit of the process's memory, and every removal is right.

The test covers all steps from the sketches to the removals: exact copies, 1.7 million candidate pairs, the comparison
of their shingle sets and of 240,000 documents with a licence header, and the choice. In memory, one band's keys, ranks
and their order alone would take 288 MB, and bands follow one another; the shingle sets take 350 MB.

Two near-copies of 200 MB each are found, and compared, in memory of a few times the size of one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pilekit.dedup.document_table import ranks_of
from pilekit.dedup.output.removed_table import EXACT, NEAR
from tests.dedup.generated import BANDS, GROUPS, LICENCE, THRESHOLD, shingles, text_of, values
from tests.memory_limit import NO_HOLES

Ids = npt.NDArray[np.int64]

DOCUMENTS = 12_000_000
MEMORY = 144 << 20
BESIDE = 96 << 20
"""For a bit per document (three times 1.5 MB), and for arrays that steps hand to each other."""

RUN = """
import json, sys
from pathlib import Path
import numpy as np
from tests.dedup.generated import decide_generated
from tests.memory_limit import limit_memory

folder, documents, memory, beside = Path(sys.argv[1]), *map(int, sys.argv[2:])
decide_generated(folder / "warm", 40_000, 1)  # loads and compiles all there is
limit_memory(memory + beside)
try:
    one_band = np.empty((3, documents), dtype=np.uint64)
except MemoryError:
    decisions, counts = decide_generated(folder / "all", documents, memory)
    with (folder / "removals").open("wb") as file:
        for ids, rows in decisions.removals(1 << 16):
            columns = ids, rows["kept"], rows["similarity"], rows["reason"]
            file.write(np.stack([column.astype(np.float64) for column in columns], axis=1).data)
    print(json.dumps(counts))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twelve_million_documents(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path), *map(str, (DOCUMENTS, MEMORY, BESIDE))]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | NO_HOLES).stdout
    _, hot_runs, hot_documents = json.loads(printed)
    # Documents with the licence header are not alike, and far too many to compare with each other.
    assert hot_runs == BANDS
    assert 0 < hot_documents <= len(documents_of(LICENCE))

    first, copies = expected_copies()
    near, kept, similarity = expected_edges()
    assert len(near) > 500_000
    partner, value, reason = (np.zeros(DOCUMENTS, dtype=kind) for kind in (np.int64, np.float64, np.int64))
    partner[copies], value[copies], reason[copies] = first, 1, EXACT
    partner[near], value[near], reason[near] = kept, similarity, NEAR
    gone = np.flatnonzero(reason == EXACT)
    gone = gone[reason[partner[gone]] == NEAR]
    keeper = partner[gone]
    partner[gone], value[gone], reason[gone] = partner[keeper], value[keeper], NEAR
    removed = np.flatnonzero(reason)
    found = np.fromfile(tmp_path / "removals").reshape(-1, 4).T
    assert np.array_equal(found, np.stack([removed, partner[removed], value[removed], reason[removed]]))


def documents_of(kinds: range, until: int = DOCUMENTS) -> Ids:
    documents: Ids = (np.arange(0, until, 1000)[:, None] + np.array(kinds)).ravel()
    return documents


def expected_copies() -> tuple[Ids, Ids]:
    """(the first document with the text, the copy) of all copies: texts of copies are equally long."""
    documents = documents_of(range(100))
    first = np.array([text_of(document, DOCUMENTS) for document in documents.tolist()])
    copy = documents != first
    return first[copy], documents[copy]


def expected_edges() -> tuple[Ids, Ids, npt.NDArray[np.float64]]:
    """(removed, kept, similarity): in each group, each member is compared with kept ones that share a band with it."""
    found = []
    for begin in range(0, DOCUMENTS // 4, 1_000_000):
        first = documents_of(GROUPS, 1_000_000) + begin
        group = np.stack([first + quarter * DOCUMENTS // 4 for quarter in range(4)])
        sizes = values("text_bytes", group.ravel(), DOCUMENTS)
        ranks = ranks_of(group.ravel(), sizes, "longest", fixed=False).reshape(group.shape)
        group = np.take_along_axis(group, np.argsort(ranks, axis=0), axis=0)
        sets, counts = zip(*(shingles(documents, DOCUMENTS) for documents in group), strict=True)
        removed = np.zeros(group.shape, dtype=np.bool_)
        for later in range(1, 4):
            best, partner = np.zeros(len(first)), np.zeros(len(first), dtype=np.int64)
            for earlier in range(later):
                shared = ((sets[later] == sets[earlier]) & (sets[later] != 0)).sum(axis=1)
                similarity = shared / (counts[later] + counts[earlier] - shared)
                better = share_a_band(group[later], group[earlier]) & ~removed[earlier] & (similarity > best)
                better &= similarity >= THRESHOLD
                best[better], partner[better] = similarity[better], group[earlier, better]
            gone = removed[later] = best > 0
            found.append((group[later, gone], partner[gone], best[gone]))
    removed_ids, kept, similarities = (np.concatenate(column) for column in zip(*found, strict=True))
    return removed_ids, kept, similarities


def share_a_band(one: Ids, other: Ids) -> npt.NDArray[np.bool_]:
    share = np.zeros(len(one), dtype=np.bool_)
    for band in range(BANDS):
        keys = [values(f"key_{band:03d}", documents, DOCUMENTS) for documents in (one, other)]
        share |= keys[0] == keys[1]
    return share


LARGE_BYTES = 200_000_000

COMPARE_TWO = """
import json, re, sys
from pathlib import Path
import numpy as np
from pilekit.corpus import Corpus, shard_of
from pilekit.shards.corpus_job import CorpusJob
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.document_table import DocumentTable
from pilekit.dedup.shingle_store import store_shingles
from tests.dedup.given import given_candidates, resolve, sketch

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

folder, step = Path(sys.argv[1]), sys.argv[2]

def sketched(name):
    return shard_of(str(folder / name)), sketch(folder / name, folder / "sketches", bands=Bands(2, 2), ngram=5)

sketched("tiny.jsonl")  # loads and compiles all there is
before = peak()
shard, made = sketched("00.jsonl")
if step == "sketch":
    print(peak() - before)
if step == "compare":
    document_table = DocumentTable([made], "longest", folder)
    ranks = sorted(rank for some, _ in document_table.chunks(["number"]) for rank in some.tolist())
    candidates = given_candidates(folder / "candidates", 2, [(ranks[1], ranks[0])], [])
    before = peak()
    job = CorpusJob(Corpus(shard.path), jobs=1)
    store = store_shingles(job, document_table, [shard], np.ones(2, dtype=bool), folder / "sets")
    stored = peak() - before
    edges = resolve(candidates, store, 0.8, folder).edges
    print(json.dumps([stored, peak() - before - stored, edges]))
"""


@pytest.mark.slow
def test_two_documents_of_200_mb(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"w{i:05d} " for i in range(100_000)])[rng.integers(0, 100_000, LARGE_BYTES // 7)].tolist()
    with (tmp_path / "00.jsonl").open("w", encoding="utf-8") as file:
        for copy in range(2):
            words[copy :: len(words) // 20] = ["changed "] * len(words[copy :: len(words) // 20])
            file.write(json.dumps({"text": "".join(words), "meta": {"pile_set_name": "ArXiv"}}) + "\n")
    del words
    (tmp_path / "tiny.jsonl").write_text('{"text": "some words"}\n')
    found = []
    for step in ("sketch", "compare"):
        command = [sys.executable, "-c", COMPARE_TWO, str(tmp_path), step]
        found.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # The line, what the decoder makes of it, and the text; the second document only when the first one is gone.
    assert int(found[0]) < 3.5 * LARGE_BYTES
    stored, compared, edges = json.loads(found[1])
    assert stored < 4.5 * LARGE_BYTES
    # Sets are mapped: the system takes those pages back whenever it needs memory.
    assert compared < 0.5 * LARGE_BYTES + (tmp_path / "sets" / "0.sets").stat().st_size
    assert len(edges) == 1
    assert edges[0][2] > 0.9999
