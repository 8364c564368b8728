"""`byte_spans`: the bytes of a text that each of its tokens stands for. The spans tile the text's UTF-8 without a gap.

`tokenizers` gives spans of characters. These overlap where tokens are parts of one character, and leave gaps where a
normaliser or a pre-tokenizer drops characters. So tokens that share characters form a group, and the bytes of a group
are divided in proportion to the lengths of the tokens as the vocabulary spells them. Byte-level tokenizers spell a byte
as one character, and byte fallback spells each byte alike. So both get exactly their bytes, unless a normaliser changed
the characters. Bytes that no token stands for belong to the token before them, or to the first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def byte_spans(text: str, tokens: Sequence[str], characters: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The bytes (begin, end) of each token: each span begins where the one before ends, and all make up the text.

    tokens      as the vocabulary spells them
    characters  (begin, end) of each token in the text

    A token has no byte if its group has more tokens than bytes, or if it stands for a space that the tokenizer put
    before the text. A text without tokens has no spans.
    """
    if not tokens:
        return []
    data = np.frombuffer(text.encode(), np.uint8)
    place = np.append(np.flatnonzero(data & 0xC0 != 0x80), len(data))  # each character's first byte
    begin, end = place[np.maximum.accumulate(np.array(characters))].T  # a span may lie before the one before it
    first = np.flatnonzero(np.append(True, begin[1:] >= end[:-1]))  # each group's first token
    after = np.append(first[1:], len(tokens))
    group = np.repeat(np.arange(len(first)), after - first)
    before = np.cumsum([0, *(max(1, len(token)) for token in tokens)])  # lengths of all tokens before each token
    size, length = end[after - 1] - begin[first], before[after] - before[first]
    # The bytes of its group before each token: their share is that of the lengths of the group's tokens before it.
    within = (before[:-1] - before[first][group]) * size[group] // length[group]
    borders = [0, *(begin[first][group] + within)[1:].tolist(), len(data)]
    return list(pairwise(borders))
