"""How every command that reads a corpus is told which: `[PATH]... --subsets --manifest`.

    @click.command()
    @corpus_argument
    def command(paths, subsets, manifest, ...):
        corpus = open_corpus(paths, manifest)
        names = exact_subsets(subsets, corpus)

One spelling for all commands, so that a path that works with one works with the others. Commands that are about whole
shards take `paths_argument`, which is the same without `--subsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pilekit.corpus import Corpus

F = TypeVar("F", bound=Callable[..., Any])


_PATHS = click.argument("paths", metavar="[PATH]...", nargs=-1)
_SUBSETS = click.option(
    "--subsets",
    metavar="NAMES",
    help="Only these subsets, separated by commas: ArXiv,GitHub,pile_upsto.",
)
_MANIFEST = click.option(
    "--manifest",
    metavar="NAME|FILE",
    help="What the corpus is: pile (the default), pile-uncopyrighted, demo, or a TOML file.",
)


class Folder(click.ParamType[Path]):
    """A folder; nothing at all is refused, as a `Path` of it is the current folder."""

    name = "folder"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """What was given, if it is anything."""
        if not str(value):
            self.fail("it is empty; name a folder", param, ctx)
        return Path(value)


out_option = click.option("--out", required=True, type=Folder(), metavar="DIR", help="New folder for the shards.")
"""Adds the option `out` (a Path) to a command that writes shards."""


def corpus_argument(function: F) -> F:
    """Add the argument `paths` (tuple of str) and the options `subsets` and `manifest` (str or None) to a command."""
    return _PATHS(_SUBSETS(_MANIFEST(function)))


def paths_argument(function: F) -> F:
    """Add the argument `paths` (tuple of str) and the option `manifest` (str or None) to a command."""
    return _PATHS(_MANIFEST(function))


def open_corpus(paths: Sequence[str], manifest: str | None = None) -> Corpus:
    """The corpus at `paths` (files, folders, globs, URLs, or `-` for standard input; none: the default places)."""
    from pilekit.corpus import Corpus

    return Corpus((paths[0] if len(paths) == 1 else list(paths)) if paths else None, manifest)


def exact_subsets(names: str | None, corpus: Corpus) -> tuple[str, ...] | None:
    """The exact names of what was given to `--subsets`; None, meaning all, where the option was not given."""
    from pilekit.corpus import resolve_subsets, split_names

    return None if names is None else resolve_subsets(*split_names(names), manifest=corpus.manifest)
