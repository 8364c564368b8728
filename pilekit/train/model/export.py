"""`model/`: what training made, in the format that every other tool reads.

The folder is either complete or not there: it is written beside its final name, every file flushed to disk, and then
takes the place of an older one by exchanging the two names, which the kernel does in one step (where a file system
cannot, by two renames, and a kill between them is made good by the next export). So at any moment a reader finds the
older model or the newer one, whole. Weights are written as they are, in the precision of training's masters, and
tokenizer.json is copied byte for byte, so `AutoModelForCausalLM` (`AutoModelForMaskedLM`) and `AutoTokenizer` give the
same logits and the same ids to the last bit. Beside them lies what no other tool looks at: the config of the run.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import tokenizers
import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, GenerationConfig

from pilekit.errors import PilekitError, visible
from pilekit.evaluate.masked.model import MaskedLM
from pilekit.evaluate.model.causal import CausalLM
from pilekit.evaluate.model.load import quiet
from pilekit.tokenize import Tokenizer
from pilekit.tokenize.probe import probe_texts

logger = logging.getLogger(__name__)

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


def export_model(
    folder: str | Path,
    lm: CausalLM | MaskedLM,
    tokenizer: Tokenizer,
    weights: Mapping[str, torch.Tensor] | None = None,
    *,
    config: str | None = None,
) -> None:
    """Write model and tokenizer into `folder`, in place of what an earlier export left there; all or nothing.

    weights   of the model, by name, where it does not hold them whole itself; None: it does
    config    of the run that trained it, for config.toml; None: there is no such file

    Raises PilekitError where it cannot be written, a full disk included, and if tokenizer.json has changed meanwhile.
    """
    folder = Path(folder)
    partial, replaced = (folder.with_name(folder.name + suffix) for suffix in (".partial", ".replaced"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        _remove(partial)
        _remove(replaced)
        partial.mkdir()
        _write_tokenizer(partial, tokenizer, lm.max_length)
        _write_model(partial, lm, weights)
        if config is not None:
            (partial / "config.toml").write_bytes(config.encode())
        for file in partial.iterdir():
            # safetensors lets nobody but the owner read; the folder was made with the permissions that the user wants.
            file.chmod(partial.stat().st_mode & 0o666)
            _flush(file)
        _flush(partial)
        _put_in_place(partial, folder, replaced)
        _flush(folder.parent)
        _warn_of_another_tokenizer(folder, tokenizer, lm.model.config.model_type)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            why = getattr(error, "strerror", None) or str(error)
            raise PilekitError(f"{visible(str(folder))}: cannot be written: {visible(why, 200)}") from error
        raise


def _write_model(folder: Path, lm: CausalLM | MaskedLM, weights: Mapping[str, torch.Tensor] | None) -> None:
    model: Any = lm.model
    generation = getattr(model, "generation_config", None)  # a masked model has none
    # It plays no part in training, and one that came with a model_dir may be refused when it is saved.
    if generation is not None:
        model.generation_config = GenerationConfig.from_model_config(model.config)
    try:
        with quiet():
            dtype = model.dtype if weights is None else next(iter(weights.values())).dtype
            model.save_pretrained(folder, state_dict=weights, max_shard_size="10TB")  # which may empty `weights`
            if dtype != model.dtype:  # it computes in another type than its masters have, which are what is written
                model.config.dtype = dtype
                model.config.save_pretrained(folder)
    finally:
        if generation is not None:
            model.generation_config = generation


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int | None) -> None:
    """tokenizer.json as it is, and beside it the names of the special tokens, which it does not hold."""
    raw = tokenizer.path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != tokenizer.fingerprint:
        raise PilekitError(
            f"the tokenizer {visible(str(tokenizer.path))} has changed since it was loaded; put the old file back"
        )
    (folder / "tokenizer.json").write_bytes(raw)
    reference = tokenizers.Tokenizer.from_str(raw.decode())
    ids = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "pad_token": tokenizer.pad_id,
        "mask_token": tokenizer.mask_id,
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # tokenizer.json and nothing else, in any version of transformers
        "clean_up_tokenization_spaces": False,
        **{role: reference.id_to_token(number) for role, number in ids.items() if number is not None},
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    (folder / "tokenizer_config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2) + b"\n")


def _warn_of_another_tokenizer(folder: Path, tokenizer: Tokenizer, model_type: str) -> None:
    """Say so where AutoTokenizer passes over what the folder says, as it does for some forty model types."""
    texts = probe_texts([])
    ids, offsets = tokenizer.encode_batch(texts)
    try:
        with quiet():
            other: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
            encoded = other(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        same = encoded == [ids[start:end].tolist() for start, end in pairwise(offsets)]
    except Exception:  # whatever a tokenizer of another kind makes of this file
        same = False
    if not same:
        logger.warning(
            "%s: AutoTokenizer replaces the tokenizer of a %s model by one of its own, which gives other ids; load it "
            "with PreTrainedTokenizerFast.from_pretrained",
            visible(str(folder)),
            visible(model_type, 60),
        )


def _put_in_place(partial: Path, folder: Path, replaced: Path) -> None:
    """`partial` becomes `folder`, and what was there is removed."""
    if not folder.exists():
        partial.rename(folder)
    elif _exchange(partial, folder):
        shutil.rmtree(partial)
    else:
        folder.rename(replaced)
        partial.rename(folder)
        shutil.rmtree(replaced)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; false where the system has no such call or the file system refuses it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
