"""Published rules by which text for training is kept or dropped: one file for each set.

    from pilekit import GopherQuality, GopherRepetition, Pipeline, read

    pipeline = Pipeline([GopherQuality(words=(20, 100_000)), GopherRepetition()])
    for batch in pipeline(read("00.jsonl.zst")):
        ...

rule_set.py says what a set is. scanned_texts.py finds words and lines once for all sets, and repeats.py what a text
repeats of itself.
"""

from __future__ import annotations

from pilekit.pipeline.rules.c4 import C4
from pilekit.pipeline.rules.fineweb import FineWeb
from pilekit.pipeline.rules.gopher_quality import GopherQuality
from pilekit.pipeline.rules.gopher_repetition import GopherRepetition

__all__ = ["C4", "FineWeb", "GopherQuality", "GopherRepetition"]
