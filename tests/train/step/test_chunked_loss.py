"""The loss in chunks against `F.cross_entropy` on all logits at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from pilekit.models.logit_transform import UNCHANGED, LogitTransform
from pilekit.train.step.chunked_loss import Head, chunked_cross_entropy
from tests.tiny.logit_transforms import transformed
from tests.train.living_bytes import LivingBytes

BFLOAT16_STEP = 2.0**-8
LOGIT_TRANSFORMS = [
    UNCHANGED,
    LogitTransform(cap=1.5),
    LogitTransform(times=0.3),
    LogitTransform(over=0.7),
    LogitTransform(times=3.0, over=2.0, cap=2.5),
]


def made(
    rows: int, vocabulary: int, width: int, *, bias: bool, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """(hidden, weight, bias, targets); the first three are leaves that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, width), (vocabulary, width), (vocabulary,)]
    leaves = [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    return leaves[0], leaves[1], leaves[2] if bias else None, targets


def reference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, transform: LogitTransform = UNCHANGED
) -> Tensor:
    logits = transformed(transform, functional.linear(hidden, weight, bias))
    return functional.cross_entropy(logits, targets, reduction="none")


def relative_error(found: Tensor, right: Tensor) -> float:
    found, right = found.detach().double(), right.detach().double()
    return float((found - right).norm() / right.norm())


@given(
    rows=st.integers(0, 12),
    vocabulary=st.integers(1, 9),
    width=st.integers(1, 5),
    bias=st.booleans(),
    transform=st.sampled_from(LOGIT_TRANSFORMS),
    chunk=st.integers(1, 14),
    seed=st.integers(0, 1000),
)
def test_it_is_cross_entropy(
    rows: int, vocabulary: int, width: int, bias: bool, transform: LogitTransform, chunk: int, seed: int
) -> None:
    hidden, weight, offset, targets = made(rows, vocabulary, width, bias=bias, seed=seed)
    leaves = [hidden, weight] if offset is None else [hidden, weight, offset]
    factor = torch.tensor(-1.7, dtype=torch.float64)
    right = reference(hidden, weight, offset, targets, transform)
    right_grads = torch.autograd.grad(right.sum(), leaves, factor)

    total, each = chunked_cross_entropy(hidden, Head(weight, offset, transform), targets, rows=chunk)

    torch.testing.assert_close(each, right.detach())
    torch.testing.assert_close(total, right.sum())
    assert total.dtype == each.dtype == torch.float64
    assert not each.requires_grad
    for found, correct in zip(torch.autograd.grad(total, leaves, factor), right_grads, strict=True):
        torch.testing.assert_close(found, correct)


def test_huge_logits_neither_overflow_nor_vanish() -> None:
    hidden, weight, _, targets = made(7, 11, 4, bias=False, dtype=torch.float32)
    hidden = (hidden.detach() * 1e4).requires_grad_()

    total, each = chunked_cross_entropy(hidden, Head(weight, None), targets, rows=3)
    total.backward()

    right = reference(hidden.detach().double(), weight.detach().double(), None, targets)
    # Logits are products in float32: which of its last bits is right depends on the processor.
    torch.testing.assert_close(each.double(), right, rtol=1e-6, atol=1e-6)
    assert float(each.max()) > 1000  # a softmax of it is 0 in float32, and its logarithm minus infinity
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())


def test_under_autocast_products_are_in_its_type() -> None:
    hidden, weight, bias, targets = made(64, 101, 32, bias=True, dtype=torch.float32)
    assert bias is not None
    exact = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight, bias)]
    right = reference(exact[0], exact[1], exact[2], targets)
    right.sum().backward()

    with torch.autocast("cpu", torch.bfloat16):
        total, each = chunked_cross_entropy(hidden, Head(weight, bias), targets, rows=5)
    total.backward()

    assert total.dtype == each.dtype == torch.float32
    for found, correct in zip(
        (each, hidden.grad, weight.grad, bias.grad), (right, *(e.grad for e in exact)), strict=True
    ):
        assert found is not None
        assert correct is not None
        assert 1e-6 < relative_error(found, correct) < 4 * BFLOAT16_STEP


@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_against_float64(hidden_dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    transform = LogitTransform(times=2.0, over=3.0, cap=6.0)
    *leaves, targets = made(64, 101, 32, bias=True, dtype=torch.float32)
    types = (hidden_dtype, weight_dtype, weight_dtype)
    given = [leaf.detach().to(dtype).requires_grad_() for leaf, dtype in zip(leaves, types, strict=True)]
    exact = [leaf.detach().double().requires_grad_() for leaf in given]
    right = reference(*exact, targets, transform)
    right.sum().backward()

    total, each = chunked_cross_entropy(given[0], Head(given[1], given[2], transform), targets, rows=5)
    (total / 64).backward()

    in_bfloat16 = hidden_dtype == weight_dtype == torch.bfloat16
    assert total.dtype == each.dtype == torch.float32
    # Logits of about 6 with 8 bits of mantissa are off by at most half a step of 2**-6.
    assert relative_error(each, right) < (BFLOAT16_STEP if in_bfloat16 else 1e-6)
    assert (relative_error(each, right) > 1e-5) == in_bfloat16  # then the products were made in bfloat16 indeed
    for leaf, correct in zip(given, exact, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        rounded = in_bfloat16 or leaf.dtype == torch.bfloat16
        assert relative_error(leaf.grad * 64, correct.grad) < (2 * BFLOAT16_STEP if rounded else 1e-6)


def test_sums_over_chunks_are_exact_in_bfloat16() -> None:
    """After a large gradient, a sum in bfloat16 would not change any more: 171 + 1/3 is 171 again."""
    rows, third = 61, 1 / 3
    hidden = torch.ones(rows, 2, dtype=torch.bfloat16)
    hidden[0] = 512
    weight = torch.zeros(3, 2, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(rows, dtype=torch.int64)

    total, _ = chunked_cross_entropy(hidden, Head(weight, None), targets, rows=1)
    total.backward()

    right = (512 + rows - 1) * torch.tensor([[third - 1] * 2, [third] * 2, [third] * 2])
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.float(), right, rtol=BFLOAT16_STEP, atol=0)


def test_all_logits_never_exist_at_once() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        hidden, weight, bias, targets = made(500, 300, 8, bias=True, dtype=dtype)
        with LivingBytes() as made_inside:
            total, _ = chunked_cross_entropy(hidden, Head(weight, bias, LOGIT_TRANSFORMS[-1]), targets, rows=33)
            total.backward()
        assert made_inside.largest <= 4 * 33 * 300 < 2 * 500 * 300
