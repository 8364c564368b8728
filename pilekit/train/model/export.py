"""Write `model/`: the trained model in Hugging Face format, which other tools read.

The folder is complete or absent: it is written beside its final name, flushed to disk, and then takes the place of an
older one by two renames. The next export repairs a kill between them. Weights are the float32 masters and
tokenizer.json is copied byte for byte, so `AutoModelForCausalLM` (or `AutoModelForMaskedLM`) and `AutoTokenizer` give
the same logits and ids to the last bit.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import tokenizers
import torch
from safetensors import SafetensorError
from transformers import GenerationConfig

from pilekit.artifacts.atomic_write import flush
from pilekit.errors import PilekitError, shortened
from pilekit.models.causal import CausalLM
from pilekit.models.load import quiet
from pilekit.models.masked import MaskedLM
from pilekit.tokenize import Tokenizer
from pilekit.train.config.file import to_toml
from pilekit.train.config.sections import TrainConfig
from pilekit.train.model.lora import merge_adapters, write_adapter
from pilekit.train.run_folder import AVERAGED, RunFolder

if TYPE_CHECKING:
    from pilekit.train.step.step_engine import StepEngine


def export_run(run: RunFolder, engine: StepEngine, tokenizer: Tokenizer, config: TrainConfig) -> None:
    """Write the trained model of a run, and with `train.ema` the one whose weights are their running means.

    With `[lora]` its adapters are written instead, and with lora.merge the merged model too. All ranks call this
    together, because each has a part of the weights.
    """
    lm, lora, ranks = engine.lm, config.lora, engine.ranks
    export = partial(export_model, lm=lm, tokenizer=tokenizer, config=to_toml(config))

    def write(ending: str, weights: dict[str, torch.Tensor]) -> None:
        model, adapter = (folder.with_name(folder.name + ending) for folder in (run.model, run.adapter))
        if lora.rank:
            ranks.on_rank0(lambda: export(adapter, weights=weights, only_adapters=True))
        if lora.merge:
            ranks.on_rank0(lambda: export(model, weights=merge_adapters(lm.model, weights)))
        elif not lora.rank:
            ranks.on_rank0(lambda: export(model, weights=weights))

    if config.train.ema:
        write(AVERAGED, dict(engine.averaged_parameters()))
    write("", dict(engine.full_parameters()))


def export_model(
    folder: str | Path,
    lm: CausalLM | MaskedLM,
    tokenizer: Tokenizer,
    weights: Mapping[str, torch.Tensor] | None = None,
    *,
    config: str | None = None,
    only_adapters: bool = False,
) -> None:
    """Write model and tokenizer into `folder`, replacing an earlier export; all or nothing.

    weights   the model's weights by name, if the model itself does not hold them whole
    config    the run's config, for config.toml; None writes no such file

    With `only_adapters`, the model's adapters (lora.py) alone are written, as peft does, without a tokenizer.

    Raises PilekitError if writing fails, as on a full disk, or if tokenizer.json has changed since it was loaded.
    """
    folder = Path(folder)
    partial, replaced = (folder.with_name(folder.name + suffix) for suffix in (".partial", ".replaced"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if replaced.exists() and not folder.exists():  # a kill between two renames
            replaced.rename(folder)
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()
        if only_adapters:
            write_adapter(partial, lm.model, weights or {})
        else:
            _write_tokenizer(partial, tokenizer, lm.max_length)
            _write_model(partial, lm, weights)
        if config is not None:
            (partial / "config.toml").write_bytes(config.encode())
        for file in partial.iterdir():
            file.chmod(partial.stat().st_mode & 0o666)  # safetensors would let only the owner read
            flush(file)
        flush(partial)
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)
        flush(folder.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            why = getattr(error, "strerror", None) or str(error)
            raise PilekitError(f"{folder}: cannot be written: {shortened(why, 200)}") from error
        raise


def _write_model(folder: Path, lm: CausalLM | MaskedLM, weights: Mapping[str, torch.Tensor] | None) -> None:
    model: Any = lm.model
    generation = getattr(model, "generation_config", None)  # masked models have none
    if generation is not None:  # transformers may refuse to save a model_dir's generation config
        model.generation_config = GenerationConfig.from_model_config(model.config)
    try:
        with quiet():
            dtype = model.dtype if weights is None else next(iter(weights.values())).dtype
            model.save_pretrained(folder, state_dict=weights, max_shard_size="10TB")  # which may empty `weights`
            if dtype != model.dtype:  # the model computes in another type than its masters, which are written
                model.config.dtype = dtype
                model.config.save_pretrained(folder)
        _repeat_rotary_settings(folder / "config.json")
    finally:
        if generation is not None:
            model.generation_config = generation


def _repeat_rotary_settings(path: Path) -> None:
    """Write plain rotary settings under their older names too.

    transformers 4 and converters such as llama.cpp's read only these, and without them assume defaults or stop.
    transformers 5 reads the older names only where `rope_parameters` has no value.
    """
    config: dict[str, Any] = orjson.loads(path.read_bytes())
    rotary = config.get("rope_parameters") or {}
    if rotary.get("rope_type") != "default":
        return
    neox = config["model_type"].startswith("gpt_neox")
    names = {
        "rope_theta": "rotary_emb_base" if neox else "rope_theta",
        "partial_rotary_factor": "rotary_pct" if neox else "partial_rotary_factor",
    }
    older = {names[name]: value for name, value in rotary.items() if name in names}
    path.write_bytes(orjson.dumps(older | config, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int | None) -> None:
    """Copy tokenizer.json, and write the names of the special tokens, which it does not hold, beside it."""
    raw = tokenizer.path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != tokenizer.fingerprint:
        raise PilekitError(f"the tokenizer {tokenizer.path} has changed since it was loaded; put the old file back")
    (folder / "tokenizer.json").write_bytes(raw)
    reference = tokenizers.Tokenizer.from_str(raw.decode())
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # makes every version of transformers use tokenizer.json alone
        "clean_up_tokenization_spaces": False,
    }
    for role in ("bos", "eos", "pad", "mask"):
        if (number := getattr(tokenizer, f"{role}_id")) is not None:
            config[f"{role}_token"] = reference.id_to_token(number)
    if max_length is not None:
        config["model_max_length"] = max_length
    (folder / "tokenizer_config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2) + b"\n")
