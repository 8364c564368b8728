"""The protocol: everything that a figure depends on, as JSON types, to be printed and stored with it.

Bits per byte of one model differ with the window, the prefix, the data, and what is counted as a byte; a number without
these cannot be compared with another. Fingerprints stand for the model's weights and the tokenizer's file.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import xxhash

from pilekit import __version__
from pilekit.corpus import Corpus
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.causal_lm import CausalLM
from pilekit.evaluate.model_folder import weight_files
from pilekit.tokenize import Tokenizer

USUAL_MAX_LENGTH = 2048
"""For a model that declares no limit; lm-evaluation-harness takes the same."""

_WINDOWS = (
    "each document alone, as disjoint windows of max_length inputs, of which the last reaches back so that its inputs "
    "are full too; each token predicted once"
)
_WITH_PREFIX = f"{_WINDOWS}, the first from the prefix"
_WITHOUT_PREFIX = f"{_WINDOWS}, but the first, which is context only, while its bytes count"


@dataclass(frozen=True, slots=True)
class Rules:
    """How documents are scored.

    max_length   tokens in a window
    prefix       as it was given
    prefix_id    the token id before a document's first token, or None for "none"
    subsets      exact names, or None for all
    limit        documents of each subset, or None for all
    """

    max_length: int
    prefix: str
    prefix_id: int | None
    subsets: tuple[str, ...] | None
    limit: int | None


def max_length_of(positions: int | None, given: int | None) -> int:
    """The `max_length` to score with: what was given, which must fit the model's positions, else those."""
    if given is None:
        return positions or USUAL_MAX_LENGTH
    if positions is not None and given > positions:
        raise PilekitError(f"max_length is {given:,}, but the model has {positions:,} positions; give at most that")
    return given


def prefix_token(prefix: str | int, tokenizer: Tokenizer, lm: CausalLM | None) -> int | None:
    """The id that `prefix` means: "auto", "bos", "eos", or an id that the model has; None for "none".

    Without a model, that it has the id is not checked.
    """
    text = str(prefix)
    if text == "none":
        return None
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if text in ("auto", "bos", "eos"):
        found = {"auto": eos if bos is None else bos, "bos": bos, "eos": eos}[text]
        if found is None:
            missing = {"auto": "neither a BOS nor an EOS token", "bos": "no BOS token", "eos": "no EOS token"}[text]
            raise PilekitError(
                f"the tokenizer {visible(str(tokenizer.path))} has {missing} for the prefix {text}; give a token's id "
                "as prefix, or none"
            )
        return found
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise PilekitError(f"prefix is auto, bos, eos, none or a token's id, not {visible(text, 40)!r}")
    if lm is not None:
        rows = cast("torch.nn.Embedding", lm.model.get_input_embeddings()).num_embeddings
        if int(text) >= rows:
            raise PilekitError(f"prefix is the token id {text}, but the model has only the ids 0 to {rows - 1}")
    return int(text)


def protocol(
    lm: CausalLM, tokenizer: Tokenizer, corpus: Corpus, rules: Rules, model_dir: str | Path | None
) -> dict[str, Any]:
    """The protocol as a dict of JSON types; a model in memory (`model_dir` None) has no path and no fingerprint."""
    return {
        "pilekit": __version__,
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "model": {
            "path": None if model_dir is None else str(model_dir),
            "weights": None if model_dir is None else weights_fingerprint(model_dir),
            "model_type": lm.model.config.model_type,
            "parameters": sum(parameter.numel() for parameter in lm.model.parameters()),
        },
        "tokenizer": {
            "fingerprint": f"sha256:{tokenizer.fingerprint}",
            "backend": f"{tokenizer.backend} {importlib.metadata.version(tokenizer.backend)}",
            "special_tokens": tokenizer.special_tokens,
        },
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "device": lm.model.device.type,
        "max_length": rules.max_length,
        "context_len": 1,
        "windows": _WITHOUT_PREFIX if rules.prefix_id is None else _WITH_PREFIX,
        "prefix": {
            "given": rules.prefix,
            "id": rules.prefix_id,
            "token": None if rules.prefix_id is None else tokenizer.decode([rules.prefix_id]),
        },
        "bytes": "UTF-8 bytes of the raw text",
        "data": [{"name": shard.name, "size": shard.size} for shard in corpus.shards],
        "manifest": corpus.manifest.name,
        "subsets": None if rules.subsets is None else list(rules.subsets),
        "limit": rules.limit,
    }


def weights_fingerprint(model_dir: str | Path) -> str:
    """XXH3 (128 bits) of the weight files' bytes, the files in the order of their names."""
    digest = xxhash.xxh3_128()
    for path in weight_files(model_dir):
        with path.open("rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
    return f"xxh3:{digest.hexdigest()}"
