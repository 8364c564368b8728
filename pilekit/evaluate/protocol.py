"""The protocol: everything that a figure depends on, found and checked before any weight is read.

Bits per byte of one model differ with the window, the prefix, the data, and what is counted as a byte; a number without
these cannot be compared with another. So the protocol is stored and printed with the figures, as JSON types, in which
fingerprints stand for the model's weights and the tokenizer's file.

The weights may take minutes to read. So errors in the arguments, the tokenizer, the corpus or the machine are found
from the model's folder alone, whose shapes are known without its numbers.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import xxhash
from transformers import PreTrainedModel

from pilekit import __version__
from pilekit.corpus import Corpus, resolve_subsets
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.masked.model import tokens_of
from pilekit.evaluate.masked.pseudo_scoring import Template, template_of
from pilekit.evaluate.model.causal import check_vocabulary
from pilekit.evaluate.model.device import dtype_of
from pilekit.evaluate.model.load import MASKED, kind_of, outline, positions_of, stored_dtype, weight_files
from pilekit.tokenize import Tokenizer, load_tokenizer

Data = str | Path | Sequence[str | Path] | Corpus | None

USUAL_MAX_LENGTH = 2048
"""For a model that declares no limit; lm-evaluation-harness takes the same."""

MLM_SEED = 0
"""Seed of the choice of tokens in a masked model's window, where only a sample of them is scored."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How documents are scored.

    max_length    tokens in a window
    context_len   inputs that a window behind the first has, at the least, for each token that it predicts
    prefix        as it was given
    prefix_id     the token id before a document's first token, or None for "none"
    subsets       exact names, or None for all
    limit         documents of each subset, or None for all
    masked        whether tokens are masked one at a time, and not predicted from those before them
    mlm_sample    tokens masked of a window, or None for all
    paper         whether the figures are those of the Pile's paper
    """

    max_length: int
    context_len: int
    prefix: str
    prefix_id: int | None
    subsets: tuple[str, ...] | None
    limit: int | None
    masked: bool = False
    mlm_sample: int | None = None
    paper: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is known before the weights are read; rank 0 finds it out for all.

    key        of the records
    template   a masked model's; None for a causal one
    """

    corpus: Corpus
    rules: Rules
    tokenizer: Tokenizer
    dtype: torch.dtype
    protocol: dict[str, Any]
    key: str
    template: Template | None


def prepare(
    model_dir: str | Path, data: Data, *, dtype: str, device: torch.device, world_size: int, **given: Any
) -> Prepared:
    """All that is known before the weights are read; `given` goes to `rules_of`. PilekitError for whatever is wrong."""
    if not isinstance(model_dir, str | os.PathLike):
        raise PilekitError(f"model_dir is the path of a model's folder, not {visible(repr(model_dir), 80)}")
    corpus = corpus_of(data).only_held_out()
    if world_size > 1 and any(shard.path == "-" for shard in corpus.shards):
        raise PilekitError("standard input (-) can be read by one process only; save it to a file first")
    _exact_subsets(given.get("subsets"), corpus)
    kind = kind_of(model_dir)
    model = outline(model_dir, kind)
    computed_in = dtype_of(dtype, device, stored_dtype(model_dir))
    tokenizer = load_tokenizer(model_dir)
    check_vocabulary(model, tokenizer, str(model_dir))
    masked = kind is MASKED
    template = template_of(tokenizer) if masked else None
    positions = tokens_of(model) if masked else positions_of(model.config)
    rules = rules_of(corpus, tokenizer, model, positions, masked=masked, **given)
    if template is not None:
        template.room(rules.max_length)
    described = protocol(
        model, tokenizer, corpus, rules, dtype=computed_in, device=device.type, model_dir=model_dir, template=template
    )
    return Prepared(corpus, rules, tokenizer, computed_in, described, record_key(described), template)


def rules_of(
    corpus: Corpus,
    tokenizer: Tokenizer,
    model: PreTrainedModel,
    positions: int | None,
    *,
    masked: bool,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    context_len: int = 1,
    prefix: str | int = "auto",
    paper: bool = False,
    mlm_sample: int | None = None,
) -> Rules:
    """The rules that follow from the arguments; PilekitError for those that do not fit the model or each other."""
    kind, other = ("masked", "causal") if masked else ("causal", "masked")
    if masked:
        unusable = {"context_len": context_len != 1, "prefix": prefix != "auto", "paper": bool(paper)}
    else:
        unusable = {"mlm_sample": mlm_sample is not None}
    if misplaced := [name for name, is_given in unusable.items() if is_given]:
        raise PilekitError(
            f"{misplaced[0]} is for {other} models, and this {visible(model.config.model_type, 60)} model is a {kind} "
            "one; leave it out"
        )
    if max_length is None:
        max_length = positions or USUAL_MAX_LENGTH
    elif positions is not None and max_length > positions:
        raise PilekitError(
            f"max_length is {max_length:,}, but the model has {positions:,} positions; give at most that"
        )
    if context_len > max_length:
        raise PilekitError(
            f"context_len is {context_len:,}, but a window has only {max_length:,} tokens; give at most that"
        )
    return Rules(
        max_length,
        context_len,
        "none" if masked else str(prefix),
        None if masked else prefix_token(prefix, tokenizer, model),
        _exact_subsets(subsets, corpus),
        limit,
        masked,
        mlm_sample,
        paper,
    )


def corpus_of(data: Data) -> Corpus:
    """The corpus that `data` names."""
    return data if isinstance(data, Corpus) else Corpus(data)


def check_counts(**counts: int | None) -> None:
    """PilekitError for one that is neither None nor a whole number from 1 on."""
    for name, value in counts.items():
        if value is not None and (type(value) is not int or value < 1):
            raise PilekitError(f"{name} is a whole number from 1 on, not {visible(repr(value), 40)}")


def _exact_subsets(subsets: Sequence[str] | None, corpus: Corpus) -> tuple[str, ...] | None:
    """The exact names of the subsets asked for; None: all."""
    if subsets is None:
        return None
    names = resolve_subsets(*([subsets] if isinstance(subsets, str) else subsets), manifest=corpus.manifest)
    if not names:
        raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
    return names


def prefix_token(prefix: str | int, tokenizer: Tokenizer, model: PreTrainedModel) -> int | None:
    """The id that `prefix` means: "auto", "bos", "eos", or an id that the model has; None for "none".

    The model may be on the meta device.
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
    rows = cast("torch.nn.Embedding", model.get_input_embeddings()).num_embeddings
    if int(text) >= rows:
        raise PilekitError(f"prefix is the token id {text}, but the model has only the ids 0 to {rows - 1}")
    return int(text)


def protocol(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    corpus: Corpus,
    rules: Rules,
    *,
    dtype: torch.dtype,
    device: str,
    model_dir: str | Path | None,
    template: Template | None = None,
) -> dict[str, Any]:
    """The protocol as a dict of JSON types; a model in memory (`model_dir` None) has no path and no fingerprints.

    model      which may be on the meta device
    dtype      what it computes in
    device     the type of where it does
    template   a masked model's
    """
    masked = {}
    if template is not None:
        masked = {
            "template": {"before": list(template.before), "behind": list(template.behind), "mask": template.mask},
            "mlm_sample": rules.mlm_sample,
            "mlm_seed": MLM_SEED,
        }
    return {
        "pilekit": __version__,
        "torch": str(torch.__version__),  # which is a str of a class of its own
        "transformers": importlib.metadata.version("transformers"),
        "kind": "masked" if rules.masked else "causal",
        "model": {
            "path": None if model_dir is None else str(model_dir),
            "weights": None if model_dir is None else weights_fingerprint(model_dir),
            "config": None if model_dir is None else _fingerprint([Path(model_dir) / "config.json"]),
            "model_type": model.config.model_type,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "tokenizer": {
            "fingerprint": f"sha256:{tokenizer.fingerprint}",
            "backend": f"{tokenizer.backend} {importlib.metadata.version(tokenizer.backend)}",
            "special_tokens": tokenizer.special_tokens,
        },
        "dtype": str(dtype).removeprefix("torch."),
        "device": device,
        "max_length": rules.max_length,
        "context_len": rules.context_len,
        "windows": _windows(rules),
        "prefix": {
            "given": rules.prefix,
            "id": rules.prefix_id,
            "token": None if rules.prefix_id is None else tokenizer.decode([rules.prefix_id]),
        },
        **masked,
        "bytes": "UTF-8 bytes of the raw text",
        "data": [{"name": shard.name, "size": shard.size} for shard in corpus.shards],
        "manifest": corpus.manifest.name,
        "subsets": None if rules.subsets is None else list(rules.subsets),
        "limit": rules.limit,
        "paper": rules.paper,
    }


_ONLY_TOLD = ("windows", "bytes", "paper", "intervals", "skipped_lines", "labels", "records")
"""Of the protocol: what no document's negative log-likelihood depends on."""


def record_key(protocol: dict[str, Any]) -> str:
    """A hash of all that the record of a document depends on, 32 hexadecimal digits: of the model and the protocol.

    Records under one key may stand in one table, whoever made them. What a model is called, where it lies and what is
    made of the records have no part in it.
    """
    of = {name: value for name, value in protocol.items() if name not in _ONLY_TOLD}
    of["model"] = {name: value for name, value in protocol["model"].items() if name != "path"}
    of["prefix"] = protocol["prefix"]["id"]
    return xxhash.xxh3_128_hexdigest(json.dumps(of, sort_keys=True).encode())


def weights_fingerprint(model_dir: str | Path) -> str:
    """XXH3 (128 bits) of the weight files' bytes, the files in the order of their names."""
    return _fingerprint(weight_files(model_dir))


def _fingerprint(files: Iterable[Path]) -> str:
    digest = xxhash.xxh3_128()
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
    return f"xxh3:{digest.hexdigest()}"


def _windows(rules: Rules) -> str:
    """How a document is cut, in words."""
    if rules.masked:
        each = "each token" if rules.mlm_sample is None else f"{rules.mlm_sample:,} tokens, drawn at random,"
        return (
            "each document alone, as disjoint windows of at most max_length tokens, the tokenizer's special "
            f"ones around them included; {each} masked one at a time and predicted from all others of the window"
        )
    if rules.context_len > 1:
        cut = (
            "each document alone, as windows of max_length inputs that overlap, so that each token behind the first "
            "window is predicted from at least context_len inputs; each token predicted once"
        )
    else:
        cut = (
            "each document alone, as disjoint windows of max_length inputs, of which the last reaches back so that its "
            "inputs are full too; each token predicted once"
        )
    if rules.prefix_id is None:
        return f"{cut}, but the first, which is context only, while its bytes count"
    return f"{cut}, the first from the prefix"
