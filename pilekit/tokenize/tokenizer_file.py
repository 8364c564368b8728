"""The tokenizer.json of a path, a folder, a name in the local Hugging Face cache, or a tokenizer object.

Workers and resumed runs open a tokenizer by its path. So the file that an object came from is used if it still gives
the same tokenizer. Any other object is saved in the cache folder, in a Hugging Face folder that is named by the SHA-256
of its content.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import tokenizers

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.folders import cache_folder
from pilekit.errors import PilekitError, shortened

ROLES = ("eos_token", "bos_token", "pad_token", "mask_token")


def tokenizer_file(tokenizer: str | Path | Any) -> Path:
    """The absolute path of the tokenizer.json; PilekitError if there is none."""
    if not isinstance(tokenizer, str | os.PathLike):
        return _file_of_object(tokenizer)
    path = Path(tokenizer).expanduser()
    if path.is_dir():
        file = path / "tokenizer.json"
        if not file.is_file():
            raise PilekitError(
                f"no tokenizer.json in the folder {path}; save one there with "
                "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
            )
        return file.absolute()
    if path.is_file():
        return path.absolute()
    if path.exists():
        raise PilekitError(f"the tokenizer {path} is a pipe or a device, not a file; give a tokenizer.json")
    from huggingface_hub import try_to_load_from_cache  # a slow import

    with suppress(ValueError):  # not a possible name
        cached = try_to_load_from_cache(str(tokenizer), "tokenizer.json")
        if isinstance(cached, str):
            return Path(cached).absolute()
    raise PilekitError(
        f"no tokenizer {str(tokenizer)!r}: neither a tokenizer.json, nor a folder with one, nor a name "
        "in the local Hugging Face cache; give the path of a file, or make one with `pilekit train-tokenizer`"
    )


def _file_of_object(tokenizer: Any) -> Path:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise PilekitError(
            "a tokenizer is a tokenizer.json, a folder with one, a cached name, a fast tokenizer of transformers or a "
            f"tokenizers.Tokenizer, not {shortened(repr(tokenizer), 80)}"
        )
    content = plain_content(orjson.loads(backend.to_str()))
    roles = {role: name for role in ROLES if isinstance(name := getattr(tokenizer, role, None), str)}
    if name_or_path := getattr(tokenizer, "name_or_path", None):
        with suppress(Exception):  # tokenizers raises Exception itself
            file = tokenizer_file(name_or_path)
            there = orjson.loads(tokenizers.Tokenizer.from_file(str(file)).to_str())  # as the library writes it
            if roles_beside(file) == roles and plain_content(there) == content:
                return file
    saved, named = orjson.dumps(content), orjson.dumps(roles, option=orjson.OPT_SORT_KEYS)
    folder = cache_folder() / "tokenizers" / hashlib.sha256(saved + named).hexdigest()
    for name, data in (("special_tokens_map.json", named), ("tokenizer.json", saved)):
        if not (folder / name).exists():
            with write_atomically(folder / name) as file_in_cache:
                file_in_cache.write(data)
    return folder / "tokenizer.json"


def plain_content(content: Any) -> dict[str, Any]:
    """The content of a tokenizer.json without truncation, padding and BPE dropout, which change the ids of a text."""
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError("it has no `model`")
    model = {**content["model"], "dropout": None} if "dropout" in content["model"] else content["model"]
    return {**content, "model": model, "truncation": None, "padding": None}


def roles_beside(file: Path) -> dict[str, str]:
    """The tokens that Hugging Face's two configs beside a tokenizer.json name, by role."""
    named: dict[str, str] = {}
    for config in ("special_tokens_map.json", "tokenizer_config.json"):
        path = file.with_name(config)
        try:
            content: Any = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, orjson.JSONDecodeError) as error:
            why = shortened(error, 200)
            raise PilekitError(f"cannot read {path}, which names the special tokens: {why}") from error
        for role in ROLES if isinstance(content, dict) else ():
            name = content.get(role)
            name = name.get("content") if isinstance(name, dict) else name
            if isinstance(name, str) and name:
                named[role] = name
    return named
