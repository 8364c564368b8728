"""The settings of a stream: what `PileStream` takes, and what `[data]` of a training config and `pilekit stream` share.

Each setting has its type, range, default and sentence here alone. `takes_settings` makes the signature and docstring of
`PileStream` of them, cli/options.py makes options, and train/config/sections.py inherits `RowSettings`. Nothing here
imports torch, so a command finds a wrong value before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pilekit.artifacts.settings import Count, FromZero, Numbers, Seed, Text, Texts
from pilekit.corpus import Corpus, Described, Source
from pilekit.errors import PilekitError, counted
from pilekit.pipeline.pipeline import Stage

Packing = Literal["best_fit", "concat", "none"]
DEFAULT_OUTPUTS = ("input_ids", "labels", "position_ids")

MOST_SAMPLES = 1 << 24
"""The most samples in an optimizer step, and tokens in a row. No memory could hold more."""

MOST_LANES = 1 << 20
"""The most lanes in a grid. Each lane holds a window of documents, so a larger number is a mistake."""

MOST_STEPS = 1 << 38
"""No run has more optimizer steps. Up to it, the numbers of all samples fit into 64 bits."""

Samples = Annotated[int, Meta(ge=1, le=MOST_SAMPLES)]

_COPIES = Meta(ge=0, le=1 << 30)


PLANTED = "(planted)"
"""The subset of all planted texts."""

_KEYS = {"begin": "from", "end": "to"}
"""Keys in a file whose words are Python's, or say too little in it."""


class Planting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_KEYS):
    """An entry of `plant`. Steps are counted as those of weights by step: optimizer steps done before."""

    file: Text
    """A file of documents, in the format of the data."""
    copies: Annotated[int, _COPIES] | Annotated[list[Annotated[int, _COPIES]], Meta(min_length=1)]
    """How often each text is planted: one number, or several, which the texts of the file take in turn."""
    begin: Annotated[int, Meta(ge=0, le=MOST_STEPS)] = 0
    """The first step, `from`."""
    end: Annotated[int, Meta(ge=1, le=MOST_STEPS)]
    """The step after the last, `to`."""

    def __post_init__(self) -> None:
        if self.begin >= self.end:
            raise ValueError(f"from = {self.begin} and to = {self.end}: there is no step from the one to the other")


class RowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which documents are read, in which order, and how they fill rows."""

    seq_len: Samples = 2048
    """Tokens in a row."""
    subsets: Texts | None = None
    """Use only documents of these subsets, by any of their names. Default: all."""
    repeats: Numbers | None = None
    """Uses of a subset's documents per epoch, such as 2.5 for ArXiv; 0 means never. Default: once. Released train
    shards of the Pile are up-sampled already, and these factors multiply that."""
    weights: Numbers | Sequence[Numbers | tuple[FromZero, Numbers]] | None = None
    """The mixture as shares of tokens, such as 0.3 for ArXiv and 0.7 for GitHub; replaces `subsets` and `repeats`. Only
    these subsets are read, as often as their shares require (read/mixture.py). The stream's `repeats` has the factors.
    Or a list of pairs, such as [(0, {...}), (10000, {...})]: the shares from that optimizer step on. Before the first
    pair's step a stream is as without it: with `subsets` and `repeats`, or with weights without a step as the list's
    first element, [{...}, (10000, {...})].
    """
    ramp: FromZero = 0
    """Optimizer steps in which weights that are given by step change from one entry to the next, in a straight line; 0:
    at once."""
    dedup: str | Path | None = None
    """Folder of a finished `pilekit dedup`, whose removed documents are left out."""
    copies: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """With `dedup`: a kept document with s - 1 removed copies counts s to this power, from 0 to 1. 0 uses it once, 1 as
    often as it and its copies stood in the corpus, 0.5 the square root of that. Fractions are treated as by `repeats`,
    and factors of `repeats` multiply it. It needs random access."""
    copies_max: Count = 100
    """The most uses of a document by `copies`."""
    without: str | Path | None = None
    """Documents that give no loss: their labels are ignored, and all else stays as it is. A list of them (.parquet or
    .jsonl with `shard` and `number`, lines of `pilekit grep`, a result of `pilekit trace`), or the name of a subset."""
    plant: Sequence[Planting | Mapping[str, Any]] | None = None
    """Texts that stand in rows instead of what is there: a list of tables such as {"file": "canary.jsonl", "copies":
    [1, 4], "from": 100, "to": 900}. Each text of the file is planted so often, in rows that the seed chooses, of steps
    from 100 on and before 900. The texts take a list of copies in turn. All other rows stay as they are."""
    on_error: Literal["raise", "skip"] = "raise"
    """How to treat a bad line: "raise" stops and names the line, "skip" leaves it out and counts it."""
    packing: Packing = "best_fit"
    """How documents fill rows: "best_fit" cuts only documents longer than a row, "concat" joins all documents and cuts
    at row ends, "none" puts one document in each row."""
    window: Count = 256
    """Documents that are packed together; "concat" ignores it."""
    lanes: tuple[Count, Count] | Literal["auto"] = "auto"
    """Rows and columns of the stream's grid. The number of ranks must divide the rows, and the rows must divide the
    global batch size. "auto" chooses them when a run first starts, and its state keeps them."""
    seed: Seed = 0
    """Seed of the documents' order, and of all that is random in a stream."""
    shuffle_block: Count = 4096
    """Lines in a block whose documents are shuffled, in shards that have no random access and are read in order. Each
    lane holds a block, of at most 32 MB of text."""


class _StreamSource(RowSettings, frozen=True):
    """The arguments that may be given without their names."""

    data: Source | Corpus
    """A path, a glob, a URL, a list of them, or a `Corpus`. Val and test shards among others are left out, with a
    warning. Or the prefix of token files (`tokens/pile`), or a list of prefixes. Files of `pilekit tokenize` give the
    same batches as their shards."""
    tokenizer: str | Path | Any | None
    """A tokenizer.json, a folder with one, or a cached name. Or a tokenizer object (see `load_tokenizer`). It must have
    an end-of-document token. None: items are whole documents, and all settings of tokens, rows and windows are unused.
    """


class StreamSettings(_StreamSource, frozen=True, kw_only=True):
    """What `PileStream` takes."""

    manifest: Described = None
    """Describes the data at a path, as for `Corpus`."""
    batch_size: Samples | None = None
    """Rows in a batch of this rank; 8, if no other size is given."""
    grad_accum: Samples | None = None
    """Batches of this rank in an optimizer step; 1, unless the other sizes require more."""
    global_batch_size: Samples | None = None
    """Rows in an optimizer step, over all ranks. Default: batch_size x grad_accum x world_size. The state keeps it:
    after a resume, grad_accum follows from it (or batch_size, given grad_accum)."""
    append_eod: bool = True
    """Whether the end-of-document token follows each document."""
    shuffle: bool = True
    """False: units and documents in the order of the corpus."""
    filters: Sequence[Stage] = ()
    """Document stages; each must judge a document by that document alone."""
    objective: Literal["clm", "mlm"] = "clm"
    """What the labels are: the tokens ("clm"), or 15 % of the tokens, masked, the same on any topology ("mlm", which
    needs a mask token)."""
    outputs: Sequence[str] = DEFAULT_OUTPUTS
    """The tensors of a batch, see `Batch`; `stream_state` is always there."""
    epochs: Count | None = None
    """None: endless. Else an iteration ends after this many passes through the corpus, for evaluation, each pass in
    another order. The next iteration has the same orders, unless `set_epoch` is called before it. Every rank gets the
    same number of batches: empty rows fill the last step."""
    drop_last: bool = False
    """With `epochs`: leave an incomplete last step out."""
    rank: FromZero | None = None
    """Of this process, from 0. Default: from torch.distributed, else $RANK, else 0."""
    world_size: Samples | None = None
    """Number of ranks. Default: from torch.distributed, else $WORLD_SIZE, else 1."""
    num_replicas: Samples | None = None
    """Another name for `world_size`, as DistributedSampler has it."""
    cache: str | Path | None = None
    """A local folder that keeps frames of remote shards, for any number of processes and runs."""
    cache_bytes: Count = 32 << 30
    """The most bytes in `cache`; the least recently used frames are removed."""

    def check(self) -> None:
        """PilekitError for settings that contradict each other; each single one has passed its type."""
        if self.lanes != "auto" and self.lanes[0] * self.lanes[1] > MOST_LANES:
            rows, columns = self.lanes
            raise PilekitError(f"lanes are {rows} rows x {columns} columns, more than {MOST_LANES:,}; give fewer")
        if self.epochs is not None and self.lanes != "auto":
            raise PilekitError(
                f"{counted(self.epochs, 'epoch')} and lanes exclude each other: a pass that ends has no lanes"
            )
        if self.tokenizer is None and self.objective == "mlm":
            raise PilekitError('objective="mlm" masks tokens, tokenizer=None asks for documents; give a tokenizer')
        if self.tokenizer is None and self.without is not None:
            raise PilekitError("without ignores labels of tokens, tokenizer=None asks for documents; give a tokenizer")
        if self.tokenizer is None and self.plant:
            raise PilekitError("plant makes rows of tokens, tokenizer=None asks for documents; give a tokenizer")
        if self.epochs is not None and self.plant:
            raise PilekitError(
                f"{counted(self.epochs, 'epoch')} and plant exclude each other: texts are planted in steps of a stream "
                "without end; leave out one of them"
            )
        is_scheduled = isinstance(self.weights, list | tuple)
        if self.epochs is not None and is_scheduled:
            raise PilekitError(
                f"{counted(self.epochs, 'epoch')} and weights by step exclude each other: each subset has epochs of "
                "its own; leave out epochs, or give one mixture as weights"
            )
        if self.tokenizer is None and self.weights is not None:
            raise PilekitError("weights are shares of tokens, tokenizer=None asks for documents; give a tokenizer")
