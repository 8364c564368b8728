"""`pilekit trace` and `trace_texts` against the reference: files of texts, kills, parts, jobs, bad lines; real text."""

from __future__ import annotations

import json
import pickle
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pilekit import PilekitError, ShardWriter, TextTraces, read, trace_texts
from pilekit.cli.look.trace import command
from pilekit.trace.maximal_passages import is_exact
from tests.cli.running import on_terminal, refused, run, run_json
from tests.kills import left_at_each_renaming
from tests.shards.making import record
from tests.trace.copied_passages import copied_passages, words_of

RNG = random.Random(5)
WORDS = ["the", "of", "House", "and—", "naïve", "漢字", "(x)", '"quoted"', "a\\b", "line\n", "Ⓐ", "İ", "—"]
LABELS = ["ArXiv", "Github", "Pile-CC"]
LICENCE = "all of this comes without any warranty of any kind at all"
SHARDS = {"a/00": 80, "a/02": 70, "b/01": 10}


def prose(words: int) -> str:
    return " ".join(RNG.choices(WORDS, k=words))


DOCUMENTS = [(RNG.choice(LABELS), prose(RNG.randrange(60)) + (f" {LICENCE}" * (n % 3 == 0))) for n in range(160)]
TEXTS = [
    "",
    prose(5),
    prose(300),
    f"so {LICENCE.upper()}! then",
    DOCUMENTS[3][1],
    "nothing of it " * 9,
    f"{DOCUMENTS[1][1]}\n{DOCUMENTS[4][1].replace('the', 'The')} {LICENCE}",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards in two folders."""
    folder, begin = tmp_path_factory.mktemp("trace") / "data", 0
    for name, count in SHARDS.items():
        with ShardWriter(folder / f"{name}.jsonl.zst") as writer:
            writer.write_lines(record(text, label) for label, text in DOCUMENTS[begin : begin + count])
        begin += count
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text, "other": text.upper()}) + "\n" for text in TEXTS))
    return path


def check(traces: TextTraces, least: int, common: int, most: int, labels: list[str] = LABELS) -> None:
    """Compare with the reference all that is said of each passage."""
    documents = [text if label in labels else "" for label, text in DOCUMENTS]
    before = dict(zip(SHARDS, (0, 80, 150), strict=True))
    rows = traces.to_arrow().to_pylist()
    assert [row["text"] for row in rows] == TEXTS
    for number, (row, text) in enumerate(zip(rows, TEXTS, strict=True)):
        expected = copied_passages(text, documents, least)
        words = words_of(text)
        inside = {word for one in expected for word in range(one.begin, one.end)}
        assert (row["number"], row["words"], row["covered"]) == (number, len(words), len(inside))
        assert row["coverage"] == (len(inside) / len(words) if words else 0)
        expected.sort(key=lambda one: one.begin - one.end)
        assert len(row["passages"]) == len(expected)
        for passage, one in zip(row["passages"], expected, strict=True):
            exact_text = text[passage["start"] : passage["end"]]
            assert words_of(exact_text) == words[one.begin : one.end]
            assert exact_text == exact_text.strip()
            assert (passage["words"], passage["documents"]) == (one.end - one.begin, len(one.documents))
            assert passage["common"] == (len(one.documents) > common > 0)
            listed = [] if passage["common"] else one.documents[:most]
            places = passage["places"]
            assert [before[place["shard"].removesuffix(".jsonl")] + place["number"] for place in places] == listed
            for document, place in zip(listed, places, strict=True):
                label, whole = DOCUMENTS[document]
                assert place["subset"] == label
                assert place["text"] == whole[place["start"] : place["end"]]
                assert words_of(place["text"]) == words[one.begin : one.end]
                assert place["exact"] == is_exact(exact_text, place["text"])
                assert whole[: place["start"]].split()[-8:] == place["before"].split()
                assert whole[place["end"] :].split()[:8] == place["after"].split()
    found = [row for row in rows if row["passages"]]
    assert traces.summary["found"] == len(found) >= 3
    assert traces.summary["covered"] == sum(row["covered"] for row in rows)
    assert traces.summary["passages"] == sum(len(row["passages"]) for row in rows)
    assert traces.summary["common"] == sum(one["common"] for row in rows for one in row["passages"])


@pytest.mark.parametrize(("least", "common", "most"), [(8, 1000, 10), (4, 0, 2), (3, 12, 1), (1, 20, 3)])
def test_traces_are_those_of_the_reference(data: Path, texts: Path, least: int, common: int, most: int) -> None:
    for jobs in (1, 3):
        traces = trace_texts(data, texts, words=least, common=common, documents=most, jobs=jobs)
        check(traces, least, common, most)
    check(
        trace_texts(data, TEXTS, words=least, subsets=["arxiv", "github"], common=common),
        least,
        common,
        10,
        LABELS[:2],
    )


def test_case_and_marks_are_marked(data: Path) -> None:
    upper = trace_texts(data, [LICENCE.upper()])[0]["passages"][0]
    assert (upper["documents"], {place["exact"] for place in upper["places"]}) == (54, {False})
    assert upper["places"][0]["text"] == LICENCE
    spaced = trace_texts(data, [LICENCE.replace(" ", "\n ") + "."])[0]["passages"][0]
    assert {place["exact"] for place in spaced["places"]} == {True}
    assert not is_exact("a, b", "a b")


def test_a_text_file_a_field_parquet_and_standard_input_are_read(data: Path, texts: Path, tmp_path: Path) -> None:
    text = TEXTS[-1]
    expected = trace_texts(data, [text]).to_dict()
    (tmp_path / "one.txt").write_text(text, encoding="utf-8-sig")
    assert run_json("trace", tmp_path / "one.txt", data) == expected
    piped = CliRunner().invoke(command, ["-", str(data), "--json"], input=text)
    assert json.loads(piped.output) == expected
    pq.write_table(pa.table({"answer": TEXTS}), tmp_path / "texts.parquet")
    of_all = run_json("trace", tmp_path / "texts.parquet", data, "--field", "answer")
    assert of_all == run_json("trace", texts, data) == trace_texts(data, TEXTS).to_dict()
    upper = run_json("trace", texts, data, "--field", "other")
    assert [row["covered"] for row in upper["traces"]] == [row["covered"] for row in of_all["traces"]]


def test_wrong_texts_are_refused_with_their_line(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    for lines, match in (
        ('{"text": "a"}\n{"text": 1}\n', r"texts\.jsonl, line 2: is no text but 1"),
        ('{"text": "a"}\n{"other": "b"}\n', "line 2: has no field text; name the field of the text with --field"),
        ('{"text": "a b c"}\n', "none of 1 text has 8 words to look for; ask for fewer --words"),
    ):
        path.write_text(lines)
        refused(match, "trace", path, data)
    (tmp_path / "one.txt").write_bytes(b"a\nb \xff")
    refused(r"one\.txt, line 2: is not UTF-8", "trace", tmp_path / "one.txt", data)
    refused(r"one\.txt: is one text without fields", "trace", tmp_path / "one.txt", data, "--field", "text")
    refused(r"missing\.txt", "trace", tmp_path / "missing.txt", data)
    with pytest.raises(PilekitError, match="texts: holds no text"):
        trace_texts(data, [])
    with pytest.raises(PilekitError, match="text 1: holds half of a surrogate"):
        trace_texts(data, ["a", "\ud800"])
    assert "--part needs --out" in run("trace", path, data, "--part", "1/2", exit_code=2).output
    with pytest.raises(PilekitError, match=r"standard input .* both the texts and the corpus"):
        trace_texts("-", "-")


def test_a_killed_run_ends_with_the_same_bytes_and_does_nothing_twice(data: Path, texts: Path, tmp_path: Path) -> None:
    moments, left = left_at_each_renaming(
        tmp_path, lambda out: trace_texts(data, texts, out / "traces.parquet", words=4, jobs=1)
    )
    assert moments > 20
    assert "traces.parquet.unfinished/pilekit.json" in left


def test_parts_and_a_finished_file_give_the_same(data: Path, texts: Path, tmp_path: Path, caplog: Any) -> None:
    expected = trace_texts(data, texts, tmp_path / "whole.parquet")
    out = tmp_path / "parts.parquet"
    for part in ((1, 2), (2, 2)):
        trace_texts(data, texts, out, part=part)
        assert not out.exists()
    run("trace", texts, data, "--out", out, exit_code=0)
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.parquet", "whole.parquet"]
    again = trace_texts(data, texts, out)
    assert "already done" in caplog.text
    assert again.to_dict() == expected.to_dict()
    assert (again.rows.to_pylist(), repr(again)) == (pq.read_table(out).to_pylist(), repr(expected))
    refused(r"words is 8 there, 9 here; name another file", "trace", texts, data, "--out", out, "--words", 9)
    (tmp_path / "other.parquet").write_text("x")
    refused("is no result of pilekit trace", "trace", texts, data, "--out", tmp_path / "other.parquet")


def test_a_bad_line_is_an_error_unless_it_is_to_be_skipped(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": 1}\n' + record(LICENCE, "ArXiv") + b"\n")
    out = tmp_path / "out.parquet"
    for _ in range(2):
        with pytest.raises(PilekitError, match=r'bad\.jsonl, line 1: field "text" is a number'):
            trace_texts(tmp_path / "bad.jsonl", texts, out)
    skipped = trace_texts(tmp_path / "bad.jsonl", texts, out, on_error="skip")
    assert (skipped.summary["skipped"], skipped.summary["documents"]) == (1, 1)
    with pytest.raises(PilekitError, match=r"bad\.jsonl, line 1"):
        trace_texts(tmp_path / "bad.jsonl", texts, out)


def test_a_terminal_shows_the_most_copied_texts_in_colours_and_the_longest_passages(
    data: Path, texts: Path, tmp_path: Path
) -> None:
    printed = on_terminal("trace", texts, data, "--common", 53, "--words", 6)
    assert "\x1b[1;31m" in printed  # a passage
    assert "\x1b[33m" in printed  # a common passage
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed).replace("\r", "\n").split("\n"))) <= 80
    plain = run("trace", texts, data, "--out", tmp_path / "traces.parquet", exit_code=0).output
    heads = re.findall(r"^text (\d+): ", plain, re.MULTILINE)
    assert list(map(int, heads)) == [row["number"] for row in trace_texts(data, texts).most_copied(5)]
    assert "of 7 texts; searched 160" in plain.replace("\n", " ")
    assert f"pilekit explore {data} {tmp_path / 'traces.parquet'}" in plain.replace("\n", " ")


@pytest.mark.parametrize("pickled", [False, True])
def test_the_longest_passages_and_the_most_copied_texts_are_those_of_a_plain_loop(
    data: Path, texts: Path, pickled: bool
) -> None:
    many = TEXTS * 60  # in several row groups
    traces = trace_texts(data, many, words=2)
    traces = pickle.loads(pickle.dumps(traces)) if pickled else traces
    rows = [row for row in traces.to_arrow().to_pylist() if row["passages"]]
    for count in (0, 1, 7, 300, 10**6):
        assert traces.most_copied(count) == sorted(rows, key=lambda row: -row["covered"])[:count]
        passages = [(row, passage) for row in rows for passage in row["passages"]]
        assert traces.longest(count) == sorted(passages, key=lambda pair: -pair[1]["words"])[:count]
    assert traces[len(many) - 1]["text"] == many[-1]
    with pytest.raises(KeyError, match="there is no text 420; they are numbered from 0"):
        traces[420]


def test_texts_made_of_pieces_of_real_documents_are_traced_to_them(real_corpus: Path) -> None:
    """Each of 50 texts has three pieces of known documents between words that stand nowhere.

    A plain search says which other documents have a piece too.
    """
    shard, rng = real_corpus / "minipile-00.jsonl.zst", random.Random(6)
    with read(shard) as batches:
        documents = [(document.number, words_of(document.text)) for batch in batches for document in batch]
    long = [(number, words) for number, words in documents if len(words) > 100]
    pieces: list[tuple[int, str]] = []
    for number, words in (rng.choice(long) for _ in range(150)):
        size = rng.randrange(20, 60)
        at = rng.randrange(len(words) - size)
        pieces.append((number, " ".join(words[at : at + size])))
    holding: list[list[int]] = [[] for _ in pieces]
    for number, words in documents:
        spaced = f" {' '.join(words)} "
        for numbers, (_, piece) in zip(holding, pieces, strict=True):
            if f" {piece} " in spaced:
                numbers.append(number)
    assert all(number in numbers for numbers, (number, _) in zip(holding, pieces, strict=True))

    texts = [" qzxv ".join(piece for _, piece in pieces[at : at + 3]) for at in range(0, len(pieces), 3)]
    traces = trace_texts(shard, texts, common=0, documents=len(documents))
    rows = traces.to_arrow().to_pylist()
    assert (len(rows), traces.summary["documents"]) == (50, len(documents))
    for at, row in enumerate(rows):
        found = sorted(row["passages"], key=lambda passage: passage["start"])
        here = slice(3 * at, 3 * at + 3)
        assert [row["text"][one["start"] : one["end"]] for one in found] == [piece for _, piece in pieces[here]]
        assert [[place["number"] for place in one["places"]] for one in found] == holding[here]
        assert [one["documents"] for one in found] == [len(numbers) for numbers in holding[here]]
