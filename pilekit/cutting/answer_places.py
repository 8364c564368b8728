"""Where answers of records stand near their questions, compiled, in the windows of many documents at a time.

A window is the part of a document in which an answer may be in reach of what was found there, cut to whole words. Its
words are `compacted` once, and every answer that is looked for there is compared with them word by word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from pilekit.cutting.words import Bytes, Int64, compacted_all, word_places
from pilekit.workers.kernels import compiled

_SPACE = np.uint8(32)
WINDOW, DOCUMENT, RECORD, START, END, FIRST_RUN, BEHIND_RUNS, SPAN_START, SPAN_END = range(9)
"""Columns of what `Windows.find` looks for, int64. START and END: of the record's question in the span, in characters.
FIRST_RUN and BEHIND_RUNS: the runs of the question's n-grams in the document, among all runs."""


class Windows(NamedTuple):
    """Parts of documents.

    starts   where each begins in its document, in characters, int64 [windows]
    words    the words of all, each followed by a space, UTF-8
    offsets  where the words of each begin, and where they end, int64 [windows + 1]
    begins   where each word begins in its window, in characters, int64 [words]
    ends     where it ends, with the punctuation behind it, int64 [words]
    first    the first word of each window, and the number of words, int64 [windows + 1]
    """

    starts: Int64
    words: Bytes
    offsets: Int64
    begins: Int64
    ends: Int64
    first: Int64

    @classmethod
    def of(cls, parts: Sequence[tuple[str, int, int]]) -> Self:
        """The windows of texts between two places, which may be outside of the text, without words that are cut."""
        starts, texts = np.empty(len(parts), np.int64), list[str]()
        for window, (text, start, end) in enumerate(parts):
            start, end = max(0, start), min(len(text), end)
            while 0 < start < end and not text[start - 1].isspace():
                start += 1
            while start < end < len(text) and not text[end].isspace():
                end -= 1
            starts[window] = start
            texts.append(text[start:end])
        words, offsets = compacted_all(texts)
        return cls(starts, words, offsets, *word_places(texts, int(np.count_nonzero(words[offsets[0] :] == _SPACE))))

    def find(self, wanted: Int64, answers: tuple[Bytes, Int64, Int64], runs: Int64, reach: int) -> Int64:
        """(document, record, start, end) of answers that are in reach and in no run, int64 [answers, 4].

        wanted    records and where their questions are, int64 [wanted, 9], see the columns
        answers   words, ends and first of `Answers`
        runs      (start, end) of all runs; those of a record and a document ascend, int64 [runs, 2]
        """
        found = np.empty((4 * len(wanted), 4), np.int64)
        while (count := _find(self, wanted, answers, runs, reach, found)) > len(found):
            found = np.empty((count, 4), np.int64)
        return found[:count]


@compiled()
def is_near(start: int, end: int, question: tuple[int, int], span: tuple[int, int], reach: int) -> bool:
    """Whether an answer is in the span, or at most `reach` characters before or after the question in it."""
    in_span = span[0] <= start and end <= span[1]
    return in_span or (question[0] - reach <= start and end <= question[1] + reach)


@compiled()
def _find(
    windows: Windows, wanted: Int64, answers: tuple[Bytes, Int64, Int64], runs: Int64, reach: int, found: Int64
) -> int:
    """Write what `Windows.find` returns, as far as it fits; returns the number of all."""
    starts, words, offsets, begins, ends, first_word = windows
    answer_words, answer_ends, first_answer = answers
    count = 0
    for row in wanted:
        window, record = row[WINDOW], row[RECORD]
        for answer in range(first_answer[record], first_answer[record + 1]):
            letters = answer_words[answer_ends[answer] : answer_ends[answer + 1]]
            more = -1  # words behind the first
            for letter in letters:
                more += letter == _SPACE
            word, at, stop = first_word[window], offsets[window], offsets[window + 1]
            while at + len(letters) <= stop:
                same = 0
                while same < len(letters) and words[at + same] == letters[same]:
                    same += 1
                if same == len(letters):
                    start, end = starts[window] + begins[word], starts[window] + ends[word + more]
                    question, span = (row[START], row[END]), (row[SPAN_START], row[SPAN_END])
                    if is_near(start, end, question, span, reach) and not _is_in(
                        start, end, runs, row[FIRST_RUN], row[BEHIND_RUNS]
                    ):
                        if count < len(found):
                            found[count, 0], found[count, 1] = row[DOCUMENT], record
                            found[count, 2], found[count, 3] = start, end
                        count += 1
                while words[at] != _SPACE:
                    at += 1
                at, word = at + 1, word + 1
    return count


@compiled()
def _is_in(start: int, end: int, runs: Int64, first: int, behind: int) -> bool:
    """Whether a place is in one of the runs from `first` to `behind`, which ascend, and of which none is in another."""
    while first < behind:
        middle = (first + behind) // 2
        if runs[middle, 0] <= start:
            if end <= runs[middle, 1]:
                return True
            first = middle + 1
        else:
            behind = middle
    return False
