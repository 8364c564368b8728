"""The config of a run: one TOML file, typed, checked as a whole before anything is read or written.

sections.py   the Structs: every section and field, with what it means and its default
check.py      what no run can have, whether the config came from a file or was made in Python
file.py       the TOML file and `--set`, read and written
text.py       values and types as errors spell them
"""

from __future__ import annotations

from pilekit.train.config.check import check, check_world, world_sizes
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
from pilekit.train.config.text import shown

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
    "check_world",
    "differences",
    "load_config",
    "shown",
    "to_toml",
    "world_sizes",
]
