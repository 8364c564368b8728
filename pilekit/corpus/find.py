"""`Corpus`: the shards at a file, a folder, a glob, a URL, several of these, or the default places.

Shards are ordered by name, so the order depends neither on the file system nor on the shell. A search skips hidden
folders, symlinked folders, and folders that pilekit wrote, so output never becomes input by accident. Named directly,
the folder of a finished job stands for its shards (job_shards). Files that pilekit writes beside shards are dropped
from a list of paths.
"""

# Paths are strings here, as they were given: a Path would change URLs and remove `./`
# ruff: noqa: PTH100, PTH109, PTH111, PTH112, PTH113

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, starmap
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

from pilekit.artifacts.header import HEADER_FILE, read_header
from pilekit.corpus import local, remote
from pilekit.corpus.job_shards import UNFINISHED
from pilekit.corpus.manifest import Described, Manifest, load_manifest
from pilekit.corpus.shard import (
    FILE_SUFFIXES,
    HELD_OUT,
    SHARD_SUFFIXES,
    STANDARD_INPUT,
    Shard,
    Split,
    is_url,
    make_shard,
    shard_of,
    with_split_of_root,
    without_query,
)
from pilekit.corpus.sidecar_files import written_beside
from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, counted, message_logger, shortened, visible

if TYPE_CHECKING:
    from pilekit.documents import Document

logger = message_logger(__name__)

ENVIRONMENT = "PILEKIT_DATA"

Source: TypeAlias = str | Path | Sequence[str | Path]
"""A path, glob or URL, or several."""

Part: TypeAlias = tuple[int, int]
"""(I, N): the I-th of N parts of the shards, counted from 1."""

HeldOutShards = Literal["leave-out", "protect"]
"""What a command that compares documents does with held-out shards: leaves them out, or keeps them whole."""


class Corpus(NearestNames):
    """Shards in the order of their names, and the manifest that describes them.

    source       a path, glob or URL of a shard or folder, `-` for standard input, or several of them; None: the value
                 of $PILEKIT_DATA, else ./data if it has shards, else the current folder
    manifest     a `Manifest`, the name of a bundled one, or the path of a TOML file; the Pile's by default
    text_field   the field of the text, for a corpus that has no manifest
    label        the path of the subset's name there, such as `meta.source`

    Raises PilekitError for a path that does not exist, for folders without shards (naming the searched places), and for
    two shards with one name.
    """

    root: str
    """The folder that names are relative to: the given folder, the folder of one file, or the parent of all paths."""
    shards: tuple[Shard, ...]
    manifest: Manifest
    _read: Callable[[Corpus], Iterable[Iterable[Document]]]
    """`pilekit.read`; shards/read/reader.py, which stands above this folder, sets it."""

    def __init__(
        self,
        source: Source | None = None,
        manifest: Described = None,
        *,
        text_field: str | None = None,
        label: str | None = None,
    ) -> None:
        self.manifest = load_manifest(manifest, text_field=text_field, label=label)
        self.root, shards = _default() if source is None else _search(source)
        self.shards = tuple(sorted(with_split_of_root(shards, self.root), key=attrgetter("name")))
        for shard, next_shard in pairwise(self.shards):
            if shard.name == next_shard.name:
                raise PilekitError(
                    f"two shards have the name {shard.name}: {shard.path} and {next_shard.path}; "
                    "documents could not be told apart, so give only one of them"
                )

    @classmethod
    def of(cls, corpus: Corpus | Source | None, manifest: Described = None) -> Corpus:
        """The corpus at a path, or several; a `Corpus` as it is. PilekitError for a `Corpus` and a manifest."""
        if not isinstance(corpus, Corpus):
            return Corpus(corpus, manifest)
        if manifest is not None:
            raise PilekitError("a Corpus has its own manifest; give manifest= to Corpus()")
        return corpus

    @classmethod
    def of_shards(cls, shards: Sequence[Shard], manifest: Manifest) -> Corpus:
        """These shards in this order, whose names are relative to no folder."""
        corpus = object.__new__(cls)
        corpus.root, corpus.shards, corpus.manifest = "", tuple(shards), manifest
        return corpus

    @property
    def size(self) -> int | None:
        """Stored bytes of all shards; None if the size of any shard is unknown."""
        sizes = [shard.size for shard in self.shards]
        return None if None in sizes else sum(filter(None, sizes))

    def split(self, split: Split) -> Self:
        """The corpus of one split; if no shard is named train, "train" is every shard that is not val or test.

        Raises PilekitError if there are no such shards.
        """
        splits: set[Split | None] = {split}
        if split == "train" and not any(shard.split == "train" for shard in self.shards):
            splits.add(None)
        shards = tuple(shard for shard in self.shards if shard.split in splits)
        if not shards:
            raise PilekitError(
                f"{self.root}: has no {split} shards; a file or folder of that name would hold them, "
                f"for example {split}.jsonl.zst"
            )
        return self._with_shards(shards)

    @property
    def held_out(self) -> tuple[Shard, ...]:
        """The val and test shards, which are never read as train; empty if there are no other shards."""
        shards = tuple(shard for shard in self.shards if shard.split in HELD_OUT)
        return shards if len(shards) < len(self.shards) else ()

    def without_held_out(self, *, warn: bool = True) -> Self:
        """The corpus without its held-out shards, with a warning that names them; the corpus itself if it has none.

        All commands that make a corpus, change one or train on one take this corpus.
        """
        held_out = self.held_out
        if not held_out:
            return self
        if warn:
            warn_of_left_out(shard.name for shard in held_out)
        return self._with_shards(tuple(shard for shard in self.shards if shard not in held_out))

    def comparable(self, held_out: HeldOutShards) -> tuple[Self, tuple[str, ...]]:
        """The corpus to compare, its protected shards first, and the names of these.

        With "leave-out", the corpus is `without_held_out`, and nothing is protected. With "protect", the held-out
        shards are protected; PilekitError if there are none.
        """
        if held_out not in get_args(HeldOutShards):
            raise PilekitError(f'held_out is "leave-out" or "protect", not {shortened(repr(held_out), 80)}')
        if held_out == "leave-out":
            return self.without_held_out(), ()
        if not (protected := self.held_out):
            raise PilekitError(
                f"{self.root}: has no held-out shards among others, so there is nothing to protect; name the "
                "folder that has both, or leave out protect"
            )
        unprotected = tuple(shard for shard in self.shards if shard not in protected)
        return self._with_shards((*protected, *unprotected)), tuple(shard.name for shard in protected)

    def only_held_out(self) -> Self:
        """The held-out shards of the corpus, for evaluation, with a warning; the corpus itself if it has none."""
        held_out = self.held_out
        if not held_out:
            return self
        names = ", ".join(shard.name for shard in held_out)
        logger.warning("only the held-out shards are taken: %s; to take the others, name them without these", names)
        return self._with_shards(held_out)

    def part(self, part: Part | None) -> Self:
        """The I-th of N parts of the shards, I from 1, for `part` = (I, N); may be empty. None: the corpus itself.

        Shards are dealt by stored size, the largest first, each to the part with the fewest bytes. So all processes of
        a job array divide the corpus alike without communicating.
        """
        if part is None:
            return self
        if not 1 <= part[0] <= part[1]:
            raise PilekitError(f"part {part[0]} of {part[1]}: parts are counted from 1 to their number")
        if any(shard.path == STANDARD_INPUT for shard in self.shards):
            raise PilekitError("standard input (-) cannot be divided into parts; save it to a file first")
        parts = [(0, 0, number) for number in range(1, min(part[1], len(self.shards)) + 1)]
        members: set[Shard] = set()
        for shard in sorted(self.shards, key=lambda shard: (-(shard.size or 0), shard.name)):
            stored, count, number = parts[0]
            heapq.heapreplace(parts, (stored + (shard.size or 0), count + 1, number))
            if number == part[0]:
                members.add(shard)
        return self._with_shards(tuple(shard for shard in self.shards if shard in members))

    def documents(self) -> Iterator[Document]:
        """All documents in order, as `read` gives them; `PileDocuments` reaches any of them by its position."""
        return itertools.chain.from_iterable(self._read(self))

    def __getstate__(self) -> dict[str, Any]:
        """The fields, and how to read in a process that has imported no reader."""
        return self.__dict__ | ({"_read": self._read} if hasattr(self, "_read") else {})

    def _with_shards(self, shards: tuple[Shard, ...]) -> Self:
        part = object.__new__(type(self))
        part.root, part.shards, part.manifest = self.root, shards, self.manifest
        return part

    def __iter__(self) -> Iterator[Shard]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)

    def __repr__(self) -> str:
        return f"Corpus({self.root!r}, {counted(len(self.shards), 'shard')}, manifest={self.manifest.name!r})"

    def _repr_html_(self) -> str:
        from pilekit.display.fitted_table import DASH, Column, FittedTable, rounded_bytes

        def stored(shard: Shard) -> str:
            return DASH if shard.size is None else rounded_bytes(shard.size)

        def split(shard: Shard) -> str:
            return shard.split or DASH

        columns = [Column[Shard]("Shard", lambda shard: shard.name), Column("Split", split), Column("Stored", stored)]
        return FittedTable(self.shards, columns, notes=[repr(self)])._repr_html_()


def warn_of_left_out(names: Iterable[str]) -> None:
    """Log the warning that these held-out shards, which are among others, are left out."""
    logger.warning("left out, as held-out shards: %s; to take them, name them alone", ", ".join(map(visible, names)))


def names_many(source: object) -> bool:
    """Whether `source` may hold several shards: a corpus, a list, a folder, a glob, or a URL of a folder."""
    if not isinstance(source, str | os.PathLike):
        return isinstance(source, Corpus) or (isinstance(source, Sequence) and not isinstance(source, bytes))
    path = os.path.expanduser(source)
    if is_url(path):
        path = without_query(path)
        return local.is_pattern(path) or not any(part.endswith(FILE_SUFFIXES) for part in path.split("::"))
    return os.path.isdir(path) or (local.is_pattern(path) and not os.path.lexists(path))


def _default() -> tuple[str, list[Shard]]:
    """(root, shards) of the default places."""
    if named := os.environ.get(ENVIRONMENT):
        try:
            return _search(named)
        except PilekitError as error:
            raise PilekitError(f"${ENVIRONMENT}: {error}") from error
    ours: list[str] = []
    for folder in ("data", "."):
        if os.path.isdir(folder):
            search = local.search_folder(folder)
            if search.files:
                _warn_of_links(search)
                return search.root, list(starmap(make_shard, search.files))
            ours += search.ours
    raise _nothing_found([f"${ENVIRONMENT} (not set)", "./data", f"the current folder ({os.getcwd()})"], ours)


def _search(source: str | Path | Iterable[str | Path]) -> tuple[str, list[Shard]]:
    """(root, shards) of one or more paths, globs or URLs.

    Files that pilekit writes beside shards, which a shell's `folder/*` includes, are left out.
    """
    sources = [source] if isinstance(source, str | bytes) or not isinstance(source, Iterable) else list(source)
    if not all(isinstance(path, str | os.PathLike) for path in sources):
        raise PilekitError(
            f"a corpus is a path, glob or URL, or a list of them, not {shortened(repr(source), 80)}; give where its "
            "shards are"
        )
    if not sources:
        raise PilekitError("no path is given: the list of paths is empty")
    if STANDARD_INPUT in sources:
        if len(sources) > 1:
            raise PilekitError("standard input (-) cannot be read together with other paths")
        return STANDARD_INPUT, [shard_of(STANDARD_INPUT)]
    searches: list[tuple[str, local.Search]] = []
    refusals: list[PilekitError] = []
    for path in map(os.path.expanduser, sources):
        reason = written_beside(without_query(path).rpartition("/")[2])
        if reason is not None and not os.path.isdir(path):
            refusals.append(PilekitError(f"{path}: {reason}"))
            continue
        search = remote.search(path) if is_url(path) else local.search(path)
        if not search.files:
            raise _nothing_found([path], search.ours)
        _warn_of_links(search)
        searches.append((path, search))
    if not searches:
        raise refusals[0]
    if len(searches) > 1 or not os.path.isfile(searches[0][0]):
        _warn_of_unfinished({search.root for _, search in searches if not is_url(search.root)})
    if len(searches) == 1:
        return search.root, list(starmap(make_shard, search.files))
    root = _common_parent([(source, search.root) for source, search in searches])
    return root, [
        make_shard(_below(root, search.root, relative), path, size)
        for _, search in searches
        for relative, path, size in search.files
    ]


def _warn_of_unfinished(folders: Iterable[str]) -> None:
    """Log a warning for each unfinished output of pilekit that holds one of these folders."""
    unfinished = set()
    for folder in folders:
        path = Path(os.path.abspath(folder))
        place = next((place for place in (path, *path.parents) if (place / HEADER_FILE).exists()), None)
        with suppress(PilekitError):
            if place is not None and read_header(place).finished is False:
                unfinished.add(str(place))
    for name in sorted(unfinished):
        logger.warning("%s: %s", name, UNFINISHED)


def _warn_of_links(search: local.Search) -> None:
    """Log a warning if folders were not searched because they are links."""
    if links := ", ".join(map(visible, sorted(filter(os.path.islink, search.ours))[:5])):
        logger.warning("not searched, because they are links to folders: %s; name such a folder to read it", links)


def _common_parent(roots: list[tuple[str, str]]) -> str:
    remote_sources = [source for source, _ in roots if is_url(source)]
    if not remote_sources:
        return os.path.commonpath([os.path.abspath(root) for _, root in roots])
    split = [root.rstrip("/").split("/") for _, root in roots]
    shared = os.path.commonprefix(split)  # noqa: RUF071 (of lists it compares parts)
    if len(remote_sources) < len(roots) or not shared or any("::" in source for source in remote_sources):
        raise PilekitError(
            f"{remote_sources[0]} and the other paths have no common folder; read them as separate corpora"
        )
    return "/".join(shared)


def _below(root: str, folder: str, relative: str) -> str:
    """The path below `root` of the file `relative` in `folder`."""
    if is_url(root) or is_url(folder):
        inner = folder.rstrip("/")[len(root) :].strip("/")
    else:
        inner = os.path.relpath(os.path.abspath(folder), root).replace(os.sep, "/")
    return relative if inner in ("", ".") else f"{inner}/{relative}"


def _nothing_found(searched: list[str], ours: Sequence[str]) -> PilekitError:
    text = f"no shards ({' '.join('*' + suffix for suffix in SHARD_SUFFIXES)}) in {', '.join(map(visible, searched))}"
    if ours:
        first_folders = ", ".join(map(visible, sorted(ours)[:5]))
        why = "because they are links or pilekit wrote them"
        return PilekitError(f"{text}; not searched, {why}: {first_folders}; name such a folder to read it")
    return PilekitError(f"{text}; give a file, folder, glob or URL, or make a small corpus with `pilekit demo`")
