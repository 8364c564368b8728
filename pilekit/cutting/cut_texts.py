"""The text of a cut and the text that it repeats: of an evaluation's record, or of an earlier document.

The tables of a `CutFolder` say where both are. The files are read again, and must be unchanged. A row of `hits.parquet`
names the record alone, so the passage is its longest run of words whose n-grams the cut has. A row of `repeats.parquet`
names the place of the cut's longest part, so the passage may begin before it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pilekit.corpus import Shard
from pilekit.cutting.cut_folder import CutFolder, Row
from pilekit.cutting.evaluation_texts import evaluation_names, record_texts
from pilekit.cutting.job import EVALUATION_PATHS
from pilekit.cutting.passages import document_texts
from pilekit.cutting.record_fields import RecordFields
from pilekit.cutting.words import compacted

AROUND = 200
"""Characters before and after a passage."""
MOST_OF_A_PASSAGE = 1_000_000
"""Characters of a passage that are read."""


@dataclass(frozen=True)
class Passage:
    """A part of a text, with the text around it; `place` says where it is."""

    place: str
    before: str
    text: str
    after: str

    @classmethod
    def in_context(cls, place: str, text: str, start: int, end: int) -> Passage:
        """The characters from `start` to `end` of a text, and the text around them."""
        end = min(end, start + MOST_OF_A_PASSAGE)
        return cls(place, text[max(0, start - AROUND) : start], text[start:end], text[end : end + AROUND])


def passages(cuts: CutFolder, rows: Sequence[Row]) -> list[tuple[Passage, Passage]]:
    """(the text that is repeated, the cut passage) of each row; each file is read once."""
    numbers = defaultdict[str, set[int]](set)
    for row in rows:
        numbers[row["shard"]].add(row["number"])
        if cuts.kind == "substrings":
            numbers[row["first_shard"]].add(row["first_number"])
    shards = (cuts.shard(name, cuts.paths[name]) for name in numbers)
    texts = document_texts(shards, numbers, cuts.manifest)
    records = _record_texts(cuts, rows) if cuts.kind == "decontamination" else {}
    pairs = []
    for row in rows:
        text, place = texts[row["shard"], row["number"]], f"{row['shard']} {row['number']:,}, {row['subset']}"
        cut = Passage.in_context(f"{place} from {row['start']:,} to {row['end']:,}", text, row["start"], row["end"])
        if cuts.kind == "substrings":
            shard, number, begin = (row[name] for name in ("first_shard", "first_number", "first_start"))
            earlier = texts[shard, number]
            begin = max(0, begin - _inside(cut.text, earlier[begin:], cuts.header.parameters["min_bytes"]))
            place = f"{shard} {number:,} from {begin:,}"
            pairs.append((Passage.in_context(place, earlier, begin, begin + row["end"] - row["start"]), cut))
            continue
        evaluation, number = row["evaluation"], row["record"]
        text, place = records[evaluation].get(number, {}).get(row["field"], ""), f"{evaluation} record {number:,}"
        begin, end = shared_passage(text, cut.text, cuts.header.parameters["ngram"])
        pairs.append((Passage.in_context(f"{place}, {row['field']}", text, begin, end), cut))
    return pairs


def _record_texts(cuts: CutFolder, rows: Sequence[Row]) -> dict[str, dict[int, dict[str, str]]]:
    """The texts of the rows' records, by evaluation, number and field."""
    numbers_by_evaluation = defaultdict[str, set[int]](set)
    for row in rows:
        numbers_by_evaluation[row["evaluation"]].add(row["record"])
    shards = [Shard(name, path, None) for name, path in cuts.noted(EVALUATION_PATHS).items()]
    shard_of = dict(zip(evaluation_names(shards), shards, strict=True))
    texts, parameters = {}, cuts.header.parameters
    fields = RecordFields(parameters["fields"], parameters.get("question"), parameters.get("answer"))
    for evaluation, numbers in numbers_by_evaluation.items():
        shard = cuts.shard(f"/{shard_of[evaluation].name}", shard_of[evaluation].path)
        texts[evaluation] = record_texts(shard, fields, numbers)
    return texts


def shared_passage(text: str, cut: str, ngram: int) -> tuple[int, int]:
    """(start, end) of the longest run of words in a record's text whose n-grams the cut passage has; (0, 0): none.

    A text shorter than an n-gram is an n-gram by itself.
    """
    words = [(compacted(piece[0])[0], *piece.span()) for piece in re.finditer(r"\S+", text)]
    words = [word for word in words if word[0]]
    cut_words = compacted(cut)[0].split(b" ")[:-1]
    size = min(ngram, len(words))
    cut_ngrams = {tuple(cut_words[at : at + size]) for at in range(len(cut_words) - size + 1)} if size else set()
    keys = [word[0].removesuffix(b" ") for word in words]
    begin, end, longest = 0, 0, (0, 0)  # places of words
    for at in range(len(keys) - size + 1):
        if tuple(keys[at : at + size]) in cut_ngrams:
            begin, end = begin if at <= end else at, at + size
            longest = max(longest, (begin, end), key=lambda run: run[1] - run[0])
    first, last = longest
    return (words[first][1], words[last - 1][2]) if first < last else (0, 0)


def _inside(cut: str, earlier: str, min_bytes: int) -> int:
    """How many characters of a cut are before the text that the earlier document has; 0 if it is not found.

    A cut of several parts names the place of the longest.
    """
    for size in (min_bytes, min_bytes // 2, max(1, min_bytes // 4)):  # a character has up to 4 bytes
        if (at := cut.find(earlier[:size])) >= 0:
            return at
    return 0
