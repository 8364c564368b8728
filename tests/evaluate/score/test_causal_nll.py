"""Negative log-likelihoods beside a reference that scores one window at a time, in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Phi3Config, Phi3ForCausalLM

from pilekit.errors import PilekitError
from pilekit.evaluate.score import batching
from pilekit.evaluate.score.batching import TokenizedDocument
from pilekit.models.causal import as_causal_lm
from pilekit.models.logit_transform import UNCHANGED
from tests.evaluate.reference import reference_nll
from tests.evaluate.score.making import document, documents, note_shapes, score_documents, scored
from tests.tiny.logit_transforms import LOGIT_TRANSFORMS, transforming_model
from tests.tiny.models import SMALL, Family, tiny_model

FAMILIES: list[Family] = ["gpt_neox", "gpt2", "llama"]
LENGTHS = [0, 1, 2, 9, 15, 16, 17, 31, 32, 33, 34, 64, 65, 100, 1, 0, 7]


def long_rope() -> Any:
    """A model whose rotary factors change if its input, padding included, is longer than 16."""
    config = Phi3Config(
        **SMALL,
        pad_token_id=0,
        original_max_position_embeddings=16,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": [1.0] * 4,
            "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 16,
        },
    )
    torch.manual_seed(0)
    return Phi3ForCausalLM(config).eval()


def model_of(family: str) -> Any:
    if family == "phi3":
        return long_rope()
    return transforming_model(family) if family in LOGIT_TRANSFORMS else tiny_model(family).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("family", [*FAMILIES, *LOGIT_TRANSFORMS, "phi3"])
def test_scores_equal_the_reference(family: str) -> None:
    given = documents(LENGTHS)
    single, model = as_causal_lm(model_of(family)), model_of(family).double()
    double = as_causal_lm(model)
    assert double.transform == LOGIT_TRANSFORMS.get(family, UNCHANGED)
    for prefix in (0, 5, None):
        found = zip(scored(double, given, prefix=prefix), scored(single, given, prefix=prefix), given, strict=True)
        for exact, rounded, of in found:
            expected = reference_nll(model, of.ids.tolist(), prefix, 32)
            assert exact.tokens == rounded.tokens == max(len(of.ids) - (prefix is None), 0)
            assert exact.bytes == of.bytes
            # Gemma 2 takes its softmax in float32 whatever its weights are.
            assert exact.nll == pytest.approx(expected, rel=1e-7 if family == "gemma2" else 1e-12, abs=1e-12)
            assert rounded.nll == pytest.approx(expected, rel=1e-6, abs=1e-6)
    whole = scored(dataclasses.replace(double, transform=None), given)  # the model makes its logits itself
    assert [one.nll for one in whole] == pytest.approx([one.nll for one in scored(double, given)], rel=1e-12)


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 50), max_size=8),
    st.integers(1, 16),
    st.integers(1, 400),
    st.integers(1, 400),
    st.integers(1, 40_000),
    st.sampled_from([0, None]),
    st.data(),
)
def test_no_setting_changes_a_figure(
    lengths: list[int],
    max_length: int,
    batch_tokens: int,
    look_ahead: int,
    chunk_bytes: int,
    prefix: int | None,
    data: st.DataObject,
) -> None:
    options = {
        "prefix": prefix,
        "max_length": max_length,
        "context_len": data.draw(st.integers(1, max_length)),
        "batch_tokens": batch_tokens,
        "look_ahead": look_ahead,
        "chunk_bytes": chunk_bytes,
    }
    lm = as_causal_lm(tiny_model("gpt_neox", vocab_size=64).double().eval())
    given = documents(lengths, vocabulary=64)
    progress: list[int] = []
    found = scored(lm, given, **options, scored=progress.append)
    assert sum(progress) == sum(one.tokens for one in found)
    for one, of in zip(found, given, strict=True):
        expected = reference_nll(lm.model, of.ids.tolist(), prefix, max_length, options["context_len"])
        assert one.nll == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("family", ["gpt_neox", *LOGIT_TRANSFORMS])
def test_only_a_chunk_of_logits_exists_and_only_it_is_float32(family: str) -> None:
    """The test looks at every tensor that torch makes, in bfloat16."""
    vocabulary = 317
    if family == "gpt_neox":
        model = tiny_model("gpt_neox", vocab_size=vocabulary).eval()
    else:
        model = transforming_model(family, vocab_size=vocabulary)
    lm = as_causal_lm(model.to(torch.bfloat16))
    weight = lm.head.weight.untyped_storage().data_ptr()
    seen: list[torch.Size] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **kwargs or {})
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() != weight:
                if made.shape[-1:] == (vocabulary,):
                    seen.append(made.shape)
                elif family == "gpt_neox" and made.dtype == torch.float32:
                    assert made.numel() <= 64 * 32 * 4  # the angles of the rotary embedding, 4 a position
            return made

    given = documents([32] * 64, vocabulary=vocabulary)
    with Watch():
        found = scored(lm, given, batch_tokens=64 * 32, chunk_bytes=20 * 4 * vocabulary)
    assert max(shape.numel() for shape in seen) == 20 * vocabulary
    assert len(seen) >= 3 * (64 * 32 // 20)  # the head's output, in float32, and its softmax
    expected = scored(as_causal_lm(model.float()), given)
    assert sum(one.nll for one in found) == pytest.approx(sum(one.nll for one in expected), rel=1e-2)


def test_the_look_ahead_is_bounded() -> None:
    """Also within a document; a document without tokens comes at once."""
    taken = 0

    def many() -> Iterator[TokenizedDocument]:
        nonlocal taken
        while taken < 2000:
            yield document([1, 2, 3] if taken % 2 else [], taken)
            taken += 1

    lm = as_causal_lm(tiny_model("gpt_neox", vocab_size=64).eval())
    for one in islice(score_documents(lm, many(), look_ahead=1000), 400):
        assert taken - one.number <= 2 * (1000 // batching.OBJECT_TOKENS + 1)
        assert one.number % 2 or taken == one.number
    model, given, progress = lm.model.double(), documents([500, 3, 700], vocabulary=64), list[int]()
    found = score_documents(lm, given, look_ahead=100, scored=progress.append)
    first = next(found)
    assert sum(progress) < 1000
    for one in [first, *found]:
        assert one.nll == pytest.approx(reference_nll(model, given[one.number].ids.tolist(), 0, 32), rel=1e-12)


def test_batches_have_like_lengths_and_keep_to_their_tokens() -> None:
    lm = as_causal_lm(tiny_model("gpt_neox").eval())
    shapes = note_shapes(lm)
    rows: list[int] = []
    lm.head.register_forward_hook(lambda _module, _given, made: rows.append(made.shape[0]))
    scored(lm, documents([3, 32, 5, 17, 4, 16, 31, 1]), batch_tokens=64)
    assert shapes == [(2, 32), (3, 17), (3, 4)]
    assert sum(rows) == 109  # logits are made only where a token is scored
    shapes.clear()
    scored(lm, documents([32] * 130))  # the default of a CPU
    assert shapes == [(batching.BATCH_TOKENS // 32, 32), (2, 32)]


def test_nothing_is_padded_where_rotary_factors_depend_on_the_length() -> None:
    lm = as_causal_lm(long_rope().double())
    shapes = note_shapes(lm)
    given = documents([10, 31, 32, 3, 10, 17, 16, 10])
    for batch_tokens in (1, 64, 100_000):
        shapes.clear()
        for one, of in zip(scored(lm, given, batch_tokens=batch_tokens), given, strict=True):
            assert one.nll == pytest.approx(reference_nll(lm.model, of.ids.tolist(), 0, 32), rel=1e-7)
    assert (3, 10) in shapes


def test_a_loss_that_is_not_finite_names_its_document() -> None:
    given = [document([1, 2], 0), document([3, 7, 4], 41, "b\x1b.jsonl"), document([5], 99)]
    for number in (math.nan, math.inf):
        model = tiny_model("gpt2").eval()
        lm = as_causal_lm(model)
        with torch.no_grad():
            model.get_input_embeddings().weight[7] = number
        with pytest.raises(PilekitError) as error:
            scored(lm, given)
        assert str(error.value).startswith("b\\x1b.jsonl, document 41 (Github): the model's loss is nan, ")
        assert str(error.value).endswith("; copy the model again")
