"""The state of a run between two steps: saved beside training, verified, and found again.

saving.py    `Checkpoints`: a save in its thread, and going on from one
folders.py   the names of checkpoints, and the newest whole one among them
files.py     what makes a folder a checkpoint, and how it is verified
tensors.py   its tensors: which rank writes what, and how any number of ranks reads it
"""

from pilekit.train.checkpoint.files import Progress
from pilekit.train.checkpoint.folders import find_checkpoint
from pilekit.train.checkpoint.saving import Checkpoints, Unwritten

__all__ = ["Checkpoints", "Progress", "Unwritten", "find_checkpoint"]
