"""Runs of bytes become cuts of whole words: the rows of `repeats.parquet`, and documents without them.

A cut begins where a word begins and ends where one ends, so the words before and behind it stay apart.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from pilekit.artifacts.parquet_rows import parquet_rows, required
from pilekit.corpus import Shard
from pilekit.cutting.cut_shards import Spans, changed, cut_documents
from pilekit.cutting.repeats import RUN, Selection, kept
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance
from pilekit.shards.fingerprint import Inputs

_TEXT, _INT = pa.string(), pa.int64()
ROWS = required(
    **{"shard": _TEXT, "number": _INT, "subset": _TEXT, "start": _INT, "end": _INT},
    **{"first_shard": _TEXT, "first_number": _INT, "first_start": _INT, "bytes": _INT},
)
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """The part of `text[start:end]` from its first whole word to its last; `start` and `end` are equal without any."""
    words = text[start:end]
    if words and start and not (text[start - 1].isspace() or words[0].isspace()):
        words = "".join(words.split(None, 1)[1:])
    words = words.lstrip()
    start = end - len(words)
    if words and end < len(text) and not (text[end].isspace() or words[-1].isspace()):
        words = "".join(words.rsplit(None, 1)[:-1])
    return start, start + len(words.rstrip())


def without(text: str, spans: Spans) -> list[str]:
    """What is left of a text, as one piece; none without letter or digit."""
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
        is_inside = end < len(data) and (data[end] & 0xC0) == 0x80  # of a character, which the run has not whole
        start, stop = whole_words(text, characters[begin], max(characters[begin], characters[end] - is_inside))
        if start < stop:
            yield start, stop, first >> 32, first_characters + max(0, start - characters[part])


def cut_repeats(
    shard: Shard,
    advance: Advance,
    *,
    runs: Path,
    starts: Sequence[int],
    names: Sequence[str],
    bases: Sequence[int],
    part: Path,
    path: Path | None,
    selection: Selection,
    inputs: Inputs,
    ahead: bool,
) -> tuple[dict[str, dict[str, int]], list[Path]]:
    """Write the shard without its runs at `path`, or none, and the table of its cuts at `part`.

    runs     the file of all runs
    starts   where in it those of each shard begin
    names    of all shards; `bases`: the name of each one's document 0

    Returns the counts of each subset, and the paths of the shard.
    """
    place = list(names).index(shard.name)
    base, waiting, done, mask = bases[place], np.empty((0, RUN), np.uint64), 0, selection.mask(shard)
    if starts[place] < starts[place + 1]:
        waiting = np.memmap(runs, np.uint64, "r").reshape(-1, RUN)[starts[place] : starts[place + 1]]
    with parquet_rows(part, ROWS) as table, selection.read(shard, advance, ahead=ahead) as reader:

        def spans_of(batch: DocumentBatch) -> dict[int, Spans]:
            nonlocal done
            of_document: dict[int, list[list[int]]] = defaultdict(list)
            if done < len(waiting) and len(batch):
                stop = int(np.searchsorted(waiting[:, 0], np.uint64(base + batch.numbers[-1]), "right"))
                index_of = {base + number: index for index, number in enumerate(batch.numbers.tolist())}
                for run in waiting[done:stop].tolist():
                    if run[0] not in index_of:
                        raise changed(shard)
                    of_document[index_of[run[0]]].append(run)
                done = stop
            spans: dict[int, Spans] = {}
            for index, of in of_document.items():
                number, subset, text = int(batch.numbers[index]), batch.subsets[index], batch.texts[index]
                cuts = list(cuts_of(text, of))
                for start, end, first, first_start in cuts:
                    earliest = int(np.searchsorted(bases, first, "right")) - 1
                    row = (shard.name, number, subset, start, end, names[earliest], first - bases[earliest])
                    size = len(text[start:end].encode())
                    table.add(dict(zip(ROWS.names, (*row, first_start, size), strict=True)))
                if cuts:
                    spans[index] = [cut[:2] for cut in cuts]
            return spans

        batches = (kept(batch, mask) for batch in reader)
        counts, files = cut_documents(shard, batches, spans_of, without, path, inputs)
    if done < len(waiting):
        raise changed(shard)
    return counts, files
