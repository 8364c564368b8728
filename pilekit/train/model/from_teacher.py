"""A student that begins as some blocks of its teacher, as distilroberta-base was made (DistilBERT: Sanh et al., 2019).

The blocks are evenly spaced from the first to the last: 6 of 12 are 0, 2, 4, 7, 9 and 11, those of distilroberta-base.
Everything outside of blocks (embeddings, final norm, head) is the teacher's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from pilekit.errors import PilekitError, counted
from pilekit.models.blocks import blocks_of

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
    """Copy the teacher's weights into `student`, a model of the configuration that `with_blocks` made.

    The teacher loses its other blocks, so that its names are the student's.
    """
    first, kept = blocks_of(teacher)[0], len(blocks_of(student))
    blocks = next(module for module in teacher.modules() if isinstance(module, nn.ModuleList) and first in module)
    for number in sorted(set(range(len(blocks))) - set(kept_blocks(len(blocks), kept)), reverse=True):
        del blocks[number]
    student.load_state_dict(teacher.state_dict())
