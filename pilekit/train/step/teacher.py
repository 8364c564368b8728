"""`Teacher`: a frozen model whose predictions a student learns (distillation, Hinton et al., 2015).

The student's loss asks for the teacher's states at the places of its targets, and for its head. The teacher never
trains: no gradient, no dropout, no optimizer, and it is not part of the student's module. It is cut over the ranks as
the student is, in its own type, and gathered only while its predictions are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.masked.model import MaskedLM
from pilekit.evaluate.model.causal import CausalLM
from pilekit.train.config.sections import TrainConfig
from pilekit.train.model.blocks import blocks_of
from pilekit.train.step.chunked_loss import Taught
from pilekit.train.step.losses import StepLoss, head_states
from pilekit.train.step.sharding import DTYPES, gather_rest, release, shard


class Teacher:
    """The model `lm`, frozen and sharded over `ranks` in place."""

    def __init__(self, lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks) -> None:
        self._lm, self._settings, self._attention = lm, config.teacher, config.data.attention
        model: nn.Module = lm.model
        model.requires_grad_(False).to(DTYPES[config.teacher.dtype]).eval()
        self._root = StepLoss(lm, attention=self._attention)  # only to be sharded and gathered as the student's is
        shard(self._root, blocks_of(model), ranks, config.parallel)

    @contextmanager
    def lesson(self, batch: Mapping[str, Tensor], places: Tensor) -> Iterator[Taught]:
        """Yield the teacher's predictions at these flat places of the batch's targets, with its gathered head."""
        lm = self._lm
        with torch.no_grad():
            gather_rest(self._root)
            states = head_states(lm, batch, self._attention, places)
        assert lm.transform is not None, "which `check_teacher` has proven"
        try:
            yield Taught(states, lm.head.weight, lm.head.bias, lm.transform, self._settings)
        finally:
            release(self._root)


def check_teacher(teacher: CausalLM | MaskedLM, lm: CausalLM | MaskedLM, config: TrainConfig) -> None:
    """Raise PilekitError unless `teacher` can teach `lm`; both are whole."""
    name = f"teacher.path = {visible(config.teacher.path or '')}"
    for of, model in ((name, teacher), ("the model", lm)):
        if model.transform is None:
            kind = visible(model.model.config.model_type, 60)
            raise PilekitError(
                f"{of}: the head of a {kind} model cannot be used alone, so it takes no part in distillation"
            )
    words, others = teacher.head.weight.shape[0], lm.head.weight.shape[0]
    if words != others:
        raise PilekitError(
            f"{name}: predicts {words:,} ids, and the model {others:,}; give the model as many (vocab_size in its "
            "config.json), or set model.from_teacher"
        )
    widths = teacher.head.weight.shape[1], lm.head.weight.shape[1]
    if config.teacher.cosine and widths[0] != widths[1]:
        raise PilekitError(
            f"teacher.cosine = {config.teacher.cosine}: compares states of one width, but the teacher's is "
            f"{widths[0]:,} and the model's {widths[1]:,}; set it to 0"
        )
