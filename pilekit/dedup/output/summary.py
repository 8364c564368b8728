"""The summary of a run: documents read, kept and removed per subset, and a check that none got lost.

Read documents are counted by the sketches, kept ones by the masks, removed ones by the proofs. These are three
independent counts, and in every subset:

    read = kept + removed + skipped (+ left out)

Skipped: bad lines, which have no subset. Left out: documents of other subsets, with `only`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pilekit.dedup.output.removed_table import DecisionResult
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.shingles import Int64
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.errors import PilekitError


def summarize(
    sketches: Iterable[ShardSketch],
    labels: Sequence[str],
    kept_counts: Int64,
    decided: DecisionResult,
    bands: Bands,
    parameters: Mapping[str, Any],
) -> dict[str, Any]:
    """The summary as `summary.json` holds it; `PilekitError` if the counts do not add up.

    labels      in alphabetical order
    kept_counts (documents, bytes of text) of each label, int64 [2, labels]
    parameters  the run's; if it protects held-out shards, `like_held_out` counts the documents that other shards lose
                because these shards have them
    """
    only, protected, removed = parameters["only"], parameters.get("held_out", ()), decided.removed
    read, place_of = np.zeros_like(kept_counts), {label: place for place, label in enumerate(labels)}
    skipped, selected, held_out = 0, None, 0  # All sketches have the same selected subsets.
    for sketch in sketches:
        skipped += sketch.header.skipped
        selected = sketch.header.subsets
        for label, documents_and_bytes in sketch.header.counts.items():
            read[:, place_of[label]] += documents_and_bytes
            if sketch.header.shard in protected and (not only or selected is None or label in selected):
                held_out += documents_and_bytes[0]

    subsets: dict[str, dict[str, Any]] = {}
    rows = np.vstack([read, kept_counts, removed.documents, removed.text_bytes, removed.held_out]).T
    for place in np.argsort(-read[1], kind="stable").tolist():  # labels are in alphabetical order
        documents, read_bytes, stay, kept_bytes, exact, near, removed_bytes, like = rows[place].tolist()
        if documents:
            label = labels[place]
            counts = {"read": documents, "kept": stay, "removed": exact + near, "exact": exact, "near": near}
            counts["skipped"] = 0
            if only:
                counts["left_out"] = 0 if selected is None or label in selected else documents
            if protected:
                counts["like_held_out"] = like
            subsets[label] = {**counts, "bytes": {"read": read_bytes, "kept": kept_bytes, "removed": removed_bytes}}
            _check(subsets[label], f"subset {label}")

    more = [*["left_out"] * only, *["like_held_out"] * bool(protected)]
    total: dict[str, Any] = {
        count: sum(counts[count] for counts in subsets.values())
        for count in ("read", "kept", "removed", "exact", "near", "skipped", *more)
    }
    total["read"] += skipped
    total["skipped"] += skipped
    _check(total, "all")
    total["bytes"] = {
        count: sum(counts["bytes"][count] for counts in subsets.values()) for count in ("read", "kept", "removed")
    }
    if protected:
        total["held_out"] = {"shards": [*protected], "documents": held_out}
    total["subsets"] = subsets
    total["matching"] = {"bands": bands.bands, "rows": bands.rows, "recall": bands.probability(parameters["threshold"])}
    if decided.compared.hot_documents:
        total["hot"] = {"runs": decided.compared.hot_runs, "documents": decided.compared.hot_documents}
    if removed.repeated:
        total["up_sampled"] = removed.repeated
    return total


def _check(counts: Mapping[str, Any], name: str) -> None:
    out = counts["kept"] + counts["removed"] + counts["skipped"] + counts.get("left_out", 0)
    size = counts.get("bytes")
    lost = size is not None and not counts.get("left_out") and size["read"] != size["kept"] + size["removed"]
    if counts["read"] != out or lost:
        raise PilekitError(
            f"documents got lost ({name}): {counts['read']:,} read, but {counts['kept']:,} kept, {counts['removed']:,} "
            f"removed, {counts['skipped']:,} skipped, {counts.get('left_out', 0):,} left out; do not use the "
            "output, and please report this"
        )
