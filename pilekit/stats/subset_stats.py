"""`SubsetStats`: the figures of a subset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.display.wrong_names import NearestNames


@dataclass(frozen=True, slots=True)
class SubsetStats(NearestNames):
    """The figures of one subset, or of all subsets together.

    bytes          UTF-8 bytes of the texts
    share          of all bytes counted, 0 to 1
    paper_share    of all bytes, or of the bytes of the selected subsets, by the manifest (the paper's for the Pile),
                   0 to 1; None where the manifest has none
    mean_bytes, median_bytes, p99_bytes   of a document; the quantiles within 0.8 %; nan without documents
    lengths        histogram of the documents' bytes, int64 [BINS] (see histogram.py)
    tokens         without EOD; None without a tokenizer
    copies         documents whose text occurred before, in any subset; None if they were not counted
    joined         labels of its documents that spell it otherwise
    """

    name: str
    documents: int
    bytes: int
    share: float
    paper_share: float | None
    mean_bytes: float
    median_bytes: float
    p99_bytes: float
    lengths: npt.NDArray[np.int64] = field(repr=False)
    tokens: int | None = None
    copies: int | None = None
    joined: tuple[str, ...] = ()

    @property
    def tokens_per_byte(self) -> float | None:
        """Tokens per UTF-8 byte; None without a tokenizer or without bytes."""
        return None if self.tokens is None or not self.bytes else self.tokens / self.bytes

    def to_dict(self) -> dict[str, Any]:
        """The figures; `tokens` and `copies` only where they were counted."""
        names = ["documents", "bytes", "share", "mean_bytes", "median_bytes", "p99_bytes"]
        names += [name for name in ("tokens", "copies") if getattr(self, name) is not None]
        return {**{name: getattr(self, name) for name in names}, "joined": list(self.joined)}
