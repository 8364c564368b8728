"""Runs of bytes become cuts of whole words: the rows of `repeats.parquet`, and documents without them.

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

from pilekit.artifacts.parquet_rows import parquet_rows, required
from pilekit.corpus import Manifest, Shard
from pilekit.cutting.cut_shards import Spans
from pilekit.cutting.repeats import RUN
from pilekit.engine import Advance
from pilekit.shards.random_access.document_reader import DocumentReader

_TEXT, _INT = pa.string(), pa.int64()
ROWS = required(
    **{"shard": _TEXT, "number": _INT, "subset": _TEXT, "start": _INT, "end": _INT},
    **{"first_shard": _TEXT, "first_number": _INT, "first_start": _INT, "bytes": _INT},
)
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")


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


def cuts_of(text: str, runs: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, name of the earliest document, start there) of each of a document's runs that holds a word."""
    data = np.frombuffer(text.encode(), np.uint8)
    places = sorted({0, *(place for run in runs for place in run[1:4])})
    begun, characters = 0, {0: 0}
    for before, place in pairwise(places):
        begun += int(np.count_nonzero((data[before:place] & 0xC0) != 0x80))
        characters[place] = begun
    for _, begin, end, part, first, first_characters in runs:
        is_inside = end < len(data) and (data[end] & 0xC0) == 0x80  # a character that the run has only partly
        start, stop = whole_words(text, characters[begin], max(characters[begin], characters[end] - is_inside))
        if start < stop:
            yield start, stop, first >> 32, first_characters + max(0, start - characters[part])


def locate_cuts(
    shard: Shard,
    advance: Advance,
    *,
    path: Path,
    runs: Path,
    starts: Sequence[int],
    bases: Mapping[str, int],
    manifest: Manifest,
    ahead: bool,
) -> dict[str, Any]:
    """Write the table of a shard's cuts.

    runs     the file of all runs
    starts   where the runs of each shard begin in it
    bases    the name of each shard's document 0
    ahead    unused, as few documents are read
    """
    names, firsts, base = list(bases), list(bases.values()), bases[shard.name]
    begin, end = starts[names.index(shard.name) :][:2]
    waiting = np.memmap(runs, np.uint64, "r").reshape(-1, RUN)[begin:end] if begin < end else np.empty((0, RUN))
    numbers, begins = np.unique(waiting[:, 0], return_index=True)
    with (
        parquet_rows(path, ROWS) as table,
        closing(DocumentReader(shard, None, manifest=manifest, advance=advance)) as reader,
    ):
        documents = reader.increasing(numbers.astype(np.int64) - base)
        for document, (begin, end) in zip(documents, pairwise([*begins, len(waiting)]), strict=True):
            for start, stop, first, first_start in cuts_of(document.text, waiting[begin:end].tolist()):
                of, size = bisect(firsts, first) - 1, len(document.text[start:stop].encode())
                row = (shard.name, document.number, document.subset, start, stop, names[of], first - firsts[of])
                table.add(dict(zip(ROWS.names, (*row, first_start, size), strict=True)))
    return {}
