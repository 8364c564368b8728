"""An export proves that AutoTokenizer reads its tokenizer; tests do it once in a process for each kind of export.

A test that puts another `AutoTokenizer` into the module has answers of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def export_once() -> None:
    from pilekit.train.model import export

    answers: dict[object, None] = {}
    prove = export._warn_of_another_tokenizer

    def proved(folder: Path, tokenizer: Any, model_type: str) -> None:
        files = [(folder / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")]
        asked = (*files, tokenizer.backend, model_type, export.AutoTokenizer)
        if asked not in answers:
            answers[asked] = prove(folder, tokenizer, model_type)  # type: ignore[func-returns-value]

    export._warn_of_another_tokenizer = proved
