"""`RuleSet`: the base of all sets of quality rules. A rule compares a value of a document with a limit.

A set is a frozen dataclass. A field made by `limit` is a rule: its limit, and how a value fails it. `measure` gives the
values. All rules judge the same text, and all are evaluated on every document, so the result does not depend on the
order of rules. A set is a stage, which keeps the documents that fail no rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.documents import DocumentBatch
from pilekit.pipeline.pipeline import DocumentStage
from pilekit.pipeline.rules.scanned_texts import ScannedTexts
from pilekit.pipeline.stages import filtered

Values = npt.NDArray[np.float64]
Fails = npt.NDArray[np.bool_]
Comparison = Callable[[Values, Any], Fails]

above: Comparison = np.greater
below: Comparison = np.less
at_least: Comparison = np.greater_equal
at_most: Comparison = np.less_equal


def outside(values: Values, limits: tuple[float, float]) -> Fails:
    """Whether each value is below the first or above the second limit."""
    return (values < limits[0]) | (values > limits[1])


def limit(fails: Comparison, value: Any) -> Any:
    """A dataclass field: the limit of the rule with the field's name, and which values fail it."""
    return field(default=value, metadata={"fails": fails})


@dataclass(frozen=True)
class RuleSet(DocumentStage, ABC):
    """A set of rules that judge a document by its text alone."""

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents that fail no rule."""
        return filtered(batches, lambda batch: ~np.any(list(self.judge(batch).values()), axis=0))

    def judge(self, batch: DocumentBatch) -> dict[str, Fails]:
        """Whether each document fails each rule: a bool column, [documents], by the rule's name."""
        return self.fails(self.measure(ScannedTexts(batch)))

    def fails(self, values: Mapping[str, Values]) -> dict[str, Fails]:
        """Whether the values that `measure` returned fail."""
        comparisons = {rule.name: rule.metadata["fails"] for rule in fields(self) if rule.metadata}
        return {rule: comparisons[rule](measured, getattr(self, rule)) for rule, measured in values.items()}

    @abstractmethod
    def measure(self, texts: ScannedTexts) -> dict[str, Values]:
        """The value that each rule compares with its limit, float64 [documents], by rule; NaN where there is none."""
