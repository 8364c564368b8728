"""`weights`: a mixture by shares of tokens, turned into `repeats`.

    repeats of a subset = its share * tokens of all named subsets / its own tokens

So an epoch has about as many tokens as the named subsets have, and their shares are the weights. A subset's tokens are
its bytes, which the indexes hold, times its tokens per byte, measured on 128 of its documents, at most a million
characters of each. They are drawn by hash, so every process finds the same factors. Factors have four digits. On the
mini-Pile's 22 subsets the shares of an epoch are right within 2 % of each. For token files, token counts are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from pilekit.corpus import Corpus, Manifest
from pilekit.corpus.shuffle import mix
from pilekit.errors import PilekitError, shortened
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access.document_reader import OpenReaders
from pilekit.shards.random_access.selected_lines import LineBitmap
from pilekit.stream.order.repeats import MOST, numbers_of_subsets
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.tokenize import Tokenizer

_WEIGHTS = 7
"""Keeps these hashes apart from others."""

SAMPLED = 128
SAMPLED_CHARACTERS = 1_000_000


def exact_weights(weights: Mapping[str, float], manifest: Manifest) -> dict[str, float]:
    """The shares by exact subset names, sorted, with sum 1; PilekitError if it is no mixture."""
    if not isinstance(weights, Mapping) or not weights:
        raise PilekitError(
            f'weights is a dict from subset to share, such as {{"ArXiv": 0.3, "GitHub": 0.7}}, not '
            f"{shortened(repr(weights), 80)}"
        )
    rule = "no share; give a number above 0, and leave out subsets that have no part"
    found = dict(numbers_of_subsets("weights", weights, manifest, lambda weight: 0 < weight < math.inf, rule))
    total = sum(found.values())
    return {name: weight / total for name, weight in sorted(found.items())}


def repeats_of_weights(
    weights: Mapping[str, float],
    corpus: Corpus,
    indexes: Sequence[ShardIndex],
    lines: Sequence[LineBitmap],
    tokenizer: Tokenizer,
    *,
    append_eod: bool,
) -> dict[str, float]:
    """The factor of each subset of `weights` (exact names, sum 1).

    indexes   of the corpus's shards
    lines     the lines of each shard that may be read, without documents that a dedup removed

    PilekitError if a subset has no text, or would need a factor above `MOST`.
    """
    documents: Counter[str] = Counter()
    text_bytes: Counter[str] = Counter()
    lowest: dict[str, list[tuple[int, int, int]]] = {name: [] for name in weights}
    for shard, (index, some) in enumerate(zip(indexes, lines, strict=True)):
        chosen = some.numbers(0, len(some))
        for rows in index.rows("number", "subset", "text_bytes"):
            begin, end = np.searchsorted(chosen, [rows.numbers[0], rows.numbers[-1] + 1])  # both ascend
            is_chosen = np.isin(rows.numbers, chosen[begin:end], assume_unique=True)
            hashes = mix(_WEIGHTS, shard, rows.numbers)
            for code, name in enumerate(rows.labels):
                if name not in weights:
                    continue
                of_subset = np.flatnonzero(is_chosen & (rows.codes == code))
                documents[name] += len(of_subset)
                text_bytes[name] += int(rows.text_bytes[of_subset].sum())
                with_text = of_subset[rows.text_bytes[of_subset] > 0]
                first = with_text[np.argsort(hashes[with_text], kind="stable")[:SAMPLED]]
                drawn = [(int(hashes[row]), shard, int(rows.numbers[row])) for row in first]
                lowest[name] = sorted([*lowest[name], *drawn])[:SAMPLED]
    per_byte = {  # Token files have token counts in place of bytes.
        name: 1 if isinstance(corpus, TokenCorpus) else _tokens_per_byte(corpus, indexes, lowest[name], tokenizer)
        for name in weights
    }
    if missing := [name for name in weights if not text_bytes[name] * per_byte[name]]:
        raise PilekitError(f"weights names {shortened(missing[0], 80)}, which has no text; leave it out")
    tokens = {name: documents[name] * append_eod + text_bytes[name] * per_byte[name] for name in weights}
    total = sum(tokens.values())
    factors = {name: float(f"{weight * total / tokens[name]:.4g}") for name, weight in weights.items()}
    highest = max(factors, key=lambda name: factors[name])
    if factors[highest] > MOST:
        raise PilekitError(
            f"weights: {shortened(highest, 80)} reaches its share with {factors[highest]:,.0f} uses of its documents "
            f"per epoch, and {MOST:,} are the most; lower its weight"
        )
    return factors


def _tokens_per_byte(
    corpus: Corpus, indexes: Sequence[ShardIndex], drawn: Sequence[tuple[int, int, int]], tokenizer: Tokenizer
) -> float:
    """Tokens per byte of these documents: (hash, shard, number) each."""
    readers = OpenReaders(corpus, indexes)
    tokens = size = 0
    for shard in sorted({shard for _, shard, _ in drawn}):
        numbers = np.array(sorted(number for _, of, number in drawn if of == shard), dtype=np.int64)
        texts = [text[:SAMPLED_CHARACTERS] for text in readers.of(shard).batch(numbers).texts]
        tokens += len(tokenizer.encode_batch(texts)[0])
        size += sum(len(text.encode()) for text in texts)
    readers.close()
    return tokens / max(1, size)
