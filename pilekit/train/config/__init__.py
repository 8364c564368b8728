"""The config of a run: one TOML file, typed, and checked as a whole before a run reads or writes anything.

`file.py` reads the TOML file and `--set` into the Structs of `sections.py`, which hold every field with its meaning and
default. `check.py` then refuses a config that no run can have, from a file or from Python.
"""

from __future__ import annotations

from pilekit.train.config.check import check, check_model, check_world, shown, world_sizes
from pilekit.train.config.file import load_config, to_toml
from pilekit.train.config.sections import (
    Attention,
    CheckpointConfig,
    DataConfig,
    LogConfig,
    ModelConfig,
    Objective,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    ScheduleConfig,
    TrainConfig,
    TrainSection,
    differences,
)

__all__ = [
    "Attention",
    "CheckpointConfig",
    "DataConfig",
    "LogConfig",
    "ModelConfig",
    "Objective",
    "OptimizerConfig",
    "ParallelConfig",
    "PrecisionConfig",
    "ScheduleConfig",
    "TrainConfig",
    "TrainSection",
    "check",
    "check_model",
    "check_world",
    "differences",
    "load_config",
    "shown",
    "to_toml",
    "world_sizes",
]
