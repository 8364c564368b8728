"""Subset names: turn what a person types, and the label of a record, into the exact name.

The Pile's names are irregular (`Github`, `Gutenberg (PG-19)`), and every tool spells them differently. Two spellings
are the same if their letters and digits agree in lower case. Other names (`PMC`) are aliases in the manifest.

Both ways follow one rule. So a label that spells the name or an alias of a subset is that subset, and any spelling
selects it. Readers join such labels (`SubsetNames`), and no command does it by itself. Indexes store labels as records
spell them, so they fit any manifest.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable

from pilekit.corpus.manifest import Described, Manifest, load_manifest
from pilekit.errors import PilekitError, shortened

UNLABELLED = "(none)"
"""The subset of documents without a label."""

MAX_SUBSETS = 4096
"""The most subsets. More labels mean that the label path leads to a field such as a URL; memory would be unbounded."""

LONGEST_SPELLING = 1000
"""A longer label or name, in characters, is only compared as it is, because a label may have a megabyte."""


@functools.lru_cache(4096)
def normalised(name: str) -> str:
    """`name` in lower case, letters and digits only: `PubMed-Central` and `pubmed_central` are one.

    Each shard resolves its own labels, so the results are kept: for a tiny shard they would be most of the work.
    """
    return "".join(character for character in name.lower() if character.isalnum())


def resolve_subsets(*names: str | Iterable[str], manifest: Described = None) -> tuple[str, ...]:
    """The exact subset names for `names` in any known spelling, in the given order, without repetitions.

    names      names or lists of names: `resolve_subsets("ArXiv", "PMC")`, `resolve_subsets(["ArXiv", "PMC"])`
    manifest   the manifest with the subsets and aliases; the Pile's by default. Without subsets, names stay as they are

    Every manifest knows `(none)`, the documents without a label.

    Raises PilekitError for an unknown or ambiguous name, with the closest matches.
    """
    manifest = load_manifest(manifest)
    typed = [
        name
        for argument in names
        for name in (argument if isinstance(argument, Iterable) and not isinstance(argument, str) else [argument])
    ]
    for name in typed:
        if not isinstance(name, str):
            raise PilekitError(f'a subset is named by text, such as "ArXiv", not by {shortened(repr(name), 80)}')
    if not manifest.subsets:
        return tuple(dict.fromkeys(typed))
    subsets = SubsetNames(manifest)
    return tuple(dict.fromkeys(_resolve(name, manifest, subsets) for name in typed))


def subsets_or_all(subsets: str | Iterable[str] | None, manifest: Described) -> tuple[str, ...] | None:
    """The exact names, as `resolve_subsets`; None, which stands for all subsets, stays None.

    PilekitError if there are no names.
    """
    names = None if subsets is None else resolve_subsets(subsets, manifest=manifest)
    if names == ():
        raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
    return names


def split_names(text: str) -> list[str]:
    """The names in a comma-separated list, as typed; raises PilekitError if there are none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise PilekitError("no subset is named; give names separated by commas, for example ArXiv,GitHub")
    return names


class SubsetNames(dict[str, str]):
    """`names[label]`: the subset of a record's label. Each distinct label is resolved once.

    A label that means no subset of the manifest, or could mean several, is a subset of its own. A spelling is looked up
    among the exact names, then among the aliases as written, then among names and aliases normalised. There a subset's
    name overrides another's alias.
    """

    def __init__(self, manifest: Manifest):
        super().__init__()
        self._exact = {subset.name for subset in manifest.subsets} | {UNLABELLED}
        self._aliases: dict[str, list[str]] = {}
        by_name: dict[str, list[str]] = {}
        by_alias: dict[str, list[str]] = {}
        for subset in manifest.subsets:
            by_name.setdefault(normalised(subset.name), []).append(subset.name)
            for alias in set(subset.aliases):
                self._aliases.setdefault(alias, []).append(subset.name)
            for key in set(map(normalised, subset.aliases)):
                by_alias.setdefault(key, []).append(subset.name)
        self.normalised = {**by_alias, **by_name}
        self.normalised.pop("", None)

    def meanings(self, spelling: str) -> list[str]:
        """The exact names that this spelling can mean; several if it is ambiguous."""
        if spelling in self._exact:
            return [spelling]
        if len(spelling) > LONGEST_SPELLING:
            return []
        return self._aliases.get(spelling) or self.normalised.get(normalised(spelling), [])

    def __missing__(self, label: str) -> str:
        meanings = self.meanings(label)
        name = meanings[0] if len(meanings) == 1 else label
        if len(self) < MAX_SUBSETS and len(label) <= LONGEST_SPELLING:  # Memory stays bounded.
            self[label] = name
        return name

    @property
    def joined(self) -> dict[str, str]:
        """The subset of each label met so far that is spelled otherwise."""
        return {label: name for label, name in self.items() if label != name}


def subset_names(manifest: Described = None) -> SubsetNames | None:
    """The names for the labels of a corpus; None if its labels stay as they are."""
    manifest = load_manifest(manifest)
    return SubsetNames(manifest) if manifest.subsets and manifest.join_spellings else None


def _resolve(name: str, manifest: Manifest, subsets: SubsetNames) -> str:
    meanings = subsets.meanings(name)
    if name in meanings or (meanings and not manifest.join_spellings):
        return name
    if len(meanings) == 1:
        return meanings[0]
    if meanings:
        raise PilekitError(f'subset "{shortened(name, 80)}" is ambiguous: {_list_names(meanings)}; type the exact name')
    close = difflib.get_close_matches(normalised(name[:LONGEST_SPELLING]), subsets.normalised, n=5, cutoff=0.6)
    matches = list(dict.fromkeys(exact for spelling in close for exact in subsets.normalised[spelling]))[:3]
    names = [subset.name for subset in manifest.subsets]
    hint = f"did you mean {_list_names(matches)}?" if matches else f"it has {_list_names(names)}"
    raise PilekitError(f'unknown subset "{shortened(name, 80)}" in the manifest {manifest.name}; {hint}')


def _list_names(names: list[str]) -> str:
    shown = [shortened(name, 80) for name in names[:40]]
    return ", ".join(shown) + (", …" if len(names) > 40 else "")
