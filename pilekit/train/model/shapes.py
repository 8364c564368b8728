"""The shapes of a run's models, without weights: what does not fit is refused before anything is loaded."""

from __future__ import annotations

from functools import partial

from transformers import PreTrainedModel

from pilekit.tokenize import Tokenizer
from pilekit.train.config.sections import ModelConfig, TrainConfig
from pilekit.train.model.build import Source, model_shape
from pilekit.train.step.optimizer import lr_scales
from pilekit.train.step.teacher import check_teacher


def model_shapes(
    config: TrainConfig, tokenizer: Tokenizer, source: Source
) -> tuple[PreTrainedModel, PreTrainedModel | None]:
    """The model of `source` and the teacher, if there is one, on the meta device.

    PilekitError if they do not fit the config or each other, and for a pattern that matches no parameter.
    """
    shape = partial(model_shape, tokenizer=tokenizer, seq_len=config.data.seq_len, objective=config.train.objective)
    model = shape(source, lora=config.lora)
    lr_scales(model, config.optimizer)
    if config.teacher.path is None:
        return model, None
    teacher = shape(ModelConfig(path=config.teacher.path), field="teacher.path")
    check_teacher(teacher, model, config)
    return model, teacher
