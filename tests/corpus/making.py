"""Folders of files for the tests of corpora."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pilekit.corpus import Corpus

Make = Callable[..., Path]


def fill(folder: Path, names: Iterable[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def names(corpus: Corpus) -> list[str]:
    return [shard.name for shard in corpus]
