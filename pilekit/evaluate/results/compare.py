"""`compare`: the difference of models on the same documents, its interval, and whether it is clear.

    results -> the documents that all of them scored -> differences per subset, over all, and over the mixture

The intervals of two figures say little about their difference: most of an interval comes from which documents are hard,
and these are the same for both models. So documents are paired by their identity (shard name, number, hash of the
text), and the interval is that of the paired differences. If models err alike, it is many times narrower than the two
intervals. It holds the intervals of two tests: the sign-flip test is exact for gains and losses that are alike, and the
studentised bootstrap knows better where they are not. Each further model is compared with the first, all on the same
documents.

A verdict on one of several subsets uses its p-value adjusted by Holm's method, so that the chance of any false verdict
on equal models is 5 %. Under ten documents with text there is no interval and no verdict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.display.table_result import Result, as_json
from pilekit.errors import PilekitError, shortened
from pilekit.evaluate.results.difference import Against, Difference
from pilekit.evaluate.results.intervals import (
    FEWEST,
    Float64,
    Resampled,
    holm,
    interval,
    p_value,
    split_sums,
    total,
)
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.scores import Weighted, model_path
from pilekit.evaluate.show.tables import differences_table

if TYPE_CHECKING:
    import pyarrow as pa

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Comparison(Result):
    """The result of `compare`.

    kind       "causal" or "masked"
    models     the name of each model: its path or letter, and the folder of its result if given
    against    the second model against the first, the third against the first, ...
    left_out   number of each model's documents that not all others scored
    cautions   differences between the protocols that would change even equal models' figures, a sentence each
    paths      the models' folders; None: a model in memory
    manifest   the name of the corpus's manifest
    by         "length" or `FILE:COLUMN`, if rows are not subsets
    """

    kind: str
    models: tuple[str, ...]
    against: tuple[Against, ...]
    left_out: tuple[int, ...]
    cautions: tuple[str, ...]
    paths: tuple[str | None, ...] = ()
    manifest: str = ""
    by: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For two models `{"subsets": {name: {"difference", ...}}, "overall": {...}, "weighted": {...}, ...}`.

        `overall` also has "models", "left_out" and "cautions"; "weighted" also has "weight", and is null without
        weights; "paths", "manifest" and "by" follow. For more models it is `{"comparisons": [...]}`, with the same for
        each further model against the first.
        """
        pairs = []
        for number, against in enumerate(self.against, 1):
            pair = [0, number]
            overall = {
                **against.overall.to_dict(),
                "models": [self.models[place] for place in pair],
                "left_out": [self.left_out[place] for place in pair],
                "cautions": list(self.cautions),
            }
            weighted = None if against.weighted is None else {**against.weighted.to_dict(), "weight": against.weight}
            origin = {"paths": [self.paths[place] for place in pair], "manifest": self.manifest, "by": self.by}
            pairs.append({"subsets": as_json(against.subsets), "overall": overall, "weighted": weighted, **origin})
        return pairs[0] if len(pairs) == 1 else {"comparisons": pairs}

    def to_arrow(self) -> pa.Table:
        """A row per subset and further model, with the figures of `to_dict`, for pandas, polars and plots."""
        import pyarrow as pa

        rows = [
            {"model": model, "subset": name, **difference.to_dict()}
            for model, against in zip(self.models[1:], self.against, strict=True)
            for name, difference in against.subsets.items()
        ]
        return pa.Table.from_pylist(rows)

    def _repr_html_(self) -> str:
        letters = zip(LETTERS[1:], self.against, strict=False)
        return "".join(differences_table(against, letter)._repr_html_() for letter, against in letters)


def compare(results: Sequence[BitsPerByte], folders: Sequence[str | Path | None] | None = None) -> Comparison:
    """Compare each further model with the first, on the documents that all of them scored.

    results   of two models or more, or of one model by several protocols
    folders   the folder of each result, which follows its model's name; None: not named

    Tokenizers may differ, because bytes are counted. The result has a sentence for each difference between the
    protocols that changes figures. PilekitError for fewer than two results, for a result without records, for causal
    and masked models together, and if no document was scored by all.
    """
    protocols = [result.protocol for result in results]
    folders = folders or [None] * len(results)
    models = tuple(
        (model_path(protocol) or letter) + ("" if folder is None else f" ({folder})")
        for letter, protocol, folder in zip(LETTERS, protocols, folders, strict=False)
    )
    records = [result.records for result in results if result.records is not None]
    if len(records) < len(results):
        raise PilekitError("a result without records cannot be compared; score the model again, with --out")
    check_kinds([protocol["kind"] for protocol in protocols])
    rows = common_rows(records)
    if not rows.shape[1]:
        shards = "; ".join(
            f"{letter}: {shortened(', '.join(scored.shards[:3]) or 'none', 120)}"
            for letter, scored in zip(LETTERS, records, strict=False)
        )
        raise PilekitError(f"there is no document that all results scored ({shards}); score all on the same shards")
    cautions = tuple(protocol_cautions(protocols))
    left_out = tuple(len(scored) - rows.shape[1] for scored in records)
    against, first = _differences(records, rows, results[0].mixture), protocols[0]
    paths = tuple(map(model_path, protocols))
    return Comparison(first["kind"], models, against, left_out, cautions, paths, first["manifest"], first.get("by"))


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
    rows_by_identity = [
        {(document.shard, document.number, document.text): row for row, document in enumerate(scored.documents())}
        for scored in records
    ]
    common = [identity for identity in rows_by_identity[0] if all(identity in rows for rows in rows_by_identity[1:])]
    return np.array([[rows[identity] for identity in common] for rows in rows_by_identity], dtype=np.int64)


def protocol_cautions(protocols: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each field of a protocol that differs from the first protocol's and moves figures by itself.

    Token ids are compared only within one tokenizer.
    """
    sentences, first = [], protocols[0]
    for letter, further in zip(LETTERS[1:], protocols[1:], strict=False):
        same_tokenizer = first["tokenizer"]["fingerprint"] == further["tokenizer"]["fingerprint"]
        for name in ("max_length", "context_len", "prefix", "dtype", "mlm_sample", *(["template"] * same_tokenizer)):
            values = [
                protocol["prefix"]["id" if same_tokenizer else "given"] if name == "prefix" else protocol.get(name)
                for protocol in (first, further)
            ]
            if values[0] != values[1]:
                scored = f"A was scored with {name} {json.dumps(values[0])}, {letter} with {json.dumps(values[1])}"
                sentences.append(f"{scored}, which alone moves a figure")
    return sentences


class _Sums(NamedTuple):
    """Sums over the documents of a subset; `texts` of them have text.

    bits    float64 [models]: bits of each model
    drawn   float64 [models, SPLITS]: each further model's bits minus the first's, and last the bytes, over the first
            part of each split
    each    float64 [models, documents]: the same of each document alone
    """

    bits: Float64
    drawn: Float64
    each: Float64
    documents: int
    bytes: int
    texts: int


def _differences(
    records: Sequence[Records], rows: npt.NDArray[np.int64], mixture: Weighted | None
) -> tuple[Against, ...]:
    """Each further model against the first, on the rows [results, documents] of the common documents."""
    first, weights = records[0], {} if mixture is None else mixture.weights
    size, subset = first.bytes[rows[0]], first.subset[rows[0]]
    bits = np.stack([scored.nll[common] for scored, common in zip(records, rows, strict=True)]) / math.log(2)
    columns = np.stack([*(bits[1:] - bits[0]), size])
    sums: dict[str, _Sums] = {}
    for code in np.unique(subset).tolist():
        name, is_here = first.subsets[code], subset == code
        exact = np.array([math.fsum(bits_of_model) for bits_of_model in bits[:, is_here].tolist()])
        counts = int(is_here.sum()), int(size[is_here].sum()), int(np.count_nonzero(size[is_here]))
        sums[name] = _Sums(exact, split_sums(columns[:, is_here], name), columns[:, is_here], *counts)
    by_subset = {name: _weighted_differences([(1.0, part)]) for name, part in sums.items()}
    pooled = _weighted_differences([(1.0, part) for part in sums.values()])
    shares = [(weights[name] / part.bytes, part) for name, part in sums.items() if part.bytes and name in weights]
    weight = 0.0 if mixture is None else mixture.weight * sum(share * part.bytes for share, part in shares)
    by_mixture = _weighted_differences(shares) if weight else [None] * len(pooled)
    return tuple(
        Against(overall, _adjusted({name: models[number] for name, models in by_subset.items()}), weighted, weight)
        for number, (overall, weighted) in enumerate(zip(pooled, by_mixture, strict=True))
    )


def _weighted_differences(parts: Sequence[tuple[float, _Sums]]) -> list[Difference]:
    """Each further model against the first over several subsets, whose bits and bytes count by a weight."""
    documents, size, texts = map(sum, zip(*(sums[3:] for _, sums in parts), strict=True))
    first_bits, *further_bits = np.sum([weight * sums.bits for weight, sums in parts], axis=0).tolist()
    if not size:
        return [Difference(documents, 0)] * len(further_bits)
    drawn = np.sum([weight * sums.drawn for weight, sums in parts], axis=0)
    divisor, differences = sum(weight * sums.bytes for weight, sums in parts), []
    each = np.concatenate([weight * sums.each for weight, sums in parts], axis=1)
    for bits, split_gains, gains in zip(further_bits, drawn[:-1], each[:-1], strict=True):
        sums, whole = np.stack([split_gains, drawn[-1]]), [bits - first_bits, divisor]
        span, p = _span(sums, whole, Resampled.of(gains, each[-1])) if texts >= FEWEST else (None, None)
        bpb = first_bits / divisor, bits / divisor
        shape = (None, None) if span is None else _shape(gains - whole[0] / divisor * each[-1], each[-1])
        differences.append(Difference(documents, size, bpb, whole[0] / divisor, span, p, p, *shape))
    return differences


def _span(
    sums: Float64, whole: Sequence[float], resampled: Resampled
) -> tuple[tuple[float, float], float] | tuple[None, None]:
    """The interval that holds those of both tests, and the greater p-value; None if a test has no bounded interval."""
    flipped, drawn_anew = interval(sums, whole), resampled.interval()
    if flipped is None or drawn_anew is None:
        return None, None
    p = max(p_value(sums, whole), resampled.p_value())
    return (min(flipped[0], drawn_anew[0]), max(flipped[1], drawn_anew[1])), p


def _shape(residuals: Float64, sizes: Float64) -> tuple[float, float]:
    """The skewness of the residuals' sum and the evenness of the sizes."""
    squares = total(residuals**2)
    skewness = abs(total(residuals**3)) / squares**1.5 if squares else 0.0
    return skewness, total(sizes) ** 2 / (int(np.count_nonzero(sizes)) * total(sizes**2))


def _adjusted(subsets: dict[str, Difference]) -> dict[str, Difference]:
    """The differences with p-values adjusted for the number of subsets that have a p-value."""
    p_values = {name: difference.p for name, difference in subsets.items() if difference.p is not None}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return {name: replace(difference, adjusted_p=adjusted.get(name)) for name, difference in subsets.items()}
