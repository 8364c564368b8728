"""Answers of records in the spellings of benchmarks, from JSON and from Parquet, and records that have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pilekit import decontaminate_corpus
from pilekit.cutting.record_fields import RecordFields
from tests.cli.running import refused, run
from tests.cutting.making import ONE, WORDS, rows_of, written
from tests.pipeline.making import write_shard

LETTERS = {"text": ["blue", "red"], "label": ["A", "B"]}


@pytest.mark.parametrize(
    ("record", "choices", "answers"),
    [
        ({"answer": "red"}, None, ["red"]),
        ({"answer": 3}, None, ["3"]),
        ({"answer": 3.0}, None, ["3"]),
        ({"answer": True}, None, ["true"]),
        ({"answer": ["8", "eight", 8.5]}, None, ["8", "eight", "8.5"]),
        ({"answer": {"text": ["8", "eight"], "answer_start": [4, 9]}}, None, ["8", "eight"]),
        ({"answer": {"text": "8"}}, None, ["8"]),
        ({"answer": None}, None, []),
        ({"answer": ""}, None, []),
        ({}, None, []),
        ({"answer": 1, "choices": ["blue", "red"]}, "choices", ["red"]),
        ({"answer": "1", "choices": ["blue", "red"]}, "choices", ["red"]),
        ({"answer": "b", "choices": ["blue", "red"]}, "choices", ["red"]),
        ({"answer": -1, "choices": ["blue", "red"]}, "choices", []),
        ({"answer": "", "choices": ["blue", "red"]}, "choices", []),
        ({"answer": "B", "choices": LETTERS}, "choices", ["red"]),
        ({"answer": 2, "choices": {"text": ["blue", "red"], "label": ["1", "2"]}}, "choices", ["red"]),
        ({"answer": [0, 1], "choices": ["blue", "red"]}, "choices", ["blue", "red"]),
        ({"answer": "red"}, "choices", ["red"]),
    ],
)
def test_answers_in_the_spellings_of_benchmarks(
    record: dict[str, Any], choices: str | None, answers: list[str]
) -> None:
    fields = RecordFields([], "question", "answer", choices)
    assert fields.answers(record, "quiz.jsonl, record 7") == answers


def test_benchmarks_in_their_own_formats_are_read_from_parquet(tmp_path: Path) -> None:
    """The columns of MMLU, of ARC, and of a set of trivia, with their types."""
    first, second, third = (" ".join(WORDS[at : at + 14]) for at in (100, 200, 300))
    mmlu = pa.table(
        {"question": [first], "subject": ["law"], "choices": [["blue", "red", "pink", "tan"]], "answer": [2]}
    )
    arc = pa.table({"id": ["m1"], "question": [second], "choices": [LETTERS], "answerKey": ["B"]})
    trivia = pa.table({"question": [third], "answer": [["eight", "8"]], "text": [None]})
    texts = [f"{first} Pink!", f"{second} Red.", f"{third} 8", f"{first} none", f"{third} VIII"]
    write_shard(tmp_path / "data" / "00.jsonl.zst", texts)
    for name, table, answer, choices in (
        ("mmlu", mmlu, "answer", "choices"),
        ("arc", arc, "answerKey", "choices"),
        ("trivia", trivia, "answer", None),
    ):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        found = decontaminate_corpus(
            tmp_path / "data",
            tmp_path / name,
            against=tmp_path / f"{name}.parquet",
            question="question",
            answer=answer,
            choices=choices,
        )
        verdicts = {row["number"]: row["verdict"] for row in rows_of(tmp_path / name)}
        assert (
            verdicts
            == {"mmlu": {0: "leak", 3: "question"}, "arc": {1: "leak"}, "trivia": {2: "leak", 4: "question"}}[name]
        )
        assert found.summary["evaluations"][name]["answered"] == 1


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("answer", ["", None])
def test_an_evaluation_whose_answers_are_withheld_is_text(tmp_path: Path, answer: str | None, kind: str) -> None:
    """As in the test splits of leaderboards; the command says so in a line."""
    records, quiz = [{"question": ONE, "answer": answer}] * 2, tmp_path / f"quiz.{kind}"
    if kind == "jsonl":
        written(quiz, records)
    else:
        pq.write_table(pa.Table.from_pylist(records), quiz)
    corpus = written(tmp_path / "00.jsonl", [{"text": f"{ONE} Red."}])
    given = ("decontaminate", corpus, "--against", quiz, "--question", "question", "--answer")
    shown = run(*given, "answer", "--out", tmp_path / "out", exit_code=0).stdout
    assert "no record has an answer in answer, so every span is text" in shown
    assert [(row["verdict"], row["cut"]) for row in rows_of(tmp_path / "out")] == [("text", True)] * 2
    message = r"no record has a field reply \(the first has the fields question, answer\); name another with --answer"
    refused(message, *given, "reply", "--out", tmp_path / "none")
