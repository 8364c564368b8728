"""Check in milliseconds whether a folder or a config.json can be a model, before torch is imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from pilekit.errors import PilekitError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Lists the files of weights stored in parts."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""The names of the number of positions in config.json files."""


def check_folder(folder: str | Path, adapter: str | Path | None = None) -> None:
    """Raise PilekitError if `folder` cannot be a model, or `adapter` no adapter. The message names one that is near."""
    if adapter is not None:
        _check_adapter(Path(adapter))
    folder = Path(folder)
    if not folder.is_dir():
        raise PilekitError(
            f"{folder}: there is no such model; give a local folder with config.json, {WEIGHTS} and tokenizer.json "
            "(nothing is downloaded)"
        )
    if (folder / "config.json").is_file():
        if not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
            raise PilekitError(
                f"{folder}: has no weights ({WEIGHTS}). Other formats are not read, as they could run code; "
                "save_pretrained(folder) of transformers converts a model that you trust"
            )
        return
    if (folder / "model" / "config.json").is_file():
        raise PilekitError(f"{folder}: is a run; its model is {folder / 'model'}")
    for path in (folder, folder / "adapter"):
        if (path / ADAPTER_CONFIG).is_file():
            raise PilekitError(
                f"{path}: is an adapter, without the model; name the folder of its model, and give this one "
                "with --adapter (in a config of train: model.adapter)"
            )
    raise PilekitError(f"{folder}: has no config.json, so it is no model; give a folder in Hugging Face format")


def read_json(file: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is not a table."""
    try:
        content: Any = orjson.loads(file.read_bytes())
    except OSError as error:
        raise PilekitError(f"{file}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise PilekitError(f"{file}: is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def check_sizes(content: dict[str, Any], model: str, seq_len: int | None, tokenizer: Path, ids: int) -> None:
    """Raise PilekitError if the `content` of a config.json has too few positions for a row, or embeddings for the ids.

    model     its name in errors
    seq_len   tokens of a row; None: not checked
    ids       rows that the tokenizer at the path `tokenizer` needs

    A size that the file does not name is known to transformers alone, and is checked when the model is made.
    """
    rows, positions = content.get("vocab_size"), next((content[name] for name in POSITIONS if name in content), None)
    if isinstance(rows, int) and rows < ids:
        raise PilekitError(few_rows(model, rows, tokenizer, ids))
    if seq_len is not None and isinstance(positions, int) and 0 < positions < seq_len:
        raise PilekitError(few_positions(model, positions, seq_len))


def few_rows(name: str, rows: int, tokenizer: Path, ids: int) -> str:
    """The error of a model with fewer embeddings than the tokenizer has ids."""
    return (
        f"{name}: vocabulary larger than the embeddings: the tokenizer {tokenizer} has {ids:,} ids and the "
        f"model {rows:,}; use the tokenizer that the model was made for"
    )


def few_positions(name: str, positions: int, seq_len: int) -> str:
    """The error of a model with fewer positions than a row has tokens."""
    return (
        f"{name}: has {positions:,} positions and data.seq_len is {seq_len:,}; set data.seq_len to {positions} or less"
    )


def adapter_files(folder: str | Path) -> tuple[Path, Path]:
    """The two files of an adapter: its configuration and its weights."""
    return Path(folder) / ADAPTER_CONFIG, Path(folder) / ADAPTER_WEIGHTS


def _check_adapter(folder: Path) -> None:
    for file in adapter_files(folder):
        if not file.is_file():
            raise PilekitError(
                f"{folder}: has no {file.name}, so it is no adapter; give a local folder as peft saves it, in "
                "safetensors (nothing is downloaded or unpickled)"
            )
    if find_spec("peft") is None:
        raise PilekitError(f"the adapter {folder} needs the package peft: pip install 'pilekit[peft]'")
