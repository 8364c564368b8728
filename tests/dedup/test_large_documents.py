"""Two near-copies of 200 MB each: found, and compared, in memory of a few times the size of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SIZE = 200_000_000

RUN = """
import json, re, sys
from pathlib import Path
import numpy as np
from pilekit.corpus import shard_of
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.match.population import Population
from pilekit.dedup.compare.store_shingles import store_shingles
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
    population = Population([made], "longest", folder)
    ranks = sorted(rank for some, _ in population.chunks(["number"]) for rank in some.tolist())
    candidates = given_candidates(folder / "candidates", 2, [(ranks[1], ranks[0])], [])
    before = peak()
    store = store_shingles(population, [shard], np.ones(2, dtype=bool), folder / "sets", jobs=1)
    stored = peak() - before
    edges = resolve(candidates, store, 0.8, folder, 64 << 20).edges
    print(json.dumps([stored, peak() - before - stored, edges]))
"""


@pytest.mark.slow
def test_two_documents_of_200_mb(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"w{i:05d} " for i in range(100_000)])[rng.integers(0, 100_000, SIZE // 7)].tolist()
    with (tmp_path / "00.jsonl").open("w", encoding="utf-8") as file:
        for copy in range(2):
            words[copy :: len(words) // 20] = ["changed "] * len(words[copy :: len(words) // 20])
            file.write(json.dumps({"text": "".join(words), "meta": {"pile_set_name": "ArXiv"}}) + "\n")
    del words
    (tmp_path / "tiny.jsonl").write_text('{"text": "some words"}\n')
    found = []
    for step in ("sketch", "compare"):
        command = [sys.executable, "-c", RUN, str(tmp_path), step]
        found.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # The line, what the decoder makes of it, and the text; the second document only when the first one is gone.
    assert int(found[0]) < 3.5 * SIZE
    stored, compared, edges = json.loads(found[1])
    assert stored < 4.5 * SIZE
    # Sets are mapped: the system takes those pages back whenever it needs memory.
    assert compared < 0.5 * SIZE + (tmp_path / "sets" / "0.sets").stat().st_size
    assert len(edges) == 1
    assert edges[0][2] > 0.9999
