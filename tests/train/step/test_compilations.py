"""A compiled step is compiled once, whatever its documents are; what is compiled later is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from pilekit.models.causal import as_causal_lm
from pilekit.train.model.attention import choose_attention
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import join
from tests.tiny.models import tiny_neox_config
from tests.train.plain_loop import cut, random_rows
from tests.train.runs import lines, small_config, tiny_run, trainer, warnings_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler"),
]

ROWS, LENGTH = 4, 32
BLOCK_AND_LOSS = 2
"""All blocks are one function."""


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_engine(attention: str, checkpoint: str = "none") -> StepEngine:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_neox_config(num_hidden_layers=3), attn_implementation="sdpa")
    names = ("model.attention_implementation", "parallel.activation_checkpoint", "train.micro_batch_size")
    values = zip(names, (attention, checkpoint, "2"), strict=True)
    config = small_config(["parallel.compile=step", *(f"{name}={value}" for name, value in values)])
    engine = StepEngine(as_causal_lm(model), config, join())
    choose_attention(engine, config)
    return engine


def compiled_in_step(engine: StepEngine, batch: dict[str, Tensor]) -> int:
    for number, rows in enumerate(cut(batch, 2)):
        engine.forward_backward(rows, scale=0.01, last=number == 1)
    engine.update(1e-3)
    assert engine.compilations is not None
    return engine.compilations.take()


@pytest.mark.parametrize(("attention", "checkpoint"), [("sdpa", "none"), ("varlen", "none"), ("varlen", "full")])
def test_only_the_first_step_compiles(attention: str, checkpoint: str) -> None:
    """Documents of any number and length, more than there is room for at first, padding, few and many targets."""
    engine = compiled_engine(attention, checkpoint)
    counts = [ROWS * LENGTH // 2, 40, 1, 60, 17, 90, 33, 5]
    batches = [random_rows(seed, ROWS, count, seq_len=LENGTH) for seed, count in enumerate(counts)]
    batches[3]["position_ids"].zero_()  # each token is a document
    batches[5]["doc_ids"] = (torch.arange(LENGTH) // (LENGTH // 2)).neg().repeat(ROWS, 1)  # half of it is padding
    batches[6]["position_ids"] = torch.arange(LENGTH).repeat(ROWS, 1)  # a row is one document
    with warnings_of() as warned:
        assert [compiled_in_step(engine, batch) for batch in batches] == [BLOCK_AND_LOSS, *[0] * 7]
    assert not warned


def test_a_later_compilation_is_told() -> None:
    engine = compiled_engine("sdpa")
    with warnings_of() as warned:
        first = [compiled_in_step(engine, random_rows(seed, ROWS, 40, seq_len=LENGTH)) for seed in range(3)]
        assert not warned
        later = compiled_in_step(engine, random_rows(3, ROWS, 20, seq_len=LENGTH // 2))
    assert (first, later) == ([BLOCK_AND_LOSS, 0, 0], 1)
    (warning,) = [each.getMessage() for each in warned]
    assert warning.startswith("step 4 since the start: torch.compile has compiled 1 function again, which costs time (")
    assert "size mismatch at index 1. expected 32, actual 16" in warning


def test_a_run_counts_what_its_steps_compile(tmp_path: Path) -> None:
    made = tiny_run(tmp_path, "parallel.compile=step", "model.attention_implementation=varlen")
    trainer(made, tmp_path / "run").fit()
    assert [line["compilations"] for line in lines(tmp_path / "run")] == [BLOCK_AND_LOSS, 0, 0, 0]
