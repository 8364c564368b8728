"""A student that begins as some blocks of its teacher, as distilroberta-base was made (DistilBERT: Sanh et al., 2019).

The blocks are evenly spaced from the first to the last: 6 of 12 are 0, 2, 4, 7, 9 and 11, those of distilroberta-base.
Everything outside of blocks (embeddings, final norm, head) is the teacher's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from pilekit.errors import PilekitError, counted
from pilekit.train.model.blocks import blocks_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig  # transformers 4 has it under another name


def kept_blocks(blocks: int, kept: int) -> list[int]:
    """The numbers of the `kept` blocks of a teacher, increasing."""
    return [round(number * (blocks - 1) / max(1, kept - 1)) for number in range(kept)]


def with_blocks(made: PreTrainedConfig, kept: int, what: str) -> PreTrainedConfig:
    """A teacher's configuration with only the `kept` blocks; PilekitError, naming `what`, if it has fewer."""
    fields, text = made.to_dict(), made.get_text_config()
    blocks: int = text.num_hidden_layers
    if kept > blocks:
        raise PilekitError(f"{what}: has {counted(blocks, 'block')}, and model.from_teacher is {kept}; set it lower")
    places = kept_blocks(blocks, kept)
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == blocks:  # such as the kind of attention of each block
            setattr(text, name, [value[place] for place in places])
    text.num_hidden_layers = kept
    return made


def copy_blocks(teacher: nn.Module, student: nn.Module) -> None:
    """Copy the teacher's weights into `student`, a model of the configuration that `with_blocks` made."""
    first, blocks = blocks_of(student)[0], blocks_of(teacher)
    of_list = next(
        name
        for name, module in student.named_modules()
        if isinstance(module, nn.ModuleList) and any(block is first for block in module)
    )
    numbers = {place: number for number, place in enumerate(kept_blocks(len(blocks), len(blocks_of(student))))}
    weights: dict[str, Any] = {}
    for name, value in teacher.state_dict().items():
        place, _, rest = name.removeprefix(f"{of_list}.").partition(".")
        if not name.startswith(f"{of_list}."):
            weights[name] = value
        elif int(place) in numbers:
            weights[f"{of_list}.{numbers[int(place)]}.{rest}"] = value
    student.load_state_dict(weights)
