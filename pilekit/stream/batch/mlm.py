"""`objective="mlm"`: masked tokens, chosen by a hash of the row's key and the place in the row.

BERT's recipe: 15 % of the tokens are chosen. Of these, 80 % become the mask token, 10 % a random token, and 10 % do not
change. Padding and special tokens are never chosen, and the random token is never special. A hash decides on each token
alone, so a row is masked the same way on any number of ranks and workers, and after any resume. A row's key is unique
to this use of its documents, so the next epoch masks other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pilekit.corpus.shuffle import Int64, UInt64, mix
from pilekit.errors import PilekitError
from pilekit.tokenize import Tokenizer

IGNORED = -100
"""The label that Hugging Face's and torch's losses leave out."""

CHOSEN = 0.15
MASKED = 0.8
REPLACED = 0.1


@dataclass(frozen=True)
class Masking:
    """The tokenizer's numbers that masking needs.

    mask_id      the token that replaces a masked token
    vocab_size   random tokens are below it
    special_ids  tokens that are never chosen and never drawn; `mask_id` is always one of them

    PilekitError if that leaves no token to draw.
    """

    mask_id: int
    vocab_size: int
    special_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.ordinary < 1:
            raise PilekitError(
                f"a vocabulary of {self.vocab_size} tokens, all of them special, has none to draw for "
                'objective="mlm"; give another tokenizer'
            )

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer) -> Masking:
        """The numbers of this tokenizer; PilekitError if it has no mask token."""
        if tokenizer.mask_id is None:
            raise PilekitError(
                f'the tokenizer {tokenizer.path} has no mask token, which objective="mlm" needs; name it '
                'as "mask_token" in a tokenizer_config.json beside it, or use objective="clm"'
            )
        return cls(tokenizer.mask_id, tokenizer.vocab_size, tokenizer.special_ids)

    @cached_property
    def never(self) -> Int64:
        """int64, increasing: the special tokens, the mask among them."""
        return np.unique(np.array([self.mask_id, *self.special_ids], np.int64))

    @cached_property
    def ordinary(self) -> int:
        """Tokens of the vocabulary that are not special."""
        return self.vocab_size - int((self.never < self.vocab_size).sum())


def mask(input_ids: Int64, labels: Int64, row_keys: UInt64, used: Int64, masking: Masking) -> None:
    """Mask `input_ids` in place, and set `labels`: the original where a token was chosen, -100 elsewhere.

    input_ids, labels   int64 [rows, seq_len]
    row_keys            uint64 [rows]
    used                int64 [rows]: tokens at each row's beginning that are not padding

    Three hashes decide on token i of a row: mix(key, i) >> 32, its lower 32 bits, and mix(key, i, 0) >> 32.
    """
    place = np.arange(input_ids.shape[1])
    drawn = mix(row_keys[:, None], place)
    chosen = np.flatnonzero((drawn >> _HALF < _share(CHOSEN)) & (place < used[:, None]))
    ids, drawn = input_ids.reshape(-1), drawn.reshape(-1)
    chosen = chosen[np.isin(ids[chosen], masking.never, invert=True)]
    tokens, drawn = ids[chosen], drawn[chosen]
    labels.fill(IGNORED)
    labels.reshape(-1)[chosen] = tokens
    # One round more, of 0, is mix(key, i, 0). It draws the n-th token that is not special. Before that token stand the
    # special tokens that have at most n others before them.
    nth = ((mix(drawn) >> _HALF) * np.uint64(masking.ordinary) >> _HALF).astype(np.int64)
    random_tokens = nth + np.searchsorted(masking.never - np.arange(len(masking.never)), nth, side="right")
    action = drawn & _LOWER
    replaced = np.where(action < _share(MASKED + REPLACED), random_tokens, tokens)
    ids[chosen] = np.where(action < _share(MASKED), masking.mask_id, replaced)


_HALF = np.uint64(32)
_LOWER = np.uint64((1 << 32) - 1)


def _share(of_hashes: float) -> np.uint64:
    """The number below which this share of all hashes of 32 bits lies."""
    return np.uint64(int(of_hashes * (1 << 32)))
