"""What `pilekit decontaminate` and `pilekit substrings` cut, each passage beside the text that it repeats.

That text is of an evaluation's record, or of an earlier document. The tables say where both are. The files are read
again, and must be unchanged.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.artifacts.header import Header, finished_header, read_header
from pilekit.corpus import Shard
from pilekit.cutting.evaluation_texts import evaluation_names, record_texts
from pilekit.cutting.hits import HITS
from pilekit.cutting.job import EVALUATION_PATHS, FOUND, PATHS
from pilekit.cutting.result import REPEATS
from pilekit.cutting.words import compacted
from pilekit.dedup.previous_runs import manifest_of
from pilekit.dedup.show.removed_pairs import readable
from pilekit.errors import PilekitError, counted, shortened
from pilekit.shards.fingerprint import unchanged_shard
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import DocumentReader

AROUND = 200
"""Characters before and after a passage."""
MOST_OF_A_PASSAGE = 1_000_000
"""Characters of a passage that are read."""
KINDS = {"decontamination": (HITS, "pilekit decontaminate"), "substrings": (REPEATS, "pilekit substrings")}
"""The kinds of folders, each with its table of cuts and its command."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Passage:
    """A part of a text, with the text around it; `of` says where it is."""

    of: str
    before: str
    text: str
    after: str

    @classmethod
    def at(cls, of: str, text: str, start: int, end: int) -> Passage:
        """The characters from `start` to `end` of a text."""
        end = min(end, start + MOST_OF_A_PASSAGE)
        return cls(of, text[max(0, start - AROUND) : start], text[start:end], text[end : end + AROUND])


class CutFolder:
    """A finished folder of `pilekit decontaminate` or `pilekit substrings`; PilekitError for any other."""

    def __init__(self, folder: Path):
        kind = read_header(folder).kind
        if kind not in KINDS:
            commands = " or ".join(f"`{command}`" for _, command in KINDS.values())
            raise PilekitError(f'{folder}: holds a "{shortened(kind, 60)}"; name a folder that {commands} wrote')
        table, command = KINDS[kind]
        self.folder, self.kind, self.command = folder, kind, command
        self.header: Header = finished_header(folder, kind, command)
        self.table, self.manifest = folder / table, manifest_of(self.header.parameters)

    @property
    def paths(self) -> dict[str, str]:
        """Where each shard was, by its name."""
        return self._noted(PATHS)

    def shards(self) -> list[Shard]:
        """The shards that were searched; PilekitError if one is gone or changed."""
        return [self._shard(name, path) for name, path in self.paths.items()]

    def count(self, subset: str | None = None) -> int:
        """The number of rows of the table, of a subset alone by its exact name."""
        with readable(self.table, self.command) as table:
            return int(table.count_rows(filter=_of(subset=subset)))

    def subsets(self) -> list[str]:
        """The subsets with cuts, by name."""
        with readable(self.table, self.command) as table:
            found = set[str]()
            for batch in table.to_batches(columns=["subset"]):
                found.update(pc.unique(batch["subset"]).to_pylist())
            return sorted(found)

    def rows(self, start: int, most: int, **values: Any) -> list[Row]:
        """Up to `most` rows from the `start`-th of those with these values on, in the order of the table."""

        def some(table: pa.dataset.Dataset) -> Iterator[Row]:
            passed = 0
            for batch in table.to_batches(filter=_of(**values), use_threads=False):
                yield from batch.slice(max(0, start - passed)).to_pylist() if passed + len(batch) > start else []
                passed += len(batch)

        with readable(self.table, self.command) as table:
            return list(islice(some(table), most))

    def spread(self, count: int, subset: str | None = None) -> tuple[list[Row], int]:
        """Up to `count` spans of `pilekit decontaminate`, evenly over their lengths, the shortest first; the number of
        all.

        A span of several records comes with the record that shares the most of it.
        """
        with readable(self.table, self.command) as table:
            columns = table.to_table(["number", "start", "words", "ngrams", "shard"], filter=_of(subset=subset))
            number, start, words, ngrams = (column.to_numpy() for column in columns.columns[:4])
            shard = columns["shard"].combine_chunks()
            other = pc.not_equal(shard[1:], shard[:-1]).to_numpy(zero_copy_only=False).astype(bool)
            begins = np.flatnonzero(
                np.append(True, other | (np.diff(number) != 0) | (np.diff(start) != 0))[: len(number)]
            )
            most = np.maximum.reduceat(ngrams, begins) if len(begins) else ngrams
            span = np.searchsorted(begins, np.arange(len(number)), "right") - 1
            best = np.flatnonzero(ngrams == most[span])
            best = best[np.unique(span[best], return_index=True)[1]]
            order = best[np.argsort(words[best], kind="stable")]
            turns = np.arange(min(count, len(order)))
            chosen = order[turns * max(0, len(order) - 1) // max(1, len(turns) - 1)]
            taken = table.filter(_of(subset=subset)).take(chosen).to_pylist() if len(chosen) else []
            return taken, len(order)

    def passages(self, rows: Sequence[Row]) -> list[tuple[Passage, Passage]]:
        """(the text that is repeated, the cut passage) of each row; each file is read once."""
        wanted = defaultdict[str, set[int]](set)
        for row in rows:
            wanted[row["shard"]].add(row["number"])
            if self.kind == "substrings":
                wanted[row["first_shard"]].add(row["first_number"])
        texts = dict(self._texts(wanted))
        records = self._records(rows) if self.kind == "decontamination" else {}
        found = []
        for row in rows:
            text, place = texts[row["shard"], row["number"]], f"{row['shard']} {row['number']:,}, {row['subset']}"
            cut = Passage.at(f"{place} from {row['start']:,} to {row['end']:,}", text, row["start"], row["end"])
            if self.kind == "substrings":
                shard, number, begin = (row[name] for name in ("first_shard", "first_number", "first_start"))
                earlier = texts[shard, number]
                begin = max(0, begin - _inside(cut.text, earlier[begin:], self.header.parameters["min_bytes"]))
                place = f"{shard} {number:,} from {begin:,}"
                found.append((Passage.at(place, earlier, begin, begin + row["end"] - row["start"]), cut))
                continue
            record, of = row["evaluation"], f"{row['evaluation']} record {row['record']:,}, {row['field']}"
            text = records[record].get(row["record"], {}).get(row["field"], "")
            begin, end = shared_passage(text, cut.text, self.header.parameters["ngram"])
            found.append((Passage.at(of, text, begin, end), cut))
        return found

    def _texts(self, wanted: Mapping[str, set[int]]) -> Iterator[tuple[tuple[str, int], str]]:
        for name, numbers in wanted.items():
            shard = self._shard(name, self.paths[name])
            with closing(DocumentReader(shard, find_index(shard, self.manifest), manifest=self.manifest)) as reader:
                for document in reader.read(sorted(numbers)):
                    yield (name, document.number), document.text

    def _records(self, rows: Sequence[Row]) -> dict[str, dict[int, dict[str, str]]]:
        """The texts of the rows' records, by evaluation, number and field."""
        wanted, paths = defaultdict[str, set[int]](set), self._noted(EVALUATION_PATHS)
        for row in rows:
            wanted[row["evaluation"]].add(row["record"])
        shards = [Shard(name, path, None) for name, path in paths.items()]
        named = dict(zip(evaluation_names(shards), shards, strict=True))
        fields, found = self.header.parameters["fields"], {}
        for evaluation, numbers in wanted.items():
            shard = self._shard(f"/{named[evaluation].name}", named[evaluation].path)
            found[evaluation] = record_texts(shard, fields, numbers)
        return found

    def _shard(self, name: str, path: str) -> Shard:
        return unchanged_shard(self.folder, name, path, self.header.inputs[name])

    def _noted(self, name: str) -> dict[str, str]:
        try:
            found: dict[str, str] = self.header.results[FOUND]["result"][name]
        except (KeyError, TypeError):
            raise PilekitError(
                f"{self.folder}: does not tell where its files were, as an earlier pilekit wrote it; remove "
                f"it and run the same `{self.command}` again"
            ) from None
        return found


def how(row: Row) -> str:
    """What a row of a table proves, in a few words."""
    if "words" in row:
        return f"{counted(row['words'], 'word')}, {counted(row['ngrams'], 'n-gram')} of the record"
    return f"{counted(row['bytes'], 'byte')}"


def shared_passage(text: str, cut: str, ngram: int) -> tuple[int, int]:
    """(start, end) of the longest run of words in a record's text whose n-grams the cut passage has; (0, 0): none.

    A text shorter than an n-gram is an n-gram by itself.
    """
    words = [(compacted(piece[0])[0], *piece.span()) for piece in re.finditer(r"\S+", text)]
    words = [word for word in words if word[0]]
    of_cut = compacted(cut)[0].split(b" ")[:-1]
    size = min(ngram, len(words))
    has = {tuple(of_cut[at : at + size]) for at in range(len(of_cut) - size + 1)} if size else set()
    keys = [word[0].removesuffix(b" ") for word in words]
    begin, end, longest = 0, 0, (0, 0)  # places of words
    for at in range(len(keys) - size + 1):
        if tuple(keys[at : at + size]) in has:
            begin, end = begin if at <= end else at, at + size
            longest = max(longest, (begin, end), key=lambda run: run[1] - run[0])
    first, last = longest
    return (words[first][1], words[last - 1][2]) if first < last else (0, 0)


def _inside(cut: str, earlier: str, min_bytes: int) -> int:
    """How many characters of a cut are before the text that the earlier document has; 0 if it is not found.

    A cut of several parts names the place of the longest.
    """
    for size in (min_bytes, min_bytes // 2, max(1, min_bytes // 4)):  # a character has up to 4 bytes
        if (at := cut.find(earlier[:size])) >= 0:
            return at
    return 0


def _of(**values: Any) -> pc.Expression:
    """A filter for rows with these values; None stands for any."""
    wanted = pc.scalar(True)
    for name, value in values.items():
        wanted = wanted if value is None else wanted & (pc.field(name) == value)
    return wanted
