"""Text to token ids: loading tokenizers, the `Tokenize` stage, training a tokenizer of one's own."""

from __future__ import annotations

from pilekit.tokenize.loading import load_tokenizer
from pilekit.tokenize.stage import TokenBatch, Tokenize
from pilekit.tokenize.tokenizer import Tokenizer
from pilekit.tokenize.training import SampledSubset, TrainedTokenizer, train_tokenizer

__all__ = [
    "SampledSubset",
    "TokenBatch",
    "Tokenize",
    "Tokenizer",
    "TrainedTokenizer",
    "load_tokenizer",
    "train_tokenizer",
]
