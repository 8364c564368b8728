"""`Cleaner`: what `clean_corpus` does to a batch, and what it counts.

All rules judge the unchanged text. Then documents that fail a rule are dropped, and the texts of the others are cut and
redacted. Documents of subsets that are not judged pass untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.documents import MAX_SUBSETS, DocumentBatch, too_many_subsets
from pilekit.pipeline.language import Language
from pilekit.pipeline.redact_pii import RedactPII
from pilekit.pipeline.rules.c4 import C4
from pilekit.pipeline.rules.rule_set import RuleSet
from pilekit.pipeline.rules.scanned_texts import ScannedTexts


class Judged(NamedTuple):
    """What was found out about the documents of a batch.

    fails       whether each document fails each rule, by SET.rule
    values      what the rules judged, of the same names
    languages   the language of each document, if a `Language` was asked
    """

    fails: dict[str, npt.NDArray[np.bool_]]
    values: dict[str, Sequence[Any] | npt.NDArray[np.float64]]
    languages: list[str]

    def matrix(self, documents: int) -> npt.NDArray[np.bool_]:
        """`fails`, bool [rules, documents]."""
        return np.array(list(self.fails.values()), bool).reshape(len(self.fails), documents)


class Cleaning(NamedTuple):
    """What became of a batch.

    kept      the documents that stay, as they are written
    dropped   the others, and the rules that each of them fails
    """

    kept: DocumentBatch
    dropped: DocumentBatch
    failed: list[list[str]]


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

    def judge(self, batch: DocumentBatch) -> Judged:
        """Evaluate every rule on every document of the batch, whatever its subset."""
        texts, judged = ScannedTexts(batch), Judged({}, {}, [])
        for name, rules in self.rules.items():
            values = rules.measure(texts)
            judged.fails.update({f"{name}.{rule}": fails for rule, fails in rules.fails(values).items()})
            judged.values.update({f"{name}.{rule}": of_rule for rule, of_rule in values.items()})
        if self.language is not None:
            detected = self.language.detect(batch)
            judged.fails["language"] = self.language.fails(detected)
            judged.values["language"] = [f"{label} {score:.2f}" for label, score in detected]
            judged.languages.extend(label for label, _ in detected)
        return judged

    def is_judged(self, batch: DocumentBatch) -> npt.NDArray[np.bool_]:
        """Whether each document is of a subset that is judged, bool [documents]."""
        return np.array([self.subsets is None or subset in self.subsets for subset in batch.subsets], bool)

    def clean(self, batch: DocumentBatch, counts: Counts) -> Cleaning:
        """Drop, cut and redact, and count it."""
        chosen = np.flatnonzero(self.is_judged(batch))
        part = batch.take(chosen.tolist()) if len(chosen) < len(batch) else batch
        judged = self.judge(part)
        fails = np.zeros((len(judged.fails), len(batch)), bool)
        fails[:, chosen] = judged.matrix(len(part))
        drops: npt.NDArray[np.bool_] = np.asarray(fails.any(axis=0))
        changed = part.where(~drops[chosen])
        changed = changed if self.c4_lines is None else self.c4_lines.cut(changed)
        changed = changed if self.pii is None else self.pii.redact(changed)
        after = batch
        if changed.edited:
            texts = list(batch.texts)
            for index, text in zip(chosen[~drops[chosen]].tolist(), changed.texts, strict=True):
                texts[index] = text
            after = batch.with_texts(texts)
        languages = dict(zip(chosen.tolist(), judged.languages, strict=True)) if self.language else {}
        counts.add(batch, after, drops, fails, list(judged.fails), languages)
        names = np.array(list(judged.fails), object)
        failed = [names[fails[:, index]].tolist() for index in np.flatnonzero(drops)]
        return Cleaning(after.where(~drops), batch.where(drops), failed)


class Counts:
    """The counts of some batches by subset, as the summary holds them; counts of rules for `judged` subsets."""

    def __init__(self, judged: frozenset[str] | None) -> None:
        self.subsets: dict[str, dict[str, Any]] = {}
        self._judged = judged

    def add(
        self,
        before: DocumentBatch,
        after: DocumentBatch,
        drops: npt.NDArray[np.bool_],
        fails: npt.NDArray[np.bool_],
        rules: Sequence[str],
        languages: Mapping[int, str],
    ) -> None:
        """Count the documents of a batch `before` and `after` changes; `fails` is [rules, documents]."""
        names = np.array(before.subsets, object)
        size = before.text_bytes()
        written = after.text_bytes() if after is not before else size
        edited = np.zeros(len(before), bool)
        edited[list(after.edited - before.edited)] = True
        alone = fails & (fails.sum(axis=0) == 1)
        for name in sorted(set(before.subsets)):
            of = names == name
            here, only, kept = fails[:, of], alone[:, of], of & ~drops
            named = rules if self._judged is None or name in self._judged else ()
            of_rules = zip(named, here.sum(axis=1), only.sum(axis=1), here @ size[of], strict=False)
            counts: dict[str, Any] = {
                "read": int(of.sum()),
                "kept": int(kept.sum()),
                "dropped": int((of & drops).sum()),
                "skipped": 0,
                "left_out": 0,
                "edited": int((of & edited).sum()),
                "bytes": {
                    "read": int(size[of].sum()),
                    "kept": int(written[kept].sum()),
                    "dropped": int(size[of & drops].sum()),
                },
                "rules": {
                    rule: {"documents": int(documents), "alone": int(one), "bytes": int(bytes)}
                    for rule, documents, one, bytes in of_rules
                },
            }
            if languages:
                found = [languages[index] for index in np.flatnonzero(of).tolist() if index in languages]
                counts["languages"] = {label: found.count(label) for label in sorted(set(found))}
            self.subsets[name] = added(self.subsets.get(name, {}), counts)
        if len(self.subsets) > MAX_SUBSETS:
            raise too_many_subsets(MAX_SUBSETS)


def added(one: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of the numbers of the same names, in nested dicts too."""
    sums = dict(one)
    for name, value in more.items():
        sums[name] = added(sums.get(name, {}), value) if isinstance(value, Mapping) else sums.get(name, 0) + value
    return sums
