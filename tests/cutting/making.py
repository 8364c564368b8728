"""Evaluations and documents of made-up words, for the tests of verdicts."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

_RNG = random.Random(11)
WORDS = ["".join(_RNG.choices("abcdefghijklmnop", k=_RNG.randrange(3, 9))) for _ in range(4000)]
ONE = "Which of the seven colours of a rainbow is the outermost, red or violet, and why is that so?"


def written(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "hits.parquet").to_pylist()
