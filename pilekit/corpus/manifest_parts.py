"""The parts of a manifest: subsets, totals, published scores, the files of the release, and how to assemble the corpus.

All are immutable. An unknown field, a wrong type or an inconsistency is an error.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated, Literal

import msgspec

from pilekit.errors import counted, shortened

Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
_PATH = "the path of a field, such as source or meta.source"
FieldPath = Annotated[str, msgspec.Meta(pattern=r"^[^.]+(\.[^.]+)*\Z", description=_PATH)]
"""The path of a field in a record; a dot enters a nested object."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z", description="64 digits of 0 to 9 and a to f")]
Metric = Literal["bits_per_byte", "token_perplexity", "byte_perplexity", "nats_per_token"]
Certainty = Literal["verified", "secondary", "recalled"]


def refuse_repeated(field: str, names: list[str]) -> None:
    """Raise ValueError if a name of `field` occurs twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"`{field}` names {shortened(name, 120)!r} twice")


class StrictPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a manifest: immutable, every field checked."""


class HeldOut(StrictPart, frozen=True):
    """A subset's documents outside train, and in the first train shard."""

    test_documents: Count | None = None
    val_documents: Count | None = None
    tenth_documents: Count | None = None
    """Documents in the tenth of test ("group0") that the paper scored; None where it scored all of test."""
    test_bytes: Count | None = None
    """Approximate: Arrow's size of the test documents, in bytes."""
    shard_00_documents: Count | None = None


class Subset(StrictPart, frozen=True):
    """One subset: its exact label and its published figures. Every field but the name may be unknown (None)."""

    name: Text
    aliases: tuple[Text, ...] = ()
    """Other spellings, typed or in records; case, spaces and punctuation do not matter."""
    raw_bytes: Count | None = None
    """Bytes of text before up-sampling."""
    raw_gib: Amount | None = None
    documents: Count | None = None
    """Source documents before up-sampling."""
    weight_percent: Amount | None = None
    """Share of the corpus's bytes, up-sampling included."""
    epochs: Annotated[float, msgspec.Meta(ge=0, le=1000)] | None = None
    """How often each source document nominally occurs in train."""
    effective_gib: Amount | None = None
    """Raw size times epochs."""
    mean_kib: Amount | None = None
    """Mean size of a document."""
    tokens_per_byte: Amount | None = None
    """The fixed constant of the paper's bits per byte: GPT-2 tokens per UTF-8 byte."""
    held_out: HeldOut = HeldOut()
    availability: str = ""
    sources: tuple[Text, ...] = ()
    """For `pilekit assemble`: files, folders and globs, relative to the manifest."""
    text_field: Text | None = None
    """The field of the sources' records that holds the text; None: the manifest's."""
    group: FieldPath | None = None
    """The field whose value groups the documents that are held out together."""
    keep: tuple[FieldPath, ...] = ()
    """Fields that `pilekit assemble` copies into `meta`, under the last part of their path."""

    def __post_init__(self) -> None:
        refuse_repeated("keep", [path.rpartition(".")[2] for path in self.keep])


class Totals(StrictPart, frozen=True):
    """The same figures for the whole corpus."""

    raw_bytes: Count | None = None
    raw_gib: Amount | None = None
    documents: Count | None = None
    effective_gib: Amount | None = None
    mean_kib: Amount | None = None
    tokens_per_byte: Amount | None = None
    train_documents: Count | None = None
    val_documents: Count | None = None
    test_documents: Count | None = None
    note: str = ""


class _Published(StrictPart, frozen=True, kw_only=True):
    """What published scores are, and where they come from."""

    title: Text
    source: Text
    metric: Metric
    measured_on: Text
    """The data, exactly: which split, how much of it."""
    split: Literal["val", "test"] | None = None
    """The held-out split that the data are part of; None: other data, or not stated."""
    certainty: Certainty = "verified"
    note: str = ""


class PublishedTable(_Published, frozen=True, kw_only=True):
    """Scores of several models on the same data; each row of numbers is parallel to `models`."""

    models: tuple[Text, ...]
    overall: tuple[Amount, ...] = ()
    subsets: dict[str, tuple[Amount, ...]] = {}

    def __post_init__(self) -> None:
        rows = {"overall": self.overall, **{f"subsets.{name}": row for name, row in self.subsets.items()}}
        for name, row in rows.items():
            if len(row) != len(self.models) and (row or name != "overall"):
                raise ValueError(f"`{name}` has {counted(len(row), 'value')} for {counted(len(self.models), 'model')}")


class PublishedResult(_Published, frozen=True, kw_only=True):
    """The published scores of one model: its column of a `PublishedTable`."""

    model: str
    overall: float | None
    subsets: dict[str, float]


def published_result(table: PublishedTable, column: int) -> PublishedResult:
    """The scores of the model in this column."""
    return PublishedResult(
        **{name: getattr(table, name) for name in _Published.__struct_fields__},
        model=table.models[column],
        overall=table.overall[column] if table.overall else None,
        subsets={name: row[column] for name, row in table.subsets.items()},
    )


FigureKind = Literal[
    "documents",
    "bytes",
    "distinct",
    "twins",
    "clusters",
    "longest",
    "shortest",
    "median",
    "length_share",
    "copies",
    "occurrences",
    "tokens",
    "tokens_per_byte",
    "stated",
]
_NEEDED = {
    "length_share": "characters",
    "copies": "rank",
    "occurrences": "text",
    "tokens": "tokenizer",
    "tokens_per_byte": "tokenizer",
    "stated": "name",
}
"""The field that a kind of figure needs, and others must not have."""


class PublishedFigure(StrictPart, frozen=True, kw_only=True):
    """A figure that others have published about the texts of a split, for `pilekit stats --audit`."""

    figure: FigureKind
    """documents; bytes of UTF-8; distinct texts; documents with an exact twin; clusters of these; the longest, shortest
    and median text in characters; the share of documents of a length; copies of a frequent text; occurrences of a
    string; tokens, and tokens a byte of text. "stated" is none of these, and only shown."""
    value: Annotated[float, msgspec.Meta(ge=0, le=1e18)]
    source: Text
    split: Literal["train", "val", "test"] = "train"
    tolerance: Share = 0.0
    """By how much of the value a count may differ."""
    characters: Count | None = None
    """Of "length_share"."""
    rank: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    """Of "copies": 1 is the most frequent text."""
    text: Text | None = None
    """Of "occurrences"."""
    tokenizer: Text | None = None
    """Of tokens: its name."""
    vocabulary: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of tokens: the ids of the tokenizer, by which another is told from it."""
    name: Text | None = None
    """Of "stated": what it is."""
    variants: dict[Text, Annotated[float, msgspec.Meta(ge=0, le=1e18)]] = {}
    """The value of known variants of the corpus, by their names; a count near one of them names it."""
    difference: str = ""
    """What another difference would mean."""

    def __post_init__(self) -> None:
        needed = _NEEDED.get(self.figure)
        for name in dict.fromkeys(_NEEDED.values()):
            if (getattr(self, name) is not None) != (name == needed):
                has = "needs" if name == needed else "has no"
                raise ValueError(f"a figure of kind {self.figure!r} {has} `{name}`")


class PublishedFigures(StrictPart, frozen=True):
    """The published figures of a corpus.

    train_shards   the train shards that the figures of train are of; None: any
    """

    train_shards: Annotated[int, msgspec.Meta(ge=1)] | None = None
    figures: tuple[PublishedFigure, ...] = ()


class ReleaseFile(StrictPart, frozen=True):
    """One file of the release."""

    name: Text
    """Its path in the release, `/`-separated."""
    bytes: Count | None = None
    sha256: Sha256 | None = None
    uncompressed_sha256: Sha256 | None = None
    """The checksum of the text as plain jsonl."""
    first_document: Count | None = None
    """Number of its first document, counted from 0 through all train shards."""
    source: str = ""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or "\\" in self.name or re.match(r"[A-Za-z]:", self.name):
            raise ValueError(f"`name` must be relative and without '..': {shortened(self.name, 120)}")


class Release(StrictPart, frozen=True):
    """How the corpus was published."""

    train_documents: Count | None = None
    files: tuple[ReleaseFile, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse_repeated("files", [file.name for file in self.files])


class Assemble(StrictPart, frozen=True):
    """How `pilekit assemble` makes the corpus from the sources of its subsets."""

    shards: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 30
    """Train shards."""
    val: Share = 0.001
    """Share of the documents, each counted as often as its epochs, that goes to val."""
    test: Share = 0.001
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 42
