"""The section of traced texts: its figures and its longest passages are those of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import trace_texts
from pilekit.report.page import write_report
from pilekit.report.traces import passages_of
from tests.cli.running import run
from tests.pipeline.making import write_shard
from tests.report.test_report import Page

WORDS = [f"word{place}" for place in range(200)]
LICENCE = "this comes without any warranty of any kind at all"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`traces.parquet` of six texts: two copy the same 60 words, one copies 20, three share what is common."""
    folder = tmp_path_factory.mktemp("traced")
    documents = [" ".join(WORDS[:100]), " ".join(WORDS[100:]), *(f"{place} {LICENCE}" for place in range(9))]
    write_shard(folder / "00.jsonl", documents, ["ArXiv", "Github", *["Pile-CC"] * 9])
    long, short = " ".join(WORDS[10:70]), " ".join(WORDS[120:140])
    texts = [f"a {long} b {LICENCE}", f"c {long.upper()}", short, LICENCE, f"{LICENCE} x y z", "never seen"]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ["--common", 5, "--documents", 2, "--out", folder / "traces.parquet"]
    run("trace", folder / "texts.jsonl", folder / "00.jsonl", *options, exit_code=0)
    return folder / "traces.parquet"


def test_the_section_shows_coverage_and_the_longest_passages_with_their_documents(traced: Path, tmp_path: Path) -> None:
    assert write_report(traced, tmp_path / "report.html") == ("Traced texts",)
    page = Page(tmp_path / "report.html")
    head, *rows = page.tables["The longest passages"]
    assert head == ["Passage", "Words", "Documents", "Texts", "First text", "First documents"]
    assert [row[1:] for row in rows] == [
        ["60", "1", "2", "0", "00.jsonl 0, ArXiv"],
        ["20", "1", "1", "2", "00.jsonl 1, Github"],
        ["10", "9", "3", "0", "–"],
    ]
    assert [row[0] for row in rows] == [" ".join(WORDS[10:70])[:400] + "…", " ".join(WORDS[120:140]), LICENCE]
    text = page.text
    rows = pq.read_table(traced).to_pylist()
    covered, words = (sum(row[name] for row in rows) for name in ("covered", "words"))
    for shown in ("6", "5", f"{100 * covered / words:.2f} %", "1 more text has no passage.", "words of a text"):
        assert shown in text
    assert "common, without documents" in text
    assert "8 to 15 words" in text


def test_texts_without_a_passage_are_said_to_have_none(traced: Path, tmp_path: Path) -> None:
    trace_texts(traced.parent / "00.jsonl", ["never seen " * 9], tmp_path / "none.parquet")
    write_report(tmp_path / "none.parquet", tmp_path / "report.html")
    assert "No passage of the texts stands in the corpus." in Page(tmp_path / "report.html").text


def test_traces_in_a_folder_are_found_and_other_parquet_files_are_no_artefacts(traced: Path, tmp_path: Path) -> None:
    (tmp_path / "traces.parquet").write_bytes(traced.read_bytes())
    pq.write_table(pq.read_table(traced).replace_schema_metadata({"pilekit": "{}"}), tmp_path / "b.parquet")
    pq.write_table(pq.read_table(traced).replace_schema_metadata({"pilekit": "no json"}), tmp_path / "c.parquet")
    (tmp_path / "d.parquet").write_bytes(b"PAR1 is damaged PAR1")
    assert write_report(tmp_path, tmp_path / "report.html") == ("Traced texts",)
    assert "Left out" not in (tmp_path / "report.html").read_text()


PASSAGES = st.builds(
    lambda word, words, documents: (f"{word} " * words, words, documents),
    *(st.sampled_from(["a", "b", "B", "c"]), st.integers(2, 40), st.integers(1, 3)),
)


@given(st.lists(st.lists(PASSAGES, max_size=4), max_size=30), st.integers(1, 3))
def test_the_longest_passages_are_those_of_a_plain_loop(texts: list[list[Any]], most: int) -> None:
    rows = []
    for number, passages in enumerate(texts):
        text, listed = "", []
        for words, count, documents in passages:
            figures = {"words": count, "documents": documents, "common": documents == 3, "places": []}
            listed.append({"start": len(text), "end": len(text) + len(words), **figures})
            text += words
        rows.append({"number": number, "text": text, "passages": listed})
    having: dict[str, set[int]] = {}
    for number, passages in enumerate(texts):
        for words, _, _ in passages:
            having.setdefault(words.strip().lower(), set()).add(number)
    expected = sorted(having, key=lambda words: -len(words.split()))[:most]
    longest, counts = passages_of(rows, 2, most)
    assert [passage.spelling for passage in longest] == expected
    assert [passage.texts for passage in longest] == [sorted(having[words]) for words in expected]
    every = [passage for passages in texts for passage in passages]
    for place in range(counts.shape[1]):
        here = [one for one in every if 2 << place <= one[1] < 4 << place]
        common = sum(one[2] == 3 for one in here)
        assert counts[:, place].tolist() == [len(here) - common, common]
    assert counts.sum() == len(every)
