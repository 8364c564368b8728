"""Batches that memory does not hold are made in parts: by models that fail as torch does, and under a real limit."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.evaluate.model.causal import CausalLM, as_causal_lm
from pilekit.evaluate.model.fitting import Fitting, is_out_of_memory
from pilekit.evaluate.score.causal_nll import ScoredDocument, TokenizedDocument, score_documents
from tests.tiny import tiny_model

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6 GiB.\nOf that, ..."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
]


def documents(lengths: list[int]) -> list[TokenizedDocument]:
    rng = np.random.default_rng(0)
    return [
        TokenizedDocument("a.jsonl", number, number, "Github", 4, rng.integers(0, 320, size=length).astype(np.uint32))
        for number, length in enumerate(lengths)
    ]


def failing_above(inputs: int, error: Exception) -> tuple[CausalLM, list[tuple[int, int]]]:
    """A model that raises at more inputs, as torch does, and the shapes of the batches that it was given."""
    lm = as_causal_lm(tiny_model().double().eval())
    shapes: list[tuple[int, int]] = []

    def pre(_module: Any, _given: Any, named: dict[str, Any]) -> None:
        shapes.append(tuple(named["input_ids"].shape))
        if named["input_ids"].numel() > inputs:
            raise error

    lm.trunk.register_forward_pre_hook(pre, with_kwargs=True)
    return lm, shapes


def scored(lm: CausalLM, given: list[TokenizedDocument], **settings: Any) -> dict[int, ScoredDocument]:
    found = list(score_documents(lm, given, **{"prefix": 0, "max_length": 32, **settings}))
    assert len({one.number for one in found}) == len(found) == len(given)
    return {one.number: one for one in found}


@pytest.mark.parametrize("error", ERRORS)
def test_a_batch_that_does_not_fit_is_halved_and_that_is_remembered(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    lm, shapes = failing_above(100, error)
    given = documents([32] * 19 + [10] * 12)
    with caplog.at_level(logging.WARNING, "pilekit"):
        found = scored(lm, given, batch_tokens=16 * 32)
    assert shapes == [
        *[(16, 32), (8, 32), (4, 32)],  # all of which fail
        *[(2, 32)] * 8,
        *[(2, 32), (2, 32), (6, 10), (5, 10)],  # of three of 32 and twelve of 10 no more are tried
    ]
    [warned] = caplog.records
    assert warned.getMessage() == (
        "memory does not hold a forward pass over 512 tokens; going on with at most 64 in each"
    )
    for number, one in scored(as_causal_lm(tiny_model().double().eval()), given).items():
        assert found[number].nll == pytest.approx(one.nll, rel=1e-12)


def test_it_is_remembered_beyond_the_look_ahead(caplog: pytest.LogCaptureFixture) -> None:
    lm, shapes = failing_above(64, ERRORS[0])
    scored(lm, documents([32] * 40), batch_tokens=4 * 32, look_ahead=300)
    assert shapes.count((4, 32)) == 1
    assert sum(rows for rows, _ in shapes) == 40 + 4
    assert len(caplog.records) == 1


@settings(max_examples=100)
@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=20).map(lambda rows: sorted(rows)[::-1]), max_size=6),
    st.lists(st.integers(30, 700), min_size=1, max_size=6),
)
def test_every_row_is_made_once_and_in_order(batches: list[list[int]], limits: list[int]) -> None:
    """Whatever fits at the time, as long as a single row does: memory may shrink and grow meanwhile."""
    failures = 0
    made: list[int] = []

    def forward(part: list[int]) -> list[float]:
        nonlocal failures
        if len(part) * part[0] > limits[min(failures, len(limits) - 1)]:
            failures += 1
            raise PilekitError("no") from ERRORS[1]
        made.extend(part)
        return [row / 2 for row in part]

    assert list(Fitting[int](lambda row: row)(batches, forward)) == [[row / 2 for row in batch] for batch in batches]
    assert made == [row for batch in batches for row in batch]
    assert failures <= 10  # from 600 inputs down to 1 by halves


def test_a_single_window_that_does_not_fit_is_told_in_one_line() -> None:
    lm, shapes = failing_above(31, ERRORS[0])
    said = (
        r"^a.jsonl, document 1 \(Github\): memory does not hold a forward pass over a window of 32 tokens "
        r"\(CUDA out of memory. Tried to allocate 6 GiB\.\); give a smaller --max-length, or --dtype bf16$"
    )
    with pytest.raises(PilekitError, match=said):
        scored(lm, documents([3, 40, 2, 2]), batch_tokens=4 * 32)
    assert shapes == [(4, 32), (2, 32), (1, 32)]
    assert scored(lm, documents([3, 40, 2, 2]), batch_tokens=4 * 32, max_length=31)[1].tokens == 40


def test_what_does_not_come_from_memory_is_not_tried_again() -> None:
    lm, shapes = failing_above(31, RuntimeError("index out of range"))
    with pytest.raises(PilekitError, match=r"the model fails at a window of 32 tokens \(index out of range\)"):
        scored(lm, documents([32, 32]))
    assert shapes == [(2, 32)]


def test_the_tensors_of_a_failed_pass_are_gone_before_the_next() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def forward(part: list[int]) -> list[float]:
        assert not any(one() is not None for one in alive)
        made = torch.zeros(10)
        alive.append(weakref.ref(made))
        try:
            if len(part) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as error:
            raise PilekitError("no") from error
        return [0.0] * len(part)

    assert list(Fitting[int](lambda row: row)([[5, 5, 5, 5]], forward)) == [[0.0] * 4]
    assert len(alive) == 6


def test_other_errors_are_not_of_memory() -> None:
    assert all(map(is_out_of_memory, ERRORS))
    for error in [None, KeyboardInterrupt(), RuntimeError("index out of range"), ValueError("out of memory")]:
        assert not is_out_of_memory(error)


LIMITED = """
import json, logging, resource, sys
import numpy as np, torch
from pilekit.evaluate.model.causal import as_causal_lm
from pilekit.evaluate.score.causal_nll import TokenizedDocument, score_documents
from tests.tiny import tiny_model

torch.set_num_threads(1)
logging.basicConfig(format="%(message)s")
ids = np.random.default_rng(0).integers(0, 320, size=(2048, 32)).astype(np.uint32)
documents = [TokenizedDocument("a.jsonl", number, number, "Github", 4, row) for number, row in enumerate(ids)]
lm = as_causal_lm(tiny_model().eval())

def total(documents, **settings):
    return sum(one.nll for one in score_documents(lm, documents, prefix=0, max_length=32, **settings))

expected = total(documents)  # 4,096 inputs in a pass: what is made once is made now
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
print(json.dumps([expected, total(documents, batch_tokens=1 << 16)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits address space")
def test_under_a_real_limit_of_memory() -> None:
    """65,536 inputs at once take 8 MiB for each thing of width 32, and several such and the logits do not fit in 64."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    expected, found = json.loads(done.stdout)
    assert found == pytest.approx(expected, rel=1e-7)
    assert "memory does not hold a forward pass over 65,536 tokens; going on with at most " in done.stderr
