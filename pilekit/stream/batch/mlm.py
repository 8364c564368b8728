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
from numba import types

from pilekit.errors import PilekitError, visible
from pilekit.kernels import compiled
from pilekit.stream.batch.write_columns import IGNORED
from pilekit.stream.pack.rows import Int64, UInt64
from pilekit.tokenize import Tokenizer

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
    def of(cls, tokenizer: Tokenizer) -> Masking:
        """The numbers of this tokenizer; PilekitError if it has no mask token."""
        if tokenizer.mask_id is None:
            raise PilekitError(
                f'the tokenizer {visible(str(tokenizer.path))} has no mask token, which objective="mlm" needs; name it '
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

    input_ids, labels   int64 [rows x seq_len], flat
    row_keys            uint64 [rows]
    used                int64 [rows]: tokens at each row's beginning that are not padding
    """
    _mask(input_ids, labels, row_keys, used, masking.never, masking.mask_id, masking.ordinary)


_HALF = 1 << 32
_CHOSEN = np.uint64(int(CHOSEN * _HALF))
_MASKED = np.uint64(int(MASKED * _HALF))
_REPLACED = np.uint64(int((MASKED + REPLACED) * _HALF))
_column = types.Array(types.int64, 1, "C")
_read_only = types.Array(types.int64, 1, "C", readonly=True)
_keys = types.Array(types.uint64, 1, "C", readonly=True)


@compiled(types.uint64(types.uint64, types.uint64))
def _round(state: np.uint64, part: np.uint64) -> np.uint64:
    """One round of `shuffle.mix`."""
    state = (state ^ part) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@compiled(types.void(_column, _column, _keys, _read_only, _read_only, types.int64, types.int64))
def _mask(
    input_ids: Int64, labels: Int64, row_keys: UInt64, used: Int64, never: Int64, mask_id: int, ordinary: int
) -> None:
    """Three hashes decide on token i of a row: mix(key, i) >> 32, its lower 32 bits, and mix(key, i, 0) >> 32."""
    seq_len = len(input_ids) // max(1, len(row_keys))
    labels[:] = IGNORED
    for row in range(len(row_keys)):
        key = _round(np.uint64(0), row_keys[row])
        for i in range(used[row]):
            drawn = _round(key, np.uint64(i))
            if drawn >> np.uint64(32) >= _CHOSEN:
                continue
            at = row * seq_len + i
            token = input_ids[at]
            nearest = np.searchsorted(never, token)
            if nearest < len(never) and never[nearest] == token:
                continue
            labels[at] = token
            action = drawn & np.uint64(0xFFFFFFFF)
            if action < _MASKED:
                input_ids[at] = mask_id
            elif action < _REPLACED:
                word = _round(drawn, np.uint64(0)) >> np.uint64(32)
                other = np.int64((word * np.uint64(ordinary)) >> np.uint64(32))  # the n-th token that is not special
                for special in never:
                    other += other >= special
                input_ids[at] = other
