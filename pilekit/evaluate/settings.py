"""The settings of `bits_per_byte` (`BitsPerByteSettings`), and those that decide on any score (`ScoreSettings`).

Each setting has its type, range, default and sentence here alone. `takes_settings` makes the signature and docstring of
`bits_per_byte` of them, and `pilekit bpb` its options. Nothing here imports torch, so a command finds a wrong value
before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pilekit.artifacts.settings import Count
from pilekit.corpus import Corpus, Described, Source
from pilekit.display.progress import Scored
from pilekit.errors import PilekitError, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedModel
else:
    PreTrainedModel = Any  # importing it takes seconds

Data = Source | Corpus | None


class ScoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which documents are scored, and how."""

    subsets: Sequence[str] | None = None
    """Only documents of these subsets, in any spelling the manifest knows. Default: all."""
    limit: Count | None = None
    """Only this many documents of each subset, from the first. Default: all. Reading ends when all subsets requested
    are full, or without `subsets`, all of the manifest and all others found so far."""
    limit_bytes: Count | None = None
    """Only so many bytes of text of each subset: whole documents, from the first to the one that reaches it."""
    max_length: Count | None = None
    """Tokens in a window; by default the model's positions, or 2048 if it declares no limit."""
    context_len: Count = 1
    """The fewest inputs before each predicted token, in windows after the first; above 1 windows overlap. Published
    figures are made with 1; more context gives lower figures at a higher cost."""
    prefix: str | int = "auto"
    """The token before a document's first token: "bos", "eos", a token's id, "auto" (BOS, else EOS), or "none". With
    "none" the first token is context only and is not predicted, while its bytes count."""
    paper: bool = False
    """Figures as in the Pile's paper, by its constants of tokens per byte, for GPT-2's tokenizer."""
    mlm_sample: Count | None = None
    """For a masked model: score only this many tokens of each window, drawn at random. Default: all."""
    per_token: bool = False
    """Also write the bits of every token into tokens.parquet in `out`. The page bpb.md lists its columns."""
    batch_tokens: Count | None = None
    """Tokens in a forward pass, for speed and memory; figures do not depend on it. Default: the device's. If memory
    does not suffice, batches become smaller, and a warning says so."""
    on_error: Literal["raise", "skip"] = "raise"
    """How to treat a bad line: "raise" stops and names the line, "skip" passes it over and counts it. The count is in a
    warning and in "skipped_lines" of the protocol."""

    def __post_init__(self) -> None:
        if self.per_token and self.mlm_sample is not None:
            raise PilekitError("per_token needs the losses of all tokens, not of a sample; leave out mlm_sample")

    def check_kind(self, model_type: str, masked: bool) -> None:
        """PilekitError for a setting that belongs to the other kind of model."""
        usual = {"context_len": 1, "prefix": "auto", "paper": False} if masked else {"mlm_sample": None}
        kind, other_kind = ("masked", "causal") if masked else ("causal", "masked")
        for name, value in usual.items():
            if getattr(self, name) != value:
                this = f"this {shortened(model_type, 60)} model is a {kind} one"
                raise PilekitError(f"{name} is for {other_kind} models, and {this}; leave it out")


class _ScoreSource(ScoreSettings, frozen=True):
    """The settings that a call may give by position."""

    model: str | Path | PreTrainedModel
    """A folder with config.json, safetensors and tokenizer.json, or a model of `transformers`, which is scored as it
    is, on its device and in its precision, and not changed."""
    data: Data = None
    """A path, glob or URL, several of them, a `Corpus`, or None for the default places. If there are val or test shards
    among others, only these are scored, and a warning names them."""


class BitsPerByteSettings(_ScoreSource, frozen=True, kw_only=True):
    """What `bits_per_byte` takes."""

    tokenizer: Any = None
    """An argument of `load_tokenizer`. Default: the folder's."""
    adapter: str | Path | None = None
    """A folder whose adapter, as peft saves it, is added to the weights. Default: the model alone, also if an adapter
    lies beside its weights."""
    train: Data = None
    """Training shards: documents whose text occurs in them are counted. The counts are in `.training_copies`."""
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8", "int4"] = "auto"
    """Precision; "auto": fp32 on a CPU, the precision of the stored weights on a GPU. "int8" and "int4" compute as
    "auto" with the weights of the blocks quantised by torchao."""
    device: str = "auto"
    """Where to compute: "cpu", "cuda", "cuda:N", or "auto", a GPU if there is one."""
    out: str | Path | None = None
    """A folder for result.json and the record of every document, written as soon as it is scored. The same call resumes
    after an interruption, and answers at once when all is recorded."""
    manifest: Described = None
    """Describes the data at a path, as for `Corpus`; `train` has the same."""
    report: Scored | None = None
    """Called with the bytes done, their total, and the bits per byte of the documents that this process and earlier
    runs have scored. The bytes are those of texts if a limit is given or every shard has an index, else stored bytes.
    A number that is not known (yet) is None."""
