"""`seen` says of each document what a plain loop over the run's batches says, from the log and from the stream."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pilekit import check_receipt, dedup_corpus, memorised, read_corpus, seen, trace_texts, write_report
from pilekit.artifacts.header import read_header
from pilekit.train.log.document_log import log_parts
from tests.refusing import refused
from tests.train.runs import interrupt_at, tiny_run, trainer, warnings_of

STEPS = 6
CHANGES = (f"train.steps={STEPS}", "checkpoint.every=2", "data.packing=concat")

Place = tuple[str, int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has its log, and one without; both were interrupted."""
    made = tiny_run(tmp_path_factory.mktemp("seen"), documents=20)
    for name, documents in (("logged", "true"), ("unlogged", "false")):
        changes = (*CHANGES, f"log.documents={documents}")
        trainer(made, made / name, *changes).fit(interrupt_at(3))
        trainer(made, made / name, *changes).fit()
    return made


@pytest.fixture(scope="module")
def expected(made: Path) -> dict[Place, dict[str, Any]]:
    """The steps and tokens of each document, by a loop over batches and tokens."""
    stream = trainer(made, made / "plan", *CHANGES).stream
    by_document: dict[Place, dict[str, Any]] = defaultdict(lambda: {"steps": [], "tokens": 0})
    for step, batch in zip(range(1, STEPS + 1), stream, strict=False):
        for row, documents in enumerate(batch.documents()):
            for doc_id, place in enumerate(documents):
                here = batch["doc_ids"][row] == doc_id
                found = by_document[place]
                found["steps"] = sorted({*found["steps"], step})
                found["tokens"] += int(here.sum())
                found["subset"] = stream.subset_names[int(batch["subset_ids"][row][here][0])]
    return by_document


def all_places(made: Path) -> list[Place]:
    return [(document.shard, document.number) for document in documents(made)]


def documents(made: Path) -> list[Any]:
    return [document for batch in read_corpus(made / "data") for document in batch]


def plain(rows: list[dict[str, Any]]) -> dict[Place, dict[str, Any]]:
    return {(row["shard"], row["number"]): {name: row[name] for name in ("steps", "tokens", "subset")} for row in rows}


@pytest.mark.parametrize("name", ["logged", "unlogged"])
def test_each_document_has_the_steps_that_a_plain_loop_says(
    made: Path, name: str, expected: dict[Place, dict[str, Any]]
) -> None:
    places = all_places(made)
    with warnings_of() as warnings:
        answer = seen(made / name, places)
    said = [warning.getMessage() for warning in warnings]
    assert any("6 steps are not logged (1 to 6); replaying the stream" in line for line in said) == (name == "unlogged")
    nowhere = {"steps": [], "tokens": 0, "subset": None}
    assert plain(answer.to_arrow().to_pylist()) == {place: expected.get(place, nowhere) for place in places}
    assert answer.summary["seen"] == len(expected)
    assert 0 < len(expected) < len(places)
    assert answer.summary["replayed"] == ([] if name == "logged" else [[1, STEPS]])
    assert "in no step: all pieces of all these steps were looked at" in str(answer)
    assert answer.to_dict()["rows"] == answer.rows.to_pylist()


def test_a_gap_in_the_log_is_replayed(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.symlink_to(made / "logged")
    folder = made / "logged/documents"
    part = next(part for part in log_parts(folder) if part.first <= 3 <= part.last)
    whole = seen(run, all_places(made)).rows
    path = part.path(folder)
    content = path.read_bytes()
    path.unlink()
    try:
        answer = seen(run, all_places(made))
    finally:
        path.write_bytes(content)
    assert answer.rows == whole
    assert answer.summary["replayed"] == [[part.first, part.last]]


def test_documents_of_files_and_of_a_subset(made: Path, tmp_path: Path, expected: dict[Place, dict[str, Any]]) -> None:
    places = sorted(expected)[:3]
    lines, records, table = tmp_path / "found.txt", tmp_path / "found.jsonl", tmp_path / "found.parquet"
    lines.write_text("".join(f"{shard} {number} ArXiv: a line\n" for shard, number in places))
    records.write_text("".join(json.dumps({"shard": shard, "number": number}) + "\n" for shard, number in places))
    columns = {"shard": [shard for shard, _ in places], "number": [number for _, number in places]}
    pq.write_table(pa.table(columns), table)
    traced = tmp_path / "traces.parquet"
    passages = [{"places": [{"shard": shard, "number": number} for shard, number in places]}]
    pq.write_table(pa.table({"number": [0, 1], "passages": [passages, []]}), traced)
    answers = [seen(made / "logged", file).rows for file in (lines, records, table)]
    answers.append(seen(made / "logged", trace=traced).rows)
    for rows in answers:
        assert rows == seen(made / "logged", places).rows
        assert rows.num_rows == 3

    subset = next(iter(expected.values()))["subset"]
    of_subset = seen(made / "logged", subset=subset).rows.to_pylist()
    assert plain(of_subset) == {place: row for place, row in expected.items() if row["subset"] == subset}


def test_a_text_is_searched_in_all_documents(made: Path, expected: dict[Place, dict[str, Any]]) -> None:
    word = next(word for document in documents(made) for word in [document.text[:30]] if len(word) == 30)
    holding = [(document.shard, document.number) for document in documents(made) if word in document.text]
    answer = seen(made / "logged", text=word, jobs=1)
    assert [(row["shard"], row["number"]) for row in answer.rows.to_pylist()] == holding
    count = len(documents(made))
    assert answer.summary["scanned"]["documents"] == count
    assert f"scanned {count} documents in 2 shards" in str(answer)
    none = seen(made / "logged", text="(a text that is nowhere)")
    assert none.rows.num_rows == 0
    assert none.summary["scanned"]["documents"] == count


def test_copies_come_with_their_similarity(made: Path, tmp_path: Path) -> None:
    removed = pq.read_table(dedup_corpus(made / "data", tmp_path / "unique", jobs=1).folder / "removed.parquet")
    rows = removed.to_pylist()
    kept = rows[0]["kept_shard"], rows[0]["kept_number"]
    of_kept = {
        (row["shard"], row["number"]): row["similarity"]
        for row in rows
        if (row["kept_shard"], row["kept_number"]) == kept
    }
    answer = seen(made / "logged", [kept], copies=tmp_path / "unique").rows.to_pylist()
    assert {(row["shard"], row["number"]): row["similarity"] for row in answer[1:]} == of_kept
    assert all(row["copy_of"] == {"shard": kept[0], "number": kept[1]} for row in answer[1:])
    one = next(iter(of_kept))
    others = seen(made / "logged", [one], copies=tmp_path / "unique").rows.to_pylist()
    assert {(row["shard"], row["number"]) for row in others} == {kept, *of_kept}


def test_copies_of_other_documents_have_the_steps_of_their_documents(made: Path, tmp_path: Path) -> None:
    """An opt-out list that holds a document with another mark, one twice, and one that is nowhere."""
    by_length = sorted(documents(made), key=lambda document: -len(document.text))
    exact, near = by_length[0], by_length[1]
    texts = [f"{near.text} !", "a text that is nowhere", exact.text, exact.text]
    given = tmp_path / "opt-out.jsonl"
    given.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    answer = seen(made / "logged", against=given, jobs=1)
    rows = answer.rows.to_pylist()
    assert {(row["copy_of"]["number"], row["reason"]) for row in rows} >= {(0, "near"), (2, "exact")}
    assert {row["copy_of"]["number"] for row in rows} == {0, 2}
    places = list(dict.fromkeys((row["shard"], row["number"]) for row in rows))
    assert {(exact.shard, exact.number), (near.shard, near.number)} <= set(places)
    plainly = seen(made / "logged", places)
    assert plain(rows) == plain(plainly.rows.to_pylist())
    for figure in ("documents", "seen", "tokens"):
        assert answer.summary[figure] == plainly.summary[figure]
    assert answer.summary["against"] == {"path": str(given), "documents": 4, "copied": 3, "threshold": 0.8}
    assert answer.summary["scanned"]["documents"] == len(documents(made))
    assert answer[f"{exact.shard} {exact.number}"]["similarity"] == 1
    assert "3 of 4 documents of" in " ".join(str(answer).split())
    assert seen(made / "unlogged", against=given, jobs=1).rows == answer.rows

    given.write_text('{"text": "a text that is nowhere"}\n')
    nothing = seen(made / "logged", against=given, jobs=1)
    assert nothing.rows.num_rows == 0
    assert "scanned 40 documents in 2 shards" in str(nothing)
    given.write_text("\n")
    refused("holds no document", seen, made / "logged", against=given)
    refused("is standard input", seen, made / "logged", against="-")
    refused("leave out against or copies", seen, made / "logged", against=given, copies=tmp_path)


def test_documents_of_a_trace(made: Path, tmp_path: Path, expected: dict[Place, dict[str, Any]]) -> None:
    """A text that holds a document, traced in the run's data."""
    some = sorted(expected)[2]
    text = next(document.text for document in documents(made) if (document.shard, document.number) == some)
    out, texts = tmp_path / "traces.parquet", [f"so {text} it is", "nothing"]
    traces = trace_texts(made / "data", texts, out, words=2, common=0, jobs=1).rows.to_pylist()
    places = [place for row in traces for passage in row["passages"] for place in passage["places"]]
    named = [(place["shard"], place["number"]) for place in places]
    answer = seen(made / "logged", trace=out)
    assert some in named
    assert answer.rows == seen(made / "logged", list(dict.fromkeys(named))).rows
    assert plain(answer.rows.to_pylist())[some] == expected[some]


def test_a_run_from_a_checkpoint_of_another_names_it(made: Path, tmp_path: Path) -> None:
    """Its steps are the later ones, after a resume with "auto" too; the earlier ones are the other run's."""
    begin = str(made / "logged/checkpoints/step-4")
    changes = (*CHANGES, "train.steps=9")
    trainer(made, tmp_path / "later", *changes, f"checkpoint.resume={begin}").fit(interrupt_at(7))
    trainer(made, tmp_path / "later", *changes).fit()
    later, before, places = seen(tmp_path / "later", all_places(made)), seen(made / "logged", all_places(made)), []
    assert later.summary["steps"] == [5, 9]
    assert later.summary["began_from"] == begin
    assert f"steps 1 to 4 are those of the run that {begin} is of" in " ".join(str(later).split())
    whole = trainer(made, tmp_path / "whole", *changes)
    whole.fit()
    for row, one, other in zip(
        seen(tmp_path / "whole", all_places(made)).rows.to_pylist(),
        later.rows.to_pylist(),
        before.rows.to_pylist(),
        strict=True,
    ):
        assert [step for step in other["steps"] if step <= 4] + one["steps"] == row["steps"]
        places.append(row)
    assert any(row["steps"] for row in places)


def test_questions_that_cannot_be_answered_are_refused(made: Path, tmp_path: Path) -> None:
    run = made / "logged"
    refused("give one of documents, text, trace, subset and against, not none", seen, run)
    refused("not documents and subset", seen, run, [("00.jsonl.zst", 1)], subset="ArXiv")
    refused("the text is empty", seen, run, text="")
    (tmp_path / "list.txt").write_text("00.jsonl.zst 3\nnothing\n")
    refused("list.txt, line 2: names no document: nothing; write SHARD NUMBER", seen, run, tmp_path / "list.txt")
    refused("is no result of pilekit trace", seen, run, trace=tmp_path / "list.txt")


def test_a_shard_that_the_run_does_not_read_is_named_with_its_line(made: Path, tmp_path: Path) -> None:
    """By its name or that of its file; "in no step" would be the wrong answer to a misspelt name."""
    run, there = (
        made / "logged",
        "names the shard train/00.jsonl, but the data has 00.jsonl, 01.jsonl",
    )
    lines, table = tmp_path / "list.txt", tmp_path / "list.parquet"
    lines.write_text("\n00.jsonl 3\ntrain/00.jsonl 3\n")
    pq.write_table(pa.table({"shard": ["00.jsonl", "train/00.jsonl"], "number": [3, 3]}), table)
    traced = tmp_path / "traces.parquet"
    passages = [{"places": [{"shard": "train/00.jsonl", "number": 4}]}]
    pq.write_table(pa.table({"number": [0], "passages": [passages]}), traced)
    refused(f"list.txt, line 3: {there}", seen, run, lines)
    refused(f"list.parquet, row 2: {there}", seen, run, table)
    refused(f"document 2 of the list: {there}", seen, run, [("00.jsonl", 3), ("train/00.jsonl", 3)])
    refused(f"traces.parquet, document train/00.jsonl 4: {there}", seen, run, trace=traced)
    assert seen(run, [("00.jsonl.zst", 3)]).rows == seen(run, [("00.jsonl", 3)]).rows

    dedup_corpus(made / "data/01.jsonl.zst", tmp_path / "unique", jobs=1)
    only = "unique: is no dedup of the run's data: it has no shard 00.jsonl, but 01.jsonl; run `pilekit dedup` on what"
    refused(only, seen, run, [("00.jsonl", 3)], copies=tmp_path / "unique")


def test_documents_without_loss_were_not_seen_and_planted_ones_were(
    made: Path, tmp_path: Path, expected: dict[Place, dict[str, Any]]
) -> None:
    """From the log, and replayed; `memorised` counts neither the ones nor other copies than the planted."""
    hidden = sorted(expected)[::3]
    (tmp_path / "list.jsonl").write_text(
        "".join(json.dumps({"shard": shard, "number": number}) + "\n" for shard, number in hidden)
    )
    texts = ["a canary", "another"]
    (tmp_path / "canary.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    plant = f'[{{file = "{tmp_path}/canary.jsonl", copies = [3, 0], from = 1, to = {STEPS}}}]'
    changes = (*CHANGES, f"data.without={tmp_path}/list.jsonl", f"data.plant={plant}")
    folder = made / "altered"
    shutil.rmtree(folder, ignore_errors=True)
    trainer(made, folder, *changes).fit()

    usual: dict[Place, int] = defaultdict(int)
    stream = trainer(made, made / "plan", *changes).stream
    for _, batch in zip(range(STEPS), stream, strict=False):
        for row, places in enumerate(batch.documents()):
            for doc_id, place in enumerate(places):
                usual[place] += int((batch["doc_ids"][row] == doc_id).sum())
    asked = [*sorted(expected), ("canary.jsonl", 0), ("canary.jsonl", 1)]
    answer = seen(folder, asked)
    for part in log_parts(folder / "documents"):
        part.path(folder / "documents").unlink()
    assert seen(folder, asked).rows == answer.rows
    rows = {(row["shard"], row["number"]): row for row in answer.rows.to_pylist()}
    assert any(usual[place] for place in hidden)
    for place in asked:
        tokens = (0, usual[place]) if place in hidden else (usual[place], 0)
        assert (rows[place]["tokens"], rows[place]["ignored"]) == tokens, place
        assert bool(rows[place]["steps"]) == (tokens[0] > 0)
    ignored = sum(usual[place] > 0 for place in hidden)
    assert answer.summary["ignored"] == {"documents": ignored, "attention": "document"}
    assert f"{ignored} documents stood in rows without loss, by data.without" in str(answer)
    assert rows["canary.jsonl", 0]["times"] == 3
    assert rows["canary.jsonl", 0]["subset"] == "(planted)"
    assert not rows["canary.jsonl", 1]["steps"]
    of_subset = seen(folder, subset="(planted)", receipt=tmp_path / "receipt.json").rows.to_pylist()
    assert [(row["shard"], row["number"], row["times"]) for row in of_subset] == [("canary.jsonl", 0, 3)]

    sequences = {"prompt": 2, "continuation": 2}
    result = memorised(folder / "model", tmp_path / "canary.jsonl", seen=folder, **sequences)
    assert {name: group.sequences for name, group in result.groups["times_seen"].items() if group.sequences} == {
        "0": 1,
        "3-4": 1,
    }
    altered = read_header(folder).results["altered"]
    assert altered["without"]["source"] == f"{tmp_path}/list.jsonl"
    assert altered["without"]["documents"] == len(hidden)
    (planted,) = altered["plant"]
    assert (planted["file"], planted["copies"], planted["steps"]) == ("canary.jsonl", [3, 0], [1, STEPS])
    write_report([folder], out=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for shown in ("What differs from a run on the data as it is", "1 × 0, 1 × 3", "2 to 6", planted["content"]):
        assert shown in page

    assert check_receipt(tmp_path / "receipt.json").holds
    (tmp_path / "canary.jsonl").write_text('{"text": "another canary"}\n')
    found = check_receipt(tmp_path / "receipt.json")
    assert any("canary.jsonl" in difference for difference in found.differences)
