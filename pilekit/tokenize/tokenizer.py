"""`Tokenizer`: encodes a batch of texts as one flat array of ids and the documents' offsets.

One array for a whole batch needs no Python object per token. Two backends give the same ids. `tokenizers` is the
reference and encodes 3 MB/s of text on one core. `fastokens` encodes 150-200 MB/s: one call encodes the whole batch
into two buffers, which numpy views without copying. `loading.py` chooses the backend by comparing both on the probe set
(`probe.py`).

Text is data: a document that contains `<|endoftext|>` must not end there. So `<|endoftext|>` in a document is encoded
as ordinary characters, unless the user asks for `special_tokens="parse"`. Added tokens that are not special (GPT-NeoX
has runs of spaces) are always used. The truncation, padding and template of a `tokenizer.json` are ignored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import tokenizers

from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, shortened
from pilekit.tokenize.spans import byte_spans

Backend = Literal["fastokens", "tokenizers"]
SpecialTokens = Literal["text", "parse"]
Encoded = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
EncodeBatch = Callable[[Sequence[str]], Encoded]


@dataclass(eq=False, repr=False, init=False)
class Tokenizer(NearestNames):
    """A loaded tokenizer, made by `load_tokenizer(path)`. Unpickling reads the same file again.

    path            the `tokenizer.json`, absolute
    backend         "fastokens" or "tokenizers"
    special_tokens  "text": the text of a special token in a document is ordinary text; "parse": it becomes the token
    fingerprint     SHA-256 of the file, as 64 hexadecimal digits
    eos_id, bos_id, pad_id, mask_id   int, or None if the tokenizer has no such token
    """

    path: Path
    backend: Backend
    special_tokens: SpecialTokens
    fingerprint: str
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    mask_id: int | None
    _encode: EncodeBatch
    _reference: tokenizers.Tokenizer

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError("a Tokenizer is loaded from its file: write load_tokenizer(path)")

    @classmethod
    def _with(cls, **values: object) -> Self:
        tokenizer = object.__new__(cls)
        vars(tokenizer).update(values)
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as `encode_batch` gives them; `decode` gives the text again."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        """Return (ids uint32 [tokens], offsets int64 [documents + 1]); document i is `ids[offsets[i]:offsets[i + 1]]`.

        No token that ends a document is added. An empty text has no ids; no texts give offsets [0]. With fastokens, the
        arrays are read-only views of its buffers. PilekitError if the file's rules fail at a text.
        """
        with naming_failures(self.path):
            return self._encode(texts)

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the bytes (begin, end) of its UTF-8 that each token stands for.

        The spans make up the text: each begins where the one before ends. Tokens that are parts of one character share
        its bytes. Characters that the tokenizer drops come with the token before them, or with the first token. Uses
        `tokenizers`, which is slow.
        """
        with naming_failures(self.path):
            encoding = self._untrimmed.encode(text, add_special_tokens=False)
        return encoding.ids, byte_spans(text, encoding.tokens, encoding.offsets)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` (int [tokens]) with special tokens spelt out; bytes that are not UTF-8 become U+FFFD."""
        with naming_failures(self.path):
            text: str = self._reference.decode(np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=False)
        return text

    def token_id(self, token: str) -> int | None:
        """The id of the token spelt `token` in the vocabulary or the added tokens, or None."""
        number: int | None = self._reference.token_to_id(token)
        return number

    def around(self) -> tuple[list[int], list[int]] | None:
        """The ids that the file's template puts before and after a text, such as [CLS] and [SEP].

        Both are empty without a template. None if the template does more than that. `encode_batch` adds neither.
        """
        wrappings = []
        for text in ("a", "a b c"):  # The added ids must not depend on the text.
            with naming_failures(self.path):
                plain, wrapped = (self._reference.encode(text, add_special_tokens=wrap).ids for wrap in (False, True))
            places = [i for i in range(len(wrapped) - len(plain) + 1) if wrapped[i : i + len(plain)] == plain]
            if not plain or len(places) != 1:
                return None
            wrappings.append((wrapped[: places[0]], wrapped[places[0] + len(plain) :]))
        return wrappings[0] if wrappings[0] == wrappings[1] else None

    @cached_property
    def vocab_size(self) -> int:
        """Rows that an embedding needs: the largest id + 1, including added tokens."""
        return 1 + max(self._reference.get_vocab(with_added_tokens=True).values())

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of all special tokens, increasing."""
        added = self._reference.get_added_tokens_decoder()
        return tuple(sorted(token_id for token_id, token in added.items() if token.special))

    @cached_property
    def _untrimmed(self) -> tokenizers.Tokenizer:
        """The reference without its post-processor, which may take the spaces off the spans of tokens."""
        tokenizer = copy.deepcopy(self._reference)
        tokenizer.post_processor, tokenizer.encode_special_tokens = None, self._reference.encode_special_tokens
        return tokenizer

    def __repr__(self) -> str:
        return f"Tokenizer({str(self.path)!r}, backend={self.backend!r}, special_tokens={self.special_tokens!r})"


@contextmanager
def naming_failures(path: Path) -> Iterator[None]:
    """Turn a failure of the tokenizers library into a PilekitError that names the tokenizer's file."""
    try:
        yield
    except BaseException as error:  # tokenizers raises Exception itself, and a panic of Rust is none
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        if "ThreadPoolBuildError" in str(error):  # The file may be right: threads take memory.
            raise MemoryError from error
        raise PilekitError(
            f"{path}: its rules fail at a text ({shortened(error, 200)}); give another tokenizer.json"
        ) from error


def reference_encoder(reference: tokenizers.Tokenizer) -> EncodeBatch:
    """Return a function that encodes with `tokenizers`. `reference` already knows how to read special tokens."""

    def encode(texts: Sequence[str]) -> Encoded:
        encodings = [encoding.ids for encoding in reference.encode_batch_fast(list(texts), add_special_tokens=False)]
        offsets = np.zeros(len(encodings) + 1, dtype=np.int64)
        np.cumsum([len(ids) for ids in encodings], out=offsets[1:])
        return np.fromiter(chain.from_iterable(encodings), dtype=np.uint32, count=int(offsets[-1])), offsets

    return encode


def fast_encoder(json_text: str, special_tokens: SpecialTokens) -> EncodeBatch:
    """Return a function that encodes with `fastokens`, which may raise any exception for an unsupported tokenizer."""
    import fastokens

    fast = fastokens.Tokenizer.from_json_str(json_text)
    as_text = special_tokens == "text"

    def encode(texts: Sequence[str]) -> Encoded:
        ids, offsets = fast.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=as_text)
        # Every offset is below 2^63, so the bytes of the uint64 can be read as int64.
        return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<i8")

    return encode
