"""int8 and int4: the weights are torchao's, figures follow them, and a model without such layers is refused."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import torch
from torch import nn

from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.compare import compare
from pilekit.models.load import load_model
from pilekit.models.quantize import quantize, torchao_version, weight_bytes
from tests.refusing import refused
from tests.tiny.models import tiny_model_dir

pytest.importorskip("torchao")


@pytest.mark.parametrize(("dtype", "bits", "block"), [("int8", 8, 0), ("int4", 4, 32)])
def test_weights_are_rounded_to_steps_of_their_row_or_block(model_dir: Path, dtype: str, bits: int, block: int) -> None:
    model, whole = (load_model(model_dir, dtype=torch.float32) for _ in range(2))
    size = weight_bytes(whole)
    assert size == sum(4 * parameter.numel() for parameter in whole.parameters())
    assert quantize(model, dtype) == 8  # four matrices of two blocks
    assert weight_bytes(model) < size
    for (name, module), (_, other) in zip(model.named_modules(), whole.named_modules(), strict=True):
        if isinstance(module, nn.Linear) and name.startswith("gpt_neox.layers"):
            weight, given = module.weight.dequantize(), other.weight.detach()  # type: ignore[operator]
            blocks = given.unflatten(1, (-1, block or given.shape[1]))
            step = blocks.abs().amax(dim=2, keepdim=True) / (2 ** (bits - 1) - 1)
            assert ((weight.view_as(blocks) - blocks).abs() <= 1.01 * step).all()
            assert not torch.equal(weight, given)
        elif isinstance(module, nn.Linear | nn.Embedding):
            assert torch.equal(module.weight, other.weight)


def test_figures_of_quantised_weights_are_compared_with_those_of_the_whole(
    model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    out, dtypes = tmp_path / "a", ("auto", "int8", "int4")
    results = [bits_per_byte(model_dir, corpus, out=out, dtype=dtype, limit=6) for dtype in dtypes]
    assert [result.protocol["dtype"] for result in results] == ["float32", "int8", "int4"]
    assert len(list((out / "records").glob("*/pilekit.json"))) == 3
    compared = compare(results)
    int8, int4 = (abs(one.overall.difference or 0) for one in compared.against)
    assert 0 < int8 < int4
    assert compared.cautions[0] == 'A was scored with dtype "float32", B with "int8", which alone moves a figure'
    costs = [result.cost for result in results]
    assert {cost.tokens for cost in costs} == {results[0].overall.tokens}
    assert all(cost.tokens_per_second > 0 for cost in costs)
    assert costs[1].weight_bytes < costs[0].weight_bytes
    assert bits_per_byte(model_dir, corpus, out=out, dtype="int4", limit=6).cost is None


def test_a_model_without_linear_layers_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model_dir(tmp_path / "model", "gpt2")  # whose matrices are Conv1D
    for dtype in ("int8", "int4"):
        with pytest.raises(PilekitError, match=rf"^dtype {dtype}: no layer of this gpt2 model can be quantised"):
            bits_per_byte(model, corpus, dtype=dtype)
    monkeypatch.setattr("importlib.metadata.version", lambda _: importlib.metadata.distribution("no such package"))
    refused(r"need torchao: pip install 'pilekit\[torchao\]'", torchao_version)
