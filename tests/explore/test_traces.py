"""A trace in the explorer: its passages are those of the file, and a document opens where the passage stands."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from pilekit import ShardWriter, trace_texts
from pilekit.errors import PilekitError, visible_lines
from pilekit.explore.sources import Sources
from pilekit.explore.tokens import tokens_over
from pilekit.explore.traces import pieces_of
from tests.cli.running import run
from tests.explore.making import NAME, generations, texts, words
from tests.pipeline.making import write_shard
from tests.shards.making import record

SHARD = NAME.removesuffix(".zst")


@pytest.fixture(scope="module")
def rows(given: Path) -> list[dict[str, Any]]:
    traced: list[dict[str, Any]] = pq.read_table(given / "traces.parquet").to_pylist()
    return traced


def test_texts_are_the_rows_of_the_file_the_most_copied_first(sources: Sources, rows: list[dict[str, Any]]) -> None:
    listed = sources.texts(0, 0)
    assert (listed["of"], listed["start"]) == (len(generations()), 0)
    order = sorted(rows, key=lambda row: -row["covered"])
    assert [text["number"] for text in listed["texts"]] == [row["number"] for row in order]
    for shown, row in zip(listed["texts"], order, strict=True):
        assert {name: shown[name] for name in ("words", "covered", "coverage")}.items() <= row.items()
        assert shown["passages"] == len(row["passages"])
    assert sources.texts(0, 2)["texts"] == listed["texts"][2:]
    assert sources.texts(0, 10**12)["texts"] == []


def test_pieces_spell_the_text_and_carry_its_passages(sources: Sources, rows: list[dict[str, Any]]) -> None:
    is_common = set()
    for row in rows:
        shown = sources.text(0, row["number"])
        assert "".join(piece[0] for piece in shown["pieces"]) == visible_lines(row["text"])
        assert shown["of"] == len(shown["passages"]) == len(row["passages"])
        for passage, expected in zip(shown["passages"], row["passages"], strict=True):
            names = ("start", "end", "words", "documents", "common")
            assert [passage[name] for name in names] == [expected[name] for name in names]
        for text, start, end, place, common in shown["pieces"]:
            assert text == visible_lines(row["text"][start:end])
            over = [place for place, of in enumerate(row["passages"]) if of["start"] <= start and end <= of["end"]]
            assert place in over if over else place is None
            assert common == (bool(over) and all(row["passages"][place]["common"] for place in over))
            is_common.add(common)
    assert is_common == {False, True}
    with pytest.raises(PilekitError, match="has no text 99"):
        sources.text(0, 99)


@drawn(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.booleans()), max_size=8), st.integers(1, 30))
def test_each_character_is_marked_by_the_first_passage_over_it(spans: Any, characters: int) -> None:
    passages = [{"start": start, "end": start + size, "common": common} for start, size, common in spans]
    over = [
        [
            (passage["common"], place)
            for place, passage in enumerate(passages)
            if passage["start"] <= at < passage["end"]
        ]
        for at in range(characters)
    ]
    pieces = pieces_of(characters, passages)
    marks = [min(here)[1] if here else None for here in over]
    assert [piece.passage for piece in pieces for _ in range(piece.start, piece.end)] == marks
    assert all(one.passage != other.passage for one, other in pairwise(pieces))


def test_the_documents_of_a_passage_open_at_the_passage(
    sources: Sources, given: Path, rows: list[dict[str, Any]]
) -> None:
    plain, every = Sources(given / "corpus", traces=[given / "traces.parquet"]), texts()
    for row in rows:
        for place, passage in enumerate(row["passages"]):
            shown = sources.passage(0, row["number"], place)
            assert len(shown["places"]) == (0 if passage["common"] else min(2, passage["documents"]))
            for at, expected in zip(shown["places"], passage["places"], strict=True):
                assert at["here"] == SHARD
                assert [at[name] for name in ("before", "text", "after")] == [
                    visible_lines(expected[name]) for name in ("before", "text", "after")
                ]
                mark, text = (at["start"], at["end"]), every[at["number"]]
                around = plain.document(SHARD, at["number"], *mark)["around"]
                assert around == [
                    visible_lines(part) for part in (text[: mark[0]], text[slice(*mark)], text[mark[1] :])
                ]
                document = sources.document(SHARD, at["number"], *mark)
                first, last = document["marked"]
                marked = "".join(token[0] for token in document["tokens"][first:last])
                assert visible_lines(text[slice(*mark)]) in marked
                assert visible_lines(text[slice(*mark)]) not in "".join(
                    token[0] for token in document["tokens"][first + 1 : last]
                )
    with pytest.raises(PilekitError, match="text 0 has no passage 0"):
        sources.passage(0, 0, 0)


@drawn(st.text(max_size=20), st.data())
def test_marked_tokens_are_those_with_a_character_of_the_mark(text: str, data: st.DataObject) -> None:
    """Whatever the tokens: each character comes with the token that has its last byte."""
    size = len(text.encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
    spans = list(zip([0, *cuts], [*cuts, size], strict=True))
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    end = data.draw(st.integers(start + 1, len(text) + 1))
    last_bytes = [len(text[: at + 1].encode()) for at in range(len(text))]
    having = [
        place
        for place, (begin, after) in enumerate(spans)
        if any(begin < last_bytes[at] <= after for at in range(start, min(end, len(text))))
    ]
    first, last = tokens_over(text, spans, start, end)
    assert not having or (first, last - 1) == (having[0], having[-1])


def test_a_passage_far_behind_the_beginning_is_shown_with_its_surroundings(tmp_path: Path) -> None:
    long = " ".join(f"word{place}" for place in range(2000))
    start = long.index("word1500 ")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": long}) + "\n")
    shown = Sources(tmp_path / "a.jsonl").document("a.jsonl", 0, start, start + 8, most_shown=100)
    assert (shown["from"], shown["shown"], shown["characters"]) == (start - 50, 100, len(long))
    assert shown["around"] == [long[start - 50 : start], "word1500", long[start + 8 : start + 50]]


def test_a_corpus_that_was_moved_or_written_anew_opens_and_another_does_not(tmp_path: Path) -> None:
    documents, other = [words(seed) for seed in range(4)], [words(seed) for seed in range(10, 14)]
    write_shard(tmp_path / "data" / "a" / "00.jsonl.zst", documents)
    traces = tmp_path / "traces.parquet"
    trace_texts(tmp_path / "data", [documents[2]], traces)

    def shard_here(corpus: Path) -> Any:
        [place] = Sources(corpus, traces=[traces]).passage(0, 0, 0)["places"]
        return place["here"]

    assert shard_here(tmp_path / "data") == "a/00.jsonl"
    shutil.copytree(tmp_path / "data" / "a", tmp_path / "copied")
    (tmp_path / "copied" / "00.jsonl.zst").rename(tmp_path / "copied" / "renamed.jsonl.zst")
    assert shard_here(tmp_path / "copied") == "renamed.jsonl"
    with ShardWriter(tmp_path / "anew" / "a" / "00.jsonl.zst", frame_bytes=1000) as writer:
        writer.write_lines(record(text, "ArXiv") for text in documents)
    assert shard_here(tmp_path / "anew") == "a/00.jsonl"
    write_shard(tmp_path / "another" / "a" / "00.jsonl.zst", other)
    assert shard_here(tmp_path / "another") is None
    write_shard(tmp_path / "short" / "a" / "00.jsonl.zst", documents[:2])
    assert shard_here(tmp_path / "short") is None
    alone = Sources(None, traces=[traces]).passage(0, 0, 0)
    assert (alone["corpus"], alone["places"][0]["here"], alone["places"][0]["text"]) == (False, None, documents[2])


def test_the_command_sorts_traces_out_by_their_header(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Sources] = []
    monkeypatch.setattr("pilekit.explore.server.serve", lambda sources, announce: served.append(sources))
    for paths in ([given / "corpus", given / "traces.parquet"], [given / "traces.parquet"]):
        run("explore", *paths, exit_code=0)
        shown = served[-1].corpus()
        assert shown["traces"] == ["Traced: traces.parquet"]
        assert [result["title"] for result in shown["results"]] == ["Traced texts"]
        assert (shown["documents"] is None) == (len(paths) == 1)
    table = pq.read_table(given / "traces.parquet")
    pq.write_table(table.drop_columns("text").replace_schema_metadata(table.schema.metadata), tmp_path / "x.parquet")
    for command in ("explore", "report"):
        with pytest.raises(PilekitError, match=r"x\.parquet: is damaged \(it has other columns\); remove it, and run"):
            run(command, tmp_path / "x.parquet", *(["--out", tmp_path / "x.html"] if command == "report" else []))
    with pytest.raises(PilekitError, match=r"quiz\.jsonl: is no result of pilekit trace; name a file that"):
        Sources(None, traces=[given / "quiz.jsonl"])
