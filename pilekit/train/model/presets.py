"""The shapes of the Pythia models (Biderman et al., 2023), which were trained on the Pile.

All are GPT-NeoX models with a parallel residual, rotary embeddings on a quarter of each head, an untied head and a
feed-forward layer four times as wide as the model; they differ only in the three numbers below. With the published
50,304 embedding rows, `pythia-14m` has 14,067,712 parameters and `pythia-2.8b` 2,775,208,960. The two largest were
published with more rows: `pythia-6.9b` with 50,432 (6,857,302,016 parameters), `pythia-12b` with 50,688
(11,846,072,320). This module imports neither torch nor transformers, so that a name can be checked at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers in which presets differ."""

    hidden_size: int
    """Width of the model; the feed-forward layer is four times as wide."""
    layers: int
    """Number of transformer blocks."""
    heads: int
    """Attention heads of each block."""


PRESETS: dict[str, Shape] = {
    "pythia-14m": Shape(hidden_size=128, layers=6, heads=4),
    "pythia-31m": Shape(hidden_size=256, layers=6, heads=8),
    "pythia-70m": Shape(hidden_size=512, layers=6, heads=8),
    "pythia-160m": Shape(hidden_size=768, layers=12, heads=12),
    "pythia-410m": Shape(hidden_size=1024, layers=24, heads=16),
    "pythia-1b": Shape(hidden_size=2048, layers=16, heads=8),
    "pythia-1.4b": Shape(hidden_size=2048, layers=24, heads=16),
    "pythia-2.8b": Shape(hidden_size=2560, layers=32, heads=32),
    "pythia-6.9b": Shape(hidden_size=4096, layers=32, heads=32),
    "pythia-12b": Shape(hidden_size=5120, layers=36, heads=40),
}
"""Name to shape, smallest first."""
