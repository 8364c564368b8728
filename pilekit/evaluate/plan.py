"""`Plan`: how a corpus is scored, found and checked before any weights are read.

The weights may take minutes to read. So errors in the arguments, the tokenizer, the corpus or the machine are found
with the model's configuration and shapes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from pilekit.corpus import Corpus, resolve_subsets
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.masked.model import tokens_of
from pilekit.evaluate.masked.pseudo_nll import Template, template_of
from pilekit.evaluate.model.causal import check_vocabulary, max_length_of
from pilekit.evaluate.model.device import dtype_of
from pilekit.evaluate.model.load import MASKED, kind_of, outline, stored_dtype
from pilekit.evaluate.protocol import describe
from pilekit.evaluate.results.result_folder import record_key
from pilekit.shards.read.reader import OnError
from pilekit.tokenize import Tokenizer, load_tokenizer

Data = str | Path | Sequence[str | Path] | Corpus | None

USUAL_MAX_LENGTH = 2048
"""The window of a model that declares no limit, as in lm-evaluation-harness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `bits_per_byte` that say which documents are scored and how; its docstring explains each."""

    subsets: Sequence[str] | None = None
    limit: int | None = None
    max_length: int | None = None
    context_len: int = 1
    prefix: str | int = "auto"
    paper: bool = False
    mlm_sample: int | None = None
    batch_tokens: int | None = None
    on_error: OnError = "raise"

    def check(self, model_type: str, masked: bool) -> None:
        """PilekitError for a count that is not positive, and for an option that belongs to the other kind of model."""
        for name in ("limit", "max_length", "batch_tokens", "context_len", "mlm_sample"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise PilekitError(f"{name} is a whole number from 1 on, not {visible(repr(value), 40)}")
        usual = {"context_len": 1, "prefix": "auto", "paper": False} if masked else {"mlm_sample": None}
        kind, other = ("masked", "causal") if masked else ("causal", "masked")
        for name, value in usual.items():
            if getattr(self, name) != value:
                this = f"this {visible(model_type, 60)} model is a {kind} one"
                raise PilekitError(f"{name} is for {other} models, and {this}; leave it out")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is scored, and how.

    options      as given
    subsets      exact names; None: all
    max_length   tokens in a window
    prefix_id    the token before a document's first token; None: no prefix
    template     the special tokens of a masked model's windows; None for a causal model
    dtype        the precision to compute in
    protocol     everything that a figure depends on, as JSON types
    """

    corpus: Corpus
    tokenizer: Tokenizer
    options: Options
    subsets: tuple[str, ...] | None
    max_length: int
    prefix_id: int | None
    template: Template | None
    dtype: torch.dtype
    protocol: dict[str, Any]

    @property
    def key(self) -> str:
        """The name of the records' folder; see `record_key`."""
        return record_key(self.protocol)

    @property
    def shards(self) -> list[str]:
        """The names of the shards."""
        return [shard.name for shard in self.corpus.shards]


def prepare(
    model_dir: str | Path, data: Data, options: Options, *, dtype: str, device: torch.device, world_size: int
) -> Plan:
    """The plan for the model of a folder, made without reading its weights; PilekitError for anything wrong."""
    corpus = corpus_of(data).only_held_out()
    if world_size > 1 and any(shard.path == "-" for shard in corpus.shards):
        raise PilekitError("standard input (-) can be read by one process only; save it to a file first")
    exact_subsets(options.subsets, corpus)  # before the files of the model, which take longer
    kind = kind_of(model_dir)
    model = outline(model_dir, kind)
    tokenizer = load_tokenizer(model_dir)
    check_vocabulary(model, tokenizer, str(model_dir))
    return make_plan(
        model,
        tokenizer,
        corpus,
        options,
        dtype=dtype_of(dtype, device, stored_dtype(model_dir)),
        device=device,
        model_dir=Path(model_dir),
        template=template_of(tokenizer) if kind is MASKED else None,
    )


def make_plan(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    corpus: Corpus,
    options: Options,
    *,
    dtype: torch.dtype,
    device: torch.device,
    model_dir: Path | None = None,
    template: Template | None = None,
) -> Plan:
    """The plan for a model, which may be on the meta device; PilekitError for options that do not fit.

    model_dir   the folder of the model; None for a model in memory
    template    of a masked model
    """
    options.check(model.config.model_type, template is not None)
    positions = max_length_of(model) if template is None else tokens_of(model)
    max_length = options.max_length or positions or USUAL_MAX_LENGTH
    if positions is not None and max_length > positions:
        raise PilekitError(
            f"max_length is {max_length:,}, but the model has {positions:,} positions; give at most that"
        )
    if options.context_len > max_length:
        raise PilekitError(
            f"context_len is {options.context_len:,}, but a window has only {max_length:,} tokens; give at most that"
        )
    if template is not None:
        template.room(max_length)
    subsets = exact_subsets(options.subsets, corpus)
    prefix = None if template is not None else prefix_token(options.prefix, tokenizer, model)
    plan = Plan(corpus, tokenizer, options, subsets, max_length, prefix, template, dtype, {})
    plan.protocol.update(describe(plan, model, device.type, model_dir))
    return plan


def corpus_of(data: Data) -> Corpus:
    """The corpus that `data` names."""
    return data if isinstance(data, Corpus) else Corpus(data)


def exact_subsets(subsets: Sequence[str] | None, corpus: Corpus) -> tuple[str, ...] | None:
    """The exact names of the subsets asked for; None: all."""
    if subsets is None:
        return None
    names = resolve_subsets(*([subsets] if isinstance(subsets, str) else subsets), manifest=corpus.manifest)
    if not names:
        raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
    return names


def prefix_token(prefix: str | int, tokenizer: Tokenizer, model: PreTrainedModel) -> int | None:
    """The token id that `prefix` means: "auto", "bos", "eos" or an id of the model; None for "none"."""
    text = str(prefix)
    if text == "none":
        return None
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    named = {"auto": eos if bos is None else bos, "bos": bos, "eos": eos}
    if text in named:
        if named[text] is None:
            raise PilekitError(
                f"the tokenizer {visible(str(tokenizer.path))} has no token for the prefix {text}; give a token's id "
                "as prefix, or none"
            )
        return named[text]
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise PilekitError(f"prefix is auto, bos, eos, none or a token's id, not {visible(text, 40)!r}")
    rows = cast("torch.nn.Embedding", model.get_input_embeddings()).num_embeddings
    if int(text) >= rows:
        raise PilekitError(f"prefix is the token id {text}, but the model has only the ids 0 to {rows - 1}")
    return int(text)
