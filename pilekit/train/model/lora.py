"""`[lora]`: small matrices that are trained and added to a model's frozen ones (LoRA: Hu et al., 2021), by peft.

peft wraps each chosen layer in a layer that adds alpha / rank * B A to its weight. A is drawn from the seed and B is
0, so a run begins as the model that it adapts. The names of the model's own parameters get ".base_layer" in them. All
other parts (sharding, checkpoints, the optimizer) see a model with frozen parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from pilekit.errors import PilekitError, shortened
from pilekit.models.load import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pilekit.train.config.sections import LoraConfig

ADAPTER = "default"
"""The name of the adapter in a model, which peft leaves out of its files."""


def add_adapters(model: PreTrainedModel, config: LoraConfig, *, seed: int, base: str | None) -> None:
    """Put adapters into `model` in place, and freeze all else. Do nothing if `lora.rank` is 0.

    base   the folder of the model, which adapter_config.json names

    Raises PilekitError if a target is none of the model's linear layers. The model may be on the meta device.
    """
    if not config.rank:
        return
    import peft

    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type, unused-ignore]
        lora_dropout=config.dropout,
        target_modules=_layers(model, config.targets),
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in model.modules()),
        base_model_name_or_path=base,
        task_type="CAUSAL_LM" if model.can_generate() else None,
    )
    is_empty = next(model.parameters()).is_meta
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model, ADAPTER, low_cpu_mem_usage=is_empty)


def _layers(model: PreTrainedModel, targets: Sequence[str] | None) -> list[str]:
    """The names of the linear layers whose name is, or ends with, one of `targets`; None: all of them.

    The head is none of them, because the loss reads its weight itself.
    """
    head: nn.Module | None = cast("Any", model).get_output_embeddings()
    linear = nn.Linear | Conv1D
    names = [name for name, layer in model.named_modules() if isinstance(layer, linear) and layer is not head]
    chosen = set()
    for target in targets or names:
        matching = {name for name in names if f".{name}".endswith(f".{target}")}
        if not matching:
            endings = ", ".join(sorted({name.rpartition(".")[2] for name in names}))
            raise PilekitError(
                f'lora.targets: "{shortened(target, 100)}" is none of the model\'s linear layers; there are '
                f"{shortened(endings, 300)}"
            )
        chosen |= matching
    return sorted(chosen)


def write_adapter(folder: Path, model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Write the adapters among `weights`, which are those of `model` by name, into `folder` as peft does."""
    from peft import get_peft_model_state_dict

    adapted: Any = model
    settings = copy(adapted.peft_config[ADAPTER])
    settings.inference_mode = True
    settings.target_modules = sorted(settings.target_modules)  # the order of a set depends on the process
    tensors = get_peft_model_state_dict(  # without a search, also on the internet, for the base model's embeddings
        adapted, state_dict=dict(weights), adapter_name=ADAPTER, save_embedding_layers=False
    )
    tensors = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings.save_pretrained(str(folder))


def merge_adapters(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model without adapters that predicts as `model` with `weights` does, up to rounding."""
    settings: Any = model
    settings = settings.peft_config[ADAPTER]
    plain = {}
    for name, value in weights.items():
        layer, is_base, kind = name.rpartition(".base_layer.")
        if is_base and kind == "weight":
            first, second = (weights[f"{layer}.lora_{which}.{ADAPTER}.weight"] for which in "AB")
            change = second @ first
            value = value + (change.T if settings.fan_in_fan_out else change) * (settings.lora_alpha / settings.r)
        if ".lora_" not in name:
            plain[f"{layer}.{kind}" if is_base else name] = value
    return plain
