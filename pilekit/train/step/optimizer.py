"""AdamW: which parameters decay, and which learn faster than others.

Decay pulls a weight towards 0, which is right for matrices that mix features. A norm's weight, a bias or a row of an
embedding means something by its size, and a rare token's row would shrink in all the steps that never see the token.

A parameter's learning rate is the schedule's times its scale, which is 1 but for two settings. `layer_decay` d gives
block i of n (from 0) the scale d^(n - i), embeddings d^(n + 1), and the rest, final norm and head, 1: what lies deep
below has learnt what is general and is to change least. `lr_by_pattern` names the rates of parameters outright.
Parameters of one scale and one decay are a group, so there are two groups where neither is used.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn
from torch.optim import AdamW

from pilekit.errors import PilekitError, visible
from pilekit.train.config import OptimizerConfig
from pilekit.train.model.blocks import blocks_of


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> AdamW:
    """AdamW over the parameters of `model` that are trained, in groups named "decay" and "no_decay".

    No decay: whatever has fewer than two dimensions (norms, biases), and embeddings, of tokens and of positions; a head
    that shares its weight with one is that embedding. Groups know the names of their parameters (`param_names`) and
    their part of the learning rate (`lr_scale`), by which they are further divided: whoever sets a group's "lr" sets it
    to the schedule's rate times that. PilekitError as of `lr_scales`.
    """
    scales = lr_scales(model, config)
    embeddings = _embeddings(model)
    groups: dict[tuple[str, float], list[tuple[str, nn.Parameter]]] = {("decay", 1.0): [], ("no_decay", 1.0): []}
    for name, parameter in model.named_parameters():  # a tied parameter comes once
        if parameter.requires_grad:
            kind = "no_decay" if parameter.ndim < 2 or id(parameter) in embeddings else "decay"
            groups.setdefault((kind, scales[name]), []).append((name, parameter))
    return AdamW(
        [
            {
                "name": kind,
                "params": parameters,
                "weight_decay": config.weight_decay if kind == "decay" else 0.0,
                "lr_scale": scale,
            }
            for (kind, scale), parameters in groups.items()
            if parameters
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def lr_scales(model: nn.Module, config: OptimizerConfig) -> dict[str, float]:
    """By name of each parameter that is trained, what its learning rate is times the schedule's.

    Names and shapes are enough: `model` may be on the meta device. PilekitError for a pattern of `lr_by_pattern` that
    decides over no parameter.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    scales = dict.fromkeys(names, 1.0)
    if config.layer_decay != 1.0:
        blocks, embeddings = blocks_of(model), _embeddings(model)
        depths = dict.fromkeys(embeddings, len(blocks) + 1)
        for number, block in enumerate(blocks):
            depths |= {id(parameter): len(blocks) - number for parameter in block.parameters()}
        parameters = dict(model.named_parameters())
        scales = {name: config.layer_decay ** depths.get(id(parameters[name]), 0) for name in names}
    left = names
    for pattern, rate in (config.lr_by_pattern or {}).items():
        matching = {name for name in left if fnmatchcase(name, pattern)}
        if not matching:
            earlier = ", but for those that an earlier pattern matches" if len(left) < len(names) else ""
            raise PilekitError(
                f'optimizer.lr_by_pattern: "{visible(pattern, 100)}" matches the name of no parameter{earlier}; names '
                f'are such as "{visible(names[0], 100)}", and * stands for anything'
            )
        scales |= dict.fromkeys(matching, rate / config.lr)
        left = [name for name in left if name not in matching]
    return scales


def _embeddings(model: nn.Module) -> set[int]:
    """The identities of the embeddings' weights, of tokens and of positions."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
