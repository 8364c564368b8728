"""Manifests: the facts about a corpus, as data.

A manifest is a TOML file. It names the fields of a record that hold text and label, the subsets and their aliases, and
published figures: sizes, scores, layout, checksums. It may also list the corpus's sources (`pilekit assemble`). A new
corpus needs a new file, not new code. Published figures are in these files only.

Loading is strict: an unknown field, a wrong type or an inconsistency is an error that names the file and the field.
"""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, TypeAlias

import msgspec
import xxhash

from pilekit.artifacts.checked import checked
from pilekit.errors import PilekitError, counted, shortened, visible

BUNDLED = ("pile", "pile-uncopyrighted", "demo")
"""The manifests that come with pilekit, by name."""

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


def _unique(field: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"`{field}` names {visible(name, 120)!r} twice")
        seen.add(name)


_MOST_BYTES = 64 << 20
"""A manifest with a hundred thousand files takes 30 MB. A device may never end."""


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a manifest: immutable, every field checked."""


class HeldOut(_Strict, frozen=True):
    """A subset's documents outside train, and in the first train shard."""

    test_documents: Count | None = None
    val_documents: Count | None = None
    tenth_documents: Count | None = None
    """Documents in the tenth of test ("group0") that the paper scored; None where it scored all of test."""
    test_bytes: Count | None = None
    """Approximate: Arrow's size of the test documents, in bytes."""
    shard_00_documents: Count | None = None


class Subset(_Strict, frozen=True):
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
        _unique("keep", [path.rpartition(".")[2] for path in self.keep])


class Totals(_Strict, frozen=True):
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


class _Published(_Strict, frozen=True, kw_only=True):
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


class ReleaseFile(_Strict, frozen=True):
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
            raise ValueError(f"`name` must be relative and without '..': {visible(self.name, 120)}")


class Release(_Strict, frozen=True):
    """How the corpus was published."""

    train_documents: Count | None = None
    files: tuple[ReleaseFile, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _unique("files", [file.name for file in self.files])


class Assemble(_Strict, frozen=True):
    """How `pilekit assemble` makes the corpus from the sources of its subsets."""

    shards: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 30
    """Train shards."""
    val: Share = 0.001
    """Share of the documents, each counted as often as its epochs, that goes to val."""
    test: Share = 0.001
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 42


class Manifest(_Strict, frozen=True):
    """The facts about a corpus."""

    name: Text
    description: str = ""
    text_field: Text = "text"
    """The field of a record that holds the text."""
    label_path: FieldPath = "meta.pile_set_name"
    """The path of the subset's name in a record."""
    subsets: tuple[Subset, ...] = ()
    """Documents may have other labels too. If none are listed, every label is used as it is."""
    join_spellings: bool = True
    """A label that spells a subset's name or alias otherwise (`GitHub` for `Github`) is that subset. False: every label
    is a subset of its own, and `--subsets` takes names as they are typed."""
    assemble: Assemble = Assemble()
    totals: Totals = Totals()
    release: Release = Release()
    tables: tuple[PublishedTable, ...] = ()
    tables_from: Literal["pile"] | None = None
    """A bundled manifest whose published figures for single subsets apply here too; its overall figures do not."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [subset.name for subset in self.subsets]
        _unique("subsets", names)
        taken = {self.text_field, ".".join(self.label_path.split(".")[:2])}
        for path in (path for subset in self.subsets for path in subset.keep):
            if not taken.isdisjoint(("meta", "meta." + path.rpartition(".")[2])):
                raise ValueError(f"`keep` would put {visible(path, 120)!r} in the place of the text or the label")
        for table in self.tables:
            unknown = sorted(set(table.subsets) - set(names))
            if unknown:
                raise ValueError(f"table {table.title!r}: {unknown[0]!r} is not a subset of this manifest")

    @property
    def record(self) -> dict[str, str]:
        """Where records keep text and label, and which spellings are joined: what a job's result depends on."""
        fields = {"text_field": self.text_field, "label_path": self.label_path}
        if not (self.subsets and self.join_spellings):
            return fields
        spellings = [[subset.name, sorted(subset.aliases)] for subset in self.subsets]
        return {**fields, "spellings": xxhash.xxh3_64_hexdigest(msgspec.json.encode(spellings))}

    def subset(self, name: str) -> Subset | None:
        """The subset with this exact name; None for a label that the manifest does not list."""
        return next((subset for subset in self.subsets if subset.name == name), None)

    @property
    def published(self) -> tuple[PublishedResult, ...]:
        """All published results, one per model and table."""
        here = [_result(table, column) for table in self.tables for column in range(len(table.models))]
        names = {subset.name for subset in self.subsets}
        there = [
            msgspec.structs.replace(result, overall=None, subsets=subsets)
            for result in (load_manifest(self.tables_from).published if self.tables_from else ())
            if (subsets := {name: value for name, value in result.subsets.items() if name in names})
        ]
        return (*here, *there)


def _result(table: PublishedTable, column: int) -> PublishedResult:
    return PublishedResult(
        **{name: getattr(table, name) for name in _Published.__struct_fields__},
        model=table.models[column],
        overall=table.overall[column] if table.overall else None,
        subsets={name: row[column] for name, row in table.subsets.items()},
    )


Described: TypeAlias = Manifest | str | Path | None
"""What describes a corpus: a manifest, the name of a bundled one, or the path of one; None: the Pile's."""


def load_manifest(
    name_or_path: Described = None, *, text_field: str | None = None, label: str | None = None
) -> Manifest:
    """A bundled manifest by name, or a manifest from a TOML file; a `Manifest` is returned as it is. None: the Pile's.

    text_field, label   instead, the fields of text and label in a corpus without a manifest: one without subsets

    Raises PilekitError, naming file and field, for a file that is missing, not TOML, or not a valid manifest.
    """
    if given := {name: at for name, at in (("text_field", text_field), ("label_path", label)) if at is not None}:
        if name_or_path is not None:
            raise PilekitError("a manifest says where text and label are; leave out text_field and label")
        for name, at in given.items():
            checked(at, FieldPath if name == "label_path" else Text, name.removesuffix("_path"))
        return msgspec.convert({"name": "(text_field and label)", **given}, Manifest)
    name_or_path = "pile" if name_or_path is None else name_or_path
    if isinstance(name_or_path, Manifest):
        return name_or_path
    if isinstance(name_or_path, str) and name_or_path in BUNDLED:
        return _bundled(name_or_path)
    if not isinstance(name_or_path, str | Path):
        raise PilekitError(f"manifest is a name, the path of a TOML file, or a Manifest, not {name_or_path}")
    path = Path(name_or_path)
    if not path.exists() and path.suffix != ".toml" and len(path.parts) == 1 and str(path) not in BUNDLED:
        raise PilekitError(
            f"no manifest is called {path}: the bundled ones are {', '.join(BUNDLED)}; "
            "else give the path of a TOML file"
        )
    return _load(path)


@functools.cache
def _bundled(name: str) -> Manifest:
    package = Path(__file__).parents[1]
    inside_wheel = package / "manifests"
    folder = inside_wheel if inside_wheel.is_dir() else package.parent / "manifests"
    return _load(folder / f"{name}.toml")


def _load(path: Path) -> Manifest:
    shown = visible(path)
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise PilekitError(f"{shown}: is longer than {_MOST_BYTES >> 20} MiB, which no manifest is")
        read = tomllib.loads(content.decode())
    except FileNotFoundError:
        raise PilekitError(f"{shown}: no such manifest; check the path") from None
    except OSError as error:
        raise PilekitError(f"{shown}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or brackets nested too deeply
        raise PilekitError(f"{shown}: is not TOML: {shortened(error, 200)}") from error
    try:
        return checked(read, Manifest)
    except PilekitError as error:
        raise PilekitError(f"{shown}: {error}") from error
