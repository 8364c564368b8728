"""`compare`: by how much models differ on the same documents, and how sure that is.

    results -> the documents that all of them scored -> per subset and over all: sums, and sums of resampled documents

Two figures, each with its interval, say little of their difference: which documents are hard is most of an interval,
and it is the same for both models. So documents are paired by their identity (shard name, number, hash of the text),
and pairs are resampled: one draw of documents gives the sums of every model, and the interval is that of the difference
of these sums. Where models err alike it is many times narrower than the two intervals, and it is never wider than
both together. Each further model is compared with the first, and all on the same documents.
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
from pilekit.evaluate.results.result import APPROXIMATE_BELOW, BitsPerByte

logger = logging.getLogger(__name__)

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

ROUNDING = 1e-6
"""What two scorings of one model may differ by, relative: batches of other documents round a sum in float32."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two models on the same documents.

    documents    that were scored by all models compared, and their UTF-8 `bytes`
    bpb          bits per byte of the first model and of the other, on these documents; None where there is no byte
    difference   the other's less the first's: below 0 the other is better
    interval     95 % interval of the difference; None where there is none, with fewer than two documents
    """

    documents: int
    bytes: int
    bpb: tuple[float, float] | None
    difference: float | None
    interval: tuple[float, float] | None

    @property
    def is_approximate(self) -> bool:
        """Whether documents are so few that intervals are too narrow: under 100."""
        return self.documents < APPROXIMATE_BELOW

    @property
    def sign(self) -> int:
        """-1 or 1: the interval is below 0, the other model being better, or above, beyond rounding; 0: neither."""
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
    """A further model against the first: over all documents, pooled, and per subset, in the first result's order."""

    overall: Difference
    subsets: dict[str, Difference]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found.

    kind       "causal" or "masked"
    models     what each is called: where it was, or its letter, and the folder of its result, if it was given
    against    the second model against the first, the third against the first, ...
    left_out   documents of each that not all others scored
    cautions   where protocols differ so that the figures differ with equal models, a sentence each
    """

    kind: str
    models: tuple[str, ...]
    against: tuple[Against, ...]
    left_out: tuple[int, ...]
    cautions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Of two models `{"subsets": {name: {"difference", "interval", ...}}, "overall": {...}}`.

        `overall` has also what concerns all: "models", "left_out", "cautions". Of more models it is `{"comparisons":
        [...]}`, with the same for each further model against the first.
        """
        pairs = [self._pair(number) for number in range(len(self.against))]
        return pairs[0] if len(pairs) == 1 else {"comparisons": pairs}

    def _repr_html_(self) -> str:
        from pilekit.evaluate.show.comparison_table import differences_table

        return "".join(
            differences_table(one, letter)._repr_html_() for letter, one in zip(LETTERS[1:], self.against, strict=False)
        )

    def _pair(self, number: int) -> dict[str, Any]:
        one = self.against[number]
        return {
            "subsets": {name: difference.to_dict() for name, difference in one.subsets.items()},
            "overall": {
                **one.overall.to_dict(),
                "models": [self.models[0], self.models[number + 1]],
                "left_out": [self.left_out[0], self.left_out[number + 1]],
                "cautions": list(self.cautions),
            },
        }


def compare(results: Sequence[BitsPerByte], folders: Sequence[str | Path | None] | None = None) -> Comparison:
    """Compare each further model with the first, on the documents that all of them scored.

    results   of two models or more, or of one by several protocols
    folders   where each is stored, to be named beside its model; None, or None for one of them: not told

    Tokenizers may differ: bytes are the same. Where windows, context, prefix, precision or, of masked models, sample or
    template differ, a warning says so for each. PilekitError for fewer than two results, for one without records, for
    causal models beside masked ones, and if there is no document that all scored.
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
        raise PilekitError(_nothing_common(records))
    cautions = tuple(differing(protocols))
    left_out = tuple(len(one) - rows.shape[1] for one in records)
    for caution in cautions:
        logger.warning("not like for like: %s", caution)
    if any(left_out):
        logger.warning("compared on the %s that all scored; %s", _documents(rows.shape[1]), left_out_text(left_out))
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
    """int64 [results, documents]: where in each the documents are that all have, in the order of the first."""
    names = list(dict.fromkeys(name for one in records for name in one.shards))
    place = {name: number for number, name in enumerate(names)}
    shard = np.concatenate(
        [np.array([place[name] for name in one.shards], dtype=np.int64)[one.shard] for one in records]
    )
    number = np.concatenate([one.number for one in records])
    text = np.concatenate([one.text for one in records])
    order = np.lexsort((text, number, shard))  # stable: of equal ones, the first result's comes first
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = False
    for column in (shard, number, text):
        new[1:] |= column[order][1:] != column[order][:-1]
    starts = np.flatnonzero(new)
    whole = starts[np.diff(starts, append=len(order)) == len(records)]
    sizes = [len(one) for one in records]
    rows = order[whole + np.arange(len(records))[:, None]] - np.cumsum([0, *sizes[:-1]])[:, None]
    return np.asarray(rows[:, np.argsort(rows[0])], dtype=np.int64)


def differing(protocols: Sequence[dict[str, Any]]) -> list[str]:
    """Where protocols differ so that figures of equal models would: a sentence for each model and thing that does."""
    found = []
    first = protocols[0]
    for letter, other in zip(LETTERS[1:], protocols[1:], strict=False):
        one, two = first["max_length"], other["max_length"]
        if one != two:
            found.append(
                f"A was scored in windows of {one:,} tokens, {letter} of {two:,}, and longer ones alone lower a "
                f"figure; score both with --max-length {min(one, two)}"
            )
        one, two = first["context_len"], other["context_len"]
        if one != two:
            found.append(
                f"A was scored with --context-len {one}, {letter} with {two}, and more context alone lowers a figure; "
                "score both with the same"
            )
        if (prefixes := _prefixes(first, other)) is not None:
            found.append(
                f"A was scored with {prefixes[0]}, {letter} with {prefixes[1]}; score both with the same --prefix"
            )
        one, two = first["dtype"], other["dtype"]
        if one != two:
            found.append(
                f"A was computed in {one}, {letter} in {two}, and rounding alone moves a figure; score both with the "
                "same --dtype"
            )
        if first["kind"] == "masked":
            found += _masked_differing(first, other, letter)
    return found


def _masked_differing(first: dict[str, Any], other: dict[str, Any], letter: str) -> list[str]:
    """What else differs of masked models: which tokens are masked, and what stands around a window."""
    found = []
    one, two = first.get("mlm_sample"), other.get("mlm_sample")
    if one != two:
        words = ["each token" if sample is None else f"{sample:,} tokens of a window" for sample in (one, two)]
        found.append(
            f"A was scored on {words[0]}, {letter} on {words[1]}, and a sample alone moves a figure; score both with "
            "the same --mlm-sample"
        )
    elif first["windows"] != other["windows"]:
        found.append(f"A and {letter} were scored in windows of other rules; score both with the same pilekit")
    around = [_around(protocol["template"]) for protocol in (first, other)]
    same_tokenizer = first["tokenizer"]["fingerprint"] == other["tokenizer"]["fingerprint"]
    if around[0] != around[1] or (same_tokenizer and first["template"] != other["template"]):
        found.append(
            f"what stands around a window differs ({around[0]} of A, {around[1]} of {letter}), and is seen by each "
            "prediction; score both with tokenizers of one template"
        )
    return found


def _around(template: dict[str, Any]) -> str:
    """How many special tokens a masked model's windows have; which ones is a matter of the tokenizer."""
    return f"{len(template['before'])} special tokens before and {len(template['behind'])} behind"


def left_out_text(left_out: Sequence[int]) -> str:
    """Which documents were not compared."""
    counts = ", ".join(f"{count:,} of {letter}" for letter, count in zip(LETTERS, left_out, strict=False) if count)
    return f"left out: {counts}"


def _prefixes(first: dict[str, Any], other: dict[str, Any]) -> tuple[str, str] | None:
    """The prefixes in words, if they differ: one predicts first tokens, the other not, or one tokenizer has two."""
    before, after = (protocol["prefix"]["id"] for protocol in (first, other))
    same_tokenizer = first["tokenizer"]["fingerprint"] == other["tokenizer"]["fingerprint"]
    if before == after or (None not in (before, after) and not same_tokenizer):
        return None
    words = [
        "no prefix (first tokens not predicted)" if one is None else f"the prefix token {one}"
        for one in (before, after)
    ]
    return words[0], words[1]


def _differences(records: Sequence[Records], rows: npt.NDArray[np.int64]) -> tuple[Against, ...]:
    first = records[0]
    columns = np.column_stack(
        [
            first.bytes[rows[0]].astype(np.float64),
            *(one.nll[where] for one, where in zip(records, rows, strict=True)),
        ]
    )
    subset = first.subset[rows[0]]
    overall = _of(columns)
    subsets = {first.subsets[code]: _of(columns[subset == code]) for code in np.unique(subset).tolist()}
    return tuple(
        Against(overall[number], {name: of[number] for name, of in subsets.items()})
        for number in range(len(records) - 1)
    )


def _of(columns: npt.NDArray[np.float64]) -> list[Difference]:
    """Each further model against the first; `columns` float64 [documents, 1 + models]: bytes, then each one's nats."""
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


def _nothing_common(records: Sequence[Records]) -> str:
    texts = records[0].text
    for one in records[1:]:
        texts = np.intersect1d(texts, one.text)
    if len(texts):
        return (
            "there is no document that all results scored: the same texts are there, but in shards of other names "
            f"({_shards(records)}); name the shards from the same folder in every run"
        )
    return f"there is no document that all results scored ({_shards(records)}); score all on the same shards"


def _shards(records: Sequence[Records]) -> str:
    return "; ".join(
        f"{letter}: {visible(', '.join(one.shards[:3]) or 'none', 120)}"
        for letter, one in zip(LETTERS, records, strict=False)
    )


def _documents(count: int) -> str:
    return "1 document" if count == 1 else f"{count:,} documents"
