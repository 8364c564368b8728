"""`compare`: the difference of models on the same documents, and its interval.

    results -> the documents that all of them scored -> sums per subset and over all, and of resampled documents

The intervals of two figures say little about their difference: most of an interval comes from which documents are hard,
and these are the same for both models. So documents are paired by their identity (shard name, number, hash of the
text), and pairs are resampled: one draw of documents gives the sums of every model, and the interval is that of the
difference. If models err alike, it is many times narrower than the two intervals. Each further model is compared with
the first, all on the same documents.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.errors import PilekitError, visible
from pilekit.evaluate.results.intervals import interval, ratios, resampled_sums
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result import APPROXIMATE_BELOW, BitsPerByte, counted

logger = logging.getLogger(__name__)

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

ROUNDING = 1e-6
"""The relative difference that two scorings of one model may have: batches change how float32 sums are rounded."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two models on the same documents.

    documents    number of documents that all compared models have scored, and their UTF-8 `bytes`
    bpb          bits per byte of the first model and of the other, on these documents; None if they have no byte
    difference   the other's minus the first's: below 0 the other is better
    interval     95 % interval of the difference; None with fewer than two documents
    """

    documents: int
    bytes: int
    bpb: tuple[float, float] | None
    difference: float | None
    interval: tuple[float, float] | None

    @property
    def is_approximate(self) -> bool:
        """Whether there are under 100 documents, so that intervals are too narrow."""
        return self.documents < APPROXIMATE_BELOW

    @property
    def sign(self) -> int:
        """-1 if the interval is below 0 (the other model is better), 1 if it is above, both beyond rounding; else 0."""
        if self.interval is None or self.bpb is None:
            return 0
        low, high = self.interval
        least = ROUNDING * max(self.bpb)
        return -1 if high < -least else 1 if low > least else 0

    def to_dict(self) -> dict[str, Any]:
        """`{"difference", "interval": [low, high], "bpb": [first, other], "documents", "bytes", "approximate"}`."""
        return {
            "difference": self.difference,
            "interval": None if self.interval is None else list(self.interval),
            "bpb": None if self.bpb is None else list(self.bpb),
            "documents": self.documents,
            "bytes": self.bytes,
            "approximate": self.is_approximate,
        }


@dataclass(frozen=True, slots=True)
class Against:
    """A further model against the first: pooled over all documents, and per subset in the first result's order."""

    overall: Difference
    subsets: dict[str, Difference]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`.

    kind       "causal" or "masked"
    models     the name of each model: its path or letter, and the folder of its result if given
    against    the second model against the first, the third against the first, ...
    left_out   number of each model's documents that not all others scored
    cautions   differences between the protocols that would change even equal models' figures, a sentence each
    """

    kind: str
    models: tuple[str, ...]
    against: tuple[Against, ...]
    left_out: tuple[int, ...]
    cautions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For two models `{"subsets": {name: {"difference", "interval", ...}}, "overall": {...}}`.

        `overall` also has "models", "left_out" and "cautions". For more models it is `{"comparisons": [...]}`, with the
        same for each further model against the first.
        """
        pairs = [
            {
                "subsets": {name: difference.to_dict() for name, difference in one.subsets.items()},
                "overall": {
                    **one.overall.to_dict(),
                    "models": [self.models[0], self.models[number]],
                    "left_out": [self.left_out[0], self.left_out[number]],
                    "cautions": list(self.cautions),
                },
            }
            for number, one in enumerate(self.against, 1)
        ]
        return pairs[0] if len(pairs) == 1 else {"comparisons": pairs}

    def _repr_html_(self) -> str:
        from pilekit.evaluate.show.comparison_table import differences_table

        letters = zip(LETTERS[1:], self.against, strict=False)
        return "".join(differences_table(one, letter)._repr_html_() for letter, one in letters)


def compare(results: Sequence[BitsPerByte], folders: Sequence[str | Path | None] | None = None) -> Comparison:
    """Compare each further model with the first, on the documents that all of them scored.

    results   of two models or more, or of one model by several protocols
    folders   where each result is stored, named beside its model; None: not named

    Tokenizers may differ, because bytes are counted. Each difference between the protocols that changes figures is a
    warning. PilekitError for fewer than two results, for a result without records, for causal models beside masked
    models, and if no document was scored by all.
    """
    protocols = [result.protocol for result in results]
    models = tuple(
        (protocol["model"]["path"] or letter) + ("" if folder is None else f" ({folder})")
        for letter, protocol, folder in zip(LETTERS, protocols, folders or [None] * len(results), strict=False)
    )
    records = [result.records for result in results if result.records is not None]
    if len(records) < len(results):
        raise PilekitError("a result without records cannot be compared; score the model again, with --out")
    check_kinds([protocol["kind"] for protocol in protocols])
    rows = common_rows(records)
    if not rows.shape[1]:
        shards = "; ".join(
            f"{letter}: {visible(', '.join(one.shards[:3]) or 'none', 120)}"
            for letter, one in zip(LETTERS, records, strict=False)
        )
        raise PilekitError(f"there is no document that all results scored ({shards}); score all on the same shards")
    cautions = tuple(differing(protocols))
    left_out = tuple(len(one) - rows.shape[1] for one in records)
    for caution in cautions:
        logger.warning("not like for like: %s", caution)
    if any(left_out):
        logger.warning("compared on the %s that all scored; %s", counted(rows.shape[1]), left_out_text(left_out))
    return Comparison(protocols[0]["kind"], models, _differences(records, rows), left_out, cautions)


def check_kinds(kinds: Sequence[str]) -> None:
    """PilekitError unless models of these kinds, "causal" or "masked" each, can be compared."""
    if not 2 <= len(kinds) <= len(LETTERS):
        raise PilekitError(f"{len(kinds)} results cannot be compared; give 2 to {len(LETTERS)}")
    letter_of = dict(zip(kinds, LETTERS, strict=False))
    if len(letter_of) > 1:
        raise PilekitError(
            f"{letter_of['causal']} is a causal model and {letter_of['masked']} a masked one, which sees both sides of "
            "what it predicts: bits and pseudo-bits per byte cannot be compared; compare models of one kind"
        )


def common_rows(records: Sequence[Records]) -> npt.NDArray[np.int64]:
    """int64 [results, documents]: each result's rows of the common documents, in the first result's order."""
    rows_of = [
        {identity: row for row, identity in enumerate(zip(names, one.number.tolist(), one.text.tolist(), strict=True))}
        for one in records
        for names in [[one.shards[code] for code in one.shard.tolist()]]
    ]
    common = [identity for identity in rows_of[0] if all(identity in other for other in rows_of[1:])]
    return np.array([[rows[identity] for identity in common] for rows in rows_of], dtype=np.int64)


def differing(protocols: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each difference from the first protocol that would change even equal models' figures."""
    found = []
    for letter, other in zip(LETTERS[1:], protocols[1:], strict=False):
        both = (protocols[0], other)
        one_tokenizer = both[0]["tokenizer"]["fingerprint"] == both[1]["tokenizer"]["fingerprint"]
        prefixes = [_prefix(of["prefix"]["id"]) for of in both]
        if not one_tokenizer and NO_PREFIX not in prefixes:
            prefixes = []  # two tokenizers have different ids for the same kind of prefix
        least = min(of["max_length"] for of in both)
        aspects = (
            ("in windows of at most", [f"{of['max_length']:,} tokens" for of in both], f"--max-length {least}"),
            ("with", [f"--context-len {of['context_len']}" for of in both], "the same --context-len"),
            ("with", prefixes, "the same --prefix"),
            ("in", [of["dtype"] for of in both], "the same --dtype"),
            ("on", [_sample(of.get("mlm_sample")) for of in both], "the same --mlm-sample"),
            ("with", [_around(of.get("template"), ids=one_tokenizer) for of in both], "tokenizers of one template"),
        )
        found += [
            f"A was scored {how} {values[0]}, {letter} {how} {values[1]}, which alone moves a figure; score both with "
            f"{remedy}"
            for how, values, remedy in aspects
            if len(set(values)) > 1
        ]
    return found


NO_PREFIX = "no prefix (first tokens not predicted)"


def _prefix(token: int | None) -> str:
    return NO_PREFIX if token is None else f"the prefix token {token}"


def _sample(sample: int | None) -> str:
    return "each token" if sample is None else f"{sample:,} tokens of a window"


def _around(template: dict[str, Any] | None, *, ids: bool) -> str:
    """The special tokens in each window of a masked model; ids compare only within one tokenizer."""
    before, behind = ([], []) if template is None else (template["before"], template["behind"])
    shown = f" (ids {', '.join(map(str, [*before, *behind]))})" if ids else ""
    return f"{len(before)} special tokens before and {len(behind)} behind a window{shown}"


def left_out_text(left_out: Sequence[int]) -> str:
    """A sentence on the documents of each result that were not compared."""
    counts = ", ".join(f"{count:,} of {letter}" for letter, count in zip(LETTERS, left_out, strict=False) if count)
    return f"left out: {counts}"


def _differences(records: Sequence[Records], rows: npt.NDArray[np.int64]) -> tuple[Against, ...]:
    first = records[0]
    nats = [one.nll[where] for one, where in zip(records, rows, strict=True)]
    columns = np.column_stack([first.bytes[rows[0]].astype(np.float64), *nats])
    subset = first.subset[rows[0]]
    overall = _of(columns)
    subsets = {first.subsets[code]: _of(columns[subset == code]) for code in np.unique(subset).tolist()}
    return tuple(Against(one, {name: of[number] for name, of in subsets.items()}) for number, one in enumerate(overall))


def _of(columns: npt.NDArray[np.float64]) -> list[Difference]:
    """Each further model against the first; `columns` float64 [documents, 1 + models]: bytes, then nats."""
    total, *nats = (math.fsum(column) for column in columns.T.tolist())
    size, documents = int(total), len(columns)
    if not size:
        return [Difference(documents, 0, None, None, None)] * (len(nats) - 1)
    bits = math.log(2) * size
    sums = resampled_sums(columns) if documents > 1 else np.zeros((0, columns.shape[1]))
    found = []
    for number, nll in enumerate(nats[1:], 2):
        drawn = ratios(np.column_stack([sums[:, number] - sums[:, 1], math.log(2) * sums[:, 0]]))
        found.append(Difference(documents, size, (nats[0] / bits, nll / bits), (nll - nats[0]) / bits, interval(drawn)))
    return found
