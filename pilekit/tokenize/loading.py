"""`load_tokenizer`: loads a `Tokenizer` from a file, a folder or a cached name, and verifies its ids.

Nothing is downloaded and no foreign code runs. It reads `tokenizer.json`, and beside it only the two small JSON files
in which Hugging Face keeps the names of the EOS, BOS, padding and mask tokens. A file's truncation, padding and BPE
dropout are switched off, because a document's ids must depend only on its text.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tokenizers

from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.tokenize.probe import check_growth, probe_texts
from pilekit.tokenize.tokenizer import (
    Backend,
    EncodeBatch,
    SpecialTokens,
    Tokenizer,
    fast_encoder,
    naming_failures,
    reference_encoder,
)
from pilekit.tokenize.tokenizer_file import plain_content, roles_beside, tokenizer_file

logger = message_logger(__name__)

# Usual names of special tokens, tried in this order if no config beside the file names the token.
_COMMON_NAMES = {
    "eos_token": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]"),
    "bos_token": ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|bos|>", "[BOS]", "[CLS]"),
    "pad_token": ("<|padding|>", "<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>"),
    "mask_token": ("<|mask|>", "<mask>", "[MASK]"),
}

MOST_IDS = 2**24
"""More ids than any vocabulary has; the largest have a million."""
LONGEST_TOKEN = 2**16
"""More characters than any added token has."""


def load_tokenizer(
    tokenizer: str | Path | Any, *, backend: Backend | None = None, special_tokens: SpecialTokens = "text"
) -> Tokenizer:
    """Load a `tokenizer.json`, a Hugging Face tokenizer folder, or a name in the local Hugging Face cache.

    Objects work too: a fast tokenizer of `transformers` (`AutoTokenizer.from_pretrained(...)`), or a
    `tokenizers.Tokenizer`. An object is saved in the cache folder, unless its own file still gives the same. A
    `Tokenizer` is returned as it is.

    Without `backend`, fastokens is used if it loads the file and agrees with `tokenizers` on the probe set; otherwise
    `tokenizers` is used, with one warning. If the named `backend` cannot be used, the call fails. The text of special
    tokens in documents stays text unless `special_tokens="parse"`. PilekitError for anything that is not a tokenizer.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if backend not in (None, "fastokens", "tokenizers"):
        raise PilekitError(f"unknown tokenizer backend {backend!r}; it is 'fastokens' or 'tokenizers'")
    if special_tokens not in ("text", "parse"):
        raise PilekitError(f"special_tokens={special_tokens!r} is neither 'text' nor 'parse'")
    path = tokenizer_file(tokenizer)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PilekitError(f"cannot read the tokenizer {path}: {error.strerror or error}") from error
    try:
        content = plain_content(orjson.loads(raw))
        plain = orjson.dumps(content).decode()
        reference = _reference(plain, special_tokens)
        if not reference.get_vocab_size(with_added_tokens=True):
            raise ValueError("its vocabulary is empty")
        check_growth(content.get("normalizer"))
        for text in ("", "a b\n"):
            with suppress(Exception):  # It may not know the text. But a crafted normaliser panics at any text.
                reference.encode(text, add_special_tokens=False)
    except BaseException as error:  # tokenizers raises Exception itself, and PanicException, which is none
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise PilekitError(
            f"{path} is not a tokenizer.json that the tokenizers library can read ({shortened(error, 200)}); give "
            "a tokenizer.json or a Hugging Face tokenizer folder"
        ) from error

    ids = [*reference.get_vocab(with_added_tokens=True).values(), *(token["id"] for token in content["added_tokens"])]
    if max(ids) >= MOST_IDS:  # fastokens allocates a place for each id up to the largest, and aborts if it cannot
        raise PilekitError(f"{path}: has the id {max(ids):,}; ids up to {MOST_IDS - 1:,} are possible")
    longest = max((len(token["content"]) for token in content["added_tokens"]), default=0)
    if longest > LONGEST_TOKEN:  # the probe strings repeat them
        raise PilekitError(f"{path}: has an added token of {longest:,} characters; {LONGEST_TOKEN:,} are possible")
    encode = reference_encoder(reference)
    chosen: Backend = "tokenizers"
    if backend != "tokenizers":
        fast = _agreed_fast_encoder(plain, special_tokens)
        if not isinstance(fast, str):
            encode, chosen = fast, "fastokens"
        elif backend == "fastokens":
            raise PilekitError(f"fastokens cannot serve the tokenizer {path}: {fast}; use backend='tokenizers'")
        else:
            _warn_once(f"{path}: fastokens {fast}; using tokenizers: the same ids, but slower")
    if special_tokens == "text":
        with naming_failures(path):
            _warn_of_reachable_special_tokens(path, reference)
    return Tokenizer._with(
        path=path,
        backend=chosen,
        special_tokens=special_tokens,
        fingerprint=hashlib.sha256(raw).hexdigest(),
        **_special_ids(path, reference),
        _encode=encode,
        _reference=reference,
    )


@functools.lru_cache(maxsize=2)  # a worker gets the same tokenizer with every shard, and loading is slow
def reopen(path: Path, backend: Backend, special_tokens: SpecialTokens, fingerprint: str) -> Tokenizer:
    """The same tokenizer in another process; PilekitError if the file has changed since."""
    tokenizer = load_tokenizer(path, backend=backend, special_tokens=special_tokens)
    if tokenizer.fingerprint != fingerprint:
        raise PilekitError(f"the tokenizer {path} has changed since it was loaded; start again with the new file")
    return tokenizer


copyreg.pickle(
    Tokenizer,
    lambda tokenizer: (
        reopen,
        (tokenizer.path, tokenizer.backend, tokenizer.special_tokens, tokenizer.fingerprint),
    ),
)


@functools.lru_cache(maxsize=4)
def _reference(content: str, special_tokens: SpecialTokens) -> tokenizers.Tokenizer:
    reference = tokenizers.Tokenizer.from_str(content)
    reference.encode_special_tokens = special_tokens == "text"
    return reference


@functools.lru_cache(maxsize=4)  # the proof takes most of the time of loading
def _agreed_fast_encoder(content: str, special_tokens: SpecialTokens) -> EncodeBatch | str:
    """fastokens' encoder if it gives the reference's ids on the probe set; else the reason why it cannot be used."""
    reference = reference_encoder(_reference(content, special_tokens))
    try:
        plain = orjson.loads(content)
        # Templates add tokens around a text. pilekit never asks for that, and fastokens does not know all templates.
        fast = fast_encoder(orjson.dumps({**plain, "post_processor": None}).decode(), special_tokens)
        probe = probe_texts([token["content"] for token in plain.get("added_tokens") or []])
        expected_ids, expected_offsets = reference(probe)
        ids, offsets = fast(probe)
    except ImportError:
        return "is not installed"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic is a BaseException
        return f"does not know this kind of tokenizer ({shortened(error, 100)})"
    if not (np.array_equal(offsets, expected_offsets) and np.array_equal(ids, expected_ids)):
        return "gives other ids than tokenizers on the probe set"

    def encode(texts: Any) -> Any:
        try:
            return fast(texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # such as a regular expression that gives up on a hostile text, or a Rust panic
            return reference(texts)

    return encode


def _special_ids(path: Path, reference: tokenizers.Tokenizer) -> dict[str, int | None]:
    """The fields `eos_id`, ... of a `Tokenizer`: from the configs beside a `tokenizer.json`, else by common names."""
    named = roles_beside(path) if path.name == "tokenizer.json" else {}
    added = {token.content for token in reference.get_added_tokens_decoder().values()}
    ids: dict[str, int | None] = {}
    for role, common in _COMMON_NAMES.items():
        field = role.replace("_token", "_id")
        ids[field] = reference.token_to_id(named[role]) if role in named else None
        for name in common:
            if ids[field] is None and name in added:
                ids[field] = reference.token_to_id(name)
    return ids


def _warn_of_reachable_special_tokens(path: Path, reference: tokenizers.Tokenizer) -> None:
    """Warn if the text of a special token, encoded as ordinary text, still gives the token's id."""
    special = {token.content: number for number, token in reference.get_added_tokens_decoder().items() if token.special}
    encodings = reference.encode_batch_fast(list(special), add_special_tokens=False)
    reached = [
        name for (name, number), encoding in zip(special.items(), encodings, strict=True) if number in encoding.ids
    ]
    if reached:
        _warn_once(
            f"{path}: the text {shortened(reached[0], 40)!r} in a document becomes that control token, because the "
            "tokenizer's model holds it as an ordinary word too"
        )


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)
