"""Text to token ids: loading tokenizers, the `Tokenize` stage, training a tokenizer of one's own."""

from __future__ import annotations

from pilekit.tokenize.loading import load_tokenizer
from pilekit.tokenize.stage import TokenBatch, Tokenize
from pilekit.tokenize.tokenizer import Tokenizer

__all__ = ["TokenBatch", "Tokenize", "Tokenizer", "load_tokenizer"]
