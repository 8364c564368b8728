"""AdamW, and which parameters decay.

Decay pulls a weight towards 0, which is right for matrices that mix features. A norm's weight, a bias or a row of an
embedding means something by its size, and a rare token's row would shrink in all the steps that never see the token.
"""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW

from pilekit.train.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> AdamW:
    """AdamW over the parameters of `model` that are trained, in two groups: "decay" and "no_decay".

    No decay: whatever has fewer than two dimensions (norms, biases), and embeddings, of tokens and of positions; a head
    that shares its weight with one is that embedding. Groups know the names of their parameters (`param_names`).
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decay: list[tuple[str, nn.Parameter]] = []
    no_decay: list[tuple[str, nn.Parameter]] = []
    for name, parameter in model.named_parameters():  # a tied parameter comes once
        if not parameter.requires_grad:
            continue
        group = no_decay if parameter.ndim < 2 or id(parameter) in embeddings else decay
        group.append((name, parameter))
    return AdamW(
        [
            {"name": "decay", "params": decay, "weight_decay": config.weight_decay},
            {"name": "no_decay", "params": no_decay, "weight_decay": 0.0},
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
