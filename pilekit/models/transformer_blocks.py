"""The transformer blocks of a model, which are gathered, checkpointed and compiled one at a time.

Models give their list of blocks different names (`layers`, `h`, `blocks`), but it always holds most of the parameters.
A block that shares a parameter with another part is left out, because a parameter can belong to one group only. It
counts as the rest of the model.
"""

from __future__ import annotations

from collections import Counter

from torch import nn


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of `model`, first to last; none if it has no list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        return []
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    own_blocks = []
    for block in max(lists, key=lambda blocks: sum(parameter.numel() for parameter in blocks.parameters())):
        uses_in_block = Counter(id(parameter) for _, parameter in block.named_parameters(remove_duplicate=False))
        if all(uses[parameter] == times for parameter, times in uses_in_block.items()):
            own_blocks.append(block)
    return own_blocks
