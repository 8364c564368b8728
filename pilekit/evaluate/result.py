"""The figures of an evaluation, and the protocol without which they mean nothing.

A figure is sums: documents, bytes, tokens and nats add up, so the overall figure is the sum over the subsets, and bits
per byte is what follows from the sums: nll / (ln 2 * bytes). It weighs every byte alike, whatever document it is in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilekit.shards import write_atomically

RESULT_FILE = "result.json"


@dataclass(frozen=True, slots=True)
class Score:
    """What was scored, and how well it was predicted.

    documents   documents, empty ones counted
    bytes       UTF-8 bytes of their raw text
    tokens      tokens predicted; without a prefix, a document's first token is not
    nll         sum of their negative log-likelihoods in nats
    """

    documents: int = 0
    bytes: int = 0
    tokens: int = 0
    nll: float = 0.0

    @property
    def bpb(self) -> float | None:
        """Bits per byte; None where there is no byte."""
        return self.nll / (math.log(2) * self.bytes) if self.bytes else None

    def to_json(self) -> dict[str, Any]:
        """`{"documents", "bytes", "tokens", "bpb", "nll"}`."""
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "tokens": self.tokens,
            "bpb": self.bpb,
            "nll": self.nll,
        }


def total(scores: Iterable[Score]) -> Score:
    """All of `scores` as one."""
    scores = list(scores)
    return Score(
        documents=sum(score.documents for score in scores),
        bytes=sum(score.bytes for score in scores),
        tokens=sum(score.tokens for score in scores),
        nll=math.fsum(score.nll for score in scores),
    )


@dataclass(frozen=True, slots=True)
class BitsPerByte:
    """What `bits_per_byte` found.

    overall    all subsets together: their sums
    subsets    by name, in the manifest's order, then other labels in the order of their first documents
    protocol   all that the figures depend on, as JSON types; two results compare only where it agrees
    """

    overall: Score
    subsets: dict[str, Score]
    protocol: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """`{"overall": {...}, "subsets": {name: {...}}, "protocol": {...}}`."""
        return {
            "overall": self.overall.to_json(),
            "subsets": {name: score.to_json() for name, score in self.subsets.items()},
            "protocol": self.protocol,
        }


def result_text(result: BitsPerByte) -> str:
    """The text of `result.json`."""
    return json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"


def write_result(result: BitsPerByte, folder: str | Path) -> Path:
    """Write `result.json` into `folder`, which is made if it is missing; the whole file or none. Returns its path."""
    path = Path(folder) / RESULT_FILE
    with write_atomically(path) as file:
        file.write(result_text(result).encode())
    return path
