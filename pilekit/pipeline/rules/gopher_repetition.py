"""`GopherRepetition`: the repetition rules of Gopher (Rae et al. 2021, arXiv:2112.11446, Table A1).

All are shares of the text's characters, except `dup_lines` and `dup_paragraphs`. Blank lines do not count. A line that
occurred earlier in the same text is a repeated line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pilekit.pipeline.rules.repeats import repeated_ngrams
from pilekit.pipeline.rules.rule_set import RuleSet, Values, above, limit
from pilekit.pipeline.rules.scanned_texts import ScannedTexts, share


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
        ngrams = repeated_ngrams(texts.data, words.begin, words.end, before, words.of)
        lines, line_chars = texts.repeated_lines
        paragraphs, paragraph_chars = texts.repeated(texts.paragraphs)
        return {
            "dup_lines": share(lines, np.diff(texts.lines.of)),
            "dup_line_chars": share(line_chars, texts.chars),
            "dup_paragraphs": share(paragraphs, np.diff(texts.paragraphs.of)),
            "dup_paragraph_chars": share(paragraph_chars, texts.chars),
            **{f"top_{n}gram": share(ngrams[n], texts.chars) for n in (2, 3, 4)},
            **{f"dup_{n}grams": share(ngrams[n], texts.chars) for n in (5, 6, 7, 8, 9, 10)},
        }
