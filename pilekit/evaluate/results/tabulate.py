"""`tabulate`: from records to figures, a pure function.

Whoever has the records of an evaluation has its table: nothing else goes into it, and the same records in the same
order give the same figures to the last bit, on any machine. Sums are exact (`fsum`), so they depend on no order at all.

Overall there are two figures, of two questions. Pooled: what does a byte of the documents that were read cost? Its
interval draws from all documents alike. Weighted: what does a byte of the corpus cost? Its subsets' figures count by
their share of the mixture, whatever was read of each; its interval draws from each subset on its own, as the mixture is
no matter of chance.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Manifest
from pilekit.evaluate.results import paper
from pilekit.evaluate.results.intervals import REPLICATES, SEED, interval, method, ratios, resampled_sums
from pilekit.evaluate.results.published import published_beside, warnings_on, why_withheld
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result import APPROXIMATE_BELOW, BitsPerByte, Score, Weighted

Float64 = npt.NDArray[np.float64]


def tabulate(records: Records, protocol: dict[str, Any], manifest: Manifest) -> BitsPerByte:
    """The figures of `records`: per subset, pooled over all, and weighted by the manifest's mixture.

    protocol   how they were scored. "kind" ("causal" or "masked"), "paper" (the paper's variant), "context_len" and
               "labels" (of all documents that were read) are used here; the result's has "intervals" besides, how those
               were made
    manifest   its order of subsets, weights, constants of the paper, and published figures
    """
    in_paper = bool(protocol.get("paper"))
    codes = [code for code in range(len(records.subsets)) if np.any(records.subset == code)]
    parts = {records.subsets[code]: records.where(records.subset == code) for code in codes}
    scores, drawn = {}, {}
    for name, part in parts.items():
        sums = _sums(part)
        given = paper.bytes_of_tokens(sums.tokens, name, manifest) if in_paper else None
        scores[name], drawn[name] = _with_interval(sums, given, part, _seed(name))
    whole = _sums(records)
    given = paper.bytes_of_all_tokens(whole.tokens, scores, manifest) if in_paper else None
    overall, _ = _with_interval(whole, given, records, SEED)
    protocol = {**protocol, "intervals": method()}
    return BitsPerByte(
        overall,
        scores,
        protocol,
        weighted=_weighted(scores, drawn, manifest),
        records=records,
        published=published_beside(records, protocol, manifest),
        withheld=why_withheld(records, protocol, manifest),
        warnings=warnings_on(records, protocol, manifest),
    )


def _sums(records: Records) -> Score:
    return Score(
        documents=len(records),
        bytes=int(records.bytes.sum()),
        tokens=int(records.tokens.sum()),
        nll=math.fsum(records.nll.tolist()),
    )


def _with_interval(sums: Score, paper_bytes: float | None, records: Records, seed: int) -> tuple[Score, Float64 | None]:
    """The score with its interval, and the resampled bits per byte it is from; None where there is none.

    In the paper's variant the divisor is proportional to the tokens, so that they are what is resampled.
    """
    divisors = records.bytes if paper_bytes is None else records.tokens
    bytes_each = 1.0 if paper_bytes is None else paper_bytes / max(sums.tokens, 1)
    score = replace(sums, paper_bytes=paper_bytes)
    if len(records) < 2 or score.bpb is None:
        return score, None
    columns = np.column_stack([records.nll, divisors.astype(np.float64)])
    drawn = ratios(resampled_sums(columns, seed=seed)) / (math.log(2) * bytes_each)
    found = interval(drawn)
    return replace(score, interval=found), None if found is None else drawn


def _weighted(scores: dict[str, Score], drawn: dict[str, Float64 | None], manifest: Manifest) -> Weighted | None:
    weights = {subset.name: subset.weight_percent for subset in manifest.subsets if subset.weight_percent}
    there = {name: weight for name, weight in weights.items() if name in scores and scores[name].bpb is not None}
    if not there:
        return None
    all_there = math.fsum(there.values())
    mean, replicates, held_fixed = [], np.zeros(REPLICATES), []
    for name, weight in there.items():
        figure, resampled = scores[name].bpb, drawn[name]
        assert figure is not None
        mean.append(weight / all_there * figure)
        if resampled is None:
            held_fixed.append(name)
        replicates += weight / all_there * (figure if resampled is None else resampled)
    return Weighted(
        math.fsum(mean),
        interval(replicates) if len(held_fixed) < len(there) else None,
        all_there / math.fsum(weights.values()),
        tuple(name for name in weights if name not in there),
        tuple(held_fixed),
        any(scores[name].documents < APPROXIMATE_BELOW for name in there),
    )


def _seed(subset: str) -> int:
    """A seed of the subset's own: what is drawn of one subset tells nothing of what is drawn of another."""
    return SEED + (zlib.crc32(subset.encode(errors="surrogatepass")) + 1 << 32)
