"""Batches that do not fit into memory are scored in parts: with models that fail as torch does, under a real limit."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

from pilekit.errors import PilekitError, is_out_of_memory
from pilekit.evaluate.score.batching import Fitting, Row
from pilekit.models.causal import CausalLM, as_causal_lm
from tests.evaluate.score.making import documents, note_shapes, scored
from tests.memory_limit import NO_HOLES
from tests.tiny.models import tiny_model

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6 GiB.\nOf that, ..."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
]


def failing_above(inputs: int, error: Exception) -> tuple[CausalLM, list[tuple[int, int]]]:
    """A model that raises for more inputs, as torch does, and the shapes of its batches."""
    lm = as_causal_lm(tiny_model().double().eval())
    shapes = note_shapes(lm)

    def fail(_module: Any, _given: Any, named: dict[str, Any]) -> None:
        if named["input_ids"].numel() > inputs:
            raise error

    lm.trunk.register_forward_pre_hook(fail, with_kwargs=True)
    return lm, shapes


def test_a_batch_that_does_not_fit_is_halved_and_the_size_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    given = documents([32] * 19 + [10] * 12)
    expected = [one.nll for one in scored(as_causal_lm(tiny_model().double().eval()), given)]
    for error in ERRORS:
        caplog.clear()
        lm, shapes = failing_above(100, error)
        with caplog.at_level(logging.WARNING, "pilekit"):
            found = scored(lm, given, batch_tokens=16 * 32)
        failed = [(16, 32), (8, 32), (4, 32)]
        assert shapes == [*failed, *[(2, 32)] * 8, (2, 32), (2, 32), (6, 10), (5, 10)]
        assert caplog.messages == [
            "memory does not hold a forward pass over 512 tokens; continuing with at most 64 in each"
        ]
        assert [one.nll for one in found] == pytest.approx(expected, rel=1e-12)


def test_a_single_window_that_does_not_fit_is_one_line() -> None:
    lm, shapes = failing_above(31, ERRORS[0])
    said = (
        r"^a.jsonl, document 1 \(Github\): memory does not hold a forward pass over a window of 32 tokens "
        r"\(CUDA out of memory. Tried to allocate 6 GiB\.\); give a smaller --max-length, or --dtype bf16$"
    )
    with pytest.raises(PilekitError, match=said):
        scored(lm, documents([3, 40, 2, 2]), batch_tokens=4 * 32)
    assert shapes == [(4, 32), (2, 32), (1, 32)]
    assert scored(lm, documents([3, 40, 2, 2]), batch_tokens=4 * 32, max_length=31)[1].tokens == 40


def test_other_errors_are_raised_at_once() -> None:
    lm, shapes = failing_above(31, RuntimeError("index out of range"))
    with pytest.raises(PilekitError, match=r"the model fails at a window of 32 tokens \(index out of range\)"):
        scored(lm, documents([32, 32]))
    assert shapes == [(2, 32)]
    assert all(map(is_out_of_memory, ERRORS))
    for error in [None, KeyboardInterrupt(), RuntimeError("index out of range"), ValueError("out of memory")]:
        assert not is_out_of_memory(error)


def test_the_tensors_of_a_failed_pass_are_freed_before_the_next() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def forward(part: list[Row]) -> list[float]:
        assert not any(one() is not None for one in alive)
        made = torch.zeros(10)
        alive.append(weakref.ref(made))
        try:
            if len(part) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as error:
            raise PilekitError("no") from error
        return [0.0] * len(part)

    [one] = documents([5])
    batch = [Row(one, one.ids, 5, 5)] * 4
    assert list(Fitting()([batch], forward)) == [[0.0] * 4]
    assert len(alive) == 6


LIMITED = """
import json, logging, sys
import torch
from pilekit.models.causal import as_causal_lm
from tests.evaluate.score.making import documents, scored
from tests.memory_limit import limit_memory
from tests.tiny.models import tiny_model

torch.set_num_threads(1)
logging.basicConfig(format="%(message)s")
given = documents([32] * 2048)
lm = as_causal_lm(tiny_model().eval())

def total(**settings):
    return sum(one.nll for one in scored(lm, given, **settings))

expected = total()  # 4,096 inputs in a pass; tensors that are made once are made now
limit_memory(64 << 20)
print(json.dumps([expected, total(batch_tokens=1 << 16)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")
def test_under_a_real_limit_of_memory() -> None:
    """65,536 inputs at once take 8 MiB for each tensor of width 32; several of them and the logits exceed 64 MiB."""
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, env=os.environ | NO_HOLES, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    expected, found = json.loads(done.stdout)
    assert found == pytest.approx(expected, rel=1e-7)
    assert "memory does not hold a forward pass over 65,536 tokens; continuing with at most " in done.stderr
