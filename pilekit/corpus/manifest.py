"""Manifests: the facts about a corpus, as data.

A manifest is a TOML file. It names the fields of a record that hold text and label, the subsets and their aliases, and
published figures: sizes, scores, layout, checksums. It may also list the corpus's sources (`pilekit assemble`). A new
corpus needs a new file, not new code. Published figures are in these files only.

Loading is strict: an unknown field, a wrong type or an inconsistency is an error that names the file and the field. The
parts of a manifest are described in manifest_parts.py.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import xxhash

from pilekit.artifacts.checked import checked
from pilekit.corpus.manifest_parts import (
    Assemble,
    FieldPath,
    PublishedFigures,
    PublishedResult,
    PublishedTable,
    Release,
    StrictPart,
    Subset,
    Text,
    Totals,
    published_result,
    refuse_repeated,
)
from pilekit.errors import PilekitError, shortened

BUNDLED = ("pile", "pile-uncopyrighted", "demo")
"""The manifests that come with pilekit, by name."""

_MOST_BYTES = 64 << 20
"""A manifest with a hundred thousand files takes 30 MB. A device may never end."""


class Manifest(StrictPart, frozen=True):
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
    figures: PublishedFigures = msgspec.field(default=PublishedFigures(), name="published")
    """What others have published about its texts, for `pilekit stats --audit`."""
    tables: tuple[PublishedTable, ...] = ()
    tables_from: Literal["pile"] | None = None
    """A bundled manifest whose published figures for single subsets apply here too; its overall figures do not."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [subset.name for subset in self.subsets]
        refuse_repeated("subsets", names)
        used_paths = {self.text_field, ".".join(self.label_path.split(".")[:2])}
        for path in (path for subset in self.subsets for path in subset.keep):
            if not used_paths.isdisjoint(("meta", "meta." + path.rpartition(".")[2])):
                raise ValueError(f"`keep` would put {shortened(path, 120)!r} in the place of the text or the label")
        for table in self.tables:
            unknown = sorted(set(table.subsets) - set(names))
            if unknown:
                raise ValueError(f"table {table.title!r}: {unknown[0]!r} is not a subset of this manifest")

    @property
    def record(self) -> dict[str, str]:
        """The fields that a job's result depends on: where records keep text and label, and the joined spellings."""
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
        here = [published_result(table, column) for table in self.tables for column in range(len(table.models))]
        names = {subset.name for subset in self.subsets}
        there = [
            msgspec.structs.replace(result, overall=None, subsets=subsets)
            for result in (load_manifest(self.tables_from).published if self.tables_from else ())
            if (subsets := {name: value for name, value in result.subsets.items() if name in names})
        ]
        return (*here, *there)


Described: TypeAlias = Manifest | str | Path | None
"""The description of a corpus: a manifest, the name of a bundled one, or the path of one; None: the Pile's."""


def load_manifest(
    name_or_path: Described = None, *, text_field: str | None = None, label: str | None = None
) -> Manifest:
    """A bundled manifest by name, or a manifest from a TOML file; a `Manifest` is returned as it is. None: the Pile's.

    text_field, label   name the fields of text and label in a corpus without a manifest; the result has no subsets

    Raises PilekitError, naming file and field, for a file that is missing, not TOML, or not a valid manifest.
    """
    if text_field is not None or label is not None:
        if name_or_path is not None:
            raise PilekitError("a manifest says where text and label are; leave out text_field and label")
        fields: dict[str, str] = {}
        if text_field is not None:
            fields["text_field"] = checked(text_field, Text, "text_field")
        if label is not None:
            fields["label_path"] = checked(label, FieldPath, "label")
        return msgspec.convert({"name": "(text_field and label)", **fields}, Manifest)
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


def recorded_manifest(parameters: Mapping[str, Any]) -> Manifest:
    """A manifest with the text and label fields that the parameters of a finished job name."""
    record = {name: parameters[name] for name in ("text_field", "label_path")}
    return msgspec.structs.replace(load_manifest(), **record)


@functools.cache
def _bundled(name: str) -> Manifest:
    package = Path(__file__).parents[1]
    inside_wheel = package / "manifests"
    folder = inside_wheel if inside_wheel.is_dir() else package.parent / "manifests"
    return _load(folder / f"{name}.toml")


def _load(path: Path) -> Manifest:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise PilekitError(f"{path}: is longer than {_MOST_BYTES >> 20} MiB, which no manifest is")
        read = tomllib.loads(content.decode())
    except FileNotFoundError:
        raise PilekitError(f"{path}: no such manifest; check the path") from None
    except OSError as error:
        raise PilekitError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or brackets nested too deeply
        raise PilekitError(f"{path}: is not TOML: {shortened(error, 200)}") from error
    try:
        return checked(read, Manifest)
    except PilekitError as error:
        raise PilekitError(f"{path}: {error}") from error
