"""The sums over some documents, and the figures computed from them.

Bytes, tokens and nats are summed over documents, and bits per byte is nll / (ln 2 * bytes): every byte counts alike,
whatever its document. Every figure has an interval, because documents are a sample of all text, and another sample
would have given another figure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pilekit.display.table_result import Result

APPROXIMATE_BELOW = 100
"""An interval of fewer documents is rough: lengths have heavy tails (docs/bpb.md has measured coverage)."""


def rounded(figure: float | tuple[float, float] | None) -> str:
    """A figure or an interval with four decimals."""
    if isinstance(figure, tuple):
        return f"[{figure[0]:.4f}, {figure[1]:.4f}]"
    return "None" if figure is None else f"{figure:.4f}"


def model_path(protocol: dict[str, Any]) -> str | None:
    """The path of a protocol's model, and of its adapter if it has one; None: a model in memory."""
    model = protocol["model"]
    return f"{model['path']} + {model['adapter']['path']}" if "adapter" in model else model["path"]


def _perplexity(bpb: float | None) -> float | None:
    return None if bpb is None or bpb >= 1024 else 2.0**bpb


@dataclass(frozen=True, slots=True)
class Score(Result):
    """Sums over some documents, and the figures computed from them.

    documents     number of documents, empty documents included
    bytes         UTF-8 bytes of their raw text
    tokens        tokens predicted; without a prefix, a document's first token is not
    nll           sum of their negative log-likelihoods in nats
    interval      95 % interval of `bpb`; None for fewer than ten documents with text
    paper_bytes   in the paper's variant, replaces `bytes`: `tokens` divided by the paper's constant; 0.0 if no constant
                  is published. None: bytes are counted
    """

    FIGURES: ClassVar[tuple[str, ...]] = (
        *("documents", "bytes", "tokens", "bpb", "interval", "approximate=is_approximate"),
        *("nll", "byte_perplexity", "nats_per_token", "tokens_per_byte"),
    )

    documents: int = 0
    bytes: int = 0
    tokens: int = 0
    nll: float = 0.0
    interval: tuple[float, float] | None = None
    paper_bytes: float | None = None

    def __repr__(self) -> str:
        sums = f"documents={self.documents:,}, bytes={self.bytes:,}, tokens={self.tokens:,}"
        return f"Score(bpb={rounded(self.bpb)}, interval={rounded(self.interval)}, {sums})"

    @property
    def bpb(self) -> float | None:
        """Bits per byte; None if there is no byte, or no token was predicted."""
        divisor = self.bytes if self.paper_bytes is None else self.paper_bytes
        return self.nll / (math.log(2) * divisor) if divisor and self.tokens else None

    @property
    def byte_perplexity(self) -> float | None:
        """2 ** bpb; None if there is no such number."""
        return _perplexity(self.bpb)

    @property
    def tokens_per_byte(self) -> float | None:
        """Tokens predicted per byte of raw text; None if there is no byte."""
        return self.tokens / self.bytes if self.bytes else None

    @property
    def nats_per_token(self) -> float | None:
        """The mean negative log-likelihood of a token; None if there is no token."""
        return self.nll / self.tokens if self.tokens else None

    @property
    def is_approximate(self) -> bool:
        """Whether there are under 100 documents, so that the interval may be too narrow."""
        return self.documents < APPROXIMATE_BELOW


@dataclass(frozen=True, slots=True)
class Weighted(Result):
    """The subsets' bits per byte, weighted by their share in the whole corpus.

    bpb              the mean, the weights renormalised over the subsets that have a figure
    interval         95 % interval; None for fewer than ten documents with text
    weight           share of the corpus in these subsets, 0 to 1
    missing          subsets of the manifest without a figure, by name
    is_approximate   whether any of them has under 100 documents
    weights          by subset, renormalised over those that have a figure; they sum to 1
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("bpb", "interval", "approximate=is_approximate", "weight", "missing")

    bpb: float
    interval: tuple[float, float] | None
    weight: float
    missing: tuple[str, ...] = ()
    is_approximate: bool = False
    weights: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def byte_perplexity(self) -> float | None:
        """2 ** bpb; None if there is no such number."""
        return _perplexity(self.bpb)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a scoring: bytes of the weights in memory, tokens scored, and seconds."""

    weight_bytes: int
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second, of all ranks together."""
        return self.tokens / self.seconds
