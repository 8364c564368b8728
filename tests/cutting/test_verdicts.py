"""A leak is a question with its answer beside it, and nothing else: as the reference says, and as it was planted."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit import DropContaminated, PilekitError, Pipeline, decontaminate_corpus, read
from pilekit.cutting import answers, evaluation_texts
from pilekit.cutting.cut_folder import CutFolder
from pilekit.cutting.cut_texts import passages
from tests.cli.running import cells, refused, run
from tests.cutting import reference
from tests.cutting.making import ONE, WORDS, rows_of, written
from tests.pipeline.making import write_shard

RNG = random.Random(12)
ITEM = {"question": "question", "answer": "answer"}


def check(folder: Path, texts: Sequence[str], records: Sequence[Mapping[str, str]], limit: int, reach: int) -> None:
    """Spans and verdicts of `folder` are those of the reference; records may have an answer and a passage."""
    items = [
        set(reference.ngrams_of(record["question"], fewest=5 if record.get("answer") else 8)) for record in records
    ]
    passages = [set(reference.ngrams_of(record.get("passage", ""))) for record in records]
    wanted = {hit for hits in items for hit in hits if len(hit) >= 5}
    wanted |= {hit for hits in passages for hit in hits if len(hit) >= 8}
    # An item of 5 to 7 words without an answer is too short.
    wanted -= {
        hit
        for hits, record in zip(items, records, strict=True)
        for hit in hits
        if len(hit) < 8 and not record.get("answer")
    } - {hit for hits, record in zip(items, records, strict=True) for hit in hits if record.get("answer")}
    ignored = reference.common(texts, wanted, limit)
    expected = dict[tuple[int, int, int, int], str]()
    for number, text in enumerate(texts):
        for start, end, hits in reference.spans(text, wanted - ignored):
            for index, record in enumerate(records):
                answers = [record["answer"]] if record.get("answer") else []
                fewest = 5 if answers else 8
                has_item = any(len(hit) >= fewest for hit in hits & items[index])
                if has_item:
                    verdict = reference.verdict(text, (start, end), record["question"], answers, ignored, reach)
                    expected[number, start, end, index] = verdict
                elif any(len(hit) >= 8 for hit in hits & passages[index]):
                    expected[number, start, end, index] = "text"
    if not any(record.get("answer") for record in records):
        expected = dict.fromkeys(expected, "text")
    rows = rows_of(folder)
    assert {(row["number"], row["start"], row["end"], row["record"]): row["verdict"] for row in rows} == expected
    worst = defaultdict[int, list[str]](list)
    for (*_, index), verdict in expected.items():
        worst[index].append(verdict)
    for row in pq.read_table(folder / "evaluations.parquet").to_pylist():
        order = ["leak", "question", "text"]
        assert row["verdict"] == min(worst[row["record"]], key=order.index, default=None)


words = st.sampled_from(["a", "B", "b.", "c", "d", "--", "e!", "İ", "é"])


def of_words(fewest: int, most: int) -> st.SearchStrategy[str]:
    return st.lists(words, min_size=fewest, max_size=most).map(" ".join)


record_of_words = st.fixed_dictionaries(
    {"question": of_words(4, 18)}, optional={"answer": of_words(0, 3), "passage": of_words(6, 15)}
)


@settings(max_examples=100)
@given(
    st.lists(record_of_words, min_size=1, max_size=3),
    st.lists(st.lists(st.one_of(words, st.integers(0, 8), st.integers(0, 8)), min_size=3, max_size=15), min_size=2),
    st.integers(0, 30),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([" ", "\n\n", "  \t"]),
    st.sampled_from([1, 20, 1 << 20]),
)
def test_verdicts_are_the_references(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, str]],
    planted: list[list[str | int]],
    reach: int,
    limit: int,
    space: str,
    at_a_time: int,
) -> None:
    """Also where few characters are looked at together."""
    folder = tmp_path_factory.mktemp("made")
    parts = [text for record in records for text in record.values()]
    texts = [space.join(part if isinstance(part, str) else parts[part % len(parts)] for part in all) for all in planted]
    # One record has all that the command asks for.
    records = [*records, {"question": "z " * 9, "answer": "z", "passage": ""}]
    written(folder / "00.jsonl", [{"text": text} for text in texts])
    quiz = written(folder / "quiz.jsonl", records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "WINDOW_CHARACTERS", at_a_time)
        patch.setattr(evaluation_texts, "CHARACTERS", at_a_time)
        options = {"against": quiz, "fields": "passage", "reach": reach, "common": limit, "jobs": 1, **ITEM}
        decontaminate_corpus(folder / "00.jsonl", folder / "out", **options)
    check(folder / "out", texts, records, limit, reach)


def dressed(text: str, dress: int) -> str:
    """A text verbatim, broken into lines, in capitals, or with other marks."""
    pieces = text.split(" ")
    match dress:
        case 1:
            return "\n".join(" ".join(pieces[at : at + 4]) for at in range(0, len(pieces), 4))
        case 2:
            return text.upper()
        case 3:
            return " - ".join(f"“{piece}”," for piece in pieces)
    return text


def prose(characters: int) -> str:
    """About so many characters; no word is one of an answer."""
    words = list[str]()
    while sum(map(len, words)) + len(words) < characters:
        words.append(RNG.choice(WORDS))
    return " ".join(words)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[dict[str, str]], dict[int, str]]:
    """300 items of 5 to 60 words in 450 documents: the folder, the texts, the records, and each record's verdict."""
    folder = tmp_path_factory.mktemp("planted")
    records = [
        {
            "id": f"q{number}",
            "question": " ".join(RNG.choices(WORDS, k=5 + number % 56)).capitalize() + "?",
            "answer": " ".join(f"answer{number}part{part}" for part in range(1 + number % 5)),
        }
        for number in range(300)
    ]
    texts, truth = [], dict[int, str]()
    for number, record in enumerate(records):
        question, answer = (dressed(record[name], number // 5 % 4) for name in ("question", "answer"))
        gap = RNG.randrange(0, 300)
        around = prose(900), prose(900)
        kinds = [
            (f"{question} {prose(gap)} {answer}", "leak"),
            (f"{answer} {prose(gap)} {question}", "leak"),
            (f"{question} {prose(900)} {answer}", "question"),
            (question, "question"),
            (answer, ""),
        ]
        text, verdict = kinds[number % 5]
        texts.append(f"{around[0]}\n\n{text} {around[1]}")
        if verdict:
            truth[number] = verdict
    texts += [prose(RNG.randrange(10, 3000)) for _ in range(150)]
    order = RNG.sample(range(len(texts)), len(texts))
    texts = [texts[at] for at in order]
    write_shard(folder / "data" / "00.jsonl.zst", texts, [("ArXiv", "Github")[at % 2] for at in range(len(texts))])
    written(folder / "quiz.jsonl", records)
    return folder, texts, records, truth


def test_planted_leaks_are_found_and_little_else_is_called_a_leak(
    planted: tuple[Path, list[str], list[dict[str, str]], dict[int, str]], tmp_path: Path
) -> None:
    folder, texts, records, truth = planted
    found = decontaminate_corpus(folder / "data", tmp_path / "out", against=folder / "quiz.jsonl", **ITEM)
    check(tmp_path / "out", texts, records, 10, 500)
    rows = pq.read_table(tmp_path / "out/evaluations.parquet").to_pylist()
    leaks = {row["record"] for row in rows if row["verdict"] == "leak"}
    planted_leaks = {number for number, verdict in truth.items() if verdict == "leak"}
    assert len(planted_leaks) == 120
    assert len(leaks & planted_leaks) >= 0.99 * len(planted_leaks)  # recall
    assert len(leaks & planted_leaks) >= 0.95 * len(leaks)  # precision
    counts = found.summary["evaluations"]["quiz"]
    worst = Counter(row["verdict"] for row in rows if row["verdict"] is not None)
    assert {name: counts[name] for name in ("leak", "question", "text")} == {
        **dict.fromkeys(("leak", "question", "text"), 0),
        **worst,
    }
    assert (counts["records"], counts["answered"], counts["dirty"]) == (300, 300, worst.total())
    by_subset = Counter((row["subset"], row["verdict"]) for row in rows_of(tmp_path / "out"))
    shown = {(name, verdict): n for name, of in counts["subsets"].items() for verdict, n in of.items() if n}
    assert shown == by_subset
    table = [tuple(row[:5]) for row in cells(str(found.verdicts()))[2:]]
    assert table == [
        ("quiz", name, *(f"{by_subset[name, verdict]:,}" for verdict in ("leak", "question", "text")))
        for name in ("ArXiv", "Github")
    ]


def test_cut_decides_what_is_cut_and_everything_is_listed(
    planted: tuple[Path, list[str], list[dict[str, str]], dict[int, str]], tmp_path: Path
) -> None:
    folder, texts, _, truth = planted
    listed = None
    for cut, chosen in (
        (None, {"leak", "question"}),
        ("leak", {"leak"}),
        (["text", "question"], {"question", "text"}),
    ):
        out = tmp_path / f"{cut}"
        found = decontaminate_corpus(folder / "data", out, against=folder / "quiz.jsonl", cut=cut, **ITEM)
        rows = rows_of(out)
        assert [row["cut"] for row in rows] == [row["verdict"] in chosen for row in rows]
        places = [(row["number"], row["start"], row["record"], row["verdict"]) for row in rows]
        assert listed in (None, places)
        listed = places
        gone = {row["number"] for row in rows if row["cut"]}
        assert found.summary["cut"] + found.summary["dropped"] == len(gone)
        assert len(gone) >= sum(verdict in chosen for verdict in truth.values())
        kept = {
            number for batch in Pipeline([DropContaminated(out)])(read(folder / "data")) for number in batch.numbers
        }
        assert kept == set(range(len(texts))) - gone
        for row, (stays, passage) in zip(rows[:20], passages(CutFolder(out), rows[:20]), strict=True):
            assert row["field"] == "question"
            assert reference.words_alone(stays.text) == reference.words_alone(passage.text)
    assert "; not cut" in run("duplicates", tmp_path / "leak", "-n", "100", exit_code=0).stdout


def verdicts(tmp_path: Path, text: str, records: Sequence[Mapping[str, Any]], **options: Any) -> list[str]:
    """The verdicts on one document, by record."""
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    quiz, corpus = written(folder / "quiz.jsonl", records), written(folder / "00.jsonl", [{"text": text}])
    decontaminate_corpus(corpus, folder / "out", against=quiz, **{**ITEM, **options})
    return [row["verdict"] for row in rows_of(folder / "out")]


def test_reach_counts_characters_between_the_question_and_the_last_word_of_the_answer(tmp_path: Path) -> None:
    quiz = [{"question": ONE, "answer": "outer rim"}]
    for reach in (0, 9, 10, 11, 500):
        for text in (f"{ONE} {'-' * (max(0, reach - 11))} Outer rim", f"outer rim {'-' * (reach - 11)} {ONE}"):
            spare = reach - (len(text) - len(ONE))
            assert verdicts(tmp_path, text, quiz, reach=reach) == ["leak" if spare >= 0 else "question"]
    split = f"{ONE} outer - and then, rim"
    assert verdicts(tmp_path, split, quiz) == ["question"]


def test_an_answer_that_the_question_names_must_stand_outside_of_it(tmp_path: Path) -> None:
    quiz = [{"question": ONE, "answer": "Red"}]
    assert verdicts(tmp_path, f"So: {ONE} I do not know.", quiz) == ["question"]
    assert verdicts(tmp_path, f"So: {ONE} It is red.", quiz) == ["leak"]
    assert verdicts(tmp_path, f"{ONE} {ONE}", quiz) == ["question"]
    other = {"question": " ".join(WORDS[:20]), "answer": "no"}
    inside = f"{ONE} {other['question']} {' '.join(WORDS[20:34])}"
    third = {"question": " ".join(WORDS[20:34]), "answer": WORDS[3]}
    assert verdicts(tmp_path, inside, [*quiz, other, third], reach=0) == ["question", "question", "leak"]


def test_of_a_long_answer_the_first_13_words_count(tmp_path: Path) -> None:
    quiz = [{"question": ONE, "answer": " ".join(WORDS[:40])}]
    assert verdicts(tmp_path, f"{ONE} {' '.join(WORDS[:13])} and so on", quiz) == ["leak"]
    assert verdicts(tmp_path, f"{ONE} {' '.join(WORDS[:12])} and so on", quiz) == ["question"]


def test_evaluations_without_a_secret_are_text_and_are_cut(tmp_path: Path) -> None:
    first, law, passage = (" ".join(WORDS[at : at + 30]) for at in (100, 200, 300))
    quiz = written(tmp_path / "quiz.jsonl", [{"question": first, "answer": "yes", "text": passage}])
    laws = written(tmp_path / "laws.jsonl", [{"text": law}])
    texts = [f"{first} yes", f"{first} maybe", law, passage]
    corpus = written(tmp_path / "00.jsonl", [{"text": text} for text in texts])
    options = {"against": [quiz, laws], "fields": "text", **ITEM}
    decontaminate_corpus(corpus, tmp_path / "out", **options)
    shown = [(row["number"], row["evaluation"], row["verdict"], row["cut"]) for row in rows_of(tmp_path / "out")]
    assert shown == [
        (0, "quiz", "leak", True),
        (1, "quiz", "question", True),
        (2, "laws", "text", True),
        (3, "quiz", "text", False),
    ]
    decontaminate_corpus(corpus, tmp_path / "named", cut=["leak"], **options)
    assert [row["cut"] for row in rows_of(tmp_path / "named")] == [True, False, False, False]
    with pytest.raises(PilekitError, match="cut is leak and question, but without a question every span is text"):
        decontaminate_corpus(corpus, tmp_path / "none", against=laws, cut=["question", "leak"])
    decontaminate_corpus(corpus, tmp_path / "all", against=laws, cut=["text", "leak"])
    assert [(row["verdict"], row["cut"]) for row in rows_of(tmp_path / "all")] == [("text", True)]


def test_the_command_prints_verdicts_and_refuses_wrong_fields(tmp_path: Path) -> None:
    quiz = written(tmp_path / "quiz.jsonl", [{"question": ONE, "answer": "red"}, {"question": "Why?", "answer": "So."}])
    odd = written(tmp_path / "odd.jsonl", [{"question": ONE, "answer": 5, "choices": ["a", "b"]}])
    nested = written(tmp_path / "nested.jsonl", [{"question": ONE, "answer": {"value": "red"}}])
    corpus = written(tmp_path / "00.jsonl", [{"text": f"{ONE} Red."}, {"text": ONE}])
    given = ("decontaminate", corpus, "--against", quiz, "--question", "question", "--answer", "answer")
    printed = [row for row in cells(run(*given, "--out", tmp_path / "out", "--reach", "9", exit_code=0).stdout) if row]
    assert printed[0][:5] == ["Evaluation", "Records", "Dirty", "Leak", "Question"]
    assert printed[2] == ["quiz", "2", "1", "1", "0", "0", "1", "50.00"]
    assert printed[3] == ["Evaluation", "Subset", "Leak", "Question", "Text"]
    assert printed[5] == ["quiz", "(none)", "1", "1", "0"]
    item = ("--question", "question")
    for message, arguments in (
        ("answer and choices belong to a question", ("--against", quiz, "--answer", "answer")),
        ("the answer is a question's secret; name its field too", ("--against", quiz, *item)),
        ("no record has a field anwser", ("--against", quiz, *item, "--answer", "anwser")),
        (r'cut\[0\] = "leaks": must be "leak" or', ("--against", quiz, *item, "--answer", "answer", "--cut", "leaks")),
        (
            "record 0: answer is 5, which names none of 2 choices",
            ("--against", odd, *item, "--answer", "answer", "--choices", "choices"),
        ),
        ("record 0: answer is no answer but {'value': 'red'}", ("--against", nested, *item, "--answer", "answer")),
    ):
        refused(message, "decontaminate", corpus, "--out", tmp_path / "none", *arguments)
    assert not (tmp_path / "none").exists()
    with pytest.raises(PilekitError, match="reach = -1: must be a whole number of at least 0"):
        decontaminate_corpus(corpus, tmp_path / "none", against=quiz, reach=-1, **ITEM)
