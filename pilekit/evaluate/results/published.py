"""Published figures that may be shown with a result, the warnings about its data, and the paper's own measure.

Readers compare two numbers that stand side by side. So published figures are shown only for a causal model, disjoint
windows (`context_len` 1), and documents of the Pile's val or test. The names of the shards, and the labels of their
documents, scored or not, identify val and test: the labels must be the 22 subsets, all of them and no others. The
paper's variant with another tokenizer than GPT-2's gets no published figures. The protocols still differ: the manifest
says where and how each figure was measured.

In the paper's variant of bits per byte, tokens stand for bytes by a fixed constant per subset. Its figure of a subset
is L_T / L_B * nll / tokens / ln 2, where L_T / L_B, the tokens per byte of the GPT-2 tokenizer, is a constant of its
Table 7. That is nll / ln 2 divided by tokens / constant bytes, and it is meaningful only for models of that tokenizer.
Table 2 of the paper is Table 7 times log2 of Table 8, in all 176 cells to 0.0003. Its overall figures are 0.29335, the
whole Pile's constant, times log2 of the overall perplexity per token, in all 8 cells to 0.0001; so pooled figures here
are the same formula over the tokens read.

The paper does not say how its overall perplexities follow from those of the subsets, and none of the weights that it
publishes gives them for all models. The nearest is the mean of the subsets' bits per byte weighted by the mixture, the
other overall figure here: within 0.004 of the paper's for the GPT-2 models, 0.021 to 0.026 below it for GPT-3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from pilekit.corpus import Manifest, PublishedResult, load_manifest
from pilekit.corpus.shard import split_of
from pilekit.display.table_result import Result
from pilekit.errors import counted
from pilekit.evaluate.results.records import Records

SECONDARY = "secondary"
_WITHOUT_FIVE = "pile-uncopyrighted"
FAR = 0.1
"""If tokens per byte differ more than this from the constants, the tokenizer is not GPT-2's."""


@dataclass(frozen=True, slots=True)
class Published(Result):
    """Published figures that a result may be compared with.

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
            [
                {**{name: getattr(model, name) for name in names}, "is_secondary": model.certainty == SECONDARY}
                for model in models
            ]
            for models in (self.columns, self.overall)
        )
        return {"columns": columns, "overall": overall, "differs": self.differs}


def published_beside(records: Records, protocol: dict[str, Any], manifest: Manifest) -> Published | None:
    """The published figures that the figures of `records` may be compared with, or None."""
    pile = manifest if manifest.tables_from is None else load_manifest(manifest.tables_from)
    splits, names = {str(split_of(name)) for name in records.shards}, {subset.name for subset in pile.subsets}
    is_pile = splits and splits <= {"val", "test"} and len(names) == 22 and set(protocol["labels"]) == names
    if not is_pile or protocol["kind"] == "masked" or protocol["context_len"] != 1:
        return None
    if protocol["paper"] and another_tokenizer(records, protocol, manifest) is not None:
        return None
    split = " and ".join(sorted(splits, reverse=True))
    merged: dict[tuple[str, str], PublishedResult] = {}
    notes: dict[str, None] = {}
    for result in pile.published:
        if result.metric != "bits_per_byte" or result.split is None or result.certainty == "recalled":
            continue
        # One table may have a model's subsets, and another its overall figure.
        old = merged.setdefault((result.model, result.split), result)
        merged[result.model, result.split] = replace(
            old,
            overall=result.overall if old.overall is None else old.overall,
            subsets=old.subsets or result.subsets,
            certainty=SECONDARY if SECONDARY in (old.certainty, result.certainty) else old.certainty,
        )
        if result.subsets and result.certainty == "verified":
            notes[f"{result.title} of {result.source}, on {result.measured_on}. {result.note}".strip()] = None
    # A published overall figure covers all 22 subsets, so it is not compared with a figure of only some of them.
    whole = len(np.unique(records.subset)) == len(names)
    columns = [column if whole else replace(column, overall=None) for column in merged.values() if column.subsets]
    overall = [column for column in merged.values() if whole and not column.subsets and str(column.split) in split]
    windows = counted(protocol["max_length"], "token")
    here = [f"Here: {counted(len(records))} of {split}", f"windows of {windows}"]
    here.append("the paper's constants" if protocol["paper"] else "bytes counted")
    if protocol["prefix"]["id"] is None:
        here.append("first tokens not predicted")
    return Published(tuple(columns), tuple(overall), f"{' '.join(notes)} {', '.join(here)}.".strip())


def warnings_on(records: Records, protocol: dict[str, Any], manifest: Manifest) -> tuple[str, ...]:
    """Warnings for the reader: subsets of the Pile left out, constants that do not fit."""
    warnings = []
    seventeen = {subset.name for subset in load_manifest(_WITHOUT_FIVE).subsets}
    if manifest.name == _WITHOUT_FIVE or set(protocol["labels"]) == seventeen:
        warnings.append(
            "these are 17 of the Pile's 22 subsets (pile-uncopyrighted leaves out Books3, BookCorpus2, OpenSubtitles, "
            "YoutubeSubtitles and OpenWebText2): overall figures do not compare with those on the whole Pile"
        )
    if protocol["paper"] and (mismatch := another_tokenizer(records, protocol, manifest)) is not None:
        warnings.append(mismatch)
    return tuple(warnings)


def bytes_of_tokens(tokens: int, subset: str, manifest: Manifest) -> float:
    """The bytes that a subset's tokens stand for; 0.0 if no constant is published for it."""
    described = manifest.subset(subset)
    constant = None if described is None else described.tokens_per_byte
    return tokens / constant if constant else 0.0


def bytes_of_all_tokens(tokens: int, subsets: Iterable[str], manifest: Manifest) -> float:
    """The same for documents of `subsets`; 0.0 unless these are all of the manifest's, as the constant needs."""
    whole = set(subsets) == {subset.name for subset in manifest.subsets}
    constant = manifest.totals.tokens_per_byte if whole else None
    return tokens / constant if constant else 0.0


def another_tokenizer(records: Records, protocol: dict[str, Any], manifest: Manifest) -> str | None:
    """A warning if there are over 10 % more or fewer tokens than by the constants of the subsets; else None.

    Without a prefix, first tokens are not predicted, but they count here.
    """
    tokens = records.tokens + (protocol["prefix"]["id"] is None) * (records.bytes > 0)
    size = expected = counted_here = 0.0
    for code, name in enumerate(records.subsets):
        described = manifest.subset(name)
        if described is not None and described.tokens_per_byte is not None:
            is_here = records.subset == code
            size += float(records.bytes[is_here].sum())
            expected += described.tokens_per_byte * float(records.bytes[is_here].sum())
            counted_here += float(tokens[is_here].sum())
    if not expected or abs(counted_here / expected - 1) <= FAR:
        return None
    return (
        f"the paper's constants are those of the GPT-2 tokenizer, by which this text has {expected / size:.3f} tokens "
        f"per byte, and here it has {counted_here / size:.3f}: with another tokenizer these figures mean nothing; "
        "leave out --paper"
    )
