"""The paper's variant of bits per byte: tokens stand for bytes by a fixed constant per subset.

The paper does not count bytes. Its figure of a subset is L_T / L_B * nll / tokens / ln 2, where L_T / L_B, the tokens
per byte of the GPT-2 tokenizer, is a constant of Table 7. That is nll / ln 2 divided by tokens / constant bytes, and it
is meaningful only for models of that tokenizer. Table 2 of the paper is Table 7 times log2 of Table 8, in all 176 cells
to 0.0003. Its overall figures are 0.29335, the whole Pile's constant, times log2 of the overall perplexity per token,
in all 8 cells to 0.0001; so pooled figures here are the same formula over the tokens read.

The paper does not say how its overall perplexities follow from those of the subsets, and none of the weights that it
publishes gives them for all models. The nearest is the mean of the subsets' bits per byte weighted by the mixture, the
other overall figure here: within 0.004 of the paper's for the GPT-2 models, 0.021 to 0.026 below it for GPT-3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pilekit.corpus import Manifest
from pilekit.evaluate.results.records import Records

FAR = 0.1
"""If tokens per byte differ more than this from the constants, the tokenizer is not GPT-2's."""


def bytes_of_tokens(tokens: int, subset: str, manifest: Manifest) -> float:
    """The bytes that a subset's tokens stand for; 0.0 if no constant is published for it."""
    known = manifest.subset(subset)
    constant = None if known is None else known.tokens_per_byte
    return tokens / constant if constant else 0.0


def bytes_of_all_tokens(tokens: int, subsets: Iterable[str], manifest: Manifest) -> float:
    """The same for documents of `subsets`; 0.0 unless these are all of the manifest's, as the constant needs."""
    whole = set(subsets) == {subset.name for subset in manifest.subsets}
    constant = manifest.totals.tokens_per_byte if whole else None
    return tokens / constant if constant else 0.0


def another_tokenizer(records: Records, protocol: dict[str, Any], manifest: Manifest) -> str | None:
    """A warning if there are over 10 % more or fewer tokens than by the constants of the subsets; else None.

    Without a prefix, first tokens are not predicted, but they count here.
    """
    tokens = records.tokens + (protocol["prefix"]["id"] is None) * (records.bytes > 0)
    size = expected = found = 0.0
    for code, name in enumerate(records.subsets):
        known = manifest.subset(name)
        if known is not None and known.tokens_per_byte is not None:
            of = records.subset == code
            size += float(records.bytes[of].sum())
            expected += known.tokens_per_byte * float(records.bytes[of].sum())
            found += float(tokens[of].sum())
    if not expected or abs(found / expected - 1) <= FAR:
        return None
    return (
        f"the paper's constants are those of the GPT-2 tokenizer, by which this text has {expected / size:.3f} tokens "
        f"per byte, and here it has {found / size:.3f}: with another tokenizer these figures mean nothing; leave out "
        "--paper"
    )
