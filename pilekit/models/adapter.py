"""`with_adapter`: an adapter (LoRA, as peft saves it) added into the weights of a model, which stays of its class.

The files of an adapter are not trusted. peft's own configuration can name modules to import, patterns that take forever
to match, and other changes of the base model. So only the numbers that say how the matrices are added reach peft. The
layers follow from the names of the tensors, and the base model's name is never followed. Each stored tensor must have a
place of its shape, and each place must have a tensor. A model on the meta device shows this without reading weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from safetensors import safe_open

from pilekit.artifacts.checked import checked
from pilekit.errors import PilekitError, shortened
from pilekit.models.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PREFIX = "base_model.model."
_Rank = Annotated[int, Meta(ge=1, le=2**16)]
_Layer = Annotated[str, Meta(pattern=r"\A\^?[\w.]+\Z")]
"""The name of a layer; peft also takes regular expressions."""


class _Settings(msgspec.Struct):
    """The fields of adapter_config.json that say how an adapter is added."""

    peft_type: Literal["LORA"]
    r: _Rank
    lora_alpha: float
    rank_pattern: dict[_Layer, _Rank] | None = None
    alpha_pattern: dict[_Layer, float] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"
    modules_to_save: list[_Layer] | None = None
    init_lora_weights: bool | Literal["gaussian", "orthogonal", "eva"] | None = True


_OF_TRAINING = {
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out"),
    *("lora_dropout", "megatron_core", "qalora_group_size", "eva_config", "runtime_config", "ensure_weight_tying"),
}
"""Fields that matter in training only, or that the tensors and the model already show."""


def with_adapter(model: PreTrainedModel, folder: str | Path, content: dict[str, Any]) -> PreTrainedModel:
    """The same `model`, in place, with the adapter of `folder` in its weights. Its parameters train as before.

    content   the content of adapter_config.json

    PilekitError without the name of the folder, or any error of peft, if the adapter does not fit. On the meta device,
    only names and shapes are read.
    """
    from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

    settings = _settings(content)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    is_empty = next(model.parameters()).is_meta
    with safe_open(Path(folder) / ADAPTER_WEIGHTS, framework="pt") as file:
        names: list[str] = list(file.keys())
        layers = sorted({name.partition(".lora_")[0].removeprefix(_PREFIX) for name in names if ".lora_" in name})
        _check_layers(model, layers, settings)
        config = LoraConfig(target_modules=layers, **{**msgspec.structs.asdict(settings), "init_lora_weights": True})
        wrapped: Any = PeftModel(model, config, low_cpu_mem_usage=is_empty)
        places = {name: list(tensor.shape) for name, tensor in wrapped.state_dict().items()}
        needed = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
        places |= {name: list(tensor.shape) for name, tensor in needed.items()}
        for name in sorted({*names, *needed}):
            stored = file.get_slice(name).get_shape() if name in names else None
            if stored != places.get(name):
                has, needs = (f"{shape or 'none'}" for shape in (stored, places.get(name)))
                raise PilekitError(
                    f"its tensor {shortened(name, 150)} is {has}, and the model's place for it is {needs}"
                )
        if not is_empty:
            set_peft_model_state_dict(wrapped, {name: file.get_tensor(name) for name in names})
    merged: PreTrainedModel = wrapped.unload() if is_empty else wrapped.merge_and_unload(safe_merge=True)
    for name, parameter in merged.named_parameters():
        parameter.requires_grad_(trained[name])
    return merged


def _settings(content: dict[str, Any]) -> _Settings:
    try:
        settings: _Settings = checked(content, _Settings)
    except PilekitError as error:
        raise PilekitError(f"{ADAPTER_CONFIG}: {error}; merge it by peft, and give the result") from None
    supported = {*_Settings.__struct_fields__, *_OF_TRAINING}
    for field, value in content.items():
        if value and field not in supported:
            raise PilekitError(
                f"{ADAPTER_CONFIG}: {shortened(field, 60)} is not supported; merge it by peft, and give the result"
            )
    return settings


def _check_layers(model: PreTrainedModel, layers: list[str], settings: _Settings) -> None:
    """Raise PilekitError for layers that the model lacks, and for those whose weight another layer shares."""
    modules = dict(model.named_modules())
    if missing := [layer for layer in layers if layer not in modules]:
        raise PilekitError(f"the model has no layer {shortened(missing[0], 150)}; is it the adapter of another model?")
    if not layers:
        raise PilekitError(f"{ADAPTER_WEIGHTS} has no matrices of LoRA")
    if not getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        return
    parts: Any = model
    shared = [parts.get_input_embeddings(), parts.get_output_embeddings()]
    saved = [name for name in modules for end in settings.modules_to_save or () if name.endswith(end)]
    for layer in (*layers, *saved):
        if any(modules[layer] is module for module in shared):
            raise PilekitError(
                f"it changes {shortened(layer, 150)}, whose weight is embedding and head at once; merge it by peft, "
                "and give the result"
            )
