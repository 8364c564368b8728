"""`tabulate`: from records to figures, a pure function.

The same records give the same figures to the last bit, on any machine; sums are exact (`fsum`).

There are two overall figures, for two questions. Pooled: what does a byte of the scored documents cost? Weighted: what
does a byte of the corpus cost? Each subset's figure counts by the subset's share of the mixture, however much of it was
scored. All intervals use the same splits of a subset's documents.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pilekit.corpus import Manifest
from pilekit.evaluate.results.intervals import FEWEST, SPLITS, Float64, interval, split_sums
from pilekit.evaluate.results.published import bytes_of_all_tokens, bytes_of_tokens
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.scores import Score, Weighted


class Figures(NamedTuple):
    """Pooled over all documents, of each subset, and weighted by the manifest's mixture if it has weights."""

    overall: Score
    subsets: dict[str, Score]
    weighted: Weighted | None


def tabulate(records: Records, in_paper: bool, manifest: Manifest) -> Figures:
    """The figures of `records`.

    in_paper   the paper's variant: bytes by its constants
    manifest   its order of subsets, weights, and constants of the paper
    """
    codes = [code for code in range(len(records.subsets)) if np.any(records.subset == code)]
    parts = {records.subsets[code]: records.where(records.subset == code) for code in codes}
    weights = {subset.name: subset.weight_percent for subset in manifest.subsets if subset.weight_percent}
    scores = {}
    pooled, mixture = np.zeros((2, SPLITS)), np.zeros((2, SPLITS))
    for name, part in parts.items():
        sums = _sums(part)
        paper_bytes = bytes_of_tokens(sums.tokens, name, manifest) if in_paper else None
        drawn = split_sums(np.array([part.nll, part.tokens if in_paper else part.bytes]), name)
        scores[name] = score = _with_interval(sums, paper_bytes, part, drawn)
        pooled += drawn
        if name in weights and score.bpb is not None:
            mixture += weights[name] / _divisor(score) * drawn * np.array([[1.0], [_bytes_per_unit(score)]])
    whole = _sums(records)
    paper_bytes = bytes_of_all_tokens(whole.tokens, scores, manifest) if in_paper else None
    overall = _with_interval(whole, paper_bytes, records, pooled)
    return Figures(overall, scores, _weighted(scores, mixture, records, weights))


def _sums(records: Records) -> Score:
    return Score(
        documents=len(records),
        bytes=int(records.bytes.sum()),
        tokens=int(records.tokens.sum()),
        nll=math.fsum(records.nll.tolist()),
    )


def _with_interval(sums: Score, paper_bytes: float | None, records: Records, drawn: Float64) -> Score:
    """The score with its interval, from the sums of nats and of bytes over the first part of each split.

    In the paper's variant the divisor is proportional to the tokens, so the sums are of tokens.
    """
    score = replace(sums, paper_bytes=paper_bytes)
    if np.count_nonzero(records.bytes) < FEWEST or score.bpb is None:
        return score
    bits = drawn * np.array([[1 / math.log(2)], [_bytes_per_unit(score)]])
    return replace(score, interval=interval(bits, [score.bpb * _divisor(score), _divisor(score)]))


def _divisor(score: Score) -> float:
    return score.bytes if score.paper_bytes is None else score.paper_bytes


def _bytes_per_unit(score: Score) -> float:
    """The bytes for each unit of the divisor: 1, or in the paper's variant the bytes of a token."""
    return 1.0 if score.paper_bytes is None else score.paper_bytes / score.tokens


def _weighted(scores: dict[str, Score], drawn: Float64, records: Records, weights: dict[str, float]) -> Weighted | None:
    """The mixture. `drawn` holds the sums of nats and bytes over the first parts, multiplied by weight / bytes."""
    bpb_of = {name: scores[name].bpb for name in weights if name in scores}
    figures = {name: bpb for name, bpb in bpb_of.items() if bpb is not None}
    if not figures:
        return None
    total_weight = math.fsum(weights[name] for name in figures)
    bpb = math.fsum(weights[name] / total_weight * figure for name, figure in figures.items())
    is_weighted = np.isin(records.subset, [code for code, name in enumerate(records.subsets) if name in figures])
    enough = np.count_nonzero(records.bytes[is_weighted]) >= FEWEST
    return Weighted(
        bpb,
        interval(drawn / np.array([[math.log(2)], [1.0]]), [bpb * total_weight, total_weight]) if enough else None,
        total_weight / math.fsum(weights.values()),
        tuple(name for name in weights if name not in figures),
        any(scores[name].is_approximate for name in figures),
        {name: weights[name] / total_weight for name in figures},
    )
