"""The proofs about a tokenizer are done once in a process of tests, not at each of its hundreds of loads and exports.

`load_tokenizer` proves that the fast encoder gives the reference's ids, an export that AutoTokenizer does. A test that
puts other functions into these modules has answers of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from pilekit.tokenize import loading


def once(function: Callable[..., Any], key: Callable[..., object]) -> Callable[..., Any]:
    answers: dict[object, Any] = {}

    def answer(*arguments: Any) -> Any:
        if (asked := key(*arguments)) not in answers:
            answers[asked] = function(*arguments)
        return answers[asked]

    return answer


def load_once() -> None:
    def key(content: dict[str, Any], special_tokens: str, reference: Any) -> object:
        return orjson.dumps(content), special_tokens, loading.fast_encoder, loading.probe_texts

    loading._agreed_fast_encoder = once(loading._agreed_fast_encoder, key)


def export_once() -> None:
    from pilekit.train.model import export

    def key(folder: Path, tokenizer: Any, model_type: str) -> object:
        files = [(folder / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")]
        return *files, tokenizer.backend, model_type, export.AutoTokenizer

    export._warn_of_another_tokenizer = once(export._warn_of_another_tokenizer, key)
