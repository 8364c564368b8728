"""Which published figures may stand beside the ones at hand, and what differs between the two.

A number beside a number is read as a comparison, so one stands there only where it is one: a causal model, disjoint
windows (`context_len` 1), and documents of the Pile's val or test. Those are recognised by the names of their shards
and by the labels in them, scored or not: the 22 subsets', all of them and no other. Nothing is published for
overlapping windows, which give lower figures, nor for masked models, whose figures are of another kind. The paper's
variant with a tokenizer that its constants are not of stands alone too. Where shards are named val or test and there is
no column nevertheless, half a line says why.

Even then the protocols differ: the figures themselves, where they were measured and how, all come from the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pilekit.corpus import Manifest, PublishedResult, load_manifest
from pilekit.corpus.shard import split_of
from pilekit.errors import visible
from pilekit.evaluate.results import paper
from pilekit.evaluate.results.records import Records

_METRIC = "bits_per_byte"
_WITHOUT_FIVE = "pile-uncopyrighted"


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """What is published of one model, in bits per byte.

    model, overall, subsets   its name and figures; None where no overall figure is published, or not all subsets are
                              there to be compared with it; {} where only that is published
    split                     "val" or "test": where it was measured
    measured_on, source       the data exactly, and whose figures they are
    is_secondary              whether they were read in a copy
    """

    model: str
    overall: float | None
    subsets: dict[str, float]
    split: str
    measured_on: str
    source: str
    is_secondary: bool

    def to_dict(self) -> dict[str, Any]:
        """All of it, under the same names."""
        return {
            "model": self.model,
            "overall": self.overall,
            "subsets": self.subsets,
            "split": self.split,
            "measured_on": self.measured_on,
            "source": self.source,
            "is_secondary": self.is_secondary,
        }


@dataclass(frozen=True, slots=True)
class Published:
    """Published figures that may stand beside a result.

    columns   figures per subset, and most of them overall; in the manifest's order
    overall   models of which only an overall figure is published, measured on the same split
    differs   what differs in protocol, in a sentence or two
    """

    columns: tuple[PublishedColumn, ...]
    overall: tuple[PublishedColumn, ...]
    differs: str

    def to_dict(self) -> dict[str, Any]:
        """`{"columns": [{"model", "overall", "subsets", ...}], "overall": [...], "differs"}`."""
        return {
            "columns": [column.to_dict() for column in self.columns],
            "overall": [column.to_dict() for column in self.overall],
            "differs": self.differs,
        }


def published_beside(records: Records, protocol: dict[str, Any], manifest: Manifest) -> Published | None:
    """The published figures that may stand beside those of `records`; None where none may."""
    split = _split(records, protocol, manifest)
    if split is None or why_withheld(records, protocol, manifest) is not None:
        return None
    found: dict[tuple[str, str], PublishedColumn] = {}
    notes: dict[str, None] = {}
    for result in _of_the_pile(manifest).published:
        if result.metric != _METRIC or result.split is None or result.certainty == "recalled":
            continue
        key = (result.model, result.split)
        found[key] = _joined(found.get(key), result)
        if result.subsets and result.certainty == "verified":
            notes[f"{result.title} of {result.source}, on {result.measured_on}. {result.note}".strip()] = None
    # An overall figure is of all 22 subsets: beside one of some of them it would be read for what it is not.
    whole = len(_labels(records)) == len(_of_the_pile(manifest).subsets)
    columns = tuple(column if whole else replace(column, overall=None) for column in found.values() if column.subsets)
    overall = tuple(
        column for column in found.values() if whole and not column.subsets and column.split in split.split(" and ")
    )
    return Published(columns, overall, f"{' '.join(notes)} {_here(records, protocol, split)}".strip())


def why_withheld(records: Records, protocol: dict[str, Any], manifest: Manifest) -> str | None:
    """Why no published figures stand beside a causal model's on shards named val or test; None where some do.

    None also where nobody would look for them: elsewhere, and where the manifest's subsets are not the Pile's.
    """
    if _split(records, protocol, manifest) is None:
        return None
    if protocol.get("context_len", 1) != 1:
        return "these windows overlap, and those of the published figures do not"
    there, labels = _met(records, protocol), {subset.name for subset in _of_the_pile(manifest).subsets}
    if there is None:
        return "it is not known which labels these shards have"
    if others := sorted(there - labels):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return f"these shards have a label that is none of the Pile's: {visible(others[0], 60)}{more}"
    if there != labels:
        ended = "; --limit may have ended the reading before the others" if protocol.get("limit") is not None else ""
        return f"only {len(there)} of the Pile's {len(labels)} labels were met in these shards{ended}"
    if protocol.get("paper") and paper.another_tokenizer(records, protocol, manifest) is not None:
        return "the paper's constants are not those of this tokenizer"
    return None


def warnings_on(records: Records, protocol: dict[str, Any], manifest: Manifest) -> tuple[str, ...]:
    """What a reader must know: of nothing scored, of subsets of the Pile left out, of constants that do not fit."""
    found = []
    documents = "1 document" if len(records) == 1 else f"{len(records):,} documents"
    if not records.bytes.any():
        found.append(f"no byte was scored, so there is no figure: no text in {documents}")
    elif not records.tokens.any():
        why = ": the first of a document is not, without a prefix" if _without_prefix(protocol) else ""
        found.append(f"no token was predicted, so there is no figure{why}")
    seventeen = {subset.name for subset in load_manifest(_WITHOUT_FIVE).subsets}
    if manifest.name == _WITHOUT_FIVE or _met(records, protocol) == seventeen:
        found.append(
            "these are 17 of the Pile's 22 subsets (pile-uncopyrighted leaves out Books3, BookCorpus2, OpenSubtitles, "
            "YoutubeSubtitles and OpenWebText2): overall figures do not compare with those on the whole Pile"
        )
    if protocol.get("paper") and (other := paper.another_tokenizer(records, protocol, manifest)) is not None:
        found.append(other)
    return tuple(found)


def _split(records: Records, protocol: dict[str, Any], manifest: Manifest) -> str | None:
    """ "val", "test" or "val and test" if the shards are named so and the model is causal, else None."""
    splits = {split_of(name) for name in records.shards}
    if not splits or not splits <= {"val", "test"} or protocol.get("kind") == "masked":
        return None
    if len(_of_the_pile(manifest).subsets) != 22:
        return None
    return " and ".join(sorted(map(str, splits), reverse=True))


def _met(records: Records, protocol: dict[str, Any]) -> set[str] | None:
    """The labels of all documents that were read, also of those not asked for; None where that is not known."""
    if "labels" in protocol:
        return set(protocol["labels"])
    return _labels(records) if protocol.get("subsets") is None else None


def _without_prefix(protocol: dict[str, Any]) -> bool:
    return protocol.get("prefix", {}).get("id", 0) is None


def _of_the_pile(manifest: Manifest) -> Manifest:
    return manifest if manifest.tables_from is None else load_manifest(manifest.tables_from)


def _labels(records: Records) -> set[str]:
    return {records.subsets[code] for code in set(records.subset.tolist())}


def _joined(column: PublishedColumn | None, result: PublishedResult) -> PublishedColumn:
    """What two tables say of one model on one split: one has its subsets, the other its overall figure."""
    assert result.split is not None
    new = PublishedColumn(
        result.model,
        result.overall,
        result.subsets,
        result.split,
        result.measured_on,
        result.source,
        result.certainty == "secondary",
    )
    if column is None:
        return new
    return replace(
        column,
        overall=new.overall if column.overall is None else column.overall,
        subsets=column.subsets or new.subsets,
        is_secondary=column.is_secondary or new.is_secondary,
    )


def _here(records: Records, protocol: dict[str, Any], split: str) -> str:
    """This side of the comparison."""
    documents = "1 document" if len(records) == 1 else f"{len(records):,} documents"
    said = [f"Here: {documents} of {split}"]
    if protocol.get("max_length"):
        said.append(f"windows of {protocol['max_length']:,} tokens")
    said.append("the paper's constants" if protocol.get("paper") else "bytes counted")
    if _without_prefix(protocol):
        said.append("first tokens not predicted")
    return ", ".join(said) + "."
