"""`TrainConfig`: everything that a run is made with, typed.

One Struct per section of the file, one sentence per field. A field is called `section.field` wherever it is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_type_hints

import msgspec


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
    on_error: Literal["raise", "skip"] = "raise"
    """What a bad line of a shard does: "raise" stops the run with its place, "skip" leaves it out with a warning."""
    packing: Literal["best_fit", "concat", "none"] = "best_fit"
    """How documents fill rows: "best_fit" cuts none that fits in one, "concat" puts one after another and cuts at the
    row's edge, "none" puts one in each."""
    seed: int = 0
    """Of the documents' order."""
    attention: Literal["document", "causal"] = "document"
    """What a token sees: only its own document, or all of the row that stands before it."""


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

    steps: int
    """Optimizer steps, those of earlier runs of the same folder counted."""
    global_batch_size: int = 32
    """Rows per optimizer step."""
    micro_batch_size: int = 8
    """Rows per forward and backward pass; a divisor of the global batch size, it changes memory and speed only."""
    objective: Literal["clm"] = "clm"
    """What is learnt: "clm" predicts the next token."""
    clip_norm: float = 1.0
    """The largest norm of the gradient, which is scaled down to it; inf: never."""
    seed: int = 0
    """Of the initial weights and of whatever is random in a step."""


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


class ScheduleConfig(_Section, frozen=True, kw_only=True):
    """`[schedule]`: the learning rate as a function of the step."""

    kind: Literal["constant", "cosine"] = "cosine"
    """What follows the warmup: the highest rate to the end, or half a cosine down to `min_lr`."""
    warmup: int = 0
    """Steps in which the rate rises in equal parts to the highest."""
    min_lr: float = 0.0
    """The rate at which a cosine ends; absolute, not a share of the highest."""


class PrecisionConfig(_Section, frozen=True, kw_only=True):
    """`[precision]`: the numbers a step computes with; weights and optimizer stay float32."""

    dtype: Literal["fp32", "bf16"] = "fp32"
    """Of the matrix products."""


class CheckpointConfig(_Section, frozen=True, kw_only=True):
    """`[checkpoint]`: what is saved on the way, and whether a run goes on from it."""

    every: int = 1000
    """Steps between two checkpoints; the last step is always saved."""
    keep_last: int = 2
    """How many of the newest are kept."""
    resume: Literal["auto", "never"] = "auto"
    """Go on from the newest checkpoint of the run's folder if there is one, or refuse a folder that has something."""


class LogConfig(_Section, frozen=True, kw_only=True):
    """`[log]`: metrics.jsonl."""

    every: int = 1
    """Steps between two lines; the last step always has one."""


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
    precision: PrecisionConfig = PrecisionConfig()
    """The numbers a step computes with."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is saved on the way, and whether a run goes on from it."""
    log: LogConfig = LogConfig()
    """metrics.jsonl."""


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
