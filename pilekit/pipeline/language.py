"""`Language`: keep documents by the language that a fastText classifier detects.

The model is a file that the user has, such as fastText's `lid.176.bin`. None is bundled, and none is fetched. The
package comes with `pip install 'pilekit[language]'`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.pipeline import names_in
from pilekit.pipeline.rules.rule_set import Fails, RuleSet
from pilekit.pipeline.rules.scanned_texts import ScannedTexts

_LABEL = "__label__"


@dataclass(frozen=True)
class Language(RuleSet):
    """Keep the documents whose best label is one of `keep`, with a score of `score` or more.

    model    path of a fastText model
    keep     labels without `__label__`, such as "en"
    """

    model: str | Path
    keep: str | Sequence[str] = ("en",)
    score: float = 0.65

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", names_in(self.keep))
        _loaded(str(self.model))

    @property
    def identity(self) -> str:
        """The settings stored with a result; a hash of the model's content stands for the model, not its path."""
        with Path(self.model).open("rb") as file:
            content = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        return f"Language({content}, keep={self.keep}, score={self.score})"

    def measure(self, texts: ScannedTexts) -> dict[str, Any]:
        """(best label, its score) of each document, [documents]; ("", 0) for a text without a label."""
        lines = [text.replace("\n", " ") for text in texts.batch.texts]
        predictions = _loaded(str(self.model)).predict(lines) if lines else ((), ())
        best = [
            (labels[0].removeprefix(_LABEL), float(scores[0])) if len(labels) else ("", 0.0)
            for labels, scores in zip(*predictions, strict=True)
        ]
        return {"language": best}

    def fails(self, values: Mapping[str, Any]) -> dict[str, Fails]:
        """Whether each document is in another language, or its score is too low."""
        fails = [label not in self.keep or score < self.score for label, score in values["language"]]
        return {"language": np.array(fails, bool)}


@cache
def _loaded(path: str) -> Any:
    """The model, loaded once per process."""
    if not Path(path).is_file():
        raise PilekitError(
            f"{path}: no such file; give a fastText model that you have, such as lid.176.bin of fasttext.cc"
        )
    try:
        import fasttext
    except ImportError as error:
        raise PilekitError("Language needs fastText: pip install 'pilekit[language]'") from error
    try:
        return fasttext.load_model(path)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise PilekitError(f"{path}: is no fastText model: {shortened(error, 200)}") from error
