r"""`C4` and `FineWeb`: the rules of C4 (Raffel et al. 2019, arXiv:1910.10683), with the numbers of the code that made
it, and those that FineWeb added to them (Penedo et al. 2024, arXiv:2406.17557, 3.6), made for web text.

C4's code and the journal paper say 5 words a line and 3 sentences; the first preprint says 3 and 5. Citations
(`\[\d*\]|\[edit\]|\[citation needed\]`) are taken out of each line first. A line is kept if none of its words is too
long, if it ends in `.`, `?`, `!` or `"` but not in `...`, has enough words, and mentions neither JavaScript nor
policies. The rules judge the document by its kept lines and its text. C4's list of bad words is not part of pilekit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pilekit.documents import DocumentBatch
from pilekit.pipeline.rules.rule_set import RuleSet, Values, above, at_least, at_most, below, limit
from pilekit.pipeline.rules.scanned_texts import Bytes, Int64, ScannedTexts, share, sums
from pilekit.pipeline.rules.text_repeats import characters
from pilekit.workers.kernels import compiled

CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
POLICY = (b"terms of use", b"privacy policy", b"cookie policy", b"uses cookies", b"use of cookies", b"use cookies")


@dataclass(frozen=True)
class C4(RuleSet):
    """Drop documents by the rules of C4.

    lorem_ipsum     more occurrences of "lorem ipsum" in the text, in any case
    curly_bracket   more `{` in the text
    sentences       fewer sentences in the kept lines
    few_words       a line with fewer words is not kept
    long_word       a line that has a word of more characters is not kept
    end_mark        a line that does not end like a sentence is not kept; False, as in FineWeb: no such rule
    bad_words       `bad_word` counts the words of this list in the text, each once, as whole words in lower case
    """

    lorem_ipsum: float = limit(above, 0)
    curly_bracket: float = limit(above, 0)
    sentences: float = limit(below, 3)
    few_words: float = 5
    long_word: float = 1000
    end_mark: bool = True
    bad_words: tuple[str, ...] = ()
    bad_word: float = limit(above, 0)

    def measure(self, texts: ScannedTexts) -> dict[str, Values]:
        """The value that each rule compares with its limit; `bad_word` only with bad words."""
        sentences = self._sentences(texts)
        cited = [i for i, text in enumerate(texts.batch.texts) if "[" in text and CITATION.search(text)]
        if cited:
            sentences[cited] = self._sentences(ScannedTexts(_without_citations(texts.batch.take(cited))))
        lorem = _holding(texts, b"lorem ipsum", texts.offsets[:-1], texts.offsets[1:])
        values = {
            "lorem_ipsum": np.bincount(lorem, minlength=len(texts.batch)).astype(np.float64),
            "curly_bracket": texts.count("{").astype(np.float64),
            "sentences": sentences.astype(np.float64),
        }
        if self.bad_words:
            values["bad_word"] = _count_bad(texts.batch.texts, self.bad_words)
        return values

    def cut(self, batch: DocumentBatch) -> DocumentBatch:
        """The documents with only the lines that C4 keeps, without citations."""
        texts = ScannedTexts(_without_citations(batch))
        keeps, data = self._keeps(texts), texts.data.tobytes()
        begin, end, starts = (column.tolist() for column in texts.lines)
        kept_texts = [
            b"\n".join(data[begin[line] : end[line]] for line in range(first, last) if keeps[line]).decode()
            for first, last in pairwise(starts)
        ]
        return batch.with_texts(kept_texts)

    def _sentences(self, texts: ScannedTexts) -> Int64:
        """Sentences in the kept lines of texts without citations."""
        begin, end, *_ = texts.words
        return sums(_count_sentences(texts.data, begin, end, texts.first_words, self._keeps(texts)), texts.lines.starts)

    def _keeps(self, texts: ScannedTexts) -> npt.NDArray[np.bool_]:
        """Whether each line of texts without citations is kept, bool [lines]."""
        lines = texts.lines
        keeps = np.diff(texts.first_words) >= self.few_words
        long = np.flatnonzero(texts.words.chars > self.long_word)
        keeps[np.searchsorted(texts.first_words, long, "right") - 1] = False
        if self.end_mark:
            keeps &= texts.lines_with('.?!"', at_end=True) & ~texts.lines_with(["..."], at_end=True)
        for part in (b"javascript", *POLICY):
            keeps[_holding(texts, part, lines.begin, lines.end)] = False
        return keeps


def _holding(texts: ScannedTexts, part: bytes, begin: Int64, end: Int64) -> Int64:
    """The indices of the pieces that hold `part` in any case, one for each occurrence."""
    ends = np.cumsum([len(between) + len(part) for between in texts.lower.split(part)])[:-1]
    piece = np.searchsorted(begin, ends - len(part), "right") - 1
    return piece[ends <= end[piece]]


def _without_citations(batch: DocumentBatch) -> DocumentBatch:
    return replace(batch, texts=[CITATION.sub("", text) if "[" in text else text for text in batch.texts])


def _count_bad(texts: Iterable[str], bad_words: Iterable[str]) -> Values:
    """How many of the bad words or phrases are in each text, in lower case and not inside longer words."""
    # Searching for a pattern costs much more than looking up its first word in the words of the text.
    patterns = [
        (re.findall(r"\w+", word)[:1], re.compile(rf"(?<!\w){re.escape(word)}(?!\w)"))
        for word in dict.fromkeys(map(str.lower, bad_words))
    ]
    counts = []
    for text in map(str.lower, texts):
        words = set(re.findall(r"\w+", text))
        counts.append(sum(words.issuperset(first) and pattern.search(text) is not None for first, pattern in patterns))
    return np.array(counts, np.float64)


@compiled()
def _count_sentences(data: Bytes, begin: Int64, end: Int64, first: Int64, keeps: npt.NDArray[np.bool_]) -> Int64:
    """Sentences in each kept line, 1 or more: words that end in `.`, `?` or `!`, and perhaps quotes or brackets."""
    sentences = np.zeros(len(keeps), np.int64)
    for line in np.flatnonzero(keeps):
        for word in range(first[line], first[line + 1]):
            at = end[word] - 1
            while at > begin[word]:
                if data[at] in (0x22, 0x27, 0x29, 0x5D):  # " ' ) ]
                    at -= 1
                elif (
                    at - 2 > begin[word] and data[at] in (0x99, 0x9D) and data[at - 1] == 0x80 and data[at - 2] == 0xE2
                ):
                    at -= 3  # ” ’
                else:
                    break
            sentences[line] += data[at] in (0x2E, 0x3F, 0x21)
        sentences[line] = max(1, sentences[line])
    return sentences


SHORT_LINE = 30


@dataclass(frozen=True)
class FineWeb(RuleSet):
    """Drop documents by the rules of FineWeb.

    line_punctuation   at most this share of lines ends in one of `. ! ?` or `。！？।`; or there are no lines
    dup_line_chars     at least this share of characters without newlines is in lines that repeat an earlier one
    short_lines        at least this share of lines has at most 30 characters
    newlines           more newlines per word; None: not judged, as in the paper

    datatrove's code has 0.01 for `dup_line_chars` and 0.3 for `newlines`.
    """

    line_punctuation: float = limit(at_most, 0.12)
    dup_line_chars: float = limit(at_least, 0.10)
    short_lines: float = limit(at_least, 0.67)
    newlines: float | None = limit(above, None)

    def measure(self, texts: ScannedTexts) -> dict[str, Values]:
        """The value that each rule compares with its limit; `newlines` only if it has a limit."""
        lines = np.diff(texts.lines.starts)
        ends = sums(texts.lines_with(".!?。！？।", at_end=True), texts.lines.starts)
        short = sums(characters(texts.data, texts.lines.begin, texts.lines.end) <= SHORT_LINE, texts.lines.starts)
        newlines = texts.count("\n")
        values = {
            "line_punctuation": np.where(lines == 0, 0, share(ends, lines)),
            "dup_line_chars": share(texts.repeated_lines[1], texts.chars - newlines),
            "short_lines": share(short, lines),
        }
        if self.newlines is not None:
            values["newlines"] = share(newlines, np.diff(texts.words.starts))
        return values
