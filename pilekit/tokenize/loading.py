"""`load_tokenizer`: from a file, a folder or a cached name to a `Tokenizer` whose ids are proven.

Nothing is downloaded and no code from elsewhere runs: only `tokenizer.json` is read, and beside it the two small JSON
files in which Hugging Face keeps the names of the EOS, BOS and padding tokens. Truncation, padding and BPE dropout that
a file declares are switched off: a document's ids must depend on its text alone.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tokenizers

from pilekit.errors import PilekitError, visible
from pilekit.tokenize.probe import probe_texts
from pilekit.tokenize.tokenizer import (
    Backend,
    EncodeBatch,
    SpecialTokens,
    Tokenizer,
    fast_encoder,
    reference_encoder,
)

logger = logging.getLogger(__name__)

# How models name these tokens; asked in this order where no config beside the file says it.
_COMMON_NAMES = {
    "eos_token": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]"),
    "bos_token": ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|bos|>", "[BOS]", "[CLS]"),
    "pad_token": ("<|padding|>", "<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>"),
    "mask_token": ("<|mask|>", "<mask>", "[MASK]"),
}

_said: set[str] = set()


def load_tokenizer(
    path_or_name: str | Path, *, backend: Backend | None = None, special_tokens: SpecialTokens = "text"
) -> Tokenizer:
    """Load a `tokenizer.json`, a Hugging Face tokenizer folder, or a name in the local Hugging Face cache.

    Without `backend`, fastokens serves if it loads the file and agrees with `tokenizers` on the probe set; else
    `tokenizers` serves, and a warning says so once. A named backend is used or the call fails. The text of special
    tokens inside documents stays text unless `special_tokens="parse"`. Anything but a tokenizer is a PilekitError.
    """
    if backend not in (None, "fastokens", "tokenizers"):
        raise PilekitError(f"unknown tokenizer backend {backend!r}; it is 'fastokens' or 'tokenizers'")
    if special_tokens not in ("text", "parse"):
        raise PilekitError(f"special_tokens={special_tokens!r} is neither 'text' nor 'parse'")
    path = _find(path_or_name)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PilekitError(f"cannot read the tokenizer {visible(str(path))}: {error.strerror or error}") from error
    fingerprint = hashlib.sha256(raw).hexdigest()
    json_text, added = _plain(path, raw)
    try:
        reference = tokenizers.Tokenizer.from_str(json_text)
    except Exception as error:
        raise _no_tokenizer(path, str(error)) from error
    reference.encode_special_tokens = special_tokens == "text"
    if not reference.get_vocab_size(with_added_tokens=True):
        raise _no_tokenizer(path, "its vocabulary is empty")

    encode = reference_encoder(reference)
    chosen: Backend = "tokenizers"
    if backend != "tokenizers":
        fast = _agreed_fast_encoder(json_text, special_tokens, encode, added)
        if isinstance(fast, str):
            if backend == "fastokens":
                raise PilekitError(
                    f"fastokens cannot serve the tokenizer {visible(str(path))}: {fast}; use backend='tokenizers'"
                )
            _say_once(f"{visible(str(path))}: fastokens {fast}; using tokenizers: the same ids, but slower")
        else:
            encode, chosen = fast, "fastokens"
    if special_tokens == "text":
        _warn_of_reachable_special_tokens(path, reference)
    ids = _special_ids(path, reference)
    return Tokenizer(
        path,
        backend=chosen,
        special_tokens=special_tokens,
        fingerprint=fingerprint,
        eos_id=ids["eos_token"],
        bos_id=ids["bos_token"],
        pad_id=ids["pad_token"],
        mask_id=ids["mask_token"],
        encode=encode,
        reference=reference,
    )


@functools.lru_cache(maxsize=2)  # a worker is sent the same tokenizer with every shard, and loading takes its time
def reopen(path: Path, backend: Backend, special_tokens: SpecialTokens, fingerprint: str) -> Tokenizer:
    """The same tokenizer in another process; an error if the file has changed meanwhile.

    What is kept is the tokenizer of that fingerprint, so a change can neither be missed nor creep in.
    """
    tokenizer = load_tokenizer(path, backend=backend, special_tokens=special_tokens)
    if tokenizer.fingerprint != fingerprint:
        raise PilekitError(
            f"the tokenizer {visible(str(path))} has changed since it was loaded; start again with the new file"
        )
    return tokenizer


def _find(path_or_name: str | Path) -> Path:
    if not isinstance(path_or_name, str | os.PathLike):
        raise PilekitError(
            "a tokenizer is a tokenizer.json, a folder with one, or a cached name, not "
            f"{visible(repr(path_or_name), 80)}"
        )
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        file = path / "tokenizer.json"
        if not file.is_file():
            raise PilekitError(
                f"no tokenizer.json in the folder {visible(str(path))}; save one there with "
                "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
            )
        return file.absolute()
    if path.exists():
        return path.absolute()
    # Only the cache on this machine is asked; the import is slow, so it waits until a name is really given.
    from huggingface_hub import try_to_load_from_cache

    name = str(path_or_name)
    with suppress(ValueError):  # no repository can have that name
        cached = try_to_load_from_cache(name, "tokenizer.json")
        if isinstance(cached, str):
            return Path(cached).absolute()
    raise PilekitError(
        f"no tokenizer {visible(repr(name))}: neither a tokenizer.json, nor a folder with one, nor a name in the local "
        "Hugging Face cache; give the path of a file, or make one with `pilekit train-tokenizer`"
    )


def _plain(path: Path, raw: bytes) -> tuple[str, list[str]]:
    """The file's JSON without truncation, padding and dropout, and the texts of its added tokens."""
    try:
        content: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _no_tokenizer(path, f"not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise _no_tokenizer(path, "it has no `model`")
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise _no_tokenizer(path, "its `added_tokens` is no list of tokens")
    texts = [token["content"] for token in added if isinstance(token.get("content"), str)]
    if content.get("truncation") or content.get("padding") or content["model"].get("dropout"):
        content |= {"truncation": None, "padding": None}
        if "dropout" in content["model"]:
            content["model"]["dropout"] = None
        raw = orjson.dumps(content)
    return raw.decode(), texts


def _no_tokenizer(path: Path, reason: str) -> PilekitError:
    return PilekitError(
        f"{visible(str(path))} is not a tokenizer.json that the tokenizers library can read ({visible(reason, 200)}); "
        "give a tokenizer.json or a Hugging Face tokenizer folder"
    )


def _agreed_fast_encoder(
    json_text: str, special_tokens: SpecialTokens, reference: EncodeBatch, added_tokens: list[str]
) -> EncodeBatch | str:
    """fastokens' encoder if it gives the reference's ids on the probe set; else the reason why it cannot be used."""
    try:
        fast = fast_encoder(_without_template(json_text), special_tokens)
        probe = probe_texts(added_tokens)
        expected_ids, expected_offsets = reference(probe)
        ids, offsets = fast(probe)
    except ImportError:
        return "is not installed"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic arrives as a BaseException
        return f"does not know this kind of tokenizer ({visible(str(error), 100)})"
    if not (np.array_equal(offsets, expected_offsets) and np.array_equal(ids, expected_ids)):
        return "gives other ids than tokenizers on the probe set"

    def encode(texts: Any) -> Any:
        try:
            return fast(texts)
        except UnicodeEncodeError:
            raise
        except Exception:
            # A regular expression that gives up on a hostile text, say. The reference has the same ids, only later.
            return reference(texts)

    return encode


def _without_template(json_text: str) -> str:
    """The same without what puts special tokens around a text: nothing is added, and fastokens knows not all kinds."""
    return orjson.dumps(orjson.loads(json_text) | {"post_processor": None}).decode()


def _special_ids(path: Path, reference: tokenizers.Tokenizer) -> dict[str, int | None]:
    """The ids of EOS, BOS, padding and mask: by the configs beside a `tokenizer.json`, else by common names."""
    named: dict[str, str] = {}
    if path.name == "tokenizer.json":
        for config in ("special_tokens_map.json", "tokenizer_config.json"):
            named |= _token_names(path.with_name(config))
    added = {token.content for token in reference.get_added_tokens_decoder().values()}
    ids: dict[str, int | None] = {}
    for role, common in _COMMON_NAMES.items():
        candidates: Iterable[str] = [
            *([named[role]] if role in named else []),
            *(name for name in common if name in added),
        ]
        found = (reference.token_to_id(name) for name in candidates)
        ids[role] = next((token_id for token_id in found if token_id is not None), None)
    return ids


def _token_names(config: Path) -> dict[str, str]:
    """`eos_token` and its like of one of Hugging Face's configs: a string each, or an object with `content`."""
    try:
        content: Any = orjson.loads(config.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        raise PilekitError(
            f"cannot read {visible(str(config))}, which names the tokenizer's special tokens: "
            f"{visible(str(error), 200)}"
        ) from error
    names: dict[str, str] = {}
    for role in _COMMON_NAMES:
        value = content.get(role) if isinstance(content, dict) else None
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            names[role] = value
    return names


def _warn_of_reachable_special_tokens(path: Path, reference: tokenizers.Tokenizer) -> None:
    """Say so where a special token's text gives its id even as ordinary text, through the model's own vocabulary."""
    special = {token.content: number for number, token in reference.get_added_tokens_decoder().items() if token.special}
    encodings = reference.encode_batch_fast(list(special), add_special_tokens=False)
    reached = [name for (name, number), one in zip(special.items(), encodings, strict=True) if number in one.ids]
    if reached:
        _say_once(
            f"{visible(str(path))}: the text {visible(reached[0], 40)!r} in a document becomes that control token, "
            "because the tokenizer's model holds it as an ordinary word too"
        )


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        logger.warning(message)
