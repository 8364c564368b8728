"""Published figures and manifests that state them, for the tests of audits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def figure(kind: str, value: float, **fields: Any) -> dict[str, Any]:
    return {"figure": kind, "value": value, "source": "a paper", **fields}


def every_figure(strings: list[str], split: str = "train") -> list[dict[str, Any]]:
    """Each kind of figure that is counted without a tokenizer."""
    kinds = ["documents", "bytes", "distinct", "twins", "clusters", "longest", "shortest", "median"]
    figures = [figure(kind, 0) for kind in kinds]
    figures.append(figure("length_share", 0, characters=3))
    figures += [figure("copies", 0, rank=rank) for rank in (1, 2, 3)]
    figures += [figure("occurrences", 0, text=string) for string in strings]
    return [{**one, "split": split} for one in figures]


def manifest_of(path: Path, figures: list[dict[str, Any]], shards: int | None = None, **more: Any) -> Path:
    """A manifest as a TOML file; JSON's spelling of texts and numbers is TOML's too."""
    lines = ['name = "mine"', *more.pop("lines", []), "[published]"]
    lines += [] if shards is None else [f"train_shards = {shards}"]
    for one in figures:
        lines.append("[[published.figures]]")
        for name, value in one.items():
            if isinstance(value, dict):
                inner = ", ".join(f"{json.dumps(key)} = {json.dumps(inner)}" for key, inner in value.items())
                lines.append(f"{name} = {{{inner}}}")
            else:
                lines.append(f"{name} = {json.dumps(value)}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
