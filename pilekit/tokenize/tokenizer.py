"""`Tokenizer`: a batch of texts in, one flat array of ids and the documents' offsets out.

Two backends give the same ids. `tokenizers` is the reference: it defines what is right. `fastokens` is its fast twin
(150-200 MB/s of text on one core against 3): one call encodes the whole batch into two buffers that numpy views without
copying. Which one serves is settled on loading (loading.py), by comparing both on the probe set (probe.py).

Text is data: a document that contains `<|endoftext|>` must not end there. So the text of special tokens is encoded as
ordinary text unless `special_tokens="parse"` was asked for; added tokens that are not special (GPT-NeoX has runs of
spaces) are used either way. Nothing is added around a text, cut off or padded, whatever the file says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tokenizers

from pilekit.errors import PilekitError

Backend = Literal["fastokens", "tokenizers"]
SpecialTokens = Literal["text", "parse"]
Encoded = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
EncodeBatch = Callable[[Sequence[str]], Encoded]


class Tokenizer:
    """A loaded tokenizer; made by `load_tokenizer`, and by unpickling, which reads the same file again.

    path            the `tokenizer.json`, absolute
    backend         "fastokens" or "tokenizers"
    special_tokens  "text": their text in a document is ordinary text; "parse": it becomes the control token
    fingerprint     SHA-256 of the file, as 64 hexadecimal digits
    eos_id, bos_id, pad_id, mask_id   int, or None where the tokenizer has no such token
    """

    def __init__(
        self,
        path: Path,
        *,
        backend: Backend,
        special_tokens: SpecialTokens,
        fingerprint: str,
        eos_id: int | None,
        bos_id: int | None,
        pad_id: int | None,
        mask_id: int | None,
        encode: EncodeBatch,
        reference: tokenizers.Tokenizer,
    ) -> None:
        self.path = path
        self.backend = backend
        self.special_tokens = special_tokens
        self.fingerprint = fingerprint
        self.eos_id = eos_id
        self.bos_id = bos_id
        self.pad_id = pad_id
        self.mask_id = mask_id
        self._encode = encode
        self._reference = reference

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        """(ids uint32 [tokens], offsets int64 [documents + 1]); document i is `ids[offsets[i]:offsets[i + 1]]`.

        No EOD is added. An empty text has no ids; no texts at all give offsets [0]. The arrays are read-only views of
        the encoder's own buffers. A text that UTF-8 cannot express (a lone surrogate) is a PilekitError.
        """
        try:
            return self._encode(texts)
        except (UnicodeEncodeError, TypeError) as error:  # TypeError is what tokenizers says of a lone surrogate
            index = next((i for i, text in enumerate(texts) if not _is_unicode(text)), None)
            if index is None:
                raise
            refusal = UnencodableTextError(
                f"text {index} of the batch holds a lone surrogate, which no UTF-8 can express"
            )
            refusal.index = index
            raise refusal from error

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` (int [tokens]), control tokens spelt out; bytes that are no UTF-8 come as U+FFFD."""
        text: str = self._reference.decode(np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=False)
        return text

    def token_id(self, token: str) -> int | None:
        """The id of the token spelt `token` in the vocabulary or the added tokens, or None."""
        found: int | None = self._reference.token_to_id(token)
        return found

    def around(self) -> tuple[list[int], list[int]] | None:
        """The ids before and behind a text by the file's template, as [CLS] and [SEP]; None if it is no such template.

        `encode_batch` adds neither. A file without a template has none to add.
        """
        found = []
        for text in ("a", "a b c"):
            plain, whole = (self._reference.encode(text, add_special_tokens=added).ids for added in (False, True))
            places = [i for i in range(len(whole) - len(plain) + 1) if whole[i : i + len(plain)] == plain]
            if not plain or len(places) != 1:
                return None
            found.append((whole[: places[0]], whole[places[0] + len(plain) :]))
        return found[0] if found[0] == found[1] else None

    @cached_property
    def vocab_size(self) -> int:
        """Rows that an embedding needs: the largest id + 1, added tokens included."""
        return 1 + max(self._reference.get_vocab(with_added_tokens=True).values())

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of all special tokens, increasing."""
        added = self._reference.get_added_tokens_decoder()
        return tuple(sorted(number for number, token in added.items() if token.special))

    def __repr__(self) -> str:
        return f"Tokenizer({str(self.path)!r}, backend={self.backend!r}, special_tokens={self.special_tokens!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Imported here because loading.py needs this module: a worker process opens the file again, with the backend
        # that its parent settled on.
        from pilekit.tokenize.loading import reopen

        return reopen, (self.path, self.backend, self.special_tokens, self.fingerprint)


class UnencodableTextError(PilekitError):
    """A text holds a lone surrogate; `index` is its place in the batch."""

    index: int = 0


def reference_encoder(reference: tokenizers.Tokenizer) -> EncodeBatch:
    """Encode with `tokenizers`, as `reference` is set up."""

    def encode(texts: Sequence[str]) -> Encoded:
        encodings = [one.ids for one in reference.encode_batch_fast(list(texts), add_special_tokens=False)]
        offsets = np.zeros(len(encodings) + 1, dtype=np.int64)
        np.cumsum([len(ids) for ids in encodings], out=offsets[1:])
        return np.fromiter(chain.from_iterable(encodings), dtype=np.uint32, count=int(offsets[-1])), offsets

    return encode


def fast_encoder(json_text: str, special_tokens: SpecialTokens) -> EncodeBatch:
    """Encode with `fastokens`; raises whatever it raises for a tokenizer that it does not know."""
    import fastokens

    fast = fastokens.Tokenizer.from_json_str(json_text)
    as_text = special_tokens == "text"

    def encode(texts: Sequence[str]) -> Encoded:
        ids, offsets = fast.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=as_text)
        # The offsets come as uint64; they are far below 2^63, so the same bytes are the same int64.
        return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<i8")

    return encode


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
