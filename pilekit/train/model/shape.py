"""The shapes of the model that `[model]` names and of its teacher, without weights: sizes are checked before memory.

A model is a preset or a config.json, freshly initialised, a model_dir, or an object. A fresh model gets the tokenizer's
special tokens. A model object must have the parameters that its configuration makes, so that the exported model loads
as the one that was trained.

With `model.from_teacher`, a student begins as some blocks of its teacher, as distilroberta-base was made (DistilBERT:
Sanh et al., 2019). The blocks are evenly spaced from the first to the last: 6 of 12 are 0, 2, 4, 7, 9 and 11, those of
distilroberta-base. Everything outside of blocks (embeddings, final norm, head) is the teacher's.
"""

from __future__ import annotations

import fnmatch
import json
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from transformers import GPTNeoXConfig, PreTrainedModel, RobertaConfig

from pilekit.errors import PilekitError, counted, shortened, visible
from pilekit.models.causal import check_vocabulary
from pilekit.models.folder import check_folder, few_positions
from pilekit.models.load import CAUSAL, MASKED, Kind, adapted, model_on_meta, positions_of, read_config
from pilekit.models.masked import tokens_of
from pilekit.models.presets import MASKED_PRESETS, PRESETS
from pilekit.tokenize import Tokenizer
from pilekit.train.config.check import naming_field
from pilekit.train.config.sections import LoraConfig, ModelConfig, Objective, TeacherConfig, TrainConfig
from pilekit.train.model.lora import add_adapters
from pilekit.train.step.optimizer import lr_scales
from pilekit.train.step.teacher import check_teacher

if TYPE_CHECKING:
    from transformers import PreTrainedConfig  # transformers 4 has it under another name

VOCABULARY_MULTIPLE = 128
"""GPT-NeoX rounds its embedding up to a multiple of this, which suits matrix units: 50,277 ids have 50,304 rows."""

Source = ModelConfig | TeacherConfig | PreTrainedModel
"""The source of a model: the section `[model]` or `[teacher]`, or a model object."""

MODEL_OBJECT = "the model object"
"""The name of a model object in errors."""
NO_LORA = LoraConfig()
_WHOLE = {torch.float64, torch.float32, torch.float16, torch.bfloat16}

KINDS: dict[Objective, Kind] = {"clm": CAUSAL, "mlm": MASKED}


def model_shapes(
    config: TrainConfig, tokenizer: Tokenizer, source: Source
) -> tuple[PreTrainedModel, PreTrainedModel | None]:
    """The model of `source`, and the teacher if there is one, without weights, as `model_shape` makes them.

    Raises PilekitError also if they do not fit each other, or if a pattern of the optimizer matches no parameter.
    """
    shape = partial(model_shape, tokenizer=tokenizer, seq_len=config.data.seq_len, objective=config.train.objective)
    model = shape(source, lora=config.lora)
    lr_scales(model, config.optimizer)
    if config.teacher.path is None:
        return model, None
    teacher = shape(config.teacher)
    check_teacher(teacher, model, config)
    return model, teacher


def model_shape(
    source: Source,
    tokenizer: Tokenizer,
    seq_len: int,
    objective: Objective = "clm",
    lora: LoraConfig = NO_LORA,
) -> PreTrainedModel:
    """The model that `build_model` will make, without weights: float32, on the meta device.

    Raises PilekitError if ids or positions do not fit into it, or if a model object does not match its configuration.
    """
    kind, section = KINDS[objective], "teacher" if isinstance(source, TeacherConfig) else "model"
    source = as_model_config(source)
    if not isinstance(source, ModelConfig):
        name, config = MODEL_OBJECT, _configuration_of(source, kind)
    elif source.preset is not None:
        name, config = f'model.preset "{visible(source.preset, 60)}"', _preset(source.preset, tokenizer, seq_len)
    elif source.path is not None:
        section = section if source.from_teacher is None else "teacher"
        with naming_field(f"{section}.path"):
            check_folder(source.path)
            name, config = visible(source.path), read_config(source.path, kind)
        if source.adapter is not None:
            with naming_field(f"{section}.adapter"):
                check_folder(source.path, source.adapter)
                adapted(model_on_meta(config, name, kind), source.adapter)
        if source.from_teacher is not None:
            config = with_blocks(config, source.from_teacher, name)
    else:
        name = f"model.config {visible(source.config or '')}"
        with naming_field("model.config"):
            config = _with_special_tokens(read_config(source.config or "", kind), tokenizer)
    model: Any = model_on_meta(config, name, kind)
    if isinstance(source, PreTrainedModel):
        _check_parameters(source, model, kind)
    if not hasattr(model.get_input_embeddings(), "num_embeddings"):
        raise PilekitError(f"{name}: a {type(model).__name__} has no embedding of tokens; it cannot be trained here")
    if model.get_output_embeddings() is None:
        raise PilekitError(f"{name}: a {type(model).__name__} has no language-model head; it cannot predict tokens")
    check_vocabulary(model, tokenizer, name)
    positions = positions_of(model.config) if kind is CAUSAL else tokens_of(model)
    if positions is not None and positions < seq_len:
        raise PilekitError(few_positions(name, positions, seq_len))
    adapt_and_freeze(model, source, lora, 0)
    return model  # type: ignore[no-any-return]


def as_model_config(source: Source) -> ModelConfig | PreTrainedModel:
    """The section `[model]` that describes a teacher; any other source as it is."""
    return ModelConfig(path=source.path, adapter=source.adapter) if isinstance(source, TeacherConfig) else source


def adapt_and_freeze(
    model: PreTrainedModel, source: ModelConfig | PreTrainedModel, lora: LoraConfig, seed: int
) -> None:
    """Add the adapters of `lora`, and freeze the parameters that `[model]` freezes.

    Raises PilekitError for a pattern without a match, or if no parameter is left to train.
    """
    base = source.path if isinstance(source, ModelConfig) else source.name_or_path
    add_adapters(model, lora, seed=seed, base=base)
    names = [name for name, _ in model.named_parameters()]
    for pattern in (isinstance(source, ModelConfig) and source.freeze) or ():
        if not (matching := fnmatch.filter(names, pattern)):
            raise PilekitError(
                f'model.freeze: "{shortened(pattern, 100)}" matches no parameter; names are such as '
                f'"{shortened(names[0], 100)}", and * stands for anything'
            )
        for name in matching:
            model.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PilekitError("model.freeze: all parameters are frozen; leave out a pattern")


def _configuration_of(model: object, kind: Kind) -> PreTrainedConfig:
    """A copy of the configuration of a model object."""
    if not isinstance(model, PreTrainedModel):
        raise PilekitError(f"{MODEL_OBJECT}: a {type(model).__name__} is not a model of transformers; give one")
    if model.config.model_type not in kind.types or model.config.is_encoder_decoder:
        raise PilekitError(f"{MODEL_OBJECT}: a {type(model).__name__} is not a {kind.name}; give one")
    return deepcopy(model.config)


def _check_parameters(model: PreTrainedModel, shape: PreTrainedModel, kind: Kind) -> None:
    """Raise PilekitError unless `model` has weights for the parameters of `shape`, which its configuration makes."""
    if type(model) is not type(shape):
        names = f"a {type(shape).__name__}, not a {type(model).__name__}"
        raise PilekitError(f"{MODEL_OBJECT}: as a {kind.name} its configuration makes {names}; give that")
    if getattr(model.config, "quantization_config", None) or {p.dtype for p in model.parameters()} - _WHOLE:
        raise PilekitError(f"{MODEL_OBJECT}: quantised weights are not supported; give it in fp32, bf16 or fp16")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise PilekitError(f"{MODEL_OBJECT}: is on the meta device, without numbers; give one that has its weights")
    actual, expected = ({n: list(p.shape) for n, p in each.named_parameters()} for each in (model, shape))
    for name in sorted(actual.keys() | expected.keys()):
        if actual.get(name) != expected.get(name):
            has, needs = (f"{shapes.get(name, 'none of its own')}" for shapes in (actual, expected))
            raise PilekitError(
                f"{MODEL_OBJECT}: its parameter {shortened(name, 120)} is {has}, but its configuration makes {needs}; "
                "change the configuration, so that others can load the trained model"
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PilekitError(f"{MODEL_OBJECT}: all parameters are frozen; set requires_grad of those to be trained")


def _preset(name: str, tokenizer: Tokenizer, seq_len: int) -> PreTrainedConfig:
    """The configuration of a preset for this tokenizer and, if it is a Pythia, for this row length."""
    width, blocks, heads = PRESETS[name]
    if name in MASKED_PRESETS:
        masked = RobertaConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=514,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
        )
        return _with_special_tokens(masked, tokenizer)
    neox = GPTNeoXConfig(
        vocab_size=-(-tokenizer.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=seq_len,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
        initializer_range=0.02,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        use_parallel_residual=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tie_word_embeddings=False,
    )
    return _with_special_tokens(neox, tokenizer)


def _with_special_tokens(config: PreTrainedConfig, tokenizer: Tokenizer) -> PreTrainedConfig:
    """The configuration with the special tokens of this tokenizer instead of its own."""
    text: Any = config.get_text_config()
    text.bos_token_id, text.eos_token_id, text.pad_token_id = tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id
    return config


def with_blocks(config: PreTrainedConfig, count: int, name: str) -> PreTrainedConfig:
    """A teacher's configuration with only `count` of its blocks.

    Raises PilekitError, naming `name`, if it has fewer.
    """
    fields, text = config.to_dict(), config.get_text_config()
    blocks: int = text.num_hidden_layers
    if count > blocks:
        raise PilekitError(f"{name}: has {counted(blocks, 'block')}, and model.from_teacher is {count}; set it lower")
    places = kept_blocks(blocks, count)
    for field, value in fields.items():
        if isinstance(value, list) and len(value) == blocks:  # such as the kind of attention of each block
            setattr(text, field, [value[place] for place in places])
    text.num_hidden_layers = count
    return config


def kept_blocks(blocks: int, count: int) -> list[int]:
    """The numbers of the `count` blocks that a student gets of a teacher's, increasing."""
    return [round(number * (blocks - 1) / max(1, count - 1)) for number in range(count)]


def fingerprint(model: PreTrainedModel) -> str:
    """XXH3 of the model's configuration, without fields that do not affect outputs (versions, names, stored type)."""
    ignored = ("transformers_version", "architectures", "dtype", "torch_dtype")
    fields = {
        key: value for key, value in model.config.to_dict().items() if key not in ignored and not key.startswith("_")
    }
    digest: str = xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True, default=str).encode())
    return digest
