"""AdamW or Muon: which parameters decay, and which learn faster than others.

Decay pulls a weight towards 0, which suits matrices that mix features. It would harm a norm's weight or a bias, whose
size has a meaning, and the embeddings of rare tokens, which would shrink in every step that does not see the token.

A parameter's learning rate is the schedule's rate times its scale, normally 1. With `layer_decay` d, block i of n (from
0) has the scale d^(n - i), embeddings d^(n + 1), and the final norm and the head 1: lower layers have learned more
general features, and should change less. `lr_by_pattern` gives rates to parameters by name. Parameters of one scale and
one decay are a group, so there are two groups if neither setting is used.

The optimizer is not compiled with the rest of a step. Fused AdamW updates a group of parameters by one kernel, and a
compiler could only call the same one. Most of Muon's time are matrix products, which a compiler does not make faster.

Muon (Jordan et al., 2024) makes the directions of a matrix's update equally long, so it suits the matrices inside of
blocks. AdamW trains the rest: embeddings, the head, norms and biases. Muon's updates are as large as AdamW's (Liu et
al., 2025), so both take the same rates and decay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from pilekit.errors import PilekitError, shortened
from pilekit.models.transformer_blocks import blocks_of
from pilekit.train.config.sections import OptimizerConfig
from pilekit.train.step.sharding import own_part

MEASURED = 2**26
"""About how many numbers are stepped and measured at once: 256 MiB."""


class Combined(Optimizer):
    """Optimizers of different parameters as one: their groups, and one state, so checkpoints see a single optimizer."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        # The constructor of `Optimizer` would make groups and a state of its own.
        self.parts = parts
        self.defaults = {}
        self.state = parts[0].state
        self.param_groups = [group for part in parts for group in part.param_groups]
        for part in parts:
            part.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A step of each part."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)


def build_optimizer(model: nn.Module, config: OptimizerConfig, ema: float = 0.0) -> Optimizer:
    """The optimizer of the trained parameters of `model`, in groups named "decay", "no_decay" and, for Muon, "muon".

    Parameters with fewer than two dimensions (norms, biases) and embeddings do not decay, nor does a head that shares
    its weight with an embedding. Each group has the names of its parameters (`param_names`) and its share of the
    schedule's learning rate (`lr_scale`). `ema` is the decay that `update_means` uses. Raises as
    `lr_scales`.
    """
    scales, embeddings, for_muon = lr_scales(model, config), _embeddings(model), muon_parameters(model, config)
    groups: dict[tuple[str, float], list[tuple[str, nn.Parameter]]] = {("decay", 1.0): [], ("no_decay", 1.0): []}
    for name, parameter in model.named_parameters():  # a tied parameter comes once
        if parameter.requires_grad:
            kind = "no_decay" if parameter.ndim < 2 or id(parameter) in embeddings else "decay"
            kind = "muon" if name in for_muon else kind
            groups.setdefault((kind, scales[name]), []).append((name, parameter))
    settings: list[dict[str, Any]] = [
        {
            "name": kind,
            "params": parameters,
            "weight_decay": 0.0 if kind == "no_decay" else config.weight_decay,
            "lr_scale": scale,
            "ema": ema,
        }
        for (kind, scale), parameters in groups.items()
        if parameters
    ]
    plain, muon = ([group for group in settings if (group["name"] == "muon") == is_muon] for is_muon in (False, True))
    parts: list[Optimizer] = []
    if plain:
        parts.append(AdamW(plain, lr=config.lr, betas=config.betas, eps=config.eps, fused=True))
    if muon:
        parts.append(torch.optim.Muon(muon, lr=config.lr, momentum=config.momentum, adjust_lr_fn="match_rms_adamw"))
    return parts[0] if len(parts) == 1 else Combined(parts)


def rates_by_group(optimizer: Optimizer, lr: float) -> dict[str, float]:
    """The learning rate of each group at the schedule's rate `lr`, by the group's name and its share of the rate."""
    shares = [(group["name"], group["lr_scale"]) for group in optimizer.param_groups]
    return {name if share == 1 else f"{name}*{share:.6g}": lr * share for name, share in shares}


def muon_parameters(model: nn.Module, config: OptimizerConfig) -> set[str]:
    """The names of the parameters that Muon trains: trained matrices inside of blocks."""
    if config.name != "muon":
        return set()
    inside = {id(parameter) for block in blocks_of(model) for parameter in block.parameters()}
    return {name for name, p in model.named_parameters() if p.requires_grad and p.ndim == 2 and id(p) in inside}


@torch.no_grad()
def measured_step(optimizer: Optimizer, skips: Tensor, at_once: int = MEASURED) -> Tensor:
    """Step, and return the sum of squares of the change to this rank's parts of the weights: 0-d, float64.

    skips   0-d, true if the step must change nothing. It is known to the device alone

    Parameters are stepped in pieces, so only about `at_once` old numbers are held in addition to the new.
    """
    squares = []
    for part in optimizer.parts if isinstance(optimizer, Combined) else (optimizer,):
        groups, is_fused = part.param_groups, isinstance(part, AdamW)
        try:
            for group in groups:
                for parameters in _pieces(group["params"], at_once):
                    weights = [own_part(parameter) for parameter in parameters]
                    before = [numbers.clone() for numbers in weights]
                    part.param_groups = [group | {"params": parameters}]
                    if is_fused:
                        cast("Any", part).found_inf = skips.float()  # its kernel reads this
                        part.step()
                    else:
                        momenta = _momenta(part, parameters)
                        part.step()
                        after = [*weights, *(own_part(part.state[p]["momentum_buffer"]) for p, _ in momenta)]
                        for numbers, old in zip(after, [*before, *(old for _, old in momenta)], strict=True):
                            numbers.copy_(torch.where(skips, old, numbers))
                    torch._foreach_sub_(before, weights)
                    squares.append(sum_of_squares(before))
        finally:
            part.param_groups = groups
            vars(part).pop("found_inf", None)
    return torch.stack([torch.zeros_like(squares[0]), *squares]).sum()


def _momenta(muon: Optimizer, parameters: list[nn.Parameter]) -> list[tuple[nn.Parameter, Tensor]]:
    """A copy of this rank's part of the momentum of each parameter that has a gradient; 0 before its first step."""
    found = []
    for parameter in parameters:
        if parameter.grad is not None:
            momentum = muon.state[parameter].get("momentum_buffer")
            part = own_part(parameter.grad if momentum is None else momentum)
            found.append((parameter, torch.zeros_like(part) if momentum is None else part.clone()))
    return found


def _pieces(parameters: list[nn.Parameter], at_once: int) -> Iterator[list[nn.Parameter]]:
    """The parameters in lists of about `at_once` numbers; the same lists on all ranks, because whole sizes count."""
    piece: list[nn.Parameter] = []
    numbers = 0
    for parameter in parameters:
        piece.append(parameter)
        numbers += parameter.numel()
        if numbers >= at_once:
            yield piece
            piece, numbers = [], 0
    if piece:
        yield piece


def sum_of_squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of all numbers squared: 0-d, float64, on their device."""
    device = tensors[0].device if tensors else None
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if not tensors:
        return torch.zeros((), dtype=torch.float64, device=device)
    # A CPU sums in order: in float32, the many small squares of a large head would vanish when added to large ones.
    exact = torch.float64 if tensors[0].device.type == "cpu" else None
    return torch.stack(torch._foreach_norm(tensors, 2, exact)).double().square().sum()


def update_means(optimizer: Optimizer, skips: Tensor, *, is_first: bool) -> None:
    """Move the running mean of each weight towards it, after a step. It begins as the weight after its first step.

    skips      0-d, true if the step changed nothing, so neither does this
    is_first   no step before this has changed anything

    The means are `ema` in the optimizer's state, so they are sharded, saved and loaded like the rest of it.
    """
    for group in optimizer.param_groups if optimizer.param_groups[0]["ema"] else ():
        means, weights = [], []
        for parameter in group["params"]:
            if not (state := optimizer.state.get(parameter)):
                continue
            if "ema" not in state or is_first:
                state["ema"] = parameter.detach().clone()
            elif (mean := own_part(state["ema"])).numel():
                means.append(mean)
                weights.append(own_part(parameter.detach()))
        if means:
            share = torch.where(skips, 0.0, 1 - group["ema"]).to(means[0].dtype)
            torch._foreach_lerp_(means, weights, [share] * len(means))


def lr_scales(model: nn.Module, config: OptimizerConfig) -> dict[str, float]:
    """The learning rate of each trained parameter, by name, divided by the schedule's rate.

    `model` may be on the meta device. Raises PilekitError if a pattern of `lr_by_pattern` decides no parameter's rate.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    blocks = blocks_of(model)
    depths = dict.fromkeys(_embeddings(model), len(blocks) + 1)
    for number, block in enumerate(blocks):
        depths |= {id(parameter): len(blocks) - number for parameter in block.parameters()}
    scales = {name: config.layer_decay ** depths.get(id(parameter), 0) for name, parameter in parameters.items()}
    undecided = list(parameters)
    for pattern, rate in (config.lr_by_pattern or {}).items():
        matching = {name for name in undecided if fnmatchcase(name, pattern)}
        if not matching:
            raise PilekitError(
                f'optimizer.lr_by_pattern: "{shortened(pattern, 100)}" matches no parameter that earlier patterns '
                f'leave; names are such as "{shortened(next(iter(parameters)), 100)}", and * stands for anything'
            )
        scales |= dict.fromkeys(matching, rate / config.lr)
        undecided = [name for name in undecided if name not in matching]
    return scales


def _embeddings(model: nn.Module) -> set[int]:
    """The identities of the weights of token and position embeddings."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
