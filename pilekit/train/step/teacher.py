"""`Teacher`: a frozen model whose predictions a student learns (distillation, Hinton et al., 2015).

The student's loss asks for the teacher's states at the places of its targets, and for its head. The teacher never
trains: no gradient, no dropout, no optimizer, and it is not part of the student's module. It is cut over the ranks as
the student is, in its own type, and gathered only while its predictions are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pilekit.errors import PilekitError, shortened
from pilekit.models.causal import CausalLM
from pilekit.models.masked import MaskedLM
from pilekit.models.transformer_blocks import blocks_of
from pilekit.train.config.sections import TrainConfig
from pilekit.train.step.chunked_loss import Head, TeacherOutput
from pilekit.train.step.losses import StepLoss, head_states
from pilekit.train.step.sharding import DTYPES, gather_rest, release, shard
from pilekit.workers.ranks import Ranks


class Teacher:
    """The model `lm`, frozen and sharded over `ranks` in place."""

    def __init__(self, lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks) -> None:
        self._lm, self._settings, self._attention = lm, config.teacher, config.data.attention
        model: nn.Module = lm.model
        model.requires_grad_(False).to(DTYPES[config.teacher.dtype]).eval()
        self._root = StepLoss(lm, attention=self._attention)  # only to be sharded and gathered as the student's is
        shard(self._root, blocks_of(model), ranks, config.parallel)

    @contextmanager
    def teacher_output(self, batch: Mapping[str, Tensor], places: Tensor) -> Iterator[TeacherOutput]:
        """Yield the teacher's predictions at these flat places of the batch's targets, with its gathered head."""
        lm = self._lm
        with torch.no_grad():
            gather_rest(self._root)
            states = head_states(lm, batch, self._attention, places)
        assert lm.transform is not None, "which `check_heads` has proven"
        try:
            yield TeacherOutput(states, Head(lm.head.weight, lm.head.bias, lm.transform), self._settings)
        finally:
            release(self._root)


def check_teacher(teacher: PreTrainedModel, model: PreTrainedModel, config: TrainConfig) -> None:
    """Raise PilekitError unless the shapes of both heads fit. The models may be on the meta device."""
    heads: list[Any] = [cast("Any", each).get_output_embeddings() for each in (teacher, model)]
    (words, width), (model_words, model_width) = (head.weight.shape for head in heads)
    if words != model_words:
        raise PilekitError(
            f"teacher.path = {config.teacher.path or ''}: predicts {words:,} ids, and the model {model_words:,}; "
            "give the model as many (vocab_size in its config.json), or set model.from_teacher"
        )
    if config.teacher.cosine and width != model_width:
        raise PilekitError(
            f"teacher.cosine = {config.teacher.cosine}: compares states of one width, but the teacher's is {width:,} "
            f"and the model's {model_width:,}; set it to 0"
        )


def check_heads(*models: CausalLM | MaskedLM) -> None:
    """Raise PilekitError unless the heads of teacher and student can be used alone."""
    for lm in models:
        if lm.transform is None:
            kind = shortened(lm.model.config.model_type, 60)
            raise PilekitError(f"the head of a {kind} model cannot be used alone, so it takes no part in distillation")
