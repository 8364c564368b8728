"""`FineWeb`: the rules that FineWeb added to C4's (Penedo et al. 2024, arXiv:2406.17557, 3.6), made for web text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pilekit.kernels import compiled
from pilekit.pipeline.rules.repeats import characters
from pilekit.pipeline.rules.rule_set import RuleSet, Values, above, at_least, at_most, limit
from pilekit.pipeline.rules.scanned_texts import Bytes, Int64, ScannedTexts, share

SHORT_LINE = 30


@dataclass(frozen=True)
class FineWeb(RuleSet):
    """Drop documents by the rules of FineWeb.

    line_punctuation   at most this share of lines ends in one of `. ! ?` or `。！？।`; or there are no lines
    dup_line_chars     at least this share of characters without newlines is in lines that repeat an earlier one
    short_lines        at least this share of lines has at most 30 characters
    newlines           more newlines for each word; None: not judged, as in the paper

    datatrove's code has 0.01 for `dup_line_chars` and 0.3 for `newlines`.
    """

    line_punctuation: float = limit(at_most, 0.12)
    dup_line_chars: float = limit(at_least, 0.10)
    short_lines: float = limit(at_least, 0.67)
    newlines: float | None = limit(above, None)

    def measure(self, texts: ScannedTexts) -> dict[str, Values]:
        """What each rule judges; `newlines` only if it has a limit."""
        ends, short = _count_lines(texts.data, *texts.lines)
        newlines = texts.count("\n")
        values = {
            "line_punctuation": np.where(texts.line_counts == 0, 0, share(ends, texts.line_counts)),
            "dup_line_chars": share(texts.repeated_lines[1], texts.chars - newlines),
            "short_lines": share(short, texts.line_counts),
        }
        if self.newlines is not None:
            values["newlines"] = share(newlines, texts.word_counts)
        return values


@compiled()
def _count_lines(data: Bytes, begin: Int64, end: Int64, of: Int64) -> Int64:
    """Lines that end in a mark, lines of at most 30 characters: int64 [2, documents]."""
    found = np.zeros((2, len(of) - 1), np.int64)
    for document in range(len(of) - 1):
        for line in range(of[document], of[document + 1]):
            first, last = begin[line], end[line]
            byte = data[last - 1]
            if byte < 0x80:
                found[0, document] += byte == 0x2E or byte == 0x21 or byte == 0x3F  # . ! ?
            elif last - first >= 3:
                mark = (np.int64(data[last - 3]) << 16) | (np.int64(data[last - 2]) << 8) | np.int64(byte)
                found[0, document] += mark == 0xE38082 or mark == 0xEFBC81 or mark == 0xEFBC9F or mark == 0xE0A5A4
            size = last - first
            if size <= SHORT_LINE or (size <= 4 * SHORT_LINE and characters(data, first, last) <= SHORT_LINE):
                found[1, document] += 1
    return found
