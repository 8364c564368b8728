"""Checkpoints of several ranks: any world size and stage loads what any other saved, and all ranks hear of errors."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from pilekit.errors import AlreadyReported, PilekitError
from pilekit.train.checkpoint import saving as module
from pilekit.train.checkpoint.state_file import verify
from pilekit.train.checkpoint.tensors import state_tensors
from pilekit.train.step.sharding import own_part
from pilekit.workers.ranks import Ranks, join
from tests.process_groups import ProcessGroups
from tests.small_disk import files_limited_to
from tests.train.checkpoint.saving import (
    CONFIG,
    adamw,
    checkpoints_in,
    progress_of,
    single_rank,
    state_of,
    steps_in,
    train,
    with_adamw,
)
from tests.train.checkpoint.test_damage import flip_last_bit
from tests.train.ranks.fitting import Array, assert_same_state
from tests.train.runs import warnings_of
from tests.train.step.test_step_engine import batches, engine_of, model_of, settings, step

Arrays = dict[str, Array]


def arrays_of(model: nn.Module, optimizer: Any) -> Arrays:
    return {name: tensor.numpy() for name, tensor in state_of(model, optimizer).items()}


# The state, over world sizes, stages and precisions


def train_and_save(run: Path, family: str, zero: int, dtype: str) -> Arrays:
    ranks = join()
    config = settings(zero, dtype)
    engine = engine_of(family, config, ranks)
    for batch in batches(config)[:2]:
        step(engine, ranks, batch, micro_batches=2)
    checkpoints = checkpoints_in(run, ranks, asynchronous=True)
    checkpoints.save(engine.lm.model, engine.optimizer, progress_of(2), CONFIG)
    state = arrays_of(engine.lm.model, engine.optimizer)
    checkpoints.finish()
    return state


def find_and_load(run: Path, family: str, zero: int, dtype: str) -> Arrays:
    ranks = join()
    engine = engine_of(family, settings(zero, dtype), ranks)
    with torch.no_grad():
        for parameter in engine.lm.model.parameters():
            own_part(parameter).fill_(7)
    checkpoints = checkpoints_in(run, ranks, asynchronous=True)
    folder = checkpoints.newest()
    assert folder == run / "checkpoints" / "step-2"
    assert checkpoints.load(folder, engine.lm.model, engine.optimizer) == progress_of(2)
    return arrays_of(engine.lm.model, engine.optimizer)


@pytest.mark.parametrize(
    ("family", "world_size", "zero", "dtype", "targets"),
    [
        # "narrow" has parameters whose first dimension is smaller than, or not a multiple of, the number of ranks
        pytest.param("narrow", 4, 3, "fp32", [(1, 0, "fp32"), (3, 3, "bf16"), (4, 3, "fp32")], marks=pytest.mark.slow),
        ("narrow", 2, 3, "fp32", [(2, 2, "fp32")]),
        pytest.param("gpt2", 2, 0, "bf16", [(1, 3, "bf16"), (2, 0, "fp32")], marks=pytest.mark.slow),  # tied embeddings
        pytest.param("gpt_neox", 2, 1, "fp32", [(4, 0, "fp32"), (1, 1, "bf16")], marks=pytest.mark.slow),
    ],
)
def test_any_world_size_and_stage_loads_the_same_state(
    tmp_path: Path,
    process_group: ProcessGroups,
    family: str,
    world_size: int,
    zero: int,
    dtype: str,
    targets: list[tuple[int, int, str]],
) -> None:
    saved, *others = process_group(world_size).run(train_and_save, tmp_path, family, zero, dtype)
    for target_size, target_zero, target_dtype in targets:
        others += process_group(target_size).run(find_and_load, tmp_path, family, target_zero, target_dtype)
    model = model_of(family)  # a plain model in this process, without a process group
    optimizer = adamw(model)
    checkpoints_in(tmp_path).load(tmp_path / "checkpoints" / "step-2", model, optimizer)
    for loaded in (*others, arrays_of(model, optimizer)):
        assert_same_state(loaded, saved)


# Which rank writes what


def keys_and_bytes(zero: int) -> dict[str, int]:
    """The bytes that this rank writes, by key."""
    ranks = join()
    engine = engine_of("gpt_neox", settings(zero), ranks)
    step(engine, ranks, batches(settings(zero))[0], micro_batches=1)
    mine = state_tensors(engine.lm.model, engine.optimizer, ranks)
    return {key: own_part(tensor).nbytes for key, tensor in mine.items()}


@pytest.mark.parametrize("zero", [0, 3])
def test_each_rank_writes_its_part_and_nothing_twice(process_group: ProcessGroups, zero: int) -> None:
    one, other = process_group(2).run(keys_and_bytes, zero)
    model, optimizer = with_adamw(model_of("gpt_neox"))
    train(model, optimizer, range(1))
    whole = {key: tensor.nbytes for key, tensor in state_tensors(model, optimizer, single_rank()).items()}
    assert {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()} == whole
    largest = 3 * max(whole.values())  # a parameter with its state goes to one rank
    assert abs(sum(one.values()) - sum(other.values())) <= largest
    assert zero == 3 or not one.keys() & other.keys()


# Errors of one rank


def small(ranks: Ranks, value: float) -> tuple[nn.Module, Any]:
    model = nn.Linear(5, 7)
    nn.init.constant_(model.weight, value)
    fully_shard(model, mesh=ranks.mesh)
    return model, adamw(model)


def save_small(run: Path, *steps: int) -> None:
    ranks = join()
    checkpoints = checkpoints_in(run, ranks, keep_last=9)
    for number in steps:
        checkpoints.save(*small(ranks, number), progress_of(number), CONFIG)


def error_of(function: Callable[..., Any], *arguments: Any) -> str | None:
    """The message of the PilekitError that the function raises."""
    try:
        function(*arguments)
    except PilekitError as error:
        return str(error)
    return None


def load_newest(run: Path) -> tuple[float | str | None, list[str]]:
    """The number that fills the newest good weights, or an error; and the warnings."""
    ranks = join()
    with warnings_of() as warnings:
        try:
            checkpoints = checkpoints_in(run, ranks, asynchronous=True)
            folder = checkpoints.newest()
            assert folder is not None
            model, optimizer = small(ranks, -1)
            progress = checkpoints.load(folder, model, optimizer)
            value = state_of(model, optimizer)["weight"]
            assert bool((value == progress.step).all())
            found: float | str = float(value[0, 0])
        except PilekitError as error:
            assert isinstance(error, AlreadyReported) != ranks.is_first  # only rank 0 prints it
            found = str(error)
    return found, [record.getMessage() for record in warnings]


def test_all_ranks_resume_from_the_newest_good_one(tmp_path: Path, process_group: ProcessGroups) -> None:
    group = process_group(2)
    group.run(save_small, tmp_path, 1, 2, 3)
    folder = tmp_path / "checkpoints"
    files = sorted(path.name for path in (folder / "step-3").iterdir())
    assert files == [".metadata", "__0_0.distcp", "__1_0.distcp", "state.json"]
    flip_last_bit(folder / "step-3" / "__1_0.distcp")
    (folder / "step-2" / ".metadata").unlink()
    (one, warned), (other, silent) = group.run(load_newest, tmp_path)
    assert one == other == 1
    assert silent == []
    [line] = warned
    assert re.search(r"step-3 is damaged \(__1_0.*step-2 is damaged \(.*\.metadata.*resuming from step-1", line)
    flip_last_bit(folder / "step-1" / "__1_0.distcp")
    (one, _), (other, _) = group.run(load_newest, tmp_path)
    assert one == other
    assert "step-3, is damaged (__1_0.distcp is not as it was written)" in str(one)


def save_on_a_full_disk(run: Path, full: int) -> tuple[str, int]:
    """The error of saving step 2 while the disk of one rank is full, and the number of warnings; then save step 3."""
    ranks = join()
    checkpoints = checkpoints_in(run, ranks, asynchronous=True)
    with warnings_of() as warnings:
        with files_limited_to(500 if ranks.rank == full else resource.RLIM_INFINITY):
            checkpoints.save(*small(ranks, 2), progress_of(2), CONFIG)
            with pytest.raises(PilekitError) as told:
                checkpoints.finish()
            assert isinstance(told.value, AlreadyReported) != ranks.is_first
        assert list(checkpoints.saved) == []
        ranks.gather(None)
        assert steps_in(run) == {"step-1"}
        ranks.gather(None)
        checkpoints.save(*small(ranks, 3), progress_of(3), CONFIG)
        checkpoints.finish()
        assert list(checkpoints.saved) == [3]
    return str(told.value), len(warnings)


def test_all_ranks_hear_of_a_full_disk(tmp_path: Path, process_group: ProcessGroups) -> None:
    group = process_group(2)
    group.run(save_small, tmp_path, 1)
    (one, warned), (other, others) = group.run(save_on_a_full_disk, tmp_path, 1)
    assert one == other
    assert warned == others == 0
    assert f"{tmp_path / 'checkpoints' / 'step-2'}: the checkpoint cannot be written: File too large" in one
    assert steps_in(tmp_path) == {"step-1", "step-3"}
    verify(tmp_path / "checkpoints" / "step-3")


def save_in_a_folder_of_its_own(run: Path) -> str | None:
    ranks = join()
    checkpoints = checkpoints_in(run / f"machine-{ranks.rank}", ranks)
    return error_of(checkpoints.save, *small(ranks, 1), progress_of(1), CONFIG) or error_of(checkpoints.finish)


def test_a_folder_that_machines_do_not_share_is_an_error(tmp_path: Path, process_group: ProcessGroups) -> None:
    one, other = process_group(2).run(save_in_a_folder_of_its_own, tmp_path)
    assert one == other
    assert re.search(r"the checkpoint cannot be written: No such file|put the run into a folder that all machines", one)
    assert not steps_in(tmp_path / "machine-0")


def fail_on_one_rank(run: Path, failing: int, where: str) -> str:
    ranks = join()
    checkpoints = checkpoints_in(run, ranks, asynchronous=True)
    right = getattr(module, where)

    def broken(*_: object) -> None:
        raise ValueError("unforeseen")

    try:
        if ranks.rank == failing:
            setattr(module, where, broken)
        checkpoints.save(*small(ranks, 2), progress_of(2), CONFIG)
        checkpoints.before_update()
        checkpoints.finish()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        setattr(module, where, right)
    return "nothing"


def test_an_unforeseen_error_of_one_rank_stops_all(tmp_path: Path, process_group: ProcessGroups) -> None:
    group, failing, where = process_group(2), 1, "_copy_to_cpu"
    group.run(save_small, tmp_path, 1)
    errors = group.run(fail_on_one_rank, tmp_path, failing, where)
    assert errors[failing] == "ValueError: unforeseen"
    assert f"rank {failing} failed with ValueError: unforeseen" in errors[1 - failing]
    assert steps_in(tmp_path) == {"step-1"}
