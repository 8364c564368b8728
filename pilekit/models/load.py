"""Load a Hugging Face model folder: every weight must be there, and nothing in the folder is executed.

`transformers` fills missing weights with random numbers, which suits fine-tuning but ruins a measurement. Here every
tensor of the model must be stored in its shape, and no stored layer may be left over. Only safetensors are read,
because unpickling a `.bin` can run code. config.json is not trusted either. It must name a known type, and before the
model is allocated, the weights beside it must be large enough for the model it describes.

Where peft is installed, `transformers` also adds an adapter that lies in the folder of the weights. Here the model is
the base alone unless the caller names an adapter, so figures do not depend on the installed packages.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, cast

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.models.adapter import with_adapter
from pilekit.models.folder import ADAPTER_CONFIG, INDEX, POSITIONS, WEIGHTS, check_folder, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig  # transformers 4 has it under another name

logger = message_logger(__name__)

_LOGGING: Any = transformers_logging  # its type hints are incomplete


@dataclass(frozen=True)
class Kind:
    """A kind of model: its name, the transformers class that makes it, and the model types that can be of this kind."""

    name: str
    auto: Any
    types: Mapping[str, Any]


CAUSAL = Kind("causal language model", AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MASKED = Kind("masked language model", AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING_NAMES)

_FEW_LAYERS = 1024
"""So many layers cost little to outline, and may share their weights, as in ALBERT."""

_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

_OLDER_ROTARY = {"rope_theta", "rotary_emb_base"}  # the names that transformers 4 reads

_IGNORED = ("auto_map", "transformers_weights", "num_labels", "id2label", "label2id")
"""Fields of config.json that would choose code or weight files, and a classifier's labels, which may be of any size."""


def load_model(
    folder: str | Path,
    *,
    dtype: torch.dtype,
    kind: Kind = CAUSAL,
    device: torch.device | str = "cpu",
    adapter: str | Path | None = None,
) -> PreTrainedModel:
    """The model of `folder` with all its weights, in `dtype` on `device`, without dropout.

    Raises PilekitError if it has none.

    The weights may be stored in any precision. Those of `adapter`, a folder as peft saves it, are added to them.
    """
    config = outline(folder, kind, adapter).config
    if adapter is None and (Path(folder) / ADAPTER_CONFIG).exists():
        notice = "an adapter lies beside the weights, and is left out; to add it, name it (--adapter, or model.adapter)"
        logger.warning("%s: %s", folder, notice)
    try:
        with quiet():
            model, report = kind.auto.from_pretrained(
                str(folder),
                config=config,
                dtype=dtype,
                attn_implementation=attention_of(config, kind),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                adapter_kwargs={"subfolder": "\0"},  # a search for adapters finds none
                ignore_mismatched_sizes=True,  # report["mismatched_keys"] lists these tensors
                output_loading_info=True,
            )
    except Exception as error:  # transformers may raise any class of error
        raise PilekitError(f"{folder}: cannot be loaded as a {kind.name}: {_reason(error)}") from error
    name_patterns = {re.sub(r"\d+", "#", name) for name in model.state_dict()}
    unused = sorted(report["unexpected_keys"])
    problems = [
        *map(_mismatch, sorted(report["mismatched_keys"])),
        *(f"{name} is missing; copy the whole {kind.auto.__name__}" for name in sorted(report["missing_keys"])),
        *(f"{name} has no place in the model" for name in unused if re.sub(r"\d+", "#", name) in name_patterns),
    ]
    if problems:
        more = f" ({len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise PilekitError(f"{folder}: the weights do not fit config.json: {shortened(problems[0], 300)}{more}")
    if unused:
        names = shortened(", ".join(unused), 200)
        logger.warning("%s: %d stored tensors are not part of the %s: %s", folder, len(unused), kind.name, names)
    if adapter is not None:
        model = adapted(model, adapter)
    return cast("PreTrainedModel", model.to(device))


def outline(folder: str | Path, kind: Kind = CAUSAL, adapter: str | Path | None = None) -> PreTrainedModel:
    """The model of `folder` on the meta device: its names, shapes and configuration, without numbers.

    Raises PilekitError for a folder without such a model, for damaged weights, for weights that are too small for the
    model that config.json describes, and for an adapter that does not fit.
    """
    check_folder(folder, adapter)
    config = read_config(folder, kind)
    shown = str(Path(folder) / "config.json")
    tensors = len(_stored_tensors(folder))
    size = sum(file.stat().st_size for file in weight_files(folder))
    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(layers, int) and not 1 <= layers <= max(tensors, _FEW_LAYERS):
        raise PilekitError(f"{shown}: names {layers:,} layers, but the weights beside it hold {tensors:,} tensors")
    model = model_on_meta(config, shown, kind)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > size:
        raise PilekitError(
            f"{shown}: describes {parameters:,} parameters, but the weights beside it have only {size:,} bytes"
        )
    return model if adapter is None else adapted(model, adapter)


def adapted(model: PreTrainedModel, adapter: str | Path) -> PreTrainedModel:
    """`model`, in place, with the weights of `adapter` added. Raises PilekitError if it does not fit.

    A model on the meta device shows whether it fits.
    """
    content = read_json(Path(adapter) / ADAPTER_CONFIG)
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            return with_adapter(model, adapter, content)
    except PilekitError as error:
        raise PilekitError(f"{adapter}: {error}") from error
    except Exception as error:  # peft may raise any class of error
        raise PilekitError(f"{adapter}: peft cannot add this adapter: {_reason(error)}") from error


def read_config(path: str | Path, kind: Kind = CAUSAL) -> PreTrainedConfig:
    """The configuration of a model of this kind from a config.json, or from a folder with one."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    shown, content = str(file), read_json(file)
    model_type = content.get("model_type")
    name = shortened(str(model_type), 60)
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise PilekitError(
            f'{shown}: model_type "{name}" is unknown to transformers {transformers.__version__}; a model that '
            "needs code of its own is refused, because pilekit never runs a model's code"
        )
    rotary = content.get("rope_parameters")
    named_twice = isinstance(rotary, dict) and rotary.get("rope_type") == "default" and _OLDER_ROTARY & content.keys()
    if "rope_parameters" in str(content) and not named_twice and transformers.__version__.startswith("4."):
        raise PilekitError(
            f"{shown}: transformers 5 wrote it, and transformers {transformers.__version__} would ignore its "
            "rope_parameters, which change every figure; install transformers 5"
        )
    if content.get("quantization_config"):
        raise PilekitError(f"{shown}: quantised weights are not supported; give the model in fp32, bf16 or fp16")
    try:
        with quiet():
            fields = {field: value for field, value in content.items() if field not in _IGNORED}
            config = CONFIG_MAPPING[model_type].from_dict(fields)
    except Exception as error:  # a field of the wrong type can fail anywhere
        raise PilekitError(f"{shown}: transformers refuses it: {_reason(error)}") from error
    if model_type not in kind.types or config.is_encoder_decoder:
        raise PilekitError(f"{shown}: the {name} model is not a {kind.name}; give a {kind.name}")
    return config


def kind_of(folder: str | Path) -> Kind:
    """Whether the model of `folder` is causal or masked, by the class that its config.json says it was saved as.

    If a type can be of both kinds (BERT, RoBERTa, ...) and config.json names neither class, the model is masked, unless
    it is a decoder. Any other model counts as causal. Loading then refuses it if it is not.
    """
    check_folder(folder)
    content = read_json(Path(folder) / "config.json")
    model_type, classes = str(content.get("model_type")), content.get("architectures")
    if model_type not in MASKED.types:
        return CAUSAL
    if model_type not in CAUSAL.types:
        return MASKED
    if isinstance(classes, list) and (MASKED.types[model_type] in classes or CAUSAL.types[model_type] in classes):
        return MASKED if MASKED.types[model_type] in classes else CAUSAL
    return CAUSAL if content.get("is_decoder") is True else MASKED


def kind_in_memory(model: PreTrainedModel) -> Kind:
    """Whether a model is masked or causal, by its class."""
    return MASKED if MASKED.types.get(model.config.model_type) == type(model).__name__ else CAUSAL


def positions_of(config: PreTrainedConfig) -> int | None:
    """The number of positions of a model with this configuration, or None if it names no limit."""
    for field in POSITIONS:
        value = getattr(config.get_text_config(), field, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def weight_files(folder: str | Path) -> list[Path]:
    """The safetensors files of `folder`, in the order of their names."""
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    check_folder(folder)
    names = read_json(folder / INDEX).get("weight_map")
    names = set(names.values()) if isinstance(names, dict) else set()
    for name in names or [None]:
        if not isinstance(name, str) or PurePath(name).name != name or not name.endswith(".safetensors"):
            raise PilekitError(f'{folder}: {INDEX}: its "weight_map" names no files beside it')
        if not (folder / name).is_file():
            raise PilekitError(f"{folder / name}: is missing; copy the whole model")
    return [folder / name for name in sorted(names)]


def stored_dtype(folder: str | Path) -> torch.dtype:
    """The most frequent precision among the stored numbers of `folder` that a model can compute in; else float32.

    Only the headers of the weight files are read.
    """
    counts: dict[str, int] = dict.fromkeys(_STORED, 0)
    for name, numbers in _stored_tensors(folder):
        counts[name] = counts.get(name, 0) + numbers
    return _STORED[max(_STORED, key=lambda name: counts[name])]


def model_on_meta(config: PreTrainedConfig, shown: str, kind: Kind = CAUSAL) -> PreTrainedModel:
    """The model of `config` without numbers, for its names and shapes. `shown` names it in an error."""
    try:
        with quiet(), torch.device("meta"):
            attention = attention_of(config, kind)
            model = kind.auto.from_config(
                config, dtype=torch.float32, attn_implementation=attention, trust_remote_code=False
            )
    except Exception as error:  # sizes that do not fit together may fail anywhere
        raise PilekitError(f"{shown}: transformers cannot build this model: {_reason(error)}") from error
    return cast("PreTrainedModel", model)


def attention_of(config: PreTrainedConfig, kind: Kind = CAUSAL) -> str:
    """`sdpa`, or `eager` for the few models without it, whatever config.json says."""
    model_class: Any = kind.auto._model_mapping[type(config)]
    return "sdpa" if getattr(model_class, "_supports_sdpa", False) else "eager"


@contextmanager
def quiet() -> Iterator[None]:
    """Inside: no progress bars and no warnings from transformers."""
    level, bars = _LOGGING.get_verbosity(), _LOGGING.is_progress_bar_enabled()
    _LOGGING.set_verbosity(_LOGGING.CRITICAL)
    _LOGGING.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _LOGGING.set_verbosity(level)
        if bars:
            _LOGGING.enable_progress_bar()


def _stored_tensors(folder: str | Path) -> list[tuple[str, int]]:
    """(type, number of elements) of each stored tensor, from the headers of the weight files."""
    tensors = []
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                slices = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118 (no mapping)
                tensors += [(tensor.get_dtype(), math.prod(tensor.get_shape())) for tensor in slices]
        except (SafetensorError, OSError) as error:
            raise PilekitError(
                f"{file}: is not a whole safetensors file ({shortened(error, 200)}); copy it again"
            ) from error
    return tensors


def _mismatch(mismatch: str | tuple[str, list[int], list[int]]) -> str:
    """The error for a tensor of another shape. transformers 4 reports no shapes."""
    if isinstance(mismatch, str):
        return f"{mismatch} is stored in another shape"
    name, stored, needed = mismatch
    return f"{name} is stored as {list(stored)}, not {list(needed)}"


def _reason(error: Exception) -> str:
    """The message of an exception on one line, with the name of its class if it is a single word."""
    text = " ".join(str(error).split())
    return shortened(text if " " in text else f"{type(error).__name__}: {text}", 300)
