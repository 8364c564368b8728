"""Text to token ids.

`loading.py` makes a `Tokenizer` from a file, after comparing its fast backend with the reference on the strings of
`probe.py`. `spans.py` finds the bytes of each token. `stage.py` turns batches of documents into batches of tokens.
`training.py` trains a new tokenizer on a sample of a corpus.
"""

from __future__ import annotations

from pilekit.tokenize.loading import load_tokenizer
from pilekit.tokenize.stage import TokenBatch, Tokenize
from pilekit.tokenize.tokenizer import Tokenizer
from pilekit.tokenize.training import train_tokenizer

__all__ = [
    "TokenBatch",
    "Tokenize",
    "Tokenizer",
    "load_tokenizer",
    "train_tokenizer",
]
