"""The config of a run: one TOML file, typed, and checked as a whole before a run reads or writes anything.

`file.py` reads the TOML file and `--set` into the Structs of `sections.py`, which hold every field with its meaning and
default. `check.py` then refuses a config that no run can use, from a file or from Python.
"""

from pilekit.train.config.sections import CheckpointConfig as CheckpointConfig
from pilekit.train.config.sections import DataConfig as DataConfig
from pilekit.train.config.sections import LogConfig as LogConfig
from pilekit.train.config.sections import LoraConfig as LoraConfig
from pilekit.train.config.sections import ModelConfig as ModelConfig
from pilekit.train.config.sections import OptimizerConfig as OptimizerConfig
from pilekit.train.config.sections import ParallelConfig as ParallelConfig
from pilekit.train.config.sections import PrecisionConfig as PrecisionConfig
from pilekit.train.config.sections import ScheduleConfig as ScheduleConfig
from pilekit.train.config.sections import TeacherConfig as TeacherConfig
from pilekit.train.config.sections import TrainConfig as TrainConfig
from pilekit.train.config.sections import TrainSection as TrainSection
