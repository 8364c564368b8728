"""Memory estimates against the peaks of real steps, in real process groups, and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pilekit.models.causal import CausalLM
from pilekit.tokenize import load_tokenizer
from pilekit.train.config.sections import TrainConfig
from pilekit.train.estimate import estimate, state_bytes, table
from pilekit.train.model.build import build_model
from pilekit.train.step.sharding import own_part
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.tiny.models import tiny_neox_config, tiny_tokenizer
from tests.train.living_bytes import LivingBytes
from tests.train.plain_loop import cut, random_rows
from tests.train.runs import small_config

LENGTH = 64


def config_of(folder: Path, **changes: Any) -> TrainConfig:
    rows = {"train.global_batch_size": 16, "train.micro_batch_size": 2, "data.seq_len": LENGTH}
    return small_config({"data.tokenizer": folder, **rows, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_tokenizer(tmp_path)
    return tmp_path


# Real steps


def peak_of_a_step(config: TrainConfig) -> tuple[int, int]:
    """(the estimated peak, the peak in the second of two steps) of this rank.

    Tensors that sharding empties in place count on, so the bytes of the first step's end stand for what stays.
    """
    ranks = join()
    found = estimate(config, ranks.world_size)
    held, before = found.stages[found.chosen].held, 0
    with LivingBytes() as live:
        assert config.data.tokenizer is not None
        lm = build_model(config.model, load_tokenizer(config.data.tokenizer), seq_len=LENGTH, seed=0)
        assert isinstance(lm, CausalLM)
        engine = StepEngine(lm, config, ranks)
        for seed in range(2):
            live.peak = before = live.bytes
            batch = random_rows(seed, 16, 256, seq_len=LENGTH)
            micro_batches = cut(cut(batch, ranks.world_size)[ranks.rank], found.micro_batches)
            for number, rows in enumerate(micro_batches):
                engine.forward_backward(rows, scale=1e-3, last=number == found.micro_batches - 1)
            engine.update(1e-3)
    values = [value for state in engine.optimizer.state.values() for value in state.values()]
    stays = sum(own_part(tensor).nbytes for tensor in (*lm.model.parameters(), *values))
    assert ranks.rank or stays == held.parameters + held.optimizer
    return found.stages[found.chosen].device, stays + held.gathered + live.peak - before


@pytest.mark.parametrize(
    ("world_size", "zero", "dtype", "micro", "recomputed"),
    [
        *((2, zero, "fp32", 4, "none") for zero in (0, 3)),
        (2, 1, "bf16", 8, "none"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((2, 2, "fp32", 4, "none"), (2, 3, "bf16", 8, "selective"), (1, 0, "fp32", 8, "full"))
        ),
    ],
)
def test_the_peak_of_a_step_is_within_a_tenth(
    process_group: ProcessGroups, folder: Path, world_size: int, zero: Any, dtype: Any, micro: int, recomputed: Any
) -> None:
    tiny_neox_config(
        hidden_size=128, intermediate_size=512, num_hidden_layers=4, max_position_embeddings=LENGTH
    ).save_pretrained(folder / "model")
    parallel = {"parallel.zero": zero, "parallel.activation_checkpoint": recomputed, "precision.dtype": dtype}
    changes = {"model.config": folder / "model", "train.micro_batch_size": micro, **parallel}
    config = config_of(folder, **changes)
    expected, found = process_group(world_size).run(peak_of_a_step, config)[0]
    assert expected == pytest.approx(found, rel=0.1)


# By hand


def test_a_parameter_with_fewer_rows_than_ranks_and_one_that_is_not_trained() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(4, 7))
    model[1].requires_grad_(False)

    held = state_bytes(model, stage=3, world_size=4, dtype=torch.bfloat16, micro_batches=1)

    trained, frozen = 1 * 5 + 1, 2 * 4 + 2  # one row of three, two of seven
    assert held.parameters == 4 * (trained + frozen)
    assert (held.gradients, held.accumulated, held.optimizer) == (4 * trained, 0, 8 * trained + 2 * 4)
    everything = 3 * 5 + 3 + 7 * 4 + 7  # there are no blocks, so all of it is the one group
    assert (held.gathered, held.buffers) == (2 * everything, (2 + 4) * everything)


def test_offload_moves_all_but_what_is_gathered_to_the_host(folder: Path) -> None:
    found = estimate(config_of(folder, **{"parallel.zero": 3, "parallel.offload": True}), 4)
    held, chosen = found.stages[3].held, found.stages[3]
    assert chosen.host == held.parameters + held.gradients + held.optimizer
    assert chosen.device == held.gathered + held.sent + max(chosen.activations, held.buffers)
    assert found.stages[0].host == 0
    assert "In CPU memory" in str(table(found))


def test_what_cannot_run_is_not_estimated(folder: Path) -> None:
    refused(r"^train.global_batch_size = 16: 3 ranks cannot share it", estimate, config_of(folder), 3)
    refused(r"^optimizer.lr_by_pattern: ", estimate, config_of(folder, **{"optimizer.lr_by_pattern": {"none": 1.0}}), 1)


def test_varlen_needs_no_mask_of_documents(folder: Path) -> None:
    bf16 = {"precision.dtype": "bf16"}
    varlen = estimate(config_of(folder, **bf16, **{"model.attention_implementation": "varlen"}), 1)
    auto, causal = (estimate(config_of(folder, **bf16, **more), 1) for more in ({}, {"data.attention": "causal"}))
    assert (varlen.attention, auto.attention) == ("varlen", "sdpa")
    assert varlen.stages[0].activations == causal.stages[0].activations < auto.stages[0].activations
