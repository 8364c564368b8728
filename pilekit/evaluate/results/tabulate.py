"""`tabulate`: from records to figures, a pure function.

The same records give the same figures to the last bit, on any machine; sums are exact (`fsum`).

There are two overall figures, for two questions. Pooled: what does a byte of the scored documents cost? Its interval
draws from all documents alike. Weighted: what does a byte of the corpus cost? Each subset's figure counts by the
subset's share of the mixture, however much of it was scored. Its interval draws from each subset separately, because
the mixture is not random.
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
from pilekit.evaluate.results.intervals import METHOD, REPLICATES, SEED, interval, ratios, resampled_sums
from pilekit.evaluate.results.published import published_beside, warnings_on, why_withheld
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result import BitsPerByte, Score, Weighted

Float64 = npt.NDArray[np.float64]


def tabulate(records: Records, protocol: dict[str, Any], manifest: Manifest) -> BitsPerByte:
    """The figures of `records`: per subset, pooled over all, and weighted by the manifest's mixture.

    protocol   how the documents were scored; the result's protocol also says how intervals were made
    manifest   its order of subsets, weights, constants of the paper, and published figures
    """
    in_paper = bool(protocol["paper"])
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
    protocol = {**protocol, "intervals": METHOD}
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
    """The score with its interval, and the resampled bits per byte behind the interval, if any.

    In the paper's variant the divisor is proportional to the tokens, so tokens are resampled.
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
    figures = {name: score.bpb for name, score in scores.items() if name in weights and score.bpb is not None}
    there = [name for name in weights if name in figures]
    if not there:
        return None
    weight_there = math.fsum(weights[name] for name in there)
    replicates = np.zeros(REPLICATES)
    for name in there:
        resampled = drawn[name]
        replicates += weights[name] / weight_there * (figures[name] if resampled is None else resampled)
    held_fixed = tuple(name for name in there if drawn[name] is None)
    return Weighted(
        math.fsum(weights[name] / weight_there * figures[name] for name in there),
        interval(replicates) if len(held_fixed) < len(there) else None,
        weight_there / math.fsum(weights.values()),
        tuple(name for name in weights if name not in figures),
        held_fixed,
        any(scores[name].is_approximate for name in there),
    )


def _seed(subset: str) -> int:
    """A seed for each subset, so that the draws of subsets are independent."""
    return SEED + (zlib.crc32(subset.encode(errors="surrogatepass")) + 1 << 32)
