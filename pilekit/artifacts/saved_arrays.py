"""A NamedTuple of arrays in a folder, a .npy file each, which all processes map into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically

Arrays = TypeVar("Arrays", bound=NamedTuple)


def save_arrays(folder: Path, arrays: Any, *, flushed: bool = True) -> list[Path]:
    """Write the arrays of a NamedTuple into the folder; returns their files."""
    for name, values in arrays._asdict().items():
        with write_atomically(folder / f"{name}.npy", flushed=flushed) as file:
            np.save(file, values)
    return [folder / f"{name}.npy" for name in arrays._fields]


def load_arrays(folder: Path, kind: type[Arrays]) -> Arrays:
    """The NamedTuple of this kind whose arrays are in the folder, mapped into memory."""
    return kind(*(np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in kind._fields))
