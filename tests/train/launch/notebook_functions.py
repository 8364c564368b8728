"""Functions for the ranks of `notebook_launch` in its tests. Only `train` imports what takes seconds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from pilekit.errors import PilekitError
from pilekit.train.launch.interrupt import first_interrupt
from pilekit.workers.ranks import join


def about(*args: Any) -> list[tuple[Any, ...]]:
    ranks = join()
    return ranks.gather((ranks.rank, ranks.world_size, ranks.local_rank, torch.get_num_threads(), args))


def fail(kind: str) -> object:
    ranks = join()
    ranks.gather(None)
    if kind == "unpicklable":
        return lambda: 0
    if ranks.rank == 1:
        if kind == "told":
            raise PilekitError("train.steps = 0: it must be at least 1")
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(f"{kind}\nmore")
    return ranks.gather(None)


def train(folder: Path, out: Path) -> int:
    from pilekit.train.config.file import load_config
    from pilekit.train.trainer import Trainer

    return Trainer(load_config(folder / "tiny.toml", ["parallel.zero=2"]), out).fit().step


def loop(folder: Path) -> int:
    """Run until interrupted; returns the step after which all stopped."""
    ranks = join()
    step = 0
    with first_interrupt() as asked:
        while not ranks.any(asked()):
            step += 1
            time.sleep(0.02)
            (folder / str(ranks.rank)).touch()
    return step if ranks.is_first else -1


def stay(folder: Path) -> None:
    """Never end, whatever signal comes."""
    file = folder / f"{join().rank}"
    signal.signal(signal.SIGINT, lambda *_: file.write_text(f"{os.getpid()} asked"))
    file.write_text(str(os.getpid()))
    time.sleep(600)
