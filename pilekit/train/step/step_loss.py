"""`StepLoss`: the model with its loss, as one module.

Whoever shards a model gathers a module's parameters for the time of its `forward`. The loss reads the head's weight
itself, to never hold all logits, so it has to be computed inside of such a `forward`: this one, around the whole model.
What belongs to no transformer block (embeddings, final norm, head) is thus gathered from here, once for forward and
backward together, and tied weights lie in one group.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from pilekit.evaluate.masked.model import MaskedLM
from pilekit.evaluate.model.causal import CausalLM
from pilekit.train.config import Attention
from pilekit.train.step.masked_loss import mlm_loss
from pilekit.train.step.objectives import clm_loss


class StepLoss(nn.Module):
    """`StepLoss(lm, attention=...)(rows, scale)` is `clm_loss(lm, rows, attention=..., scale=scale)`, or `mlm_loss`."""

    def __init__(self, lm: CausalLM | MaskedLM, *, attention: Attention) -> None:
        super().__init__()
        self.model = lm.model
        self._lm, self._attention = lm, attention

    def forward(self, rows: Mapping[str, Tensor], scale: float) -> tuple[Tensor, Tensor]:
        """(loss, nll) of some rows: 0-d and differentiable; detached, a column for each token that may be a target."""
        if isinstance(self._lm, MaskedLM):
            return mlm_loss(self._lm, rows, attention=self._attention, scale=scale)
        return clm_loss(self._lm, rows, attention=self._attention, scale=scale)

    def gather(self) -> None:
        """Nothing but what happens before a forward: the parameters that belong to no block are there whole."""
