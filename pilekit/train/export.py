"""`model/`: what training made, in the format that every other tool reads.

The folder is either complete or not there: it is written beside its final name, every file flushed to disk, and then
takes the place of an older one by exchanging the two names, which the kernel does in one step (where a file system
cannot, by two renames, and a kill between them is made good by the next export). So at any moment a reader finds the
older model or the newer one, whole. Weights are written as they are, in the precision of training's masters, and
tokenizer.json is copied byte for byte, so `AutoModelForCausalLM` and `AutoTokenizer` give the same logits and the same
ids to the last bit.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import tokenizers
from safetensors import SafetensorError
from transformers import GenerationConfig

from pilekit.errors import PilekitError, visible
from pilekit.evaluate.causal_lm import CausalLM
from pilekit.evaluate.model_folder import quiet
from pilekit.tokenize import Tokenizer

_NO_LIMIT = 10**30  # what transformers itself writes for a tokenizer of a model without a longest length
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


def export_model(folder: str | Path, lm: CausalLM, tokenizer: Tokenizer) -> None:
    """Write model and tokenizer into `folder`, in place of what an earlier export left there; all or nothing.

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
        _write_model(partial, lm)
        for file in partial.iterdir():
            _flush(file)
        _flush(partial)
        _put_in_place(partial, folder, replaced)
        _flush(folder.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            why = getattr(error, "strerror", None) or str(error)
            raise PilekitError(f"{visible(str(folder))}: cannot be written: {visible(why, 200)}") from error
        raise


def _write_model(folder: Path, lm: CausalLM) -> None:
    model: Any = lm.model
    generation = model.generation_config
    # It plays no part in training, and one that came with a model_dir may be refused when it is saved.
    model.generation_config = GenerationConfig.from_model_config(model.config)
    try:
        with quiet():
            model.save_pretrained(folder, max_shard_size="10TB")
    finally:
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
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # tokenizer.json and nothing else, in any version of transformers
        "model_max_length": max_length or _NO_LIMIT,
        "clean_up_tokenization_spaces": False,
        **{role: reference.id_to_token(number) for role, number in ids.items() if number is not None},
    }
    (folder / "tokenizer_config.json").write_bytes(_indented(config))


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


def _indented(content: Any) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"
