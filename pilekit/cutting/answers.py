"""`Answers`: where a document has the answer of a record near the n-grams of the record's question.

A record has leaked where its answer stands beside its question. The words of an answer stand in a row, all of them
between `reach` characters before the first and `reach` characters after the last n-gram of the question in a span, or
anywhere in the span. Words that belong to the question itself do not count: a question that names its answer, as one
that asks "red or blue?", gives nothing away.

Which n-grams are common is not known while a shard is searched. Spans only become shorter without them, so the answers
around all hits are noted here, and `in_reach` judges those of the spans that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from pilekit.artifacts.saved_arrays import load_arrays, save_arrays
from pilekit.cutting.evaluation_texts import Texts
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import Bytes, Int64, UInt32, compacted, word_places

Place = tuple[int, int]
"""Where a passage starts and ends, in characters."""


class Answers(NamedTuple):
    """The answers of all records, and the n-grams of the questions.

    words    the words of all answers, each followed by a space, UTF-8
    ends     where the words of each answer end, and 0 before the first, int64 [answers + 1]
    first    the first answer of each record, and the number of answers, int64 [records + 1]
    ngrams   an n-gram that the question of a record with answers has, ascending, uint32 [pairs]
    records  that record, uint32 [pairs]
    """

    words: Bytes
    ends: Int64
    first: Int64
    ngrams: UInt32
    records: UInt32

    @classmethod
    def build(cls, ngrams: NGrams, texts: Texts) -> Self:
        """The answers of all records, and the n-grams of their questions."""
        question, record_of = texts.record_fields.question, np.array(texts.record_of, np.int64)
        count = np.array([len(answers) for answers in texts.answers], np.int64)
        is_item = np.array([field == question for field in texts.fields], bool) & (count[record_of] > 0)
        places = np.diff(ngrams.first)
        chosen = np.repeat(is_item, places)
        numbers, records = ngrams.numbers[chosen].astype(np.uint64), np.repeat(record_of, places)[chosen]
        # With counts, `np.unique` sorts, which is faster here.
        pairs, _ = np.unique(numbers << np.uint64(32) | records.astype(np.uint64), return_counts=True)
        answers = [answer for of_record in texts.answers for answer in of_record]
        ends = np.cumsum([0, *map(len, answers)])
        words = np.frombuffer(b"".join(answers), np.uint8)
        first = np.append(0, np.cumsum(count))
        return cls(words, ends, first, (pairs >> np.uint64(32)).astype(np.uint32), pairs.astype(np.uint32))

    def save(self, folder: Path) -> list[Path]:
        """Write the arrays into the folder; returns their files."""
        return save_arrays(folder, self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The arrays in a folder, mapped into memory."""
        return load_arrays(folder, cls)

    def near(self, text: str, hits: Int64, reach: int) -> Iterator[tuple[int, int, int]]:
        """(record, start, end) of the answers in a document that may be in reach of their question.

        hits   first word, words, start, end and number of each n-gram in the document, by word, int64 [hits, 5]
        """
        low, high = (np.searchsorted(self.ngrams, hits[:, 4], side) for side in ("left", "right"))
        owned = high - low
        if not owned.any():
            return
        bounds, span_of = _joined(hits)
        hit = np.repeat(np.arange(len(hits)), owned)
        pair = np.arange(len(hit)) + np.repeat(low - (np.cumsum(owned) - owned), owned)
        record, words = self.records[pair], dict[int, _Words]()
        order = np.argsort(record, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(record[order])) + 1):
            index, own = int(record[chosen[0]]), hit[chosen]
            runs, _ = _joined(hits[own])
            for span in np.unique(span_of[own]).tolist():
                question = hits[own[span_of[own] == span]]
                place, around = (int(question[0, 2]), int(question[:, 3].max())), tuple(bounds[span].tolist())
                if span not in words:
                    words[span] = _Words(text, around[0] - reach, around[1] + reach)
                for start, end in self._places(index, words[span]):
                    run = np.searchsorted(runs[:, 0], start, "right") - 1
                    is_asked = run >= 0 and end <= runs[run, 1]
                    if not is_asked and in_reach([(start, end)], place, around, reach):
                        yield index, start, end

    def _places(self, record: int, words: _Words) -> Iterator[Place]:
        """Where a record's answers are among these words."""
        for answer in range(int(self.first[record]), int(self.first[record + 1])):
            yield from words.places(self.words[self.ends[answer] : self.ends[answer + 1]].tobytes())


class _Words:
    """The words that are wholly between two places of a text, which may be outside of it."""

    def __init__(self, text: str, start: int, end: int):
        start, end = max(0, start), min(len(text), end)
        while 0 < start < end and not text[start - 1].isspace():
            start += 1
        while start < end < len(text) and not text[end].isspace():
            end -= 1
        self._start, self._text = start, text[start:end]
        words, self._count = compacted(self._text)
        self._words, self._places = b" " + words, list[Int64]()

    def places(self, words: bytes) -> Iterator[Place]:
        """Where these words stand in a row, each followed by a space; their punctuation counts as theirs."""
        wanted, number, before = b" " + words, 0, 0
        at = self._words.find(wanted)
        while at >= 0:
            if not self._places:
                self._places = [*word_places(self._text, self._count)]
            begins, ends = self._places
            number, before = number + self._words.count(b" ", before, at), at
            last = number + words.count(b" ") - 1
            yield self._start + int(begins[number]), self._start + int(ends[last])
            at = self._words.find(wanted, at + 1)


def _joined(hits: Int64) -> tuple[Int64, Int64]:
    """Hits by word, joined if they share a word or follow each other: (start, end) of each run, and each hit's run."""
    last_word = np.maximum.accumulate(hits[:, 0] + hits[:, 1])
    is_first = np.append(True, hits[1:, 0] > last_word[:-1])
    begins = np.flatnonzero(is_first)
    ends = np.maximum.reduceat(hits[:, 3], begins)
    return np.stack([hits[begins, 2], ends], axis=1), np.cumsum(is_first) - 1


def in_reach(answers: Iterable[Place], question: Place, span: Place, reach: int) -> bool:
    """Whether one of the places is in the span, or at most `reach` characters before or after the question in it."""
    first, last = question[0] - reach, question[1] + reach
    return any((span[0] <= start and end <= span[1]) or (first <= start and end <= last) for start, end in answers)
