"""`TrainConfig`: everything that a run is made with, typed.

One Struct per section of the file, one sentence per field. A field is called `section.field` wherever it is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_type_hints

import msgspec

Objective = Literal["clm", "mlm"]
Attention = Literal["document", "causal", "row"]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file: immutable, every field checked."""


class DataConfig(_Section, frozen=True, kw_only=True):
    """`[data]`: what is read, and how it becomes rows of tokens."""

    path: str | list[str] | None = None
    """Shards: a file, folder, glob or URL, or several of them; left out: $PILEKIT_DATA, ./data or here."""
    manifest: str | None = None
    """What the corpus is: the name of a bundled manifest or a TOML file; left out: the Pile's."""
    tokenizer: str | None = None
    """A tokenizer.json, a folder with one, or a cached name; left out: the tokenizer of `model.path`."""
    seq_len: int = 2048
    """Tokens in a row."""
    subsets: list[str] | None = None
    """Only documents of these subsets, by any of their names; left out: all."""
    repeats: dict[str, float] | None = None
    """How often documents of a subset are used per epoch, such as {ArXiv = 2.5}; those not named once, 0: never."""
    dedup: str | None = None
    """Folder of a finished `pilekit dedup`: what it removed is left out."""
    on_error: Literal["raise", "skip"] = "raise"
    """What a bad line of a shard does: "raise" stops the run with its place, "skip" leaves it out with a warning."""
    packing: Literal["best_fit", "concat", "none"] = "best_fit"
    """How documents fill rows: "best_fit" cuts none that fits in one, "concat" puts one after another and cuts at the
    row's edge, "none" puts one in each."""
    window: int = 256
    """Documents that are packed together; "concat" has no use for it."""
    lanes: tuple[int, int] | Literal["auto"] = "auto"
    """Rows and columns of the stream's grid: the number of ranks must divide the rows, which divide the global batch
    size; "auto" chooses them at a run's first start."""
    seed: int = 0
    """Of the documents' order."""
    workers: int = 0
    """Processes beside each rank that make its batches; 0: the rank does, between two steps."""
    attention: Attention = "document"
    """What a token sees: only its own document, or all of its row: with "clm" what stands before it ("causal"), with
    "mlm" whatever stands there ("row")."""


class ModelConfig(_Section, frozen=True, kw_only=True):
    """`[model]`: what is trained; exactly one of the three is given."""

    preset: str | None = None
    """The shape of a published model, freshly initialised: `pythia-14m` and its like."""
    config: str | None = None
    """A Hugging Face config.json or a folder with one, freshly initialised."""
    path: str | None = None
    """A local model_dir, whose weights are trained further."""


class TrainSection(_Section, frozen=True, kw_only=True):
    """`[train]`: how much, in what portions, towards what."""

    steps: int | None = None
    """Optimizer steps, those of earlier runs of the same folder counted; this or `tokens` is given."""
    tokens: int | None = None
    """Tokens in all, padding counted: as many steps as it takes to reach them."""
    global_batch_size: int = 32
    """Rows per optimizer step, over all ranks."""
    micro_batch_size: int = 8
    """Rows per forward and backward pass of a rank; it divides the rank's share of the global batch size, and changes
    memory and speed only."""
    objective: Objective = "clm"
    """What is learnt: "clm" predicts the next token, "mlm" tokens that are masked."""
    clip_norm: float = 1.0
    """The largest norm of the gradient, which is scaled down to it; inf: never."""
    seed: int = 0
    """Of the initial weights and of whatever is random in a step."""
    eval_every: int = 0
    """Steps between two measurements of bits per byte on held-out documents; 0: never."""
    eval_path: str | list[str] | None = None
    """Shards of held-out documents; left out: the val shards that lie among those of `data.path`."""
    eval_limit: int | None = None
    """Only the first so many held-out documents of each subset; left out: all."""


class OptimizerConfig(_Section, frozen=True, kw_only=True):
    """`[optimizer]`: AdamW."""

    lr: float = 3e-4
    """The highest learning rate, which the schedule starts from."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the running means of gradients and of their squares."""
    eps: float = 1e-8
    """Added to the denominator."""
    weight_decay: float = 0.1
    """Decay of the weights but norms, biases and embeddings, times the learning rate."""
    layer_decay: float = 1.0
    """Factor of the learning rate from each transformer block to the one below it: the head has the whole rate, the
    last block this part of it, the embeddings the least."""
    lr_by_pattern: dict[str, float] | None = None
    """Highest learning rate of parameters by their names, such as {"*.embed_in.*" = 1e-4}; the first pattern that
    matches counts, in place of `lr` and `layer_decay`; 0 trains them not at all."""


class ScheduleConfig(_Section, frozen=True, kw_only=True):
    """`[schedule]`: the learning rate as a function of the step."""

    kind: Literal["constant", "linear", "cosine", "polynomial", "exponential", "wsd"] = "cosine"
    """What follows the warmup: the highest rate to the end, or one of five ways down to `min_lr`. "wsd" (warmup,
    stable, decay) stays at the highest rate and goes down in a straight line over its last steps."""
    warmup: int = 0
    """Steps in which the rate rises in equal parts to the highest."""
    min_lr: float = 0.0
    """The rate at the end; absolute, not a share of the highest."""
    power: float = 2.0
    """Of "polynomial": 1 is a straight line; the higher, the sooner the rate is low."""
    decay_share: float = 0.2
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
    loss_scale: float = 65536.0
    """Of fp16: what the loss is multiplied by at first."""
    loss_scale_window: int = 1000
    """Of fp16: steps without an overflow after which the scale doubles."""
    loss_scale_hysteresis: int = 2
    """Of fp16: overflows until the scale is halved; each skips its step."""
    loss_scale_floor: float = 1.0
    """Of fp16: the lowest scale; an overflow at it stops the run."""


class CheckpointConfig(_Section, frozen=True, kw_only=True):
    """`[checkpoint]`: what is saved on the way, and whether a run goes on from it."""

    dir: str | None = None
    """Where checkpoints are kept; left out: `checkpoints` in the run's folder."""
    every: int = 1000
    """Steps between two checkpoints; the last step is always saved."""
    keep_last: int = 2
    """How many of the newest are kept."""
    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written."""
    resume: str = "auto"
    """What a run begins from: "auto" is the newest checkpoint of its folder if there is one, "never" refuses a folder
    that has something, and the path of a checkpoint (a `step-N` folder) has a new run go on from that."""


class LogConfig(_Section, frozen=True, kw_only=True):
    """`[log]`: what is written down of the steps."""

    every: int = 1
    """Steps between two lines of metrics.jsonl; the last step always has one."""
    tensorboard: bool = False
    """Whether the same figures are written for TensorBoard, into `tensorboard` in the run's folder."""
    profile: tuple[int, int] | None = None
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
    return get_type_hints(SECTIONS[section])


def values(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """(`section.field`, value) of everything in the config, in the order of the file."""
    for section in SECTIONS:
        for field in fields(section):
            yield f"{section}.{field}", getattr(getattr(config, section), field)


def differences(old: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    """(`section.field`, old value, new value) of every field that differs, in the order of the file."""
    pairs = zip(values(old), values(new), strict=True)
    return [(name, before, after) for (name, before), (_, after) in pairs if before != after]
