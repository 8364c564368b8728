"""`TrainConfig`: every setting of a run, typed.

Each section of the file is one Struct, and each field has one sentence. Messages name a field as `section.field`. The
type of a field says which values it may hold.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from pilekit.artifacts.settings import LARGEST_INTEGER, Count, FromZero, NotNegative, Numbers, Text, Texts
from pilekit.stream.settings import Planting, RowSettings

Objective = Literal["clm", "mlm", "distill"]
Attention = Literal["document", "causal", "row"]
AttentionKernel = Literal["auto", "sdpa", "varlen", "flash_attention_2", "flex_attention"]

LONGEST_ROW = 2**20
"""More tokens than any model has positions, so a typing error cannot ask for all memory."""
_FINITE = sys.float_info.max

RowLength = Annotated[int, Meta(ge=2, le=LONGEST_ROW)]
Positive = Annotated[float, Meta(gt=0, le=_FINITE)]
PositiveOrInfinite = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Beta = Annotated[float, Meta(ge=0, lt=1)]
Pair = tuple[Count, Count]

_Path = Annotated[str, Meta(min_length=1)]  # msgspec 0.22 crashes on "pattern or list", so `check` applies it
Files = _Path | Annotated[list[_Path], Meta(min_length=1)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file: immutable, without unknown fields."""


class _DataSource(RowSettings, frozen=True):
    """The first fields of `[data]`: the fields of a base that may be given without names stand before all others."""

    path: Files | None = None
    """Shards: a file, folder, glob or URL, or a list; or token files. Default: $PILEKIT_DATA, ./data or this folder."""
    manifest: Text | None = None
    """Description of the corpus: the name of a bundled manifest or a TOML file. Default: the Pile's."""
    text_field: Text | None = None
    """The field of the text, in shards without a manifest."""
    label: Text | None = None
    """The field of the subset's name, such as "meta.source", in shards without a manifest."""
    tokenizer: Text | None = None
    """A tokenizer.json, a folder with one, or a cached name. Default: the tokenizer of `model.path`."""


class MixtureEntry(_Section, frozen=True, kw_only=True):
    """`[[data.schedule]]`: the mixture from an optimizer step on."""

    step: FromZero
    """Steps done before it. Before the first entry the run is as without entries."""
    weights: Numbers
    """The mixture, as in `data.weights`."""


class DataConfig(_DataSource, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[data]`: which data is read, and how it becomes rows of tokens. A model and a TOML file narrow some ranges."""

    seq_len: RowLength = 2048
    dedup: Text | None = None
    without: Text | None = None
    plant: list[Planting] | None = None
    seed: FromZero = 0
    weights: Numbers | None = None
    schedule: Annotated[list[MixtureEntry], Meta(min_length=1)] | None = None
    """A mixture that changes: in `[[data.schedule]]` tables, each with a `step` and the `weights` from that step on."""
    workers: FromZero = 0
    """Worker processes of each rank that make its batches; with 0 the rank makes them itself, between steps."""
    attention: Attention = "document"
    """Where a token may attend: to its own document, or to its whole row ("causal" with "clm", "row" with "mlm")."""

    @property
    def rows(self) -> RowSettings:
        """The settings that a stream shares, with the entries of `schedule` in its weights."""
        shared = {name: getattr(self, name) for name in RowSettings.__struct_fields__}
        if self.schedule is not None:
            constant = [] if self.weights is None else [self.weights]
            shared["weights"] = [*constant, *((entry.step, entry.weights) for entry in self.schedule)]
        return RowSettings(**shared)


class ModelConfig(_Section, frozen=True, kw_only=True):
    """`[model]`: the model to train; give exactly one of the four, or none if `Trainer` gets a model object."""

    preset: Text | None = None
    """The shape of a published model such as `pythia-14m`, freshly initialised."""
    config: Text | None = None
    """A Hugging Face config.json or a folder with one, freshly initialised."""
    path: Text | None = None
    """A local model_dir whose weights are trained further."""
    adapter: Text | None = None
    """A folder with an adapter of `path`, as peft saves it, which is added to the weights before they are trained."""
    from_teacher: Count | None = None
    """The teacher with this many of its blocks, evenly spaced from its first to its last; it keeps their weights."""
    attention_implementation: AttentionKernel = "auto"
    """The attention kernel. "varlen" is PyTorch's flash attention over documents. "auto" takes it on a GPU where it
    runs, and else "sdpa". The others have their names in transformers, and need a GPU, the first of them its package.
    """
    freeze: Texts | None = None
    """Parameters that are not trained, by name, such as ["*.embed_in.*"]; they have no gradient or optimizer state."""


class TeacherConfig(_Section, frozen=True, kw_only=True):
    """`[teacher]`: a trained model whose predictions the model learns, in addition to the text (distillation)."""

    path: Text | None = None
    """A local model_dir of the same kind and vocabulary. Default: no teacher."""
    adapter: Text | None = None
    """A folder with an adapter of `path`, which is added to the teacher's weights."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type of the teacher's weights and predictions."""
    temperature: Positive = 1.0
    """Both models' logits are divided by it, which softens their predictions, before they are compared."""
    kl: NotNegative = 0.5
    """Weight of the Kullback-Leibler divergence of the softened predictions, times the temperature squared."""
    cross_entropy: NotNegative = 0.5
    """Weight of the loss against the text, the only one without a teacher."""
    cosine: NotNegative = 0.0
    """Weight of 1 - cosine of the two heads' inputs; both models must have the same width."""


class LoraConfig(_Section, frozen=True, kw_only=True):
    """`[lora]`: small matrices (adapters) that are trained instead of the model, by the package peft."""

    rank: Annotated[int, Meta(ge=0, le=2**16)] = 0
    """Rows of the small matrices, such as 8; 0: no adapters."""
    alpha: Positive = 16.0
    """An adapter's addition to its layer is multiplied by alpha / rank."""
    dropout: Beta = 0.0
    """Share of an adapter's inputs that a step leaves out."""
    targets: Texts | None = None
    """Layers that get an adapter, by the ends of their names, such as ["query_key_value"]. Default: all linear layers
    but the head."""
    merge: bool = False
    """Export the whole model too, with its adapters added in."""


class TrainSection(_Section, frozen=True, kw_only=True):
    """`[train]`: length, batch sizes and objective of the run."""

    steps: Count | None = None
    """Optimizer steps in all, including those of earlier runs in the same folder; give this or `tokens`."""
    tokens: Count | None = None
    """Tokens in all, including padding; the run takes as many steps as reach them."""
    global_batch_size: Count = 32
    """Rows per optimizer step, over all ranks."""
    micro_batch_size: Count = 8
    """Rows per forward and backward pass of a rank. It must divide the rank's share of the global batch size, and
    changes only memory and speed."""
    objective: Objective = "clm"
    """The model learns to predict the next token ("clm") or masked tokens ("mlm"). "distill" takes the teacher's
    objective and is replaced by it."""
    clip_norm: PositiveOrInfinite = 1.0
    """The largest gradient norm: larger gradients are scaled down to it; inf never scales."""
    ema: Beta = 0.0
    """Decay of a running mean of the weights, such as 0.999, which is exported too; 0: none."""
    seed: FromZero = 0
    """Seed of the initial weights and of everything random in a step."""
    eval_every: FromZero = 0
    """Steps between two measurements of bits per byte on held-out documents; 0 means never."""
    eval_path: Files | None = None
    """Shards of held-out documents. Default: the val shards in `data.path`."""
    eval_limit: Count | None = None
    """Measure only this many held-out documents of each subset, from the first. Default: all."""


class OptimizerConfig(_Section, frozen=True, kw_only=True):
    """`[optimizer]`: AdamW, or Muon for the matrices of blocks and AdamW for the rest."""

    name: Literal["adamw", "muon"] = "adamw"
    """The optimizer of the matrices inside of blocks; AdamW trains all other parameters."""
    momentum: Beta = 0.95
    """Decay of Muon's running sum of gradients."""
    lr: Positive = 3e-4
    """The highest learning rate, from which the schedule falls."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the running means of gradients and of squared gradients."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    weight_decay: NotNegative = 0.1
    """Decay of weights, times the learning rate; norms, biases and embeddings do not decay."""
    layer_decay: Share = 1.0
    """Factor of the learning rate from each transformer block to the block below. The head has the full rate, the last
    block this share of it, the embeddings the smallest."""
    lr_by_pattern: Numbers | None = None
    """Highest learning rate of parameters by name, such as {"*.embed_in.*" = 1e-4}, instead of `lr` and `layer_decay`.
    The first pattern that matches counts; 0 freezes the parameters."""


class ScheduleConfig(_Section, frozen=True, kw_only=True):
    """`[schedule]`: the learning rate as a function of the step."""

    kind: Literal["constant", "linear", "cosine", "polynomial", "exponential", "wsd"] = "cosine"
    """The rate after the warmup: the highest rate to the end, or one of five ways down to `min_lr`. "wsd" (warmup,
    stable, decay) stays at the highest rate and falls linearly over its last steps."""
    warmup: FromZero = 0
    """Steps in which the rate rises in equal parts to the highest."""
    min_lr: NotNegative = 0.0
    """The rate at the end; absolute, not a share of the highest."""
    power: Positive = 2.0
    """Exponent of "polynomial": 1 is a straight line, and a higher one falls sooner."""
    decay_share: Share = 0.2
    """Share of all steps in which the rate of "wsd" falls."""


class ParallelConfig(_Section, frozen=True, kw_only=True):
    """`[parallel]`: the parts that a rank holds or computes again to save memory; results change only by rounding."""

    backend: Literal["native", "deepspeed", "accelerate"] = "native"
    """The package that makes the steps: pilekit itself, or one of the two others, which must be installed."""
    backend_config: Text | None = None
    """A file with the package's own settings: DeepSpeed's JSON, or the file of `accelerate config`. Default: none."""
    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage: ranks share nothing (0), the optimizer's state (1), gradients too (2), or parameters too (3)."""
    shard: Annotated[int, Meta(ge=2, le=LARGEST_INTEGER)] | None = None
    """Ranks of a group that share one copy, such as the 8 of a machine; each group has a copy. Default: all ranks."""
    offload: bool = False
    """Keep parameters, gradients and the optimizer's state in the CPU's memory, where the optimizer then steps."""
    activation_checkpoint: Literal["none", "full", "selective"] = "none"
    """Activations of a transformer block that the backward pass computes again instead of keeping: none, all, or all
    but the costliest products."""
    compile: Literal["step"] | bool = False
    """Compile with torch.compile: each transformer block (true), or the loss behind the head as well ("step"). A later
    step that compiles again is a warning."""


class PrecisionConfig(_Section, frozen=True, kw_only=True):
    """`[precision]`: the type a step computes in; the weights that the optimizer updates stay float32."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type of the forward and backward passes; fp16 uses a dynamic loss scale."""
    loss_scale: Positive = 65536.0
    """The first loss scale of fp16."""
    loss_scale_window: Count = 1000
    """Steps without an overflow after which the loss scale doubles."""
    loss_scale_hysteresis: Count = 2
    """Overflows after which the loss scale is halved; each overflow skips its step."""
    loss_scale_floor: Positive = 1.0
    """The lowest loss scale; an overflow at this scale stops the run."""


class CheckpointConfig(_Section, frozen=True, kw_only=True):
    """`[checkpoint]`: when checkpoints are saved, and how a run resumes."""

    dir: Text | None = None
    """Folder of the checkpoints. Default: `checkpoints` in the run's folder."""
    every: Count = 1000
    """Steps between two checkpoints; the last step is always saved."""
    keep_last: Count = 2
    """Number of newest checkpoints to keep."""
    asynchronous: bool = True
    """Continue training while a checkpoint is written."""
    resume: Text = "auto"
    """Where a run begins: "auto" resumes from the newest checkpoint of its folder; "never" refuses a folder with
    a run; the path of another run's checkpoint (a `step-N` folder) begins a branch of that run."""


class LogConfig(_Section, frozen=True, kw_only=True):
    """`[log]`: figures, viewers and profiles of the run."""

    every: Count = 1
    """Steps between two lines of metrics.jsonl; the last step always has a line."""
    tensorboard: bool = False
    """Write the same figures for TensorBoard, into `tensorboard` in the run's folder."""
    wandb: bool = False
    """Send the same figures to Weights & Biases; WANDB_MODE=offline keeps them in `wandb` in the run's folder."""
    memory: bool = True
    """Warn of a rank whose CPU or GPU memory grows steadily."""
    documents: bool = True
    """Log the documents of each step, for `pilekit seen`, in `documents` in the run's folder."""
    samples_every: FromZero = 0
    """Steps between two times at which the model continues some prompts, into samples.jsonl; 0 means never."""
    samples_prompts: Texts | None = None
    """The prompts. Default: the first tokens of the first documents of the val shards, or of the corpus without any."""
    profile: Pair | None = None
    """First and last step that torch.profiler records. Default: none."""


class TrainConfig(_Section, frozen=True, kw_only=True):
    """A whole config."""

    data: DataConfig = DataConfig()
    """Which data is read, and how it becomes rows of tokens."""
    model: ModelConfig = ModelConfig()
    """The model to train."""
    teacher: TeacherConfig = TeacherConfig()
    """A trained model whose predictions the model learns."""
    lora: LoraConfig = LoraConfig()
    """Adapters that are trained instead of the model."""
    train: TrainSection
    """Length, batch sizes and objective of the run."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW, alone or with Muon."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate as a function of the step."""
    parallel: ParallelConfig = ParallelConfig()
    """The parts that a rank holds or computes again."""
    precision: PrecisionConfig = PrecisionConfig()
    """The type a step computes in."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are saved, and how a run resumes."""
    log: LogConfig = LogConfig()
    """Figures, viewers and profiles of the run."""

    @property
    def source(self) -> ModelConfig:
        """`model`, with the teacher's path and adapter if the model is made from the teacher's blocks."""
        model, teacher = self.model, self.teacher
        if model.from_teacher is None:
            return model
        return msgspec.structs.replace(model, path=teacher.path, adapter=teacher.adapter)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run: `train.steps`, or the fewest that reach `train.tokens`."""
        train = self.train
        if train.steps is not None:
            return train.steps
        return -(-(train.tokens or 0) // (train.global_batch_size * self.data.seq_len))


SECTIONS: dict[str, type[msgspec.Struct]] = get_type_hints(TrainConfig)
"""Each section's Struct, in the order of the file."""


@cache
def fields(section: str) -> dict[str, Any]:
    """The fields of a section and their types, in the order of the file."""
    types = get_type_hints(SECTIONS[section], include_extras=True)
    return {field: types[field] for field in SECTIONS[section].__struct_fields__}


def values(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """(`section.field`, value) of every field, in the order of the file."""
    for section in SECTIONS:
        for field in fields(section):
            yield f"{section}.{field}", getattr(getattr(config, section), field)


def differences(old: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    """(`section.field`, old value, new value) of every field that differs, in the order of the file."""
    pairs = zip(values(old), values(new), strict=True)
    return [(name, before, after) for (name, before), (_, after) in pairs if before != after]
