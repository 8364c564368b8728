"""What is cut equals the reference; lines without a span stay byte for byte, in any spelling of JSON."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import Corpus, DropContaminated, PilekitError, PileStream, Pipeline, decontaminate_corpus, read
from pilekit.cutting.shards import pieces_around
from tests.cli.running import cells, refused, run, run_json
from tests.cutting import reference
from tests.pipeline.making import lines_of
from tests.shards import making
from tests.shards.editing import slow_edit

RNG = random.Random(7)
WORDS = ["".join(RNG.choices("abcdefghij", k=RNG.randrange(3, 9))) for _ in range(800)]
LICENCE = " ".join(RNG.sample(WORDS, 40))
QUESTIONS = [f"{' '.join(RNG.sample(WORDS, words))}?" for words in (30, 13, 12, 8, 7, 60)]
ANSWERS = ["yes", " ".join(RNG.sample(WORDS, 20)), "42", "", "no", "none"]
SUBSETS = ("Pile-CC", "Github", "ArXiv")


def prose(words: int) -> str:
    return "".join(word + RNG.choice([" ", " ", ", ", ". ", "\n", " é "]) for word in RNG.choices(WORDS, k=words))


def document(number: int) -> str:
    planted = QUESTIONS[number % len(QUESTIONS)]
    kinds = (
        lambda: prose(60),
        lambda: prose(90) + planted.upper().replace(" ", " \n - ") + " " + prose(80),
        lambda: LICENCE + "\n" + prose(40),
        lambda: planted,
        lambda: "".join(prose(120) + planted + " " for _ in range(1 + number % 14)),
        lambda: f"{prose(100)}{planted} {ANSWERS[number % len(QUESTIONS)]} {prose(90)}",
        lambda: "",
    )
    return kinds[number % len(kinds)]()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of three shards, with a spelling of its own, and evaluations beside it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data").mkdir()
    for shard in range(3):
        records = [
            {"id": number, "text": document(number + shard), "meta": {"pile_set_name": SUBSETS[number % 3]}}
            for number in range(30)
        ]
        hard = '{ "text":{"text":"a"}, "uuid":296336254116318163954371823645001234567,'
        lines = "".join(
            json.dumps(record, separators=(" ,", " : ")).replace("{", hard, 1) + "\r\n" for record in records
        )
        (folder / "data" / f"{shard:02}.jsonl.zst").write_bytes(making.zstd_frame(lines.encode()))
    records = [{"id": f"q{at}", "question": one, "answer": ANSWERS[at], "n": at} for at, one in enumerate(QUESTIONS)]
    (folder / "quiz.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    pq.write_table(pa.table({"question": [LICENCE, None, "Too short."]}), folder / "laws.parquet")
    return folder


def options(data: Path) -> dict[str, Any]:
    return {"against": [data / "quiz.jsonl.gz", data / "laws.parquet"], "fields": ["question", "answer"], "jobs": 1}


def slow(lines: dict[str, list[bytes]], records: dict[tuple[str, int], list[str]], limit: int) -> dict[Any, Any]:
    """The spans of each document that has any, and of each span the (evaluation, record) it shares n-grams with."""
    texts = {(shard, at): json.loads(line)["text"] for shard, all in lines.items() for at, line in enumerate(all)}
    held = {
        key: {hit for text in of for hit in reference.ngrams_of(text) if len(hit) >= 8} for key, of in records.items()
    }
    wanted = set().union(*held.values())
    wanted -= reference.common(list(texts.values()), wanted, limit)
    found = {place: reference.spans(text, wanted) for place, text in texts.items()}
    return {
        place: [(begin, end, {key for key, of in held.items() if of & hits}) for begin, end, hits in spans]
        for place, spans in found.items()
        if spans
    }


def check(out: Path, lines: dict[str, list[bytes]], spans: dict[Any, Any]) -> None:
    """The tables, the counts and the clean shards are those of the reference."""
    shown = defaultdict[Any, set[Any]](set)
    for row in pq.read_table(out / "hits.parquet").to_pylist():
        shown[row["shard"], row["number"], row["start"], row["end"]] |= {(row["evaluation"], row["record"])}
        text = json.loads(lines[row["shard"]][row["number"]])["text"][row["start"] : row["end"]]
        assert len(reference.words_of(text)) == row["words"]
    assert shown == {(*place, begin, end): keys for place, of in spans.items() for begin, end, keys in of}
    clean, counts, removed = lines_of(out / "clean"), Counter[str](), 0
    for shard, all in lines.items():
        written = iter(clean.get(shard, []))
        for at, line in enumerate(all):
            if (shard, at) not in spans:
                assert next(written) == line
                counts["untouched"] += 1
                continue
            text = json.loads(line)["text"]
            left = reference.pieces(text, [span[:2] for span in spans[shard, at]])
            assert [next(written) for _ in left] == [slow_edit(line, piece) for piece in left]
            counts["cut" if left else "dropped"] += 1
            counts["pieces"] += len(left)
            removed += len(text) - sum(map(len, left))
        assert next(written, None) is None
    summary = json.loads((out / "summary.json").read_bytes())
    assert {name: summary[name] for name in counts} == counts
    assert summary["characters_removed"] == removed
    assert summary["read"] == sum(counts[name] for name in ("untouched", "cut", "dropped"))


def test_the_result_is_the_references(data: Path, tmp_path: Path) -> None:
    records = {("quiz", at): [one, ANSWERS[at], f"{one} {ANSWERS[at]}"] for at, one in enumerate(QUESTIONS)} | {
        ("laws", 0): [LICENCE]
    }
    lines = lines_of(data / "data")
    for limit in (12, 0):
        out = tmp_path / str(limit)
        found = decontaminate_corpus(data / "data", out=out, common=limit, **options(data))
        spans = slow(lines, records, limit)
        check(out, lines, spans)
        ignored = pq.read_table(out / "common.parquet").to_pylist()
        assert bool(ignored) == bool(limit)
        assert all(row["documents"] > limit for row in ignored)
        assert {row["text"] for row in ignored} >= ({" ".join(LICENCE.split()[:13])} if limit else set())
        for row in pq.read_table(out / "evaluations.parquet").to_pylist():
            key = (row["evaluation"], row["record"])
            places = [place for place, of in spans.items() if any(key in span[2] for span in of)]
            first = places[0] if places else (None, None)
            assert (row["first_shard"], row["first_number"]) == first
            assert (row["found"] > 0) == bool(places)
            assert row["share"] == (row["found"] / row["ngrams"] if row["ngrams"] else 0)
        short = pq.read_table(out / "too_short.parquet").to_pylist()
        assert [(row["evaluation"], row["id"], row["field"], row["words"]) for row in short][:2] == [
            ("laws", None, "question", 2),
            ("quiz", "q0", "answer", 1),
        ]
        text, counts = 0 if limit else 1, found.summary["evaluations"]["laws"]
        expected = {"records": 3, "dirty": text, "too_short": 2, "answered": 0, "leak": 0, "question": 0, "text": text}
        assert {name: counts[name] for name in expected} == expected
        assert set(found.hits["verdict"].to_pylist()) == {"text"}
        assert all(found.hits["cut"].to_pylist())
        assert found.summary["cut"] > 10 < found.summary["dropped"]
        unwritten = decontaminate_corpus(data / "data", out=f"{out}-", common=limit, write=False, **options(data))
        assert unwritten.summary == found.summary
        assert {path.name for path in unwritten.folder.iterdir()} == {path.name for path in out.iterdir()} - {"clean"}


@given(
    st.text(st.sampled_from("ab é\n"), max_size=1000),
    st.lists(st.tuples(st.integers(0, 990), st.integers(1, 9)), max_size=12),
    st.integers(0, 250),
)
def test_pieces_are_the_references(text: str, cuts: list[tuple[int, int]], window: int) -> None:
    text = ("b" + text * 40)[:1000]
    spans = sorted((at, at + size) for at, size in cuts if at + size <= len(text))
    assert pieces_around(text, spans, window) == reference.pieces(text, spans, window)


def test_hits_without_a_word_between_are_one_span(tmp_path: Path) -> None:
    eight, twelve = QUESTIONS[3], QUESTIONS[2]
    (tmp_path / "quiz.jsonl").write_bytes(making.record(eight) + b"\n" + making.record(twelve))
    texts = [f"So: {eight} – {twelve} So.", f"So: {eight} or {twelve} So."]
    (tmp_path / "00.jsonl").write_bytes(b"\n".join(map(making.record, texts)))
    found = decontaminate_corpus(
        tmp_path / "00.jsonl", against=tmp_path / "quiz.jsonl", out=tmp_path / "out", write=False
    )
    rows = [(row["number"], row["start"], row["end"], row["words"]) for row in found.hits.to_pylist()]
    spans = [(number, texts[number][start:end], words) for number, start, end, words in rows]
    assert spans == [*[(0, f"{eight} – {twelve}", 20)] * 2, (1, eight, 8), (1, twelve, 12)]


def test_subsets_and_whole_documents(data: Path, tmp_path: Path) -> None:
    lines, given = lines_of(data / "data"), options(data)
    labels = {key: [json.loads(line)["meta"]["pile_set_name"] for line in all] for key, all in lines.items()}
    for only in (False, True):
        out = tmp_path / f"only-{only}"
        found = decontaminate_corpus(data / "data", out=out, subsets="arxiv", only=only, remove="documents", **given)
        assert found.summary["left_out"] == (60 if only else 0)
        assert set(found.hits["subset"].to_pylist()) == {"ArXiv"}
        gone = {(row["shard"], row["number"]) for row in found.hits.to_pylist()}
        assert found.summary["dropped"] == len(gone) > 3
        assert lines_of(out / "clean") == {
            shard: [
                line
                for at, line in enumerate(all)
                if (shard, at) not in gone and (not only or labels[shard][at] == "ArXiv")
            ]
            for shard, all in lines.items()
        }


def test_the_stage_drops_documents_with_a_span(data: Path, tmp_path: Path) -> None:
    found = decontaminate_corpus(data / "data", out=tmp_path / "out", write=False, **options(data))
    stage, corpus = DropContaminated(tmp_path / "out"), Corpus(data / "data")
    gone = {(row["shard"], row["number"]) for row in found.hits.to_pylist()}
    kept = {(batch.shard, number) for batch in Pipeline([stage])(read(corpus)) for number in batch.numbers.tolist()}
    assert kept == {(shard.name, number) for shard in corpus.shards for number in range(30)} - gone
    assert found.summary["untouched"] == len(kept)
    stream = PileStream(data / "data", tokenizer=None, epochs=1, shuffle=False, filters=[stage])
    assert {(document.shard, document.number) for document in stream} == kept
    for name, message in (("other", "was not searched in"), ("00", "is not the one that was searched")):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"\n".join([making.record("x")] * 30))
        with pytest.raises(PilekitError, match=message):
            list(Pipeline([stage])(read(path)))
    header = tmp_path / "out/pilekit.json"
    header.write_text(re.sub(r'"finished": ?true', '"finished":false', header.read_text()))
    with pytest.raises(PilekitError, match="is not finished"):
        DropContaminated(tmp_path / "out")


def test_the_command_prints_tables_and_refuses_wrong_arguments(data: Path, tmp_path: Path) -> None:
    quiz, laws, out = data / "quiz.jsonl.gz", data / "laws.parquet", tmp_path / "out"
    given = ("--fields", "question,answer", "--out", out)
    printed = run("decontaminate", data / "data", "--against", quiz, laws, *given, exit_code=0).stdout
    rows = cells(printed)
    assert [row[:4] for row in rows[2:4]] == [["laws", "3", "0", "2"], ["quiz", "6", "5", "0"]]
    assert rows[-1] == f"clean shards, hits.parquet and evaluations.parquet in {out}".split()
    found = run_json("decontaminate", data / "data", "--against", quiz, laws, *given)
    assert found == json.loads((out / "summary.json").read_bytes())
    assert list(found)[:6] == ["read", "untouched", "cut", "dropped", "skipped", "left_out"]
    assert rows[-2][:9] == f"90 read = {found['untouched']} untouched + {found['cut']} cut +".split()
    (tmp_path / "empty.jsonl").write_text('{"text": "too short"}\n')
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"tex\n')
    for arguments, message in (
        (
            ["--against", quiz],
            r"no record has a field text \(the first has the fields id, question, ",
        ),
        (["--against", quiz, "--fields", "n"], "record 0: n is no text but 0"),
        (["--against", tmp_path / "broken.jsonl"], "broken.jsonl, line 2: is not JSON"),
        (["--against", tmp_path / "none.jsonl"], "none.jsonl"),
        (["--against", tmp_path / "empty.jsonl"], "none of 1 record has a text of 8 words"),
        (["--against", laws, data / "data"], "is in the corpus too"),
        (["--against", quiz, *given], "was made from other shards: /laws.parquet is not among them now"),
    ):
        refused(message, "decontaminate", data / "data", "--out", tmp_path / "none", *arguments)
    assert not (tmp_path / "none").exists()
    assert "--only needs --subsets" in run("decontaminate", "--against", quiz, "--only", exit_code=2).stderr
    assert "Missing option" in run("decontaminate", data / "data", exit_code=2).stderr


@pytest.mark.slow
def test_real_text_against_its_held_out_text(real_corpus: Path, tmp_path: Path) -> None:
    shard, val = real_corpus / "minipile-00.jsonl.zst", real_corpus / "val.jsonl.zst"
    texts = [text for batch in read(val) for text in batch.texts]
    found = decontaminate_corpus(shard, against=val, out=tmp_path / "out")
    lines = {shard.stem: making.unzstd(shard).split(b"\n")[:-1]}
    check(tmp_path / "out", lines, slow(lines, {("val", at): [text] for at, text in enumerate(texts)}, 10))
    assert found.summary["cut"] + found.summary["dropped"] == 191
    (licence,) = (line for line in pq.read_table(tmp_path / "out/common.parquet")["text"].to_pylist()[:1])
    assert licence.startswith("licensed under the apache license")
