"""Published figures that may be shown beside a result, and the warnings about a result's data.

Readers compare two numbers that stand side by side. So published figures are shown only for a causal model, disjoint
windows (`context_len` 1), and documents of the Pile's val or test. The names of the shards, and the labels of their
documents, scored or not, identify val and test: the labels must be the 22 subsets, all of them and no others. The
paper's variant with another tokenizer than GPT-2's gets no published figures. The protocols still differ: the manifest
says where and how each figure was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from pilekit.corpus import Manifest, PublishedResult, load_manifest
from pilekit.corpus.shard import split_of
from pilekit.errors import counted
from pilekit.evaluate.results import paper
from pilekit.evaluate.results.records import Records

SECONDARY = "secondary"
_WITHOUT_FIVE = "pile-uncopyrighted"


@dataclass(frozen=True, slots=True)
class Published:
    """Published figures that may be shown beside a result.

    columns   models with figures per subset; in the manifest's order. `overall` is None if no overall figure is
              published, or if the result lacks a subset; `certainty` is "secondary" if any figure comes from a copy
    overall   models with an overall figure alone, measured on the same split
    differs   the differences in protocol, in a sentence or two
    """

    columns: tuple[PublishedResult, ...]
    overall: tuple[PublishedResult, ...]
    differs: str

    def to_dict(self) -> dict[str, Any]:
        """`{"columns": [{"model", "overall", "subsets", ..., "is_secondary"}], "overall": [...], "differs"}`."""
        names = ("model", "overall", "subsets", "split", "measured_on", "source")
        columns, overall = (
            [{**{name: getattr(one, name) for name in names}, "is_secondary": one.certainty == SECONDARY} for one in of]
            for of in (self.columns, self.overall)
        )
        return {"columns": columns, "overall": overall, "differs": self.differs}


def published_beside(records: Records, protocol: dict[str, Any], manifest: Manifest) -> Published | None:
    """The published figures that may be shown beside the figures of `records`, or None."""
    pile = manifest if manifest.tables_from is None else load_manifest(manifest.tables_from)
    splits, names = {str(split_of(name)) for name in records.shards}, {subset.name for subset in pile.subsets}
    is_pile = splits and splits <= {"val", "test"} and len(names) == 22 and set(protocol["labels"]) == names
    if not is_pile or protocol["kind"] == "masked" or protocol["context_len"] != 1:
        return None
    if protocol["paper"] and paper.another_tokenizer(records, protocol, manifest) is not None:
        return None
    split = " and ".join(sorted(splits, reverse=True))
    found: dict[tuple[str, str], PublishedResult] = {}
    notes: dict[str, None] = {}
    for result in pile.published:
        if result.metric != "bits_per_byte" or result.split is None or result.certainty == "recalled":
            continue
        # One table may have a model's subsets, and another its overall figure.
        old = found.setdefault((result.model, result.split), result)
        found[result.model, result.split] = replace(
            old,
            overall=result.overall if old.overall is None else old.overall,
            subsets=old.subsets or result.subsets,
            certainty=SECONDARY if SECONDARY in (old.certainty, result.certainty) else old.certainty,
        )
        if result.subsets and result.certainty == "verified":
            notes[f"{result.title} of {result.source}, on {result.measured_on}. {result.note}".strip()] = None
    # A published overall figure covers all 22 subsets, so it is not shown beside a figure of only some of them.
    whole = len(np.unique(records.subset)) == len(names)
    columns = [column if whole else replace(column, overall=None) for column in found.values() if column.subsets]
    overall = [column for column in found.values() if whole and not column.subsets and str(column.split) in split]
    windows = counted(protocol["max_length"], "token")
    here = [f"Here: {counted(len(records))} of {split}", f"windows of {windows}"]
    here.append("the paper's constants" if protocol["paper"] else "bytes counted")
    if protocol["prefix"]["id"] is None:
        here.append("first tokens not predicted")
    return Published(tuple(columns), tuple(overall), f"{' '.join(notes)} {', '.join(here)}.".strip())


def warnings_on(records: Records, protocol: dict[str, Any], manifest: Manifest) -> tuple[str, ...]:
    """Warnings for the reader: subsets of the Pile left out, constants that do not fit."""
    found = []
    seventeen = {subset.name for subset in load_manifest(_WITHOUT_FIVE).subsets}
    if manifest.name == _WITHOUT_FIVE or set(protocol["labels"]) == seventeen:
        found.append(
            "these are 17 of the Pile's 22 subsets (pile-uncopyrighted leaves out Books3, BookCorpus2, OpenSubtitles, "
            "YoutubeSubtitles and OpenWebText2): overall figures do not compare with those on the whole Pile"
        )
    if protocol["paper"] and (other := paper.another_tokenizer(records, protocol, manifest)) is not None:
        found.append(other)
    return tuple(found)
