"""`ShardPassages`: the passages of given texts that the documents of one shard have.

It takes in batches. Counts for each state of the `RunAutomaton` are in memory. The places of the first few documents
that met a state go into a file without a name, because there may be thousands of bytes for each passage. At the end
only the states of passages that are maximal in this shard are kept, because a passage that is maximal in the corpus is
maximal in each shard that holds it. So a result grows with the texts and not with the corpus.

A shard's result is two files, which maximal_passages.py adds up and reads state by state: rows of numbers, and the
places of each state, MessagePack.
"""

from __future__ import annotations

import mmap
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.sort.scratch_files import scratch_errors
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import Int64, characters_before
from pilekit.documents import DocumentBatch
from pilekit.trace.run_automaton import RunAutomaton

WORDS_AROUND = 8
_CHARACTERS_AROUND = 400
_LIST = b"\xdd"
"""MessagePack's mark of a list, which its length follows."""


class Place(msgspec.Struct, array_like=True):
    """Where a document has a passage first: characters in it, the words before, the exact text, the words behind."""

    number: int
    subset: str
    start: int
    end: int
    before: str
    text: str
    after: str


class ShardPassages:
    """The passages that the documents of one shard share with the texts.

    most      so many documents are listed for each
    common    no document is listed for a passage that more have; 0: some for each
    scratch   an existing folder for a file without a name
    """

    def __init__(self, ngrams: NGrams, automaton: RunAutomaton, most: int, common: int, scratch: Path):
        self._ngrams, self._automaton, self._most, self._common = ngrams, automaton, most, common
        self._met, self._documents = automaton.unmet(), 0
        self._scratch = scratch
        with scratch_errors(scratch):
            self._places = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - open as long as this object
        self._entries: list[npt.NDArray[np.int32]] = [np.zeros((3, 0), np.int32)]
        """The state, the windows and the bytes of each place."""

    def add(self, batch: DocumentBatch) -> None:
        """Take in the documents of a batch."""
        hits = self._ngrams.find(batch)
        documents, _, begins, ends, _ = hits.T
        runs = np.ascontiguousarray(hits.T[[0, 1, 4]])
        states, windows, last = self._automaton.match(runs, self._documents, self._met, self._most)
        self._documents += len(batch)
        if not len(states):
            return
        data, offsets = batch.utf8()
        document, begin, end = documents[last], begins[last - windows + 1], ends[last]
        places, inverse = np.unique(np.concatenate([offsets[document], begin, end]), return_inverse=True)
        origin, start, stop = characters_before(data, places)[inverse].reshape(3, -1)
        columns = document, start - origin, stop - origin
        encoded = [
            msgspec.msgpack.encode(_place(batch, index, start_at, end_at))
            for index, start_at, end_at in zip(*(column.tolist() for column in columns), strict=True)
        ]
        with scratch_errors(self._scratch):
            self._places.writelines(encoded)
        self._entries.append(np.array([states, windows, list(map(len, encoded))], np.int32))

    def write(self, first: Int64, rows: Path) -> list[Path]:
        """Write the states of the passages that are maximal in this shard into two files; returns them.

        first   the first window of each text, and the end
        rows    the file of numbers; that of the places has another suffix
        """
        met = self._met
        states = np.unique(self._automaton.maximal(first, met.windows)[3])
        entry_state, entry_windows, size = np.concatenate(self._entries, axis=1)
        begin = np.cumsum(size, dtype=np.int64) - size
        is_kept = (entry_windows == met.windows[entry_state]) & np.isin(entry_state, states)
        if self._common > 0:
            is_kept &= met.documents[entry_state] <= self._common
        kept = np.flatnonzero(is_kept)
        kept = kept[np.argsort(entry_state[kept], kind="stable")]
        ends = np.searchsorted(entry_state[kept], states, "right")
        columns, behind = [states, met.windows[states], met.documents[states]], list[int]()
        with write_atomically(rows) as numbers, write_atomically(places_file(rows)) as file:
            places = self._mapped()
            for start, stop in pairwise([0, *ends.tolist()]):
                entries = kept[start:stop]
                file.write(_LIST + len(entries).to_bytes(4, "big"))
                for at, length in zip(begin[entries].tolist(), size[entries].tolist(), strict=True):
                    file.write(places[at : at + length])
                behind.append(file.tell())
            np.save(numbers, np.array([*columns, behind], np.int64))
        self._places.close()
        return [rows, places_file(rows)]

    def _mapped(self) -> Any:
        with scratch_errors(self._scratch):
            self._places.flush()
        return mmap.mmap(self._places.fileno(), 0, prot=mmap.PROT_READ) if self._places.tell() else b""


def places_file(rows: Path) -> Path:
    """The file of the places beside that of the numbers."""
    return rows.with_suffix(".msgpack")


def places_at(file: BinaryIO, begin: int, end: int) -> list[Place]:
    """The places of a state in a file of places."""
    file.seek(begin)
    return msgspec.msgpack.decode(file.read(end - begin), type=list[Place])


def _place(batch: DocumentBatch, index: int, start: int, end: int) -> Place:
    text = batch.texts[index]
    before = text[max(0, start - _CHARACTERS_AROUND) : start].split()[-WORDS_AROUND:]
    after = text[end : end + _CHARACTERS_AROUND].split(None, WORDS_AROUND)[:WORDS_AROUND]
    subset, number = batch.subsets[index], int(batch.numbers[index])
    return Place(number, subset, start, end, " ".join(before), text[start:end], " ".join(after))
