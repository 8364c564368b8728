"""Token files instead of shards: `TokenCorpus`, whose documents are already ids.

The table beside a token file has the shard, number and subset of each document. So a `TokenCorpus` has the shards and
the documents' numbers of the corpus that was tokenized, and a stream selects and orders documents as under random
access. Only reading differs: documents come as ids from the mapped file. A file without a table is a shard of its own.
In memory a document takes two bytes and one bit.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.corpus import Corpus, Described, Shard, Source, load_manifest, subset_names
from pilekit.corpus.shard import is_url
from pilekit.corpus.shuffle import Int64
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.documents import check_labels
from pilekit.errors import PilekitError, shortened
from pilekit.shards.index.document_rows import DocumentRows
from pilekit.shards.index.format import Frames, IndexHeader, ShardIndex
from pilekit.shards.index.metadata import INDEX
from pilekit.shards.keep_mask import KeepMask
from pilekit.shards.random_access.selected_lines import MOST_LINES, LineBitmap
from pilekit.stream.read.read_plan import Plan
from pilekit.stream.settings import StreamSettings
from pilekit.tokenize import Tokenizer
from pilekit.tokenize.files.stored_ids import StoredIds, join_stored, stored_in
from pilekit.tokenize.files.token_file import TokenFile, index_paths
from pilekit.version import __version__

Codes = npt.NDArray[np.uint16]
Parts = tuple[tuple[int, TokenFile, int | None], ...]
"""The token files that hold a shard: the rank in the shard of the file's first document, the file, and the EOD
id that is removed from a document's end."""

_NONE = np.zeros(0, np.int64)
_SAMPLED = 16
"""Documents of a shard whose ids represent it in the stream's fingerprint."""
_HASHED = 1 << 20
"""Ids that are hashed at a time."""


@dataclass(frozen=True, eq=False)
class TokenIndex(ShardIndex):
    """Where the documents of a shard are in token files; it replaces the shard's index.

    present   the shard's lines that are documents
    codes     [documents]: the place of each document's label in `header.subsets`
    """

    parts: Parts = ()
    present: LineBitmap = field(default_factory=lambda: LineBitmap(0))
    codes: Codes = field(default_factory=lambda: np.zeros(0, np.uint16))

    def rows(self, *names: str) -> Iterator[DocumentRows]:
        """All documents; `text_bytes`, if asked for, are their tokens without EOD."""
        if count := len(self.codes):
            sizes = _NONE
            if "text_bytes" in names:
                inside = ((file, max(0, -begin), count - begin, ending) for begin, file, ending in self.parts)
                sizes = np.concatenate(
                    [file.lengths_of(*span) - (ending is not None) for file, *span, ending in inside]
                )
            numbers, codes = self.present.numbers(0, count), self.codes.astype(np.int64)
            yield DocumentRows(numbers, codes, self.header.subsets, sizes, _NONE.view(np.uint64))

    @property
    def joined(self) -> dict[str, str]:
        """The subset of each label in the files that is spelled otherwise; `header.subsets` has the subsets."""
        return {} if self.names is None else self.names.joined

    @cached_property
    def _begins(self) -> list[int]:
        return [begin for begin, _, _ in self.parts]

    def codes_of(self, numbers: Int64) -> Codes:
        """The place in `header.subsets` of each of these documents' labels; their numbers increase."""
        return self.codes[self.present.ranks(numbers)]

    def stored(self, numbers: Int64) -> StoredIds:
        """The ids of the documents of these increasing numbers, of at least one, without EOD."""
        ranks = self.present.ranks(numbers)
        begins = self._begins
        first, last = bisect_right(begins, ranks[0]) - 1, bisect_right(begins, ranks[-1]) - 1
        if first == last:
            begin, file, ending = self.parts[first]
            return stored_in(file, ranks - begin, ending)
        cuts = np.searchsorted(ranks, begins[first + 1 : last + 1])
        pieces = zip(self.parts[first:], np.split(ranks, cuts), strict=False)
        return join_stored([stored_in(file, piece - begin, ending) for (begin, file, ending), piece in pieces])

    def place(self, number: int) -> tuple[Path, int]:
        """The token file with the document of this number, and the document's number there."""
        rank = int(self.present.ranks(np.array([number]))[0])
        return next((file.path, rank - begin) for begin, file, _ in self.parts if rank < begin + len(file))

    def mask_bits(self, mask: KeepMask, dedup: str | Path) -> npt.NDArray[np.uint8]:
        """The mask's bits; PilekitError if the mask is of other bytes than were tokenized."""
        if [self.header.size, self.header.sample] != [mask.header.size, mask.header.sample]:
            raise PilekitError(
                f"{self.path}: was not made from the bytes that were deduplicated in {dedup}; "
                "run `pilekit tokenize --dedup`, which compares texts"
            )
        return np.packbits(mask.keeps(np.arange(self.header.lines)), bitorder="little")


class TokenCorpus(Corpus):
    """The corpus in token files; a list of files is one corpus, in the order of its documents.

    PilekitError for a file of another kind, and for a table that does not fit its file.
    """

    def __init__(self, source: Source, manifest: Described = None) -> None:
        sources = [source] if isinstance(source, str | Path) else source
        self.files = [TokenFile(path) for prefix in sources for path in token_files(prefix)]
        self.root = os.path.commonpath([os.path.abspath(file.path.parent) for file in self.files])  # noqa: PTH100
        self.manifest = load_manifest(manifest)
        self.names = subset_names(self.manifest)
        self.labels: dict[str, int] = {}
        self._documents: dict[str, tuple[int, LineBitmap, Codes]] = {}  # (documents before, lines, codes) of a shard
        first = 0
        for name, group in groupby(self._runs(), key=itemgetter(0)):
            numbers, codes = (np.concatenate(column) for column in list(zip(*group, strict=True))[1:])
            if name in self._documents or not (np.diff(numbers, prepend=-1) > 0).all() or numbers[-1] >= MOST_LINES:
                raise PilekitError(
                    f"{self.root}: in the token files, the documents of {name} are not together and "
                    "in order; give each file once, in the order of the corpus (two corpora that both have this shard: "
                    "tokenize them in one call; files made with --copies: make them without, and give the stream "
                    "dedup and copies)"
                )
            every = len(numbers) == numbers[-1] + 1
            lines = LineBitmap(len(numbers)) if every else LineBitmap.where(int(numbers[-1]) + 1, [numbers])
            self._documents[name] = first, lines, codes
            first += len(numbers)
        sources_of = {name: shard for file in self.files for name, shard in file.shards.items()}
        # A shard without tokens counts too, because the order depends on a shard's place among all.
        self._sources: dict[str, Any] = (
            sources_of if self._documents.keys() <= sources_of.keys() else {name: [0, ""] for name in self._documents}
        )
        self.shards = tuple(Shard(name, str(self.files[0].path)) for name in sorted(self._sources))

    @property
    def stored(self) -> list[Path]:
        """All files that the documents are read from."""
        tables = (table[0] for file in self.files if (table := file.table()) is not None)
        return [*(path for file in self.files for path in (file.path, *file.bins())), *tables]

    @property
    def sources(self) -> dict[str, tuple[int, str]]:
        """Size and sample of each shard that the files were made of (shards/fingerprint.py); (0, "") if unknown."""
        return {name: (size, sample) for name, (size, sample) in self._sources.items()}

    def plan(self, tokenizer: Tokenizer | None, settings: StreamSettings) -> Plan:
        """The plan of a stream over these files.

        PilekitError for settings that token files do not allow, and for a tokenizer that did not make the files.
        """
        if tokenizer is None or settings.filters:
            reason = "tokenizer=None asks for texts" if tokenizer is None else "filters judge texts"
            raise PilekitError(f"{self.files[0].path}: {reason}, and a token file has none; give the shards")
        for name in ("subsets", "repeats", "weights", "dedup"):
            if getattr(settings, name):
                self.needs_table(name)
        endings = [_ending(file, tokenizer, settings.append_eod) for file in self.files]
        indexes = tuple(self._index(shard.name, endings) for shard in self.shards)
        return Plan("random", "token files are read at any place", indexes)

    def needs_table(self, feature: str) -> None:
        """PilekitError if a file has no table of documents, which `feature` needs."""
        for file in self.files:
            if file.table() is None:
                raise PilekitError(
                    f"{file.path}: {feature} needs the table of documents that `pilekit tokenize` writes "
                    f"({DOCUMENTS_SUFFIX}), and there is none"
                )

    def _runs(self) -> Iterator[tuple[str, Int64, Codes]]:
        """(shard, numbers, codes) of successive documents of one shard; adds their subsets to `labels`."""
        for file in self.files:
            for batch in file.rows(os.path.relpath(file.path, self.root).removesuffix(".idx")):
                shards, labels = batch["shard"], batch["subset"]
                file_labels = labels.dictionary.to_pylist()
                subsets = file_labels if self.names is None else [self.names[label] for label in file_labels]
                code_of = [self.labels.setdefault(name, len(self.labels)) for name in subsets]
                check_labels(self.labels)
                numbers, codes = batch["number"].to_numpy(), np.array(code_of, np.uint16)[labels.indices]
                changes = np.flatnonzero(np.diff(shards.indices)) + 1
                for begin, end in pairwise([0, *changes.tolist(), len(batch)]):
                    yield shards[begin].as_py(), numbers[begin:end], codes[begin:end]

    def _index(self, name: str, endings: Sequence[int | None]) -> TokenIndex:
        first, present, codes = self._documents.get(name, (0, LineBitmap(0), np.zeros(0, np.uint16)))
        begins = np.cumsum([-first, *map(len, self.files)]).tolist()
        files = zip(begins, self.files, endings, strict=False)
        parts = tuple(part for part in files if part[0] < len(codes) and part[0] + len(part[1]) > 0)
        sample = np.unique(np.linspace(0, len(codes) - 1, _SAMPLED, dtype=np.int64)) if len(codes) else _NONE
        content = xxhash.xxh3_128()
        for rank in sample.tolist():
            begin, file, ending = next(part for part in parts if rank < part[0] + len(part[1]))
            ids = file[rank - begin]
            ids = ids[:-1] if len(ids) and ids[-1] == ending else ids
            for first in range(0, len(ids), _HASHED):  # A document may have 2^31 tokens.
                content.update(ids[first : first + _HASHED].astype(np.int64).tobytes())
        size, hash = self._sources[name]
        header = IndexHeader(
            format=INDEX.format,
            pilekit=__version__,
            storage="plain",
            text_field="",
            label_path="",
            content_bytes=0,
            skipped=0,
            examples=[],
            size=size,
            sample=hash,
            lines=present.lines,
            documents=len(codes),
            text_bytes=4 * len(codes) * sum(file.tokens for file in self.files) // sum(map(len, self.files)),
            content_hash=content.hexdigest(),
            subsets=list(self.labels),
        )
        frames = Frames(_NONE, _NONE, _NONE, _NONE)
        places: dict[str, Any] = {"parts": parts, "present": present, "codes": codes}
        return TokenIndex(str(self.files[0].path), header, frames, self.names, **places)


def corpus_of(data: Source | Corpus | None, manifest: Described = None, *, warn: bool = True) -> Corpus:
    """The corpus of token files, or of shards without the held-out shards, of which it warns."""
    # Compared with None, because a corpus of token files without documents is false.
    corpus = None if isinstance(data, Corpus) else token_corpus(data, manifest)
    return (Corpus.of(data, manifest) if corpus is None else corpus).without_held_out(warn=warn)


def token_corpus(source: Source | None, manifest: Described = None) -> TokenCorpus | None:
    """The corpus at `source` if it names token files; None for anything else. PilekitError for a mixture."""
    sources: Sequence[Any] = source if isinstance(source, list | tuple) else [source]
    shard_paths = [path for path in sources if not isinstance(path, str | Path) or not token_files(path)]
    if len(shard_paths) == len(sources):
        return None
    if shard_paths:
        raise PilekitError(f"{shard_paths[0]}: is no token file, but others are; give one kind alone")
    return TokenCorpus(sources, manifest)


def token_files(source: str | Path) -> list[Path]:
    """The token files of a prefix; none for a path of shards."""
    path = os.path.expanduser(source)  # noqa: PTH111
    is_other = is_url(path) or (not path.endswith(".idx") and os.path.exists(path))  # noqa: PTH110
    return [] if is_other or not Path(path).name else index_paths(path)


def _ending(file: TokenFile, tokenizer: Tokenizer, append_eod: bool) -> int | None:
    """The EOD to remove from the documents of a file; PilekitError if another tokenizer made the ids."""
    if not (made_by := file.made_by):
        return tokenizer.eos_id if append_eod else None
    for name, ours in {"tokenizer": tokenizer.fingerprint, "special_tokens": tokenizer.special_tokens}.items():
        if (theirs := made_by[name]) != ours:
            raise PilekitError(
                f"{file.path}: its {name} is {shortened(str(theirs), 80)}, and that of "
                f"{tokenizer.path} is {ours}; give the tokenizer that made the ids"
            )
    eod: int | None = made_by["eod"]
    return eod
