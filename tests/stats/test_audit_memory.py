"""The memory of a whole audit does not grow with the corpus: reading, lengths, and sorting on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pilekit import ShardWriter
from tests.memory_limit import NO_HOLES
from tests.stats.auditing import every_figure, manifest_of

TEXTS = 2_000_000
"""Documents, and a quarter of them have a copy in the other shard."""

FILLING = " of the many things that a text may say" * 5

RUN = """
import sys
from pathlib import Path
from pilekit import Corpus, audit_corpus
from pilekit.shards.index import document_rows
from pilekit.stats import audit
from tests.memory_limit import limit_memory

folder = Path(sys.argv[1])
document_rows.SCANNED_FROM_BYTES = 0 if sys.argv[2] == "scanned" else sys.maxsize
audit.sorting_memory = lambda: 64 << 20  # the least that it gives

few, many = (Corpus(sorted(folder.glob(f"{name}-*")), manifest=folder / "mine.toml") for name in ("few", "many"))
audit_corpus(few, jobs=1)  # loads and compiles all there is
limit_memory(int(sys.argv[3]) << 20)
print(*(figure.counted for figure in audit_corpus(many, jobs=1).figures))
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scanned", "decoded"])
def test_an_audit_takes_the_same_memory_for_any_corpus(tmp_path: Path, form: str) -> None:
    """400 MB of text, 16 MB of hashes, sorted in runs of 3: 50 MB more than for a first megabyte are enough."""
    manifest_of(tmp_path / "mine.toml", every_figure(["things that"]))
    for name, texts in (("few", 4000), ("many", TEXTS)):
        for shard in range(2):
            with ShardWriter(tmp_path / f"{name}-{shard}.jsonl.zst") as writer:
                first = shard * texts // 4
                for begin in range(first, first + texts // 2, 1000):
                    writer.write_lines(
                        [b'{"text": "%d%s"}' % (number, FILLING.encode()) for number in range(begin, begin + 1000)]
                    )
    command = [sys.executable, "-c", RUN, str(tmp_path), form, "50"]
    done = subprocess.run(command, env={**os.environ, **NO_HOLES}, capture_output=True, text=True, check=False)
    numbers = [str(number) for number in range(3 * TEXTS // 4)]
    copied = TEXTS // 4
    lengths = np.sort([len(FILLING) + len(number) for number in [*numbers, *numbers[copied : 2 * copied]]])
    wanted = [TEXTS, lengths.sum(), len(numbers), 2 * copied, copied, lengths[-1], lengths[0]]
    wanted += [np.median(lengths), 0, 2, 2, 2, 5 * TEXTS]
    assert [*map(float, done.stdout.split())] == wanted, done.stderr[-2000:]
