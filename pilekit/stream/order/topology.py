"""Finds this process's rank and the world size."""

from __future__ import annotations

import os
from typing import Annotated

import torch
from msgspec import Meta

from pilekit.artifacts.checked import checked
from pilekit.errors import PilekitError, shortened
from pilekit.stream.settings import Samples


def rank_of_world(rank: int | None, world_size: int | None, num_replicas: int | None = None) -> tuple[int, int]:
    """(rank, world size): as given, else from torch.distributed, else $RANK and $WORLD_SIZE (torchrun), else 0 of 1.

    num_replicas   DistributedSampler's name for the world size

    With a given world size above 1, the rank must be given too, unless torch.distributed or $RANK has it.
    PilekitError for numbers that contradict each other.
    """
    if num_replicas is not None:
        if world_size not in (None, num_replicas):
            raise PilekitError(f"world_size={world_size} and num_replicas={num_replicas} differ; give one")
        world_size = num_replicas
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    from_environment = world_size is None  # whether torch.distributed or the environment decides
    if world_size is None:
        world_size = torch.distributed.get_world_size() if joined else _environment("WORLD_SIZE", 1)
    checked(world_size, Samples, "world_size")
    if rank is None:
        rank = 0
        if world_size > 1:
            rank = torch.distributed.get_rank() if joined else _environment("RANK", None)
        elif from_environment and not joined and (environment_rank := _environment("RANK", 0)):
            size = "1" if os.environ.get("WORLD_SIZE") else "not set"
            raise PilekitError(
                f"$RANK is {environment_rank}, but $WORLD_SIZE is {size}; start the job with torchrun, or give rank "
                "and world_size"
            )
    checked(rank, Annotated[int, Meta(ge=0, lt=world_size)], "rank")
    return rank, world_size


def _environment(name: str, missing: int | None) -> int:
    value = os.environ.get(name, "")
    if value.isdecimal():
        return int(value)
    if value or missing is None:
        raise PilekitError(
            f"${name} is {shortened(repr(value), 80) if value else 'not set'}, but it must be a whole number; give "
            "rank and world_size, or start the job with torchrun"
        )
    return missing
