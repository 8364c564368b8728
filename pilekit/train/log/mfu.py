"""The share of a GPU's published peak that a step uses (MFU, model FLOPs utilization).

A token takes 6 N + 12 L d T operations, forward and back, with N parameters, L blocks of width d, and rows of T tokens
(Chowdhery et al., 2022, appendix B). Computing activations again and padding do not count, so they lower the share.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import PreTrainedModel

from pilekit.models.transformer_blocks import blocks_of
from pilekit.workers.ranks import Ranks

PEAKS = {
    "A100": 312e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "MI300X": 1307e12,
}
"""Operations per second in bf16 (and fp16), without sparsity, by words of a GPU's name; the first match counts.
From the data sheets of NVIDIA (half of the figure "with sparsity") and AMD."""


def full_speed(model: PreTrainedModel, seq_len: int, dtype: str, ranks: Ranks) -> float | None:
    """Tokens per second of all ranks at their published peak. None if it is not known, or if parameters are frozen."""
    peak, operations = peak_of(ranks.device, dtype), operations_per_token(model, seq_len)
    return None if peak is None or operations is None else peak * ranks.world_size / operations


def peak_of(device: torch.device, dtype: str) -> float | None:
    """The published operations per second of `device` in this precision of a config, or None if it is not known."""
    if device.type != "cuda" or dtype == "fp32":
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    if "MIG" in words:  # a part of a GPU
        return None
    return next((peak for name, peak in PEAKS.items() if all(word in words for word in name.split())), None)


def operations_per_token(model: PreTrainedModel, seq_len: int) -> int | None:
    """The operations that a token takes, forward and back, or None if parameters are frozen, which saves some."""
    parameters = list(model.parameters())
    if not all(parameter.requires_grad for parameter in parameters):
        return None
    width: int = cast("Any", model).get_input_embeddings().weight.shape[1]
    return 6 * sum(parameter.numel() for parameter in parameters) + 12 * len(blocks_of(model)) * width * seq_len
