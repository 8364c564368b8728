"""Subset names: turn what a person types into the exact name.

The Pile's names are irregular (`Github`, `Gutenberg (PG-19)`), and every tool spells them differently. Two spellings
are the same if their letters and digits agree in lower case. Other names (`PMC`) are aliases in the manifest.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable

from pilekit.corpus.manifest import Manifest, load_manifest
from pilekit.errors import PilekitError, visible

UNLABELLED = "(none)"
"""The subset of documents without a label."""


def normalised(name: str) -> str:
    """`name` in lower case, letters and digits only: `PubMed-Central` and `pubmed_central` are one."""
    return "".join(character for character in name.lower() if character.isalnum())


def resolve_subsets(*names: str | Iterable[str], manifest: Manifest | None = None) -> tuple[str, ...]:
    """The exact subset names for `names` in any known spelling, in the given order, without repetitions.

    names      names or lists of names: `resolve_subsets("ArXiv", "PMC")`, `resolve_subsets(["ArXiv", "PMC"])`
    manifest   the manifest with the subsets and aliases; the Pile's by default. Without subsets, names stay as they are

    Every manifest knows `(none)`, the documents without a label.

    Raises PilekitError for an unknown or ambiguous name, with the closest matches.
    """
    manifest = load_manifest() if manifest is None else manifest
    typed = [
        name
        for given in names
        for name in (given if isinstance(given, Iterable) and not isinstance(given, str) else [given])
    ]
    for name in typed:
        if not isinstance(name, str):
            raise PilekitError(f'a subset is named by text, such as "ArXiv", not by {visible(repr(name), 80)}')
    if not manifest.subsets:
        return tuple(dict.fromkeys(typed))
    spellings = _spellings(manifest)
    return tuple(dict.fromkeys(_resolve(name, manifest, spellings) for name in typed))


def subsets_or_all(subsets: str | Iterable[str] | None, manifest: Manifest | None) -> tuple[str, ...] | None:
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


def _spellings(manifest: Manifest) -> dict[str, list[str]]:
    """Normalised spelling -> the exact names it can mean; a subset's own name overrides another's alias."""
    own: dict[str, list[str]] = defaultdict(list)
    for subset in manifest.subsets:
        own[normalised(subset.name)].append(subset.name)
    aliases: dict[str, list[str]] = defaultdict(list)
    for subset in manifest.subsets:
        for alias in subset.aliases:
            key = normalised(alias)
            if key not in own and subset.name not in aliases[key]:
                aliases[key].append(subset.name)
    return {**aliases, **own}


def _resolve(name: str, manifest: Manifest, spellings: dict[str, list[str]]) -> str:
    if name == UNLABELLED or any(subset.name == name for subset in manifest.subsets):
        return name
    key = normalised(name)
    found = spellings.get(key, []) if key else []
    if len(found) == 1:
        return found[0]
    if found:
        raise PilekitError(f'subset "{visible(name, 80)}" is ambiguous: {_listed(found)}; type the exact name')
    close = difflib.get_close_matches(key, spellings, n=5, cutoff=0.6)
    matches = list(dict.fromkeys(exact for spelling in close for exact in spellings[spelling]))[:3]
    known = [subset.name for subset in manifest.subsets]
    hint = f"did you mean {_listed(matches)}?" if matches else f"it has {_listed(known)}"
    raise PilekitError(f'unknown subset "{visible(name, 80)}" in the manifest {visible(manifest.name)}; {hint}')


def _listed(names: list[str]) -> str:
    shown = [visible(name, 80) for name in names[:40]]
    return ", ".join(shown) + (", …" if len(names) > 40 else "")
