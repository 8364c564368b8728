"""`TrainConfig`: everything that a run is made with, typed.

One Struct per section of the file, one sentence per field. A field is called `section.field` wherever it is named. Its
type says what it may hold (the description is what an error says), except that only `train.clip_norm` may be infinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

Objective = Literal["clm", "mlm"]
Attention = Literal["document", "causal", "row"]

LONGEST_ROW = 2**20
"""More tokens than any model has positions; a typing error must not ask for all of the memory."""
LARGEST_INTEGER = 2**53
"""The largest whole number a config may hold: every reader of JSON has it exactly."""

Count = Annotated[int, Meta(ge=1, le=LARGEST_INTEGER, description="a whole number from 1 to 2^53")]
FromZero = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER, description="a whole number from 0 to 2^53")]
RowLength = Annotated[int, Meta(ge=2, le=LONGEST_ROW, description=f"a whole number from 2 to {LONGEST_ROW}")]
Positive = Annotated[float, Meta(gt=0, description="a number above 0")]
NotNegative = Annotated[float, Meta(ge=0, description="a number of at least 0")]
Share = Annotated[float, Meta(gt=0, le=1, description="a number above 0 and at most 1")]
Beta = Annotated[float, Meta(ge=0, lt=1, description="a number from 0 to below 1")]
Betas = Annotated[tuple[Beta, Beta], Meta(description="two numbers from 0 to below 1, such as [0.9, 0.95]")]
Pair = Annotated[tuple[Count, Count], Meta(description="two whole numbers of at least 1, such as [8, 16]")]

_TEXT = r"[^\0\ud800-\udfff]"
Text = Annotated[str, Meta(pattern=rf"\A{_TEXT}+\Z", description="text in quotes, and not empty")]
Texts = Annotated[list[Text], Meta(min_length=1, description='a list of texts, such as ["a", "b"]')]
Numbers = Annotated[
    dict[Text, NotNegative], Meta(min_length=1, description="a table of numbers of at least 0, such as {ArXiv = 2.0}")
]
# Standard input cannot be read again when a run is resumed.
_File = Annotated[str, Meta(pattern=rf"\A(?!-\Z){_TEXT}+\Z", description='a path in quotes (not "-")')]
_Files = Annotated[list[_File], Meta(min_length=1, description='a list of paths, such as ["a", "b"]')]
Path = Annotated[str, Meta(description='a path in quotes (not "-")')]
Files = Path | _Files
"""A pattern beside a list crashes msgspec 0.22: a single path is checked as a list of one (text.typed)."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file: immutable, every field checked."""


class DataConfig(_Section, frozen=True, kw_only=True):
    """`[data]`: what is read, and how it becomes rows of tokens."""

    path: Files | None = None
    """Shards: a file, folder, glob or URL, or several of them; left out: $PILEKIT_DATA, ./data or here."""
    manifest: Text | None = None
    """What the corpus is: the name of a bundled manifest or a TOML file; left out: the Pile's."""
    tokenizer: Text | None = None
    """A tokenizer.json, a folder with one, or a cached name; left out: the tokenizer of `model.path`."""
    seq_len: RowLength = 2048
    """Tokens in a row."""
    subsets: Texts | None = None
    """Only documents of these subsets, by any of their names; left out: all."""
    repeats: Numbers | None = None
    """How often documents of a subset are used per epoch, such as {ArXiv = 2.5}; those not named once, 0: never."""
    dedup: Text | None = None
    """Folder of a finished `pilekit dedup`: what it removed is left out."""
    on_error: Literal["raise", "skip"] = "raise"
    """What a bad line of a shard does: "raise" stops the run with its place, "skip" leaves it out with a warning."""
    packing: Literal["best_fit", "concat", "none"] = "best_fit"
    """How documents fill rows: "best_fit" cuts none that fits in one, "concat" puts one after another and cuts at the
    row's edge, "none" puts one in each."""
    window: Count = 256
    """Documents that are packed together; "concat" has no use for it."""
    lanes: Pair | Literal["auto"] = "auto"
    """Rows and columns of the stream's grid: the number of ranks must divide the rows, which divide the global batch
    size; "auto" chooses them at a run's first start."""
    seed: FromZero = 0
    """Of the documents' order."""
    workers: FromZero = 0
    """Processes beside each rank that make its batches; 0: the rank does, between two steps."""
    attention: Attention = "document"
    """What a token sees: only its own document, or all of its row: with "clm" what stands before it ("causal"), with
    "mlm" whatever stands there ("row")."""


class ModelConfig(_Section, frozen=True, kw_only=True):
    """`[model]`: what is trained; exactly one of the three is given."""

    preset: Text | None = None
    """The shape of a published model, freshly initialised: `pythia-14m` and its like."""
    config: Text | None = None
    """A Hugging Face config.json or a folder with one, freshly initialised."""
    path: Text | None = None
    """A local model_dir, whose weights are trained further."""


class TrainSection(_Section, frozen=True, kw_only=True):
    """`[train]`: how much, in what portions, towards what."""

    steps: Count | None = None
    """Optimizer steps, those of earlier runs of the same folder counted; this or `tokens` is given."""
    tokens: Count | None = None
    """Tokens in all, padding counted: as many steps as it takes to reach them."""
    global_batch_size: Count = 32
    """Rows per optimizer step, over all ranks."""
    micro_batch_size: Count = 8
    """Rows per forward and backward pass of a rank; it divides the rank's share of the global batch size, and changes
    memory and speed only."""
    objective: Objective = "clm"
    """What is learnt: "clm" predicts the next token, "mlm" tokens that are masked."""
    clip_norm: Positive = 1.0
    """The largest norm of the gradient, which is scaled down to it; inf: never."""
    seed: FromZero = 0
    """Of the initial weights and of whatever is random in a step."""
    eval_every: FromZero = 0
    """Steps between two measurements of bits per byte on held-out documents; 0: never."""
    eval_path: Files | None = None
    """Shards of held-out documents; left out: the val shards that lie among those of `data.path`."""
    eval_limit: Count | None = None
    """Only the first so many held-out documents of each subset; left out: all."""


class OptimizerConfig(_Section, frozen=True, kw_only=True):
    """`[optimizer]`: AdamW."""

    lr: Positive = 3e-4
    """The highest learning rate, which the schedule starts from."""
    betas: Betas = (0.9, 0.95)
    """Decay of the running means of gradients and of their squares."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    weight_decay: NotNegative = 0.1
    """Decay of the weights but norms, biases and embeddings, times the learning rate."""
    layer_decay: Share = 1.0
    """Factor of the learning rate from each transformer block to the one below it: the head has the whole rate, the
    last block this part of it, the embeddings the least."""
    lr_by_pattern: Numbers | None = None
    """Highest learning rate of parameters by their names, such as {"*.embed_in.*" = 1e-4}; the first pattern that
    matches counts, in place of `lr` and `layer_decay`; 0 trains them not at all."""


class ScheduleConfig(_Section, frozen=True, kw_only=True):
    """`[schedule]`: the learning rate as a function of the step."""

    kind: Literal["constant", "linear", "cosine", "polynomial", "exponential", "wsd"] = "cosine"
    """What follows the warmup: the highest rate to the end, or one of five ways down to `min_lr`. "wsd" (warmup,
    stable, decay) stays at the highest rate and goes down in a straight line over its last steps."""
    warmup: FromZero = 0
    """Steps in which the rate rises in equal parts to the highest."""
    min_lr: NotNegative = 0.0
    """The rate at the end; absolute, not a share of the highest."""
    power: Positive = 2.0
    """Of "polynomial": 1 is a straight line; the higher, the sooner the rate is low."""
    decay_share: Share = 0.2
    """Of "wsd": the share of all steps in which the rate goes down."""


class ParallelConfig(_Section, frozen=True, kw_only=True):
    """`[parallel]`: what each rank holds, and what it computes twice to hold less; no result depends on it but by
    rounding."""

    engine: Literal["native", "deepspeed", "accelerate"] = "native"
    """What makes the steps: pilekit itself, or an adapter around one of the two packages, which must be installed."""
    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage, what ranks share instead of each holding it whole: 0 nothing, 1 the optimizer's state, 2 gradients
    too, 3 parameters too."""
    offload: bool = False
    """Whether parameters, gradients and the optimizer's state lie in the CPU's memory, where the optimizer steps."""
    activation_checkpoint: Literal["none", "full", "selective"] = "none"
    """What of a transformer block is computed again in the backward pass instead of being kept: nothing, all, or all
    but the costliest products."""
    compile: bool = False
    """Whether each transformer block is compiled by torch.compile."""


class PrecisionConfig(_Section, frozen=True, kw_only=True):
    """`[precision]`: the numbers a step computes with; the weights that the optimizer moves stay float32."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the forward and backward passes; fp16 comes with a dynamic loss scale."""
    loss_scale: Positive = 65536.0
    """Of fp16: what the loss is multiplied by at first."""
    loss_scale_window: Count = 1000
    """Of fp16: steps without an overflow after which the scale doubles."""
    loss_scale_hysteresis: Count = 2
    """Of fp16: overflows until the scale is halved; each skips its step."""
    loss_scale_floor: Positive = 1.0
    """Of fp16: the lowest scale; an overflow at it stops the run."""


class CheckpointConfig(_Section, frozen=True, kw_only=True):
    """`[checkpoint]`: what is saved on the way, and whether a run goes on from it."""

    dir: Text | None = None
    """Where checkpoints are kept; left out: `checkpoints` in the run's folder."""
    every: Count = 1000
    """Steps between two checkpoints; the last step is always saved."""
    keep_last: Count = 2
    """How many of the newest are kept."""
    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written."""
    resume: Text = "auto"
    """What a run begins from: "auto" is the newest checkpoint of its folder if there is one, "never" refuses a folder
    that has something, and the path of a checkpoint (a `step-N` folder) has a new run go on from that."""


class LogConfig(_Section, frozen=True, kw_only=True):
    """`[log]`: what is written down of the steps."""

    every: Count = 1
    """Steps between two lines of metrics.jsonl; the last step always has one."""
    tensorboard: bool = False
    """Whether the same figures are written for TensorBoard, into `tensorboard` in the run's folder."""
    profile: Pair | None = None
    """First and last step that torch.profiler watches; left out: none."""


class TrainConfig(_Section, frozen=True, kw_only=True):
    """A whole config."""

    data: DataConfig = DataConfig()
    """What is read, and how it becomes rows of tokens."""
    model: ModelConfig = ModelConfig()
    """What is trained."""
    train: TrainSection
    """How much, in what portions, towards what."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate as a function of the step."""
    parallel: ParallelConfig = ParallelConfig()
    """What each rank holds."""
    precision: PrecisionConfig = PrecisionConfig()
    """The numbers a step computes with."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is saved on the way, and whether a run goes on from it."""
    log: LogConfig = LogConfig()
    """What is written down of the steps."""

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run: `train.steps`, or what it takes to reach `train.tokens`."""
        train = self.train
        if train.steps is not None:
            return train.steps
        return -(-(train.tokens or 0) // (train.global_batch_size * self.data.seq_len))


SECTIONS: dict[str, type[msgspec.Struct]] = get_type_hints(TrainConfig)
"""Name of each section to its Struct, in the order of the file."""


def fields(section: str) -> dict[str, Any]:
    """The fields of a section and their types, in the order of the file."""
    return get_type_hints(SECTIONS[section], include_extras=True)


def values(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """(`section.field`, value) of everything in the config, in the order of the file."""
    for section in SECTIONS:
        for field in fields(section):
            yield f"{section}.{field}", getattr(getattr(config, section), field)


def differences(old: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    """(`section.field`, old value, new value) of every field that differs, in the order of the file."""
    pairs = zip(values(old), values(new), strict=True)
    return [(name, before, after) for (name, before), (_, after) in pairs if before != after]
