"""`Answers`: where a document has the answer of a record near the n-grams of the record's question.

A record has leaked where its answer stands beside its question. The words of an answer stand in a row, all of them
between `reach` characters before the first and `reach` characters after the last n-gram of the question in a span, or
anywhere in the span. Words that belong to the question itself do not count: a question that names its answer, as one
that asks "red or blue?", gives nothing away.

Which n-grams are common is not known while a shard is searched. Spans only become shorter without them, so the answers
around all hits are noted here, and `in_reach` judges those of the spans that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from pilekit.artifacts.saved_arrays import load_arrays, save_arrays
from pilekit.cutting.answer_places import Windows, is_near
from pilekit.cutting.evaluation_texts import Texts
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import Bytes, Flags, Int64, UInt32
from pilekit.workers.kernels import compiled

Place = tuple[int, int]
"""Where a passage starts and ends, in characters."""
WINDOW_CHARACTERS = 1 << 20
"""Windows of about so many characters are in memory at a time."""
_FARTHEST = 1 << 40
"""No text has so many characters."""
_NONE: Int64 = np.empty((0, 4), np.int64)


class Answers(NamedTuple):
    """The answers of all records, and the records whose question has an n-gram.

    words     the words of all answers, each followed by a space, UTF-8
    ends      where the words of each answer end, and 0 before the first, int64 [answers + 1]
    first     the first answer of each record, and the number of answers, int64 [records + 1]
    asked     the first place of each n-gram in `records`, and the number of places, uint32 [n-grams + 1]
    records   the record with answers that has the n-gram at a place of its question, uint32 [places]
    """

    words: Bytes
    ends: Int64
    first: Int64
    asked: UInt32
    records: UInt32

    @classmethod
    def build(cls, ngrams: NGrams, texts: Texts) -> Self:
        """The answers of all records, and the n-grams of their questions."""
        question, record_of = texts.record_fields.question, np.array(texts.record_of, np.int64)
        count = np.array([len(answers) for answers in texts.answers], np.int64)
        is_item = np.array([field == question for field in texts.fields], bool) & (count[record_of] > 0)
        asked = np.zeros(len(ngrams.keys) + 1, np.uint32)
        records = np.empty(int(np.diff(ngrams.first)[is_item].sum()), np.uint32)
        _sort_by_ngram(ngrams.numbers, ngrams.first, np.where(is_item, record_of, -1), asked, records)
        answers = [answer for of_record in texts.answers for answer in of_record]
        words = np.frombuffer(b"".join(answers), np.uint8)
        return cls(words, np.cumsum([0, *map(len, answers)]), np.append(0, np.cumsum(count)), asked, records)

    def save(self, folder: Path) -> list[Path]:
        """Write the arrays into the folder; returns their files."""
        return save_arrays(folder, self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The arrays in a folder, mapped into memory."""
        return load_arrays(folder, cls)

    def near(self, texts: Sequence[str], documents: Int64, hits: Int64, may_count: Flags, reach: int) -> Int64:
        """(document, record, start, end) of the answers that may be in reach of their question, int64 [answers, 4].

        documents   the index in `texts` of each n-gram's document, int64 [hits]
        hits        first word, words, start, end and number of each n-gram, by document and word, int64 [hits, 5]
        may_count   false where an n-gram is known to be common, bool [hits]; a record with no other n-gram in a span
                    is left out
        """
        low, high = (self.asked[hits[:, 4] + more].astype(np.int64) for more in (0, 1))
        owned = high - low
        if not owned.any():
            return _NONE
        hit = np.repeat(np.arange(len(hits)), owned)
        record = self.records[np.arange(len(hit)) + np.repeat(low - (np.cumsum(owned) - owned), owned)]
        order = np.lexsort((record, documents[hit]))
        hit, record = hit[order], record[order].astype(np.int64)
        # A pair is a record and a document with n-grams of its question. These are in runs, and in spans of all hits.
        pair = _numbered(documents[hit], record)
        runs, run_of = _joined(pair, hits[hit])
        spans, span_of = _joined(documents, hits)
        first = np.flatnonzero(np.diff(_numbered(pair, span_of[hit]), prepend=-1))
        first_hit, pair_of_run = hit[first], pair[np.flatnonzero(np.diff(run_of, prepend=-1))]
        columns = [span_of[first_hit], documents[first_hit], record[first]]
        columns += [hits[first_hit, 2], np.maximum.reduceat(hits[hit, 3], first)]
        columns += [np.searchsorted(pair_of_run, pair[first]), np.searchsorted(pair_of_run, pair[first], "right")]
        rows = np.stack(columns, axis=1)[np.logical_or.reduceat(may_count[hit], first)]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return np.concatenate([_NONE, *self._in_windows(texts, rows, spans, runs, min(reach, _FARTHEST))])

    def _in_windows(self, texts: Sequence[str], rows: Int64, spans: Int64, runs: Int64, reach: int) -> Iterator[Int64]:
        """`near` for rows of span, document, record, start, end, first run, and the one behind; spans ascend."""
        first = np.flatnonzero(np.diff(rows[:, 0], prepend=-1))  # of each window
        around = spans[rows[first, 0]]
        group = np.cumsum(around[:, 1] - around[:, 0] + 2 * reach) // WINDOW_CHARACTERS
        borders = np.flatnonzero(np.diff(group, prepend=-1, append=group[-1:] + 1))
        for begin, end in pairwise(borders.tolist()):
            places = zip(rows[first[begin:end], 1].tolist(), around[begin:end].tolist(), strict=True)
            windows = Windows.of([(texts[document], start - reach, stop + reach) for document, (start, stop) in places])
            some = rows[first[begin] : first[end] if end < len(first) else len(rows)]
            window = np.cumsum(np.diff(some[:, 0], prepend=some[0, 0]) > 0)
            wanted = np.concatenate([window[:, None], some[:, 1:], spans[some[:, 0]]], axis=1)
            yield windows.find(wanted, (self.words, self.ends, self.first), runs, reach)


@compiled()
def _sort_by_ngram(numbers: UInt32, first: Int64, record_of: Int64, asked: UInt32, records: UInt32) -> None:
    """Fill in `asked`, which is zero, and `records` from the n-grams of all texts; a text of record -1 has none."""
    for text in range(len(record_of)):
        if record_of[text] >= 0:
            for number in numbers[first[text] : first[text + 1]]:
                asked[number] += np.uint32(1)
    place = np.uint32(0)
    for number in range(len(asked)):
        place += asked[number]
        asked[number] = place
    # Each n-gram's place is now behind its last one, and becomes its first.
    for text in range(len(record_of) - 1, -1, -1):
        if record_of[text] >= 0:
            for number in numbers[first[text] : first[text + 1]]:
                asked[number] -= np.uint32(1)
                records[asked[number]] = record_of[text]


def _numbered(first: Int64, second: Int64) -> Int64:
    """The number from 0 of each row's pair of values, which ascends where either changes."""
    return np.cumsum(np.append(False, (first[1:] != first[:-1]) | (second[1:] != second[:-1])))


def _joined(groups: Int64, hits: Int64) -> tuple[Int64, Int64]:
    """Hits by group and word, joined if they share a word or follow each other in a group, whose numbers ascend.

    Returns (start, end) of each run, int64 [runs, 2], and each hit's run, int64 [hits].
    """
    first_word = (groups << 40) + hits[:, 0]  # No text has 2 ** 40 words.
    last_word = np.maximum.accumulate(first_word + hits[:, 1])
    is_first = np.append(True, first_word[1:] > last_word[:-1])
    begins = np.flatnonzero(is_first)
    return np.stack([hits[begins, 2], np.maximum.reduceat(hits[:, 3], begins)], axis=1), np.cumsum(is_first) - 1


def in_reach(answers: Iterable[Place], question: Place, span: Place, reach: int) -> bool:
    """Whether one of the places is in the span, or at most `reach` characters before or after the question in it."""
    return any(is_near(start, end, question, span, reach) for start, end in answers)
