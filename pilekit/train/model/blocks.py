"""The transformer blocks of a model: the pieces that are gathered, checkpointed and compiled one at a time.

Models name them as they like (`layers`, `h`, `blocks`); what they share is that the list of blocks holds most of the
parameters. A block that shares a parameter with something outside of it is passed over, because a parameter can belong
to one piece only; it then belongs to the rest of the model.
"""

from __future__ import annotations

from collections import Counter

from torch import nn


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of `model`, first to last; none if it keeps no list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        return []
    places = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    found = []
    for block in max(lists, key=lambda blocks: sum(parameter.numel() for parameter in blocks.parameters())):
        own = Counter(id(parameter) for _, parameter in block.named_parameters(remove_duplicate=False))
        if all(places[parameter] == times for parameter, times in own.items()):
            found.append(block)
    return found
