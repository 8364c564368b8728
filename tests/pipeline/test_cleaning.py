"""Cleaning keeps the lines that a slow reference keeps, byte for byte, with any rules and settings."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pilekit import GopherQuality, PilekitError, PileStream, Pipeline, clean_corpus, corpus_stats
from pilekit.pipeline.rules.sets import rule_sets, with_limits
from tests.pipeline.making import lines_of
from tests.pipeline.rules import reference
from tests.shards import making
from tests.shards.editing import slow_edit

RNG = random.Random(0)
WORDS = ["".join(RNG.choices("abcdefghij", k=RNG.randrange(3, 9))) for _ in range(500)]


def good(extra: str = "") -> str:
    """Text that fails no rule."""
    return "\n".join(f"{' '.join(RNG.sample(WORDS, 12))}{extra} of the end." for _ in range(20))


PROSE = "The end of it was that all of us have come home, and the rest stayed. Then we spoke! Did you? \n" * 20
TEXTS = {
    "good": good(),
    "as good": good(" [12]"),
    "with headings": "A heading\n" + good() + "\n\nAnother[2] heading",
    "repeated": PROSE,
    "short": "The end of it.",
    "code": "def f(x) { return x; }\n" * 30,
    "empty": "",
    "addresses": good() + "\nAsk me@some.org or 8.8.8.8 about it all.",
}
SLOW = {
    "gopher-quality": reference.gopher_quality,
    "gopher-repetition": reference.gopher_repetition,
    "c4": reference.c4,
    "fineweb": reference.fineweb,
}


def failed(text: str, sets: tuple[str, ...]) -> list[str]:
    return [f"{name}.{rule}" for name in sets for rule, fails in SLOW[name](text).items() if fails]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three shards whose lines have a spelling of their own, and fields beside the text that no encoder would keep."""
    folder = tmp_path / "data"
    folder.mkdir()
    for shard, labels in enumerate((["Pile-CC", "Github"], ["ArXiv"], ["Pile-CC", "OpenWebText2", "Github"])):
        records = [
            {"id": number, "text": text, "meta": {"pile_set_name": labels[number % len(labels)], "url": name}}
            for number, (name, text) in enumerate(TEXTS.items())
        ]
        hard = '{ "text":{"text":"a"}, "uuid":296336254116318163954371823645001234567,'
        lines = "".join(
            json.dumps(record, separators=(" ,", " : ")).replace("{", hard, 1) + "\r\n" for record in records
        )
        (folder / f"{shard:02}.jsonl.zst").write_bytes(making.zstd_frame(lines.encode()))
    return folder


def test_kept_lines_are_the_references_and_the_counts_agree(tmp_path: Path, corpus: Path) -> None:
    sets = ("gopher-quality", "gopher-repetition", "c4", "fineweb")
    for only in (False, True):
        out = tmp_path / f"out-{only}"
        judged = ("Pile-CC", "ArXiv")
        cleaned = clean_corpus(corpus, out, rules=["gopher", "c4", "fineweb"], subsets=judged, only=only, jobs=1)
        expected: dict[str, list[bytes]] = {}
        rows, rules, alone, left_out = [], Counter[tuple[str, str]](), Counter[tuple[str, str]](), 0
        for shard, lines in lines_of(corpus).items():
            for number, line in enumerate(lines):
                record = json.loads(line)
                label, text = record["meta"]["pile_set_name"], record["text"]
                fails = failed(text, sets) if label in judged else []
                left_out += only and label not in judged
                rules.update((label, rule) for rule in fails)
                alone.update((label, rule) for rule in fails if len(fails) == 1)
                if fails:
                    row = {"shard": shard, "number": number, "subset": label, "bytes": len(text), "rules": fails}
                    rows.append(row)
                elif not only or label in judged:
                    expected.setdefault(shard, []).append(line)
        assert lines_of(out) == expected
        assert pq.read_table(out / "dropped.parquet").to_pylist() == rows
        summary = json.loads((out / "summary.json").read_bytes())
        assert summary == cleaned.to_dict() == json.loads(json.dumps(cleaned.to_dict()))
        kept = sum(map(len, expected.values()))
        counts = {"read": 24, "kept": kept, "dropped": len(rows), "skipped": 0, "left_out": left_out, "edited": 0}
        assert {name: summary[name] for name in counts} == counts
        of_github = {name: summary["subsets"]["Github"][name] for name in ("read", "kept", "left_out")}
        assert of_github == {"read": 6, "kept": 0 if only else 6, "left_out": 6 if only else 0}
        assert len(rows) > 5 < kept
        for name, of_subset in summary["subsets"].items():
            for rule, found in of_subset["rules"].items():
                assert (found["documents"], found["alone"]) == (rules[name, rule], alone[name, rule]), (name, rule)
            assert list(of_subset["rules"]) == list(summary["rules"] if name in judged else [])
        assert corpus_stats(out).to_dict()["documents"] == kept, "dropped.parquet is not read as a shard"
        reported = clean_corpus(corpus, rules=["gopher", "c4", "fineweb"], subsets=judged, only=only, jobs=1)
        assert reported.to_dict() == summary
    stages = Pipeline(list(rule_sets(sets).values()))
    stream = PileStream(corpus, tokenizer=None, epochs=1, shuffle=False, filters=[stages])
    found = [(document.shard, document.number) for document in stream]
    assert found == [
        (shard, number)
        for shard, lines in lines_of(corpus).items()
        for number, line in enumerate(lines)
        if not failed(json.loads(line)["text"], sets)
    ]


def test_texts_are_cut_and_redacted_after_judging_and_every_other_byte_stays(tmp_path: Path, corpus: Path) -> None:
    cleaned = clean_corpus(
        corpus, tmp_path / "out", rules=["c4"], subsets=["Pile-CC", "ArXiv"], c4_lines=True, pii=["email", "ip"], jobs=1
    )
    changed = 0
    for shard, lines in lines_of(corpus).items():
        expected = []
        for line in lines:
            record = json.loads(line)
            text = record["text"]
            if record["meta"]["pile_set_name"] in ("Pile-CC", "ArXiv"):
                if any(reference.c4(text).values()):
                    continue
                text = "\n".join(reference.c4_lines(text))
                text = text.replace("me@some.org", "email@example.com").replace("8.8.8.8", "192.0.2.1")
            changed += text != record["text"]
            expected.append(line if text == record["text"] else slow_edit(line, text))
        assert lines_of(tmp_path / "out")[shard] == expected
    assert cleaned.summary["edited"] == changed > 2
    assert cleaned.summary["subsets"]["Github"]["edited"] == 0


def test_other_settings_and_wrong_ones_are_named(tmp_path: Path, corpus: Path) -> None:
    rules = with_limits(rule_sets(["gopher"]), ["gopher-quality.words=10,1000", "gopher-quality.stop_words=1"])
    assert rules["gopher-quality"] == GopherQuality(words=(10, 1000), stop_words=1)
    settings: dict[str, Any] = {"rules": rules, "pii": ["ip"]}
    clean_corpus(corpus, tmp_path / "out", jobs=1, **settings)
    for change, message in (
        ({"rules": ["gopher"]}, r"gopher-quality.words is \[10.0,1000.0\] there, \[50,100000\] here"),
        (
            {"rules": with_limits(rules, ["gopher-repetition.dup_10grams=0.2"])},
            "gopher-repetition.dup_10grams is 0.1 there, 0.2 here",
        ),
        ({"rules": {name: rules[name] for name in ["gopher-quality"]}}, "dup_lines is 0.3 there, not given here"),
        ({"pii": ["email"]}, 'pii is ."ip". there, ."email". here'),
        ({"subsets": ["ArXiv"]}, "subsets is not given there"),
    ):
        with pytest.raises(PilekitError, match=message):
            clean_corpus(corpus, tmp_path / "out", jobs=1, **{**settings, **change})
    for wrong, message in (
        ({}, "nothing to do: give rules"),
        ({"rules": ["gophr"]}, "no set of rules 'gophr'; the sets are gopher, "),
        ({"rules": ["gopher"], "c4_lines": True}, "needs c4 or c4-fineweb"),
        ({"rules": ["c4"], "only": True}, "needs subsets"),
        ({"rules": ["c4"], "subsets": ["Books3"], "only": True}, "there are no documents of Books3"),
        ({"rules": with_limits(rule_sets(["c4"]), ["c4.sentences=1000"])}, "nothing is kept: each of 24 documents"),
    ):
        with pytest.raises(PilekitError, match=message):
            clean_corpus(corpus, tmp_path / "new", jobs=1, **wrong)  # type: ignore[arg-type]
        assert not (tmp_path / "new").exists()
    for change, message in (
        ("c4.sentence=3", "c4.sentence=3: there is no such limit; there are c4.lorem_ipsum, c4.curly_bracket"),
        ("gopher-quality.words=50,20", "two numbers, LEAST,MOST"),
        ("gopher-quality.words=3", "two numbers, LEAST,MOST, such as gopher-quality.words=20,500"),
        ("c4.sentences=many", "c4.sentences is a number"),
        ("c4.sentences=nan", "c4.sentences is a number"),
        ("c4.end_mark=0", "no such limit"),
    ):
        with pytest.raises(PilekitError, match=re.escape(message)):
            with_limits(rule_sets(["gopher", "c4"]), [change])


@pytest.mark.slow
def test_the_mini_pile_is_cleaned_as_the_reference_does(tmp_path: Path, real_corpus: Path) -> None:
    shards = [real_corpus / "minipile-00.jsonl.zst", real_corpus / "minipile-01.jsonl.zst"]
    rules = ["gopher-quality", "c4"]
    clean_corpus(shards, tmp_path / "out", rules=rules)
    kept = {
        path.stem: [
            line for line in making.unzstd(path).split(b"\n")[:-1] if not failed(json.loads(line)["text"], tuple(rules))
        ]
        for path in shards
    }
    assert lines_of(tmp_path / "out") == kept
    stream = PileStream(shards, tokenizer=None, epochs=1, shuffle=False, filters=list(rule_sets(rules).values()))
    assert [document.text for document in stream] == [
        json.loads(line)["text"] for lines in kept.values() for line in lines
    ]
