"""Limits of memory: 64 bytes for each of a million phrases, and 100 MB; none for the places of traced passages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from pilekit import ShardWriter
from tests.memory_limit import NO_HOLES
from tests.shards.making import record

PHRASES = 1_000_000

TRACED, PLACES = 10_000, 40
"""Texts, and documents that have each."""

RUN = """
import sys
from pathlib import Path
from pilekit import count_phrases
from tests.memory_limit import limit_memory

folder, options = Path(sys.argv[1]), {"words": sys.argv[2] == "words", "jobs": 1}

def work(phrases, out):
    counts = count_phrases(folder / "data.jsonl.zst", phrases, folder / out, **options)
    print(counts.summary["phrases"], counts.summary["found"], counts.first_rows(1)["occurrences"][0])

work(folder / "few.txt", "warm-up.parquet")  # loads and compiles all there is
limit_memory(64 * int(sys.argv[3]) + 100_000_000)
work(folder / "phrases.txt", "counts.parquet")
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", ["bytes", "words"])
def test_a_million_phrases_take_64_bytes_each_and_100_mb(tmp_path: Path, by: str) -> None:
    random = Random(3)
    words = [f"{number * 7919 % 999_983:x}" for number in range(100_000)]
    phrases = [" ".join(random.choices(words, k=7)) for _ in range(PHRASES)]
    assert len(set(phrases)) == PHRASES
    assert 30 < sum(map(len, phrases)) / PHRASES < 50
    (tmp_path / "phrases.txt").write_text("\n".join(phrases))
    (tmp_path / "few.txt").write_text("the first of all\nand the second")
    with ShardWriter(tmp_path / "data.jsonl.zst") as writer:
        for begin in range(0, PHRASES, 20):  # Each phrase is there once, and the first twice.
            writer.write_lines([record(" and ".join([*phrases[begin : begin + 20], phrases[0] * (begin == 0)]), "A")])
    command = [sys.executable, "-c", RUN, str(tmp_path), by, str(PHRASES)]
    done = subprocess.run(command, check=False, env=os.environ | NO_HOLES, capture_output=True, text=True)
    assert done.stdout.split("\n")[1:] == [f"{PHRASES} {PHRASES} 2", ""], done.stderr[-2000:]


TRACE = """
import sys
from pathlib import Path
from pilekit import trace_texts
from tests.memory_limit import limit_memory

folder, options = Path(sys.argv[1]), {"documents": int(sys.argv[2]), "common": 0, "jobs": 1}
trace_texts(folder / "data.jsonl.zst", ["a b c d e f g h"], folder / "warm-up.parquet", **options)
limit_memory(100_000_000)
traces = trace_texts(folder / "data.jsonl.zst", folder / "texts.jsonl", folder / "traces.parquet", **options)
rows = (row for batch in traces.batches(128) for row in batch.to_pylist())
places = sum(len(passage["places"]) for row in rows for passage in row["passages"])
print(traces.summary["passages"], places)
"""


@pytest.mark.slow
def test_places_of_passages_take_no_memory_however_many_there_are(tmp_path: Path) -> None:
    """All places together take 250 MB as objects."""
    words = [f"{number * 7919 % 999_983:x}" for number in range(8 * TRACED)]
    texts = [" ".join(words[at : at + 8]) for at in range(0, len(words), 8)]
    with (tmp_path / "texts.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    with ShardWriter(tmp_path / "data.jsonl.zst") as writer:
        for _ in range(PLACES):
            for begin in range(0, TRACED, 100):
                writer.write_lines([record(" and some more words ".join(texts[begin : begin + 100]), "A")])
    command = [sys.executable, "-c", TRACE, str(tmp_path), str(PLACES)]
    done = subprocess.run(command, check=False, env=os.environ | NO_HOLES, capture_output=True, text=True)
    assert done.stdout.split() == [str(TRACED), str(TRACED * PLACES)], done.stderr[-2000:]
