"""Turn runs of bytes into cuts of whole words, write these as `repeats.parquet`, and take them out of documents.

A cut begins where a word begins and ends where one ends, so the words before and after it stay apart.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pilekit.artifacts.parquet_rows import required, write_rows
from pilekit.corpus import Shard
from pilekit.cutting.repeats import PART
from pilekit.cutting.shards import Selection, Spans
from pilekit.cutting.words import characters_before
from pilekit.shards.corpus_job import Share
from pilekit.shards.random_access.document_reader import DocumentReader
from pilekit.workers import Advance

_TEXT, _INT = pa.string(), pa.int64()
ROWS = required(
    **{"shard": _TEXT, "number": _INT, "subset": _TEXT, "start": _INT, "end": _INT},
    **{"first_shard": _TEXT, "first_number": _INT, "first_start": _INT, "bytes": _INT},
)
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BYTE = 0xFFFFFFFF


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """The part of `text[start:end]` from its first whole word to its last; start equals end if there is none."""
    words = text[start:end]
    if words and start and not (text[start - 1].isspace() or words[0].isspace()):
        words = "".join(words.split(None, 1)[1:])
    words = words.lstrip()
    start = end - len(words)
    if words and end < len(text) and not (text[end].isspace() or words[-1].isspace()):
        words = "".join(words.rsplit(None, 1)[:-1])
    return start, start + len(words.rstrip())


def without(text: str, spans: Spans) -> list[str]:
    """The rest of a text, as one piece; none without letter or digit."""
    borders = [0, *(place for span in spans for place in span), len(text)]
    left = "".join(text[begin:end] for begin, end in zip(borders[::2], borders[1::2], strict=True))
    return [left] if _LETTER_OR_DIGIT.search(left) else []


def cuts_of(text: str, parts: Sequence[Sequence[int]], length: int) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, name of the earliest document, start there) of each run that holds a word, from a document's parts.

    Parts that touch or overlap are a run. Its earliest place is that of its longest part.
    """
    data, runs = np.frombuffer(text.encode(), np.uint8), list[list[Sequence[int]]]()
    for part in parts:
        if not runs or part[0] > runs[-1][-1][1] + length:
            runs.append([])
        runs[-1].append(part)
    longest = [max(run, key=lambda part: part[1] - part[0]) for run in runs]
    # The places in the text: the first and the last byte of each run and the first one of its longest part.
    places = [
        (run[0][0] & _BYTE, (run[-1][1] & _BYTE) + length, part[0] & _BYTE)
        for run, part in zip(runs, longest, strict=True)
    ]
    ascending = np.unique([0, *(place for of_run in places for place in of_run)])
    characters = dict(zip(ascending.tolist(), characters_before(data, ascending).tolist(), strict=True))
    for (begin, end, at), (_, _, first, before) in zip(places, longest, strict=True):
        is_inside = end < len(data) and (data[end] & 0xC0) == 0x80  # a character that the run has only partly
        start, stop = whole_words(text, characters[begin], max(characters[begin], characters[end] - is_inside))
        if start < stop:
            yield start, stop, first >> 32, before + max(0, start - characters[at])


def locate_cuts(
    shard: Shard,
    advance: Advance,
    *,
    path: Path,
    parts: Path,
    starts: Sequence[int],
    bases: Mapping[str, int],
    length: int,
    selection: Selection,
    share: Share,
) -> tuple[dict[str, Any], list[Path]]:
    """Write the table of a shard's cuts.

    parts    the file of the parts of all runs
    starts   where the parts of each shard begin in it
    bases    the name of each shard's document 0
    share    unused, as few documents are read
    """
    names, firsts, base = list(bases), list(bases.values()), bases[shard.name]
    begin, end = starts[names.index(shard.name) :][:2]
    rows = (
        np.memmap(parts, np.uint64, "r").reshape(-1, PART)[begin:end] if begin < end else np.empty((0, PART), np.uint64)
    )
    numbers, begins = np.unique(rows[:, 0] >> np.uint64(32), return_index=True)

    def cuts(reader: DocumentReader) -> Iterator[tuple[Any, ...]]:
        documents = reader.increasing(numbers.astype(np.int64) - base)
        for document, (first_row, last_row) in zip(documents, pairwise([*begins, len(rows)]), strict=True):
            for start, stop, first, first_start in cuts_of(document.text, rows[first_row:last_row].tolist(), length):
                of, size = bisect(firsts, first) - 1, len(document.text[start:stop].encode())
                place = names[of], first - firsts[of], first_start
                yield shard.name, document.number, document.subset, start, stop, *place, size

    with closing(DocumentReader(shard, None, manifest=selection.manifest, advance=advance)) as reader:
        return {}, [write_rows(path, ROWS, cuts(reader))]
