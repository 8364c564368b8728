"""`FineWeb`: the rules that FineWeb added to C4's (Penedo et al. 2024, arXiv:2406.17557, 3.6), made for web text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pilekit.pipeline.rules.repeats import characters
from pilekit.pipeline.rules.rule_set import RuleSet, Values, above, at_least, at_most, limit
from pilekit.pipeline.rules.scanned_texts import ScannedTexts, share, sums

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
        lines = np.diff(texts.lines.of)
        ends = sums(texts.lines_with(".!?。！？।", at_end=True), texts.lines.of)
        short = sums(characters(texts.data, texts.lines.begin, texts.lines.end) <= SHORT_LINE, texts.lines.of)
        newlines = texts.count("\n")
        values = {
            "line_punctuation": np.where(lines == 0, 0, share(ends, lines)),
            "dup_line_chars": share(texts.repeated_lines[1], texts.chars - newlines),
            "short_lines": share(short, lines),
        }
        if self.newlines is not None:
            values["newlines"] = share(newlines, np.diff(texts.words.of))
        return values
