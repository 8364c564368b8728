"""`PlantedRows`: texts that stand in some rows of some steps instead of what the stream has there.

A planted row holds one text of a file, its end-of-document token, and padding. It replaces a whole row. The documents
of the replaced row are missing in that row alone: no lane knows of it, so order, state and all other rows stay as they
are, bit for bit.

The place of a copy, a step and a row in it, is drawn by a hash of the seed, the text, and the number of the copy. So
every process finds the same table, for any number of ranks, micro-batches and workers. A text keeps its places if the
file gets or loses other texts, and 16 copies have the places of 4 copies and 12 more. Only a place that is taken is
drawn again. Copies keep the order of the list and of the file then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.checked import checked, paths_as_text
from pilekit.corpus import Corpus, Manifest
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.corpus.shuffle import Int64, UInt64, mix
from pilekit.errors import PilekitError, counted, shortened
from pilekit.shards.read.reader import read
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.pack.packings import Rows
from pilekit.stream.pack.window import BEGIN, TokenizedDocuments, Window, window_of
from pilekit.stream.read.lane_documents import SKIPPED, document_table
from pilekit.stream.settings import Planting
from pilekit.tokenize import Tokenizer

_PLACES = 10
"""The first word of the key of a place's hash."""


@dataclass(frozen=True)
class PlantedTexts:
    """The texts of an entry of `plant`.

    planting   the entry
    path       its file
    name       the name of its file as a shard
    shard      the number of this shard, after those of the corpus
    numbers    int64 [texts]: their numbers in the shard
    keys       uint64 [texts]: hashes of the texts
    copies     int64 [texts]: how often each is planted
    ids        uint32 [tokens], all texts one after another
    offsets    int64 [texts + 1], from 0: text i is `ids[offsets[i]:offsets[i + 1]]`
    """

    planting: Planting
    path: str
    name: str
    shard: int
    numbers: Int64
    keys: UInt64
    copies: Int64
    ids: npt.NDArray[np.uint32]
    offsets: Int64

    @property
    def content(self) -> str:
        """A hash of its texts, in their order."""
        return xxhash.xxh3_128_hexdigest(self.keys.astype("<u8").tobytes() + self.numbers.astype("<i8").tobytes())

    def identity(self) -> dict[str, Any]:
        """What a state says of it, as JSON types."""
        steps = [self.planting.begin, self.planting.end]
        return {"file": self.name, "content": self.content, "copies": self.copies.tolist(), "steps": steps}

    def window(self, text: int, subset: int, append_eod: bool, replaced: Window) -> Window:
        """The row of a text, in place of the only row of `replaced`."""
        ids = self.ids[self.offsets[text] : self.offsets[text + 1]]
        lost = replaced.pieces
        skipped = lost[lost[:, BEGIN] == 0, SKIPPED].sum()  # bad lines count in whatever row comes after them
        table = document_table(1, shard=self.shard, number=self.numbers[text], subset=subset, skipped=skipped)
        none, border = np.zeros(1, np.int64), np.array([0, 1], np.int64)
        rows = Rows(none, none, np.array([len(ids) + append_eod], np.int64), border)
        documents = TokenizedDocuments(ids, border * len(ids), table)
        return window_of(documents, rows, replaced.row_keys, replaced.after)


@dataclass(frozen=True, eq=False)
class PlantedRows:
    """The planted texts of a stream, and their places.

    entries      the texts, with shard numbers from `first_shard` on
    subset       the id of `PLANTED`
    append_eod   whether the end-of-document token follows each text
    seed         of the places
    """

    entries: Sequence[PlantedTexts]
    subset: int
    append_eod: bool
    seed: int
    _tables: dict[int, tuple[Int64, Int64]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plantings: Any,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        subset: int,
        seq_len: int,
        append_eod: bool,
        seed: int,
    ) -> PlantedRows:
        """Read the files and tokenize their texts.

        PilekitError for a wrong entry, a file that cannot be read or has the name of another shard, numbers of copies
        that do not fit its texts, and a text that is empty or longer than a row.
        """
        shards = [shard.name for shard in corpus.shards]
        entries: list[PlantedTexts] = []
        listed: list[Planting] = checked(paths_as_text(plantings), list[Planting], "plant")
        for planting in listed:
            path, name, numbers, texts = _texts(planting, corpus.manifest)
            keys = np.array([xxhash.xxh3_64_intdigest(text.encode()) for text in texts], np.uint64)
            ids, offsets = tokenizer.encode_batch(texts)
            lengths = np.diff(offsets)
            for wrong in np.flatnonzero((lengths == 0) | (lengths + append_eod > seq_len)).tolist():
                tokens = counted(int(lengths[wrong]), "token")
                eod = " and an end-of-document token" if append_eod else ""
                remedy = (
                    f"more than a row of {seq_len:,}; shorten it, or give a larger seq_len"
                    if lengths[wrong]
                    else "which is no text to plant; remove the line"
                )
                raise PilekitError(f"{path}, line {numbers[wrong] + 1:,}: has {tokens}{eod}, {remedy}")
            same = next((entry for entry in entries if entry.name == name), None)
            shard = len(shards) if same is None else same.shard
            copies = _copies(planting, path, len(texts))
            entry = PlantedTexts(planting, path, name, shard, numbers, keys, copies, ids, offsets)
            if name in shards if same is None else same.content != entry.content:
                raise PilekitError(f"{path}: another shard has the name {shortened(name, 100)} too; rename the file")
            if same is None:
                shards.append(name)
            entries.append(entry)
        return cls(entries, subset, append_eod, seed)

    @property
    def names(self) -> list[str]:
        """The names of the files as shards, by their numbers after those of the corpus."""
        return list(dict.fromkeys(entry.name for entry in self.entries))

    def identity(self) -> list[dict[str, Any]]:
        """What a state says of them, as JSON types."""
        return [entry.identity() for entry in self.entries]

    def described(self) -> list[dict[str, Any]]:
        """The same, with the path of each file, and for each text the number in its file."""
        numbers = [{"path": entry.path, "numbers": entry.numbers.tolist()} for entry in self.entries]
        return [{**entry, **more} for entry, more in zip(self.identity(), numbers, strict=True)]

    def places(self, rows: int) -> tuple[Int64, Int64]:
        """The planted rows, for steps of `rows` rows.

        Returns int64 [copies], increasing: step x rows + row in the step; and int64 [copies, 2]: for each the entry,
        and the text in it. PilekitError if the copies are more than half of the rows of their steps.
        """
        if rows not in self._tables:
            taken, table = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
            drawn = [taken]
            for number, entry in enumerate(self.entries):
                text = np.repeat(np.arange(len(entry.copies)), entry.copies)
                copy = np.arange(len(text)) - np.repeat(np.cumsum(entry.copies) - entry.copies, entry.copies)
                drawn.append(self._drawn(entry, entry.keys[text], copy, rows, taken))
                taken = np.union1d(taken, drawn[-1])
                table = np.concatenate((table, np.stack((np.full(len(text), number), text), axis=1)))
            places = np.concatenate(drawn)
            order = np.argsort(places)
            self._tables[rows] = places[order], table[order]
        return self._tables[rows]

    def _drawn(self, entry: PlantedTexts, keys: UInt64, copy: Int64, rows: int, taken: Int64) -> Int64:
        """A place for each copy of an entry, int64 [copies], that is not `taken`."""
        first, end = entry.planting.begin * rows, entry.planting.end * rows
        taken = taken[(first <= taken) & (taken < end)]
        if 2 * (len(taken) + len(keys)) > end - first:
            raise PilekitError(
                f"{counted(len(taken) + len(keys), 'copy', 'copies')} in steps {entry.planting.begin:,} to "
                f"{entry.planting.end:,} of {counted(rows, 'row')} are more than half of these rows; give fewer "
                "copies or more steps"
            )
        places = np.full(len(keys), -1, np.int64)
        pending = np.arange(len(keys))
        for turn in count():
            hashed = mix(self.seed, _PLACES, keys[pending], copy[pending], turn)
            drawn = first + (hashed % np.uint64(end - first)).astype(np.int64)
            once = np.unique(drawn, return_index=True)[1]  # of copies that drew one place, the first has it
            free = once[~np.isin(drawn[once], taken)]
            places[pending[free]] = drawn[free]
            taken = np.concatenate((taken, drawn[free]))
            pending = np.delete(pending, free)
            if not len(pending):
                break
        return places

    def replace(self, share: Share, batch: int, windows: Sequence[Window]) -> Sequence[Window]:
        """The rows of a rank's batch with this number, some of them replaced."""
        rows = share.grid.global_batch_size
        places, table = self.places(rows)
        first = batch // share.grad_accum * rows
        begin, end = np.searchsorted(places, (first, first + rows)).tolist()
        if begin == end:
            return windows
        of_batch = {row: place for place, row in enumerate(share.row_numbers(batch).tolist())}
        texts = {
            of_batch[row]: (self.entries[entry], text)
            for row, (entry, text) in zip((places[begin:end] - first).tolist(), table[begin:end].tolist(), strict=True)
            if row in of_batch
        }
        replaced: list[Window] = []
        place = 0
        for window in windows:
            kept = 0
            for row in range(len(window)):
                if (planted := texts.get(place + row)) is not None:
                    entry, text = planted
                    whole = window.part(row, row + 1)
                    replaced += [window.part(kept, row), entry.window(text, self.subset, self.append_eod, whole)]
                    kept = row + 1
            replaced.append(window.part(kept, len(window)) if kept else window)
            place += len(window)
        return replaced


def _texts(planting: Planting, manifest: Manifest) -> tuple[str, str, Int64, list[str]]:
    """(path, name, numbers, texts) of an entry's file. PilekitError unless it is one file of documents."""
    corpus = Corpus(planting.file, manifest)
    if len(corpus.shards) != 1 or corpus.shards[0].path == STANDARD_INPUT:
        raise PilekitError(f"{planting.file}: must be one file, which every process can read; name a file of documents")
    numbers: list[int] = []
    texts: list[str] = []
    (shard,) = corpus.shards
    if shard.size != 0:  # an empty shard is damaged, but an empty file may be a list of nothing
        with read(shard, manifest=manifest) as batches:
            for batch in batches:
                numbers += batch.numbers.tolist()
                texts += batch.texts
    return shard.path, shard.name, np.array(numbers, np.int64), texts


def _copies(planting: Planting, path: str, texts: int) -> Int64:
    """How often each of so many texts is planted: one number for all, or the numbers of the list in turn."""
    listed = [planting.copies] if isinstance(planting.copies, int) else planting.copies
    if texts % len(listed):
        raise PilekitError(
            f"{path}: has {counted(texts, 'text')}, and copies has {len(listed)} numbers, which the texts take in "
            "turn; give one number, one for each text, or as many texts for each number"
        )
    return np.resize(np.array(listed, np.int64), texts)
