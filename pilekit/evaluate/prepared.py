"""What is known of an evaluation before any weight is read: its rules, its corpus, and all that does not fit.

The weights may take minutes to read; so what is wrong with the arguments, the tokenizer, the corpus, the lists or the
machine is found from the model's folder alone, whose shapes are known without its numbers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from pilekit.corpus import Corpus, resolve_subsets
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.masked.model import tokens_of
from pilekit.evaluate.masked.pseudo_scoring import Template, template_of
from pilekit.evaluate.model.causal import check_vocabulary
from pilekit.evaluate.model.device import dtype_of
from pilekit.evaluate.model.load import MASKED, kind_of, outline, positions_of, stored_dtype
from pilekit.evaluate.results.group0 import Group0, load_group0
from pilekit.evaluate.results.protocol import Rules, max_length_of, prefix_token, protocol, record_key
from pilekit.tokenize import Tokenizer, load_tokenizer

Data = str | Path | Sequence[str | Path] | Corpus | None


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments of `bits_per_byte` of which the rules are made."""

    subsets: Sequence[str] | None
    limit: int | None
    max_length: int | None
    context_len: int
    prefix: str | int
    paper: bool = False
    group0: str | Path | None = None
    mlm_sample: int | None = None
    dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is known before the weights are read; rank 0 finds it out for all.

    key        of the records
    template   a masked model's; None for a causal one
    lists      of --group0
    """

    corpus: Corpus
    rules: Rules
    tokenizer: Tokenizer
    dtype: torch.dtype
    protocol: dict[str, Any]
    key: str
    template: Template | None
    lists: Group0 | None


def prepare(model_dir: str | Path, data: Data, given: Given, device: torch.device, world_size: int) -> Prepared:
    """All that is known before the weights are read; PilekitError for whatever is wrong or does not fit."""
    if not isinstance(model_dir, str | os.PathLike):
        raise PilekitError(f"model_dir is the path of a model's folder, not {visible(repr(model_dir), 80)}")
    corpus = corpus_of(data)
    if given.group0 is not None and any(shard.split == "test" for shard in corpus.shards):
        corpus = corpus.split("test")
    corpus = corpus.only_held_out()
    if world_size > 1 and any(shard.path == "-" for shard in corpus.shards):
        raise PilekitError("standard input (-) can be read by one process only; save it to a file first")
    exact_subsets(given.subsets, corpus)
    kind = kind_of(model_dir)
    model = outline(model_dir, kind)
    dtype = dtype_of(given.dtype, device, stored_dtype(model_dir))
    tokenizer = load_tokenizer(model_dir)
    check_vocabulary(model, tokenizer, str(model_dir))
    lists = None if given.group0 is None else load_group0(given.group0, corpus.manifest)
    masked = kind is MASKED
    template = template_of(tokenizer) if masked else None
    positions = tokens_of(model) if masked else positions_of(model.config)
    rules = rules_of(given, corpus, tokenizer, model, positions, lists, masked=masked)
    if template is not None:
        template.room(rules.max_length)
    described = protocol(
        model, tokenizer, corpus, rules, dtype=dtype, device=device.type, model_dir=model_dir, template=template
    )
    return Prepared(corpus, rules, tokenizer, dtype, described, record_key(described), template, lists)


def rules_of(
    given: Given,
    corpus: Corpus,
    tokenizer: Tokenizer,
    model: PreTrainedModel,
    positions: int | None,
    lists: Group0 | None = None,
    *,
    masked: bool,
) -> Rules:
    """The rules that follow from the arguments; PilekitError for those that do not fit the model or each other."""
    if masked:
        for name, value, usual in (
            ("context_len", given.context_len, 1),
            ("prefix", given.prefix, "auto"),
            ("paper", given.paper, False),
        ):
            if value != usual:
                raise PilekitError(
                    f"{name} is for causal models, and this {visible(model.config.model_type, 60)} model is a masked "
                    "one; leave it out"
                )
    elif given.mlm_sample is not None:
        raise PilekitError(
            f"mlm_sample is for masked models, and this {visible(model.config.model_type, 60)} model is a causal one; "
            "leave it out"
        )
    max_length = max_length_of(positions, given.max_length)
    if given.context_len > max_length:
        raise PilekitError(
            f"context_len is {given.context_len:,}, but a window has only {max_length:,} tokens; give at most that"
        )
    return Rules(
        max_length,
        given.context_len,
        "none" if masked else str(given.prefix),
        None if masked else prefix_token(given.prefix, tokenizer, model),
        exact_subsets(given.subsets, corpus),
        given.limit,
        None if lists is None else lists.fingerprint,
        masked,
        given.mlm_sample,
        given.paper,
    )


def corpus_of(data: Data) -> Corpus:
    """The corpus that `data` names."""
    return data if isinstance(data, Corpus) else Corpus(data)


def check_counts(**counts: int | None) -> None:
    """PilekitError for one that is neither None nor a whole number from 1 on."""
    for name, value in counts.items():
        if value is not None and (type(value) is not int or value < 1):
            raise PilekitError(f"{name} is a whole number from 1 on, not {visible(repr(value), 40)}")


def exact_subsets(subsets: Sequence[str] | None, corpus: Corpus) -> tuple[str, ...] | None:
    """The exact names of the subsets asked for; None: all."""
    if subsets is None:
        return None
    names = resolve_subsets(*([subsets] if isinstance(subsets, str) else subsets), manifest=corpus.manifest)
    if not names:
        raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
    return names
