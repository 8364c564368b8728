"""A million phrases under a limit of the process's memory: 64 bytes a phrase, and 100 MB."""

from __future__ import annotations

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
