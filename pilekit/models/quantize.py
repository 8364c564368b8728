"""Weights in 8 or 4 bits, by torchao: the matrices inside the blocks, never embeddings and head.

int8 has a scale for each row of a matrix, int4 one for each 32 weights of a row. Only weights are quantised; a forward
pass computes in the usual precision. torchao holds a 4-bit number in a byte here, so int4 shows the effect of 4 bits
on the figures, not on memory.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from pilekit.errors import PilekitError

_TORCH: Any = torch  # its type hints lack the types below a byte

QUANTIZED = ("int8", "int4")
GROUP = 32


def torchao_version() -> str:
    """The version of torchao. Raises PilekitError if it is not installed."""
    try:
        return importlib.metadata.version("torchao")
    except importlib.metadata.PackageNotFoundError as error:
        raise PilekitError("dtype int8 and int4 need torchao: pip install 'pilekit[torchao]'") from error


def quantize(model: PreTrainedModel, dtype: str) -> int:
    """Quantise the weights of `model` in place to "int8" or "int4"; returns the number of matrices.

    Raises PilekitError if the model has no matrix that can be quantised.
    """
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    int4 = dtype == "int4"
    config = (
        IntxWeightOnlyConfig(weight_dtype=_TORCH.int4, granularity=PerGroup(GROUP)) if int4 else Int8WeightOnlyConfig()
    )
    step = GROUP if int4 else 1
    chosen = {
        id(module)
        for blocks in model.base_model.modules()
        if isinstance(blocks, nn.ModuleList)
        for module in blocks.modules()
        if type(module) is nn.Linear and module.in_features % step == 0
    }
    if not chosen:
        raise PilekitError(
            f"dtype {dtype}: no layer of this {model.config.model_type} model can be quantised; torchao quantises "
            "nn.Linear in the blocks" + (f", with a multiple of {GROUP} inputs" if int4 else "") + "; leave --dtype out"
        )
    quantize_(model, config, filter_fn=lambda module, _name: id(module) in chosen)
    return len(chosen)


def weight_bytes(model: nn.Module) -> int:
    """The bytes of a model's weights in memory. A quantised matrix counts as its parts."""
    parts: list[torch.Tensor] = []
    for parameter in model.parameters():
        names = parameter.__tensor_flatten__()[0] if hasattr(parameter, "__tensor_flatten__") else []
        parts += [getattr(parameter, name) for name in names] or [parameter]
    return sum(part.numel() * part.element_size() for part in parts)
