"""Check in milliseconds whether a folder can be a model, before torch and transformers are imported."""

from __future__ import annotations

from pathlib import Path

from pilekit.errors import PilekitError, visible

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Lists the files of weights stored in parts."""


def check_folder(folder: str | Path) -> None:
    """PilekitError if `folder` cannot be a model; for a run of `pilekit train` the message says where the model is."""
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
    if any((path / "adapter_config.json").is_file() for path in (folder, folder / "adapter")):
        raise PilekitError(
            f"{shown}: has adapters of a model, but not the model; `pilekit train --merge` exports both as one"
        )
    raise PilekitError(f"{shown}: has no config.json, so it is no model; give a folder in Hugging Face format")
