"""The shapes of published models: Pythia (Biderman et al., 2023), which was trained on the Pile, and RoBERTa.

The Pythias are GPT-NeoX models with a parallel residual, rotary embeddings on a quarter of each head, an untied head
and a feed-forward layer four times as wide as the model. They differ only in the three numbers below. With the
published 50,304 embedding rows, `pythia-14m` has 14,067,712 parameters and `pythia-2.8b` 2,775,208,960. The two largest
were published with more rows: `pythia-6.9b` with 50,432 (6,857,302,016 parameters), `pythia-12b` with 50,688
(11,846,072,320).

`roberta-base` (Liu et al., 2019) and `distilroberta` predict masked tokens. They have 514 positions, for rows of 512
tokens, and a head that shares its weight with the embedding. With the published 50,265 ids they have 124,697,433 and
82,170,201 parameters.

This module imports neither torch nor transformers, so that a name can be checked at once.
"""

from __future__ import annotations

PRESETS: dict[str, tuple[int, int, int]] = {
    "pythia-14m": (128, 6, 4),
    "pythia-31m": (256, 6, 8),
    "pythia-70m": (512, 6, 8),
    "pythia-160m": (768, 12, 12),
    "pythia-410m": (1024, 24, 16),
    "pythia-1b": (2048, 16, 8),
    "pythia-1.4b": (2048, 24, 16),
    "pythia-2.8b": (2560, 32, 32),
    "pythia-6.9b": (4096, 32, 32),
    "pythia-12b": (5120, 36, 40),
    "distilroberta": (768, 6, 12),
    "roberta-base": (768, 12, 12),
}
"""Name to (width, number of transformer blocks, attention heads of each block), smallest first."""

MASKED_PRESETS = ("distilroberta", "roberta-base")
"""The presets that predict masked tokens."""
