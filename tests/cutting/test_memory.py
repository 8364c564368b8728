"""Millions of documents under a limit of the process's memory.

Beside what the imports take, `decontaminate` takes 57 MB for a million documents, and `substrings` 82 MB for a million
and 84 MB for five. The limits leave less than 2 and 15 bytes for each document more. `substrings` reads its shards four
times, so it gets fewer documents.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from tests.memory_limit import NO_HOLES

EVERY = 10_000
PLANTED = " ".join(f"planted{word}" for word in range(13))
"""The text of every document whose number is a multiple of `EVERY`."""

RUN = """
import sys
from pathlib import Path
from pilekit import cut_substrings, decontaminate
from tests.memory_limit import limit_memory

folder, command, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def counts(name):
    options = {"out": folder / f"out-{name}", "write": False, "jobs": 1}
    if command == "substrings":
        found = cut_substrings(folder / name, min_bytes=20, memory=64_000_000, **options)
    else:
        found = decontaminate(folder / name, against=folder / "quiz.jsonl", common=0, **options)
    return [found.summary[part] for part in ("read", "untouched", "cut", "dropped", "spans")]

counts("warm.jsonl.zst")  # loads and compiles all there is
limit_memory(limit)
print(counts("all.jsonl.zst"))
"""


def write(path: Path, documents: int) -> None:
    """Write documents of two words that no other has, and the planted ones."""
    with path.open("wb") as file, zstandard.ZstdCompressor(1).stream_writer(file) as lines:
        for first in range(0, documents, EVERY):
            texts = [f"{n * 0x9E3779B97F4A7C15 % (1 << 64):x} {n:x}" for n in range(first + 1, first + EVERY)]
            of = (f'{{"text":"{text}","meta":{{"pile_set_name":"X"}}}}\n' for text in (PLANTED, *texts))
            lines.write("".join(of).encode())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("command", "documents", "limit"), [("decontaminate", 20_000_000, 80 << 20), ("substrings", 5_000_000, 128 << 20)]
)
def test_memory_does_not_grow_with_documents(tmp_path: Path, command: str, documents: int, limit: int) -> None:
    (tmp_path / "quiz.jsonl").write_text(f'{{"text":"{PLANTED}"}}\n')
    write(tmp_path / "warm.jsonl.zst", 4 * EVERY)
    write(tmp_path / "all.jsonl.zst", documents)
    run = [sys.executable, "-c", RUN, str(tmp_path), command, str(limit)]
    done = subprocess.run(run, check=False, env=os.environ | NO_HOLES, capture_output=True, text=True)
    planted = documents // EVERY - (command == "substrings")  # The first of equal documents stays.
    assert done.stdout == f"{[documents, documents - planted, 0, planted, planted]}\n", done.stderr[-2000:]
