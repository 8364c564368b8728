"""`Cleaner`: what `clean_corpus` does to a batch, and what it counts.

All rules judge the unchanged text. Then documents that fail a rule are dropped, and the texts of the others are cut and
redacted. Documents of subsets that are not judged pass untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.documents import MAX_SUBSETS, DocumentBatch, too_many_subsets
from pilekit.pipeline.cleaned import no_counts
from pilekit.pipeline.language import Language
from pilekit.pipeline.redact_pii import RedactPII
from pilekit.pipeline.rules.c4 import C4
from pilekit.pipeline.rules.rule_set import Fails, RuleSet
from pilekit.pipeline.rules.scanned_texts import ScannedTexts


@dataclass(frozen=True)
class Cleaner:
    """How documents are judged and changed.

    rules      sets by name
    subsets    the subsets that are judged; None: all
    c4_lines   cuts documents to the lines that it keeps
    """

    rules: Mapping[str, RuleSet] = field(default_factory=dict)
    subsets: frozenset[str] | None = None
    language: Language | None = None
    c4_lines: C4 | None = None
    pii: RedactPII | None = None

    def judges(self, subset: str) -> bool:
        """Whether documents of the subset are judged."""
        return self.subsets is None or subset in self.subsets

    def judge(self, batch: DocumentBatch) -> tuple[dict[str, Fails], dict[str, Sequence[Any] | npt.NDArray[Any]]]:
        """(whether each document fails, what was judged) of each rule by SET.rule, whatever a document's subset."""
        texts = ScannedTexts(batch)
        fails: dict[str, Fails] = {}
        values: dict[str, Sequence[Any] | npt.NDArray[Any]] = {}
        for name, rules in self.rules.items():
            measured = rules.measure(texts)
            fails.update({f"{name}.{rule}": of_rule for rule, of_rule in rules.fails(measured).items()})
            values.update({f"{name}.{rule}": of_rule for rule, of_rule in measured.items()})
        if self.language is not None:
            values["language"] = detected = self.language.detect(batch)
            fails["language"] = self.language.fails(detected)
        return fails, values

    def clean(
        self, batch: DocumentBatch, subsets: dict[str, dict[str, Any]]
    ) -> tuple[DocumentBatch, list[dict[str, Any]]]:
        """(documents as they are written, a row of `dropped.parquet` for each other one).

        subsets   counts by subset, to which those of the batch are added
        """
        chosen = [index for index, subset in enumerate(batch.subsets) if self.judges(subset)]
        fails, values = self.judge(batch.take(chosen) if len(chosen) < len(batch) else batch)
        failed: list[list[str]] = [[] for _ in range(len(batch))]
        for rule, of_rule in fails.items():
            for index in np.flatnonzero(of_rule).tolist():
                failed[chosen[index]].append(rule)
        kept = self._changed(batch.where([not rules for rules in failed]))

        rows = []
        for name in sorted(set(batch.subsets) - subsets.keys()):
            subsets[name] = no_counts(fails if self.judges(name) else ())
        if len(subsets) > MAX_SUBSETS:
            raise too_many_subsets(MAX_SUBSETS)
        columns = (batch.numbers.tolist(), batch.subsets, batch.text_bytes().tolist(), failed)
        for number, name, size, rules in zip(*columns, strict=True):
            counts = subsets[name]
            counts["read"] += 1
            counts["bytes"]["read"] += size
            if rules:
                counts["dropped"] += 1
                counts["bytes"]["dropped"] += size
                rows.append({"shard": batch.shard, "number": number, "subset": name, "bytes": size, "rules": rules})
            for rule in rules:
                of = counts["rules"][rule]
                of["documents"] += 1
                of["alone"] += len(rules) == 1
                of["bytes"] += size
        for index, (name, size) in enumerate(zip(kept.subsets, kept.text_bytes().tolist(), strict=True)):
            subsets[name]["kept"] += 1
            subsets[name]["edited"] += index in kept.edited
            subsets[name]["bytes"]["kept"] += size
        detected = zip(chosen, values.get("language", ()), strict=False)
        for name, label in sorted((batch.subsets[index], label) for index, (label, _) in detected):
            languages = subsets[name].setdefault("languages", {})
            languages[label] = languages.get(label, 0) + 1
        return kept, rows

    def _changed(self, kept: DocumentBatch) -> DocumentBatch:
        """The documents that stay, those of judged subsets cut and redacted."""
        if self.c4_lines is None and self.pii is None:
            return kept
        chosen = [index for index, subset in enumerate(kept.subsets) if self.judges(subset)]
        part = kept.take(chosen)
        part = part if self.c4_lines is None else self.c4_lines.cut(part)
        part = part if self.pii is None else self.pii.redact(part)
        texts = list(kept.texts)
        for index, text in zip(chosen, part.texts, strict=True):
            texts[index] = text
        return kept.with_texts(texts)
