"""Check in milliseconds whether a folder can be a model, before torch and transformers are imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pilekit.errors import PilekitError, visible

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Lists the files of weights stored in parts."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def check_folder(folder: str | Path, adapter: str | Path | None = None) -> None:
    """PilekitError if `folder` cannot be a model, or `adapter` no adapter; the message says where there is one."""
    if adapter is not None:
        _check_adapter(Path(adapter))
    folder = Path(folder)
    shown = visible(folder)
    if not folder.is_dir():
        raise PilekitError(
            f"{shown}: there is no such model; give a local folder with config.json, {WEIGHTS} and tokenizer.json "
            "(nothing is downloaded)"
        )
    if (folder / "config.json").is_file():
        if not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
            raise PilekitError(
                f"{shown}: has no weights ({WEIGHTS}). Other formats are not read, as they could run code; "
                "save_pretrained(folder) of transformers converts a model that you trust"
            )
        return
    if (folder / "model" / "config.json").is_file():
        raise PilekitError(f"{shown}: is a run; its model is {visible(folder / 'model')}")
    for path in (folder, folder / "adapter"):
        if (path / ADAPTER_CONFIG).is_file():
            raise PilekitError(
                f"{visible(path)}: is an adapter, without the model; name the folder of its model, and give this one "
                "with --adapter (in a config of train: model.adapter)"
            )
    raise PilekitError(f"{shown}: has no config.json, so it is no model; give a folder in Hugging Face format")


def adapter_files(folder: str | Path) -> tuple[Path, Path]:
    """The two files of an adapter: its configuration and its weights."""
    return Path(folder) / ADAPTER_CONFIG, Path(folder) / ADAPTER_WEIGHTS


def _check_adapter(folder: Path) -> None:
    for file in adapter_files(folder):
        if not file.is_file():
            raise PilekitError(
                f"{visible(folder)}: has no {file.name}, so it is no adapter; give a local folder as peft saves it, in "
                "safetensors (nothing is downloaded or unpickled)"
            )
    if find_spec("peft") is None:
        raise PilekitError(f"the adapter {visible(folder)} needs the package peft: pip install 'pilekit[peft]'")
