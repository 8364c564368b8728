"""`GopherQuality` and `GopherRepetition`: the rules of Gopher (Rae et al. 2021, arXiv:2112.11446) for text from the
web.

The quality rules are those of appendix A.1. Words are those of `text.split()`. A document without words fails `words`
alone.

The repetition rules are those of Table A1. All are shares of the text's characters, except `dup_lines` and
`dup_paragraphs`. Blank lines do not count. A line that occurred earlier in the same text is a repeated line.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

import numpy as np

from pilekit.pipeline.rules.rule_set import RuleSet, Values, above, below, limit, outside
from pilekit.pipeline.rules.scanned_texts import ALNUM, ALPHA, Bytes, Int64, ScannedTexts, UInt32, share, sums
from pilekit.pipeline.rules.text_repeats import repeated_ngrams
from pilekit.workers.kernels import compiled

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

# A leading byte 1 distinguishes the word from one that begins with null characters.
_AS_NUMBERS = np.array([int.from_bytes(b"\1" + word.encode(), "big") for word in STOP_WORDS], np.uint64)
_PUNCTUATION = np.isin(np.arange(256), list(string.punctuation.encode()))


@dataclass(frozen=True)
class GopherQuality(RuleSet):
    """Drop documents by the quality rules of Gopher.

    words          fewer or more words that hold a letter or digit
    word_length    a smaller or larger mean of their characters
    hashes         more `#` per word
    ellipses       more `...` and `…` per word
    bullets        a greater share of lines that begin with `•`, `-` or `*`
    end_ellipses   a greater share of lines that end with `...` or `…`
    letters        a smaller share of words that hold a letter
    stop_words     fewer different words of: the, be, to, of, and, that, have, with
    """

    words: tuple[float, float] = limit(outside, (50, 100_000))
    word_length: tuple[float, float] = limit(outside, (3, 10))
    hashes: float = limit(above, 0.1)
    ellipses: float = limit(above, 0.1)
    bullets: float = limit(above, 0.9)
    end_ellipses: float = limit(above, 0.3)
    letters: float = limit(below, 0.8)
    stop_words: float = limit(below, 2)

    def measure(self, texts: ScannedTexts) -> dict[str, Values]:
        """The value that each rule compares with its limit."""
        words, lines = np.diff(texts.words.starts), np.diff(texts.lines.starts)
        alnum, length, letters, stop_words = _count_words(texts.data, *texts.words)
        bullets = sums(texts.lines_with("•-*", at_end=False), texts.lines.starts)
        ellipses = sums(texts.lines_with(("...", "…"), at_end=True), texts.lines.starts)
        return {
            "words": alnum.astype(np.float64),
            "word_length": share(length, alnum),
            "hashes": share(texts.count("#"), words),
            "ellipses": share(texts.count("...", "…"), words),
            "bullets": share(bullets, lines),
            "end_ellipses": share(ellipses, lines),
            "letters": share(letters, words),
            "stop_words": np.where(words == 0, np.nan, np.bitwise_count(stop_words)),
        }


@compiled()
def _is_quote(data: Bytes, at: np.int64) -> bool:
    """Whether the three bytes from `at` on are one of “ ” ‘ ’."""
    return data[at] == 0xE2 and data[at + 1] == 0x80 and data[at + 2] in (0x98, 0x99, 0x9C, 0x9D)


@compiled()
def _count_words(data: Bytes, begin: Int64, end: Int64, chars: UInt32, kinds: Bytes, starts: Int64) -> Int64:
    """Words with a letter or digit, their characters, words with a letter, a bit per stop word: [4, documents]."""
    counts = np.zeros((4, len(starts) - 1), np.int64)
    every = (1 << len(_AS_NUMBERS)) - 1
    for document in range(len(starts) - 1):
        alnum = length = letters = stop_words = 0
        for word in range(starts[document], starts[document + 1]):
            if not kinds[word] & ALNUM:
                continue
            alnum += 1
            length += chars[word]
            if not kinds[word] & ALPHA:
                continue
            letters += 1
            if stop_words == every:
                continue
            first, last = begin[word], end[word]
            while last - first > 1:
                if _PUNCTUATION[data[first]]:
                    first += 1
                elif _PUNCTUATION[data[last - 1]]:
                    last -= 1
                elif last - first > 3 and _is_quote(data, first):
                    first += 3
                elif last - first > 3 and _is_quote(data, last - 3):
                    last -= 3
                else:
                    break
            if 2 <= last - first <= 4:
                number = np.uint64(1)
                for at in range(first, last):
                    byte = data[at]
                    number = (number << np.uint64(8)) | np.uint64(byte + 32 if 65 <= byte <= 90 else byte)
                for i in range(len(_AS_NUMBERS)):
                    stop_words |= (_AS_NUMBERS[i] == number) << i
        counts[:, document] = alnum, length, letters, stop_words
    return counts


@dataclass(frozen=True)
class GopherRepetition(RuleSet):
    """Drop documents that repeat themselves more than a share of their text.

    dup_lines, dup_line_chars             the share of repeated lines; the share of characters in them
    dup_paragraphs, dup_paragraph_chars   the same for the pieces between blank lines
    top_2gram ... top_4gram               characters in the most frequent sequence of 2 to 4 words
    dup_5grams ... dup_10grams            characters in repeated sequences of 5 to 10 words
    """

    dup_lines: float = limit(above, 0.30)
    dup_line_chars: float = limit(above, 0.20)
    dup_paragraphs: float = limit(above, 0.30)
    dup_paragraph_chars: float = limit(above, 0.20)
    top_2gram: float = limit(above, 0.20)
    top_3gram: float = limit(above, 0.18)
    top_4gram: float = limit(above, 0.16)
    dup_5grams: float = limit(above, 0.15)
    dup_6grams: float = limit(above, 0.14)
    dup_7grams: float = limit(above, 0.13)
    dup_8grams: float = limit(above, 0.12)
    dup_9grams: float = limit(above, 0.11)
    dup_10grams: float = limit(above, 0.10)

    def measure(self, texts: ScannedTexts) -> dict[str, Values]:
        """The value that each rule compares with its limit."""
        words = texts.words
        before = np.append(0, np.cumsum(words.chars, dtype=np.int64))
        ngrams = repeated_ngrams(texts.data, words.begin, words.end, before, words.starts)
        lines, line_chars = texts.repeated_lines
        paragraphs, paragraph_chars = texts.repeated(texts.paragraphs)
        return {
            "dup_lines": share(lines, np.diff(texts.lines.starts)),
            "dup_line_chars": share(line_chars, texts.chars),
            "dup_paragraphs": share(paragraphs, np.diff(texts.paragraphs.starts)),
            "dup_paragraph_chars": share(paragraph_chars, texts.chars),
            **{f"top_{n}gram": share(ngrams[n], texts.chars) for n in (2, 3, 4)},
            **{f"dup_{n}grams": share(ngrams[n], texts.chars) for n in (5, 6, 7, 8, 9, 10)},
        }
