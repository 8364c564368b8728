"""Which text a cut is shown with: the record's run of words, and the earlier document's passage."""

from __future__ import annotations

import json
import random
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.cutting.cut_folder import CutFolder
from pilekit.cutting.cut_texts import passages, shared_passage
from pilekit.cutting.decontaminate import decontaminate_corpus
from pilekit.cutting.substrings import substrings_corpus
from tests.cutting.reference import ngrams_of, words_of
from tests.pipeline.making import write_shard

pieces = st.lists(st.sampled_from(["a", "B", "b.", "--", "c", "ΟΔΟΣ", "İ", "日本", "d!"]), max_size=30)


@given(pieces, pieces, st.integers(1, 6), st.sampled_from([" ", "\n\n", "\u2003"]))
def test_the_shared_passage_is_the_longest_run_whose_ngrams_the_cut_has(
    record: list[str], cut: list[str], ngram: int, space: str
) -> None:
    text = space.join(record)
    words = words_of(text)
    size = min(ngram, len(words))
    of_cut = [word for word, _, _ in words_of(" ".join(cut))]
    has = {tuple(of_cut[at : at + size]) for at in range(len(of_cut))} if size else set()
    keys = [word for word, _, _ in words]

    def is_run(begin: int, end: int) -> bool:
        """Whether n-grams that the cut has, each of which touches or overlaps the one before, cover the words."""
        held = [at for at in range(begin, end - size + 1) if tuple(keys[at : at + size]) in has]
        joined = all(after - before <= size for before, after in pairwise(held))
        return bool(held) and held[0] == begin and held[-1] == end - size and joined

    runs = [(begin, end) for begin in range(len(words)) for end in range(begin + size, len(words) + 1)]
    longest = max((end - begin for begin, end in runs if size and is_run(begin, end)), default=0)
    start, stop = shared_passage(text, " ".join(cut), ngram)
    found = [word for word in words if start <= word[1] and word[2] <= stop]
    assert len(found) == longest
    if found:
        assert (start, stop) == (found[0][1], found[-1][2])
        begin = words.index(found[0])
        assert is_run(begin, begin + longest)


def made_up(generator: random.Random, count: int) -> str:
    return " ".join(f"w{generator.randrange(200)}" for _ in range(count))


def test_every_span_comes_with_words_of_its_record(tmp_path: Path) -> None:
    generator = random.Random(0)
    records = [{"q": made_up(generator, generator.randrange(8, 60)), "a": made_up(generator, 9)} for _ in range(30)]
    texts = []
    for record in records:
        parts = [made_up(generator, 80), record["q"].upper(), record["a"], made_up(generator, 80), record["q"]]
        texts.append("\n".join(parts[: generator.choice([2, 3, 5])]))
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    write_shard(tmp_path / "data" / "00.jsonl.zst", texts[:15], ["ArXiv"] * 15)
    write_shard(tmp_path / "data" / "01.jsonl.zst", texts[15:], ["Github"] * 15)
    quiz = tmp_path / "quiz.jsonl"
    decontaminate_corpus(tmp_path / "data", against=quiz, fields=["q", "a"], out=tmp_path / "dec", jobs=1)
    cuts, rows = CutFolder(tmp_path / "dec"), pq.read_table(tmp_path / "dec" / "hits.parquet").to_pylist()
    assert len(rows) >= 30
    for row, (stays, cut) in zip(rows, passages(cuts, rows), strict=True):
        of = texts[row["number"] + 15 * (row["shard"] == "01.jsonl")]
        assert cut.text == of[row["start"] : row["end"]]
        assert of[: row["start"]].endswith(cut.before)
        assert of[row["end"] :].startswith(cut.after)
        record = records[row["record"]]
        text = " ".join(record.values()) if row["field"] == "q,a" else record[row["field"]]
        assert stays.before + stays.text + stays.after in text
        shared = {*ngrams_of(stays.text)} & {*ngrams_of(cut.text)}
        assert len(shared) == len({*ngrams_of(stays.text)}) >= 1
    assert cuts.subsets() == ["ArXiv", "Github"]
    spans: dict[tuple[str, int, int], list[int]] = {}
    for row in rows:
        spans.setdefault((row["shard"], row["number"], row["start"]), []).append(row["ngrams"])
    for count in (1, 3, 1000):
        chosen, total = cuts.spread(count)
        assert total == len(spans)
        assert len(chosen) == min(count, len(spans))
        assert [row["words"] for row in chosen] == sorted(row["words"] for row in chosen)
        assert len({(row["shard"], row["number"], row["start"]) for row in chosen}) == len(chosen)
        for row in chosen:
            assert row["ngrams"] == max(spans[row["shard"], row["number"], row["start"]])
    sizes = sorted(row["words"] for row in cuts.spread(1000)[0])
    assert [row["words"] for row in cuts.spread(2)[0]] == [sizes[0], sizes[-1]]
    listed = [row for start in range(0, len(rows), 7) for row in cuts.rows(start, 7)]
    assert listed == rows
    github = [row for row in rows if row["subset"] == "Github"]
    assert cuts.count("Github") == len(github)
    assert cuts.rows(2, 5, subset="Github") == github[2:7]
    one = rows[3]
    of_one = [row for row in rows if (row["shard"], row["number"]) == (one["shard"], one["number"])]
    assert cuts.rows(0, 10**6, shard=one["shard"], number=one["number"]) == of_one


@pytest.mark.parametrize("seed", range(3))
def test_every_repeat_comes_with_a_passage_of_the_earlier_document(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    repeated = [made_up(generator, 40) + " Ärger 日本" for _ in range(6)]
    texts = ["\n".join([*generator.choices(repeated, k=3), made_up(generator, 30)]) for _ in range(40)]
    write_shard(tmp_path / "data" / "00.jsonl.zst", texts[:20])
    write_shard(tmp_path / "data" / "01.jsonl.zst", texts[20:])
    substrings_corpus(tmp_path / "data", out=tmp_path / "sub", jobs=1)
    cuts, rows = CutFolder(tmp_path / "sub"), pq.read_table(tmp_path / "sub" / "repeats.parquet").to_pylist()
    assert len(rows) > 20
    for row, (stays, cut) in zip(rows, passages(cuts, rows), strict=True):
        of, first = (
            texts[number + 20 * (name == "01.jsonl")]
            for name, number in ((row["shard"], row["number"]), (row["first_shard"], row["first_number"]))
        )
        assert cut.text == of[row["start"] : row["end"]]
        assert stays.before + stays.text + stays.after in first
        same = SequenceMatcher(None, stays.text, cut.text, autojunk=False).find_longest_match()
        # A word at either end of the part may be cut off, because it is not whole.
        assert len(cut.text[same.b : same.b + same.size].encode()) >= 90
        assert abs(same.a - same.b) <= 1 or not stays.before
