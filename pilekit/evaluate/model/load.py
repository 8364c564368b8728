"""A Hugging Face model folder, read so that nothing in it is left to chance or executed.

`transformers` fills what the weights lack with random numbers and goes on, which is right before a fine-tuning and
worthless before a measurement: here every tensor of the model must be stored, in its shape, and no stored layer may be
left over. Only safetensors are read, since unpickling a `.bin` can run code. config.json is data from elsewhere too: it
must be a known type, and what it describes must fit into the weights that lie beside it, before anything of that size
is allocated. Tensors may be stored in any precision; they come in the one asked for.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, cast

import orjson
import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils import logging as transformers_logging

from pilekit.errors import PilekitError, visible

logger = logging.getLogger(__name__)

# transformers' own types say little, and in places less than it does.
_LOGGING: Any = transformers_logging

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Kind:
    """What a model is to do, and what transformers has for it.

    name    what such a model is called
    auto    the class of transformers that makes it, and `auto_name` its name
    types   the model types that can do it
    remedy  what to give instead of another
    """

    name: str
    auto: Any
    auto_name: str
    types: Mapping[str, Any]
    remedy: str


CAUSAL = Kind(
    "causal language model",
    AutoModelForCausalLM,
    "AutoModelForCausalLM",
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "give one that predicts from left",
)
MASKED = Kind(
    "masked language model",
    AutoModelForMaskedLM,
    "AutoModelForMaskedLM",
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "give one such as bert, roberta or distilbert",
)

# Where the models' authors have put the number of positions.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")

_STORED = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}

# Fields of a config.json that must choose nothing here: the code to run, the file of the weights; and the labels of a
# classifier, of which transformers makes a dictionary of any size.
_PASSED_OVER = ("auto_map", "transformers_weights", "num_labels", "id2label", "label2id")


def load_model(folder: str | Path, *, dtype: torch.dtype, kind: Kind = CAUSAL) -> PreTrainedModel:
    """The model of this kind of `folder` with all its weights, in `dtype` on the CPU, without dropout.

    Raises PilekitError, in one line, for anything that is not such a folder.
    """
    config = outline(folder, kind).config
    folder = Path(folder)
    shown = visible(str(folder))
    try:
        with quiet():
            model, found = kind.auto.from_pretrained(
                str(folder),
                config=config,
                dtype=dtype,
                attn_implementation=attention_of(config, kind),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # found["mismatched_keys"] tells what does not fit
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises what its many authors found fit
        raise PilekitError(f"{shown}: cannot be loaded as a {kind.name}: {_reason(error)}") from error
    _check_complete(shown, model, found, kind)
    return cast("PreTrainedModel", model)


def outline(folder: str | Path, kind: Kind = CAUSAL) -> PreTrainedModel:
    """The model of this kind of `folder` without its numbers, on the meta device: its names, shapes and configuration.

    PilekitError for what is no such folder, for damaged weights, and where they cannot hold what config.json describes.
    """
    folder = Path(folder)
    check_folder(folder)
    config = read_config(folder, kind)
    return _checked_outline(folder, config, weight_files(folder), kind)


def check_folder(folder: str | Path) -> None:
    """Raise `PilekitError` if `folder` cannot be a model; whoever named a run is told where its model is."""
    folder = Path(folder)
    shown = visible(str(folder))
    if not folder.exists():
        raise PilekitError(
            f"{shown}: there is no such model; give a local folder with config.json, {WEIGHTS} and tokenizer.json "
            "(nothing is downloaded)"
        )
    if not folder.is_dir():
        raise PilekitError(f"{shown}: is a file; give the folder of the model")
    if (folder / "config.json").is_file():
        return
    if (folder / "model" / "config.json").is_file():
        raise PilekitError(f"{shown}: is a run; its model is {visible(str(folder / 'model'))}")
    if (folder / "checkpoints").is_dir():
        raise PilekitError(
            f"{shown}: is a run that has no model/ yet; finish it with the `pilekit train` command that began it"
        )
    if (folder / "adapter_config.json").is_file():
        raise PilekitError(f"{shown}: is an adapter, not a model; merge it into its base model and save that")
    raise PilekitError(f"{shown}: has no config.json, so it is no model; give a folder in Hugging Face format")


def read_config(path: str | Path, kind: Kind = CAUSAL) -> PreTrainedConfig:
    """The configuration of a model of this kind from a config.json, or from a folder with one."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    shown = visible(str(file))
    try:
        content: Any = orjson.loads(file.read_bytes())
    except FileNotFoundError:
        raise PilekitError(f"{shown}: there is no such file; give a config.json or a folder with one") from None
    except OSError as error:
        raise PilekitError(f"{shown}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise PilekitError(f"{shown}: is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise PilekitError(f'{shown}: is not the configuration of a model: it has no "model_type"')
    model_type = visible(content["model_type"], 60)
    if content["model_type"] not in CONFIG_MAPPING:
        if "auto_map" in content:
            raise PilekitError(
                f"{shown}: the {model_type} model needs code of its own, and pilekit never runs a model's code"
            )
        raise PilekitError(
            f'{shown}: model_type "{model_type}" is unknown to transformers {transformers.__version__}; update '
            "transformers if it is a new one"
        )
    if content["model_type"] not in kind.types or content.get("is_encoder_decoder") is True:
        raise PilekitError(f"{shown}: the {model_type} model is not a {kind.name}; {kind.remedy}")
    if content.get("quantization_config"):
        raise PilekitError(f"{shown}: quantised weights are not supported; give the model in fp32, bf16 or fp16")
    own = {name: value for name, value in content.items() if name not in _PASSED_OVER}
    try:
        with quiet():
            config = CONFIG_MAPPING[content["model_type"]].from_dict(own)
    except Exception as error:  # a field of the wrong type can fail anywhere
        raise PilekitError(f"{shown}: transformers refuses it: {_reason(error)}") from error
    if config.is_encoder_decoder:
        raise PilekitError(f"{shown}: the {model_type} model is not a {kind.name}; {kind.remedy}")
    return config


def kind_of(folder: str | Path) -> Kind:
    """Whether the model of `folder` is causal or masked, by the class that its config.json says it was saved as.

    A type of both kinds (BERT, RoBERTa, ...) that names no class of either is masked, unless it is a decoder. What is
    neither, or cannot be read, counts as causal: whoever reads it as such says what is wrong.
    """
    try:
        content: Any = orjson.loads((Path(folder) / "config.json").read_bytes())
        model_type = str(content["model_type"])
        classes = set(content.get("architectures") or ())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return CAUSAL
    if model_type not in MASKED.types:
        return CAUSAL
    if model_type not in CAUSAL.types:
        return MASKED
    masked, causal = (bool(classes & {kind.types[model_type]}) for kind in (MASKED, CAUSAL))
    return MASKED if masked or not (causal or content.get("is_decoder") is True) else CAUSAL


def positions_of(config: PreTrainedConfig) -> int | None:
    """The positions that a model of this configuration has; None if it names no limit."""
    for field in _POSITIONS:
        value = getattr(config.get_text_config(), field, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def weight_files(folder: str | Path) -> list[Path]:
    """The safetensors files that hold the weights of `folder`, in the order of their names."""
    folder = Path(folder)
    shown = visible(str(folder))
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return _indexed_files(folder / INDEX)
    pickled = sorted(file.name for suffix in ("bin", "pt", "pth", "ckpt") for file in folder.glob(f"*.{suffix}"))
    if pickled:
        raise PilekitError(
            f"{shown}: has no safetensors, only {visible(pickled[0], 80)}, which could run code when loaded; if you "
            "trust it, AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder) of transformers converts it"
        )
    raise PilekitError(f"{shown}: has no weights ({WEIGHTS}), only a configuration; copy the whole model")


def stored_dtype(folder: str | Path) -> torch.dtype:
    """The precision of most of the stored numbers of `folder`, of those that a model can compute in; float32 if none.

    Only the headers of the weight files are read.
    """
    numbers: dict[str, int] = {}
    for file in weight_files(folder):
        with _opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                tensor = opened.get_slice(name)
                numbers[tensor.get_dtype()] = numbers.get(tensor.get_dtype(), 0) + math.prod(tensor.get_shape())
    known = {name: count for name, count in numbers.items() if name in _STORED}
    return _STORED[max(known, key=lambda name: known[name])] if known else torch.float32


def model_on_meta(config: PreTrainedConfig, shown: str, kind: Kind = CAUSAL) -> PreTrainedModel:
    """The model of `config` without its numbers, for its names and shapes; `shown` names it in an error."""
    try:
        with quiet(), torch.device("meta"):
            return cast(
                "PreTrainedModel",
                kind.auto.from_config(
                    config, dtype=torch.float32, attn_implementation=attention_of(config, kind), trust_remote_code=False
                ),
            )
    except Exception as error:  # sizes that do not fit together fail wherever they meet
        raise PilekitError(f"{shown}: transformers cannot build this model: {_reason(error)}") from error


def attention_of(config: PreTrainedConfig, kind: Kind = CAUSAL) -> str:
    """`sdpa`, or `eager` for the few models that have nothing else; never what a config.json says."""
    model_class: Any = kind.auto._model_mapping[type(config)]
    return "sdpa" if getattr(model_class, "_supports_sdpa", False) else "eager"


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars and warnings of transformers; what matters of them is checked and said by us."""
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


def _indexed_files(index: Path) -> list[Path]:
    shown = visible(str(index))
    try:
        content: Any = orjson.loads(index.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise PilekitError(f"{shown}: cannot be read: {visible(str(error), 200)}") from error
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise PilekitError(f'{shown}: its "weight_map" does not name the files of the weights; copy it again')
    files = []
    for name in sorted(set(names.values())):
        if PurePath(name).name != name or not name.endswith(".safetensors"):
            raise PilekitError(f"{shown}: names {visible(repr(name), 80)}, which is no safetensors file beside it")
        if not (index.parent / name).is_file():
            raise PilekitError(f"{shown}: {visible(name, 80)} is missing; copy the whole model")
        files.append(index.parent / name)
    return files


def _checked_outline(folder: Path, config: PreTrainedConfig, files: list[Path], kind: Kind) -> PreTrainedModel:
    """Refuse damaged files, and a configuration that describes a far larger model than the files can hold."""
    tensors = size = 0
    for file in files:
        with _opened(file) as opened:
            tensors += len(opened.keys())
            size += file.stat().st_size
    shown = visible(str(folder / "config.json"))
    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    positions = (vars(config.get_text_config()).get(field) for field in _POSITIONS)
    for what, value in (("layers", layers), *(("positions", value) for value in positions)):
        if isinstance(value, int) and value < 1:
            raise PilekitError(f"{shown}: names {value:,} {what}, and a model has at least one; copy it again")
    if isinstance(layers, int) and layers > tensors:
        raise PilekitError(f"{shown}: names {layers:,} layers, but the weights beside it hold {tensors:,} tensors")
    model = model_on_meta(config, shown, kind)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > size:
        raise PilekitError(
            f"{shown}: describes {parameters:,} parameters, but the weights beside it have only {size:,} bytes"
        )
    return model


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """The tensors of a safetensors file, of which none is read yet."""
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise PilekitError(
            f"{visible(str(file))}: is not a whole safetensors file ({visible(str(error), 200)}); copy it again"
        ) from error


def _check_complete(shown: str, model: PreTrainedModel, found: dict[str, Any], kind: Kind) -> None:
    """Refuse a model of which a part is random; `found` is what transformers tells of the weights."""
    if found["mismatched_keys"]:
        name, stored, expected = min(found["mismatched_keys"])
        raise PilekitError(
            f"{shown}: the weights do not fit config.json: {visible(str(name), 100)} is stored as {list(stored)}, "
            f"config.json makes it {list(expected)}"
        )
    missing = sorted(found["missing_keys"])
    head = cast("Any", model).get_output_embeddings()
    prefix = next((f"{name}." for name, module in model.named_modules() if module is head and name), None)
    of_head = [name for name in missing if prefix and name.startswith(prefix)]
    if of_head or head is None:
        what = f": {visible(of_head[0], 100)} is not among the weights" if of_head else ""
        raise PilekitError(
            f"{shown}: has no language-model head{what}; save the model as {kind.auto_name}, not as its base"
        )
    if missing:
        raise PilekitError(
            f"{shown}: the weights lack {len(missing):,} of the model's tensors, {visible(missing[0], 100)} for one; "
            "copy the whole model"
        )
    known = {_without_numbers(name) for name in model.state_dict()}
    unused = sorted(found["unexpected_keys"])
    further = [name for name in unused if _without_numbers(name) in known]
    if further:
        raise PilekitError(
            f"{shown}: the weights do not fit config.json: they hold {visible(further[0], 100)}, for which the model "
            "of config.json has no place"
        )
    if unused:
        logger.warning(
            "%s: %d stored tensors are not part of the %s and are not used: %s",
            shown,
            len(unused),
            kind.name,
            visible(", ".join(unused), 200),
        )


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _reason(error: Exception) -> str:
    """What an exception of transformers says, on one line; with its name where it says little more than a word."""
    text = " ".join(str(error).split())
    return visible(text if " " in text else f"{type(error).__name__}: {text}", 300)
