"""A label or a field that no record has is told with the fields that records have, by every way to read a shard."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.shards.index.build import build_index
from pilekit.shards.index.format import index_places
from pilekit.stats.summary import corpus_stats
from tests.cli.running import run
from tests.shards.making import as_if_large
from tests.tokenize.making import byte_level_bpe

CODE = ("--text-field", "content", "--label", "language")
NO_LABEL = "no record has a label at language (the first has the fields content, lang)"
REMEDY = "; name the field of the subset with --label, or label_path in a manifest"

value = st.sampled_from(["py", "c", None, "(none)"])
records = st.lists(st.dictionaries(st.sampled_from(["language", "lang"]), value), max_size=6)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Records whose label is at `lang`."""
    return written(tmp_path / "code.jsonl", [{"content": f"some words {n}", "lang": "py"} for n in range(20)])


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def outcome(corpus: Corpus, subsets: list[str] | None) -> str:
    try:
        corpus_stats(corpus, subsets=subsets)
    except PilekitError as error:
        return str(error)
    return ""


@given(records=records, subsets=st.none() | st.just(["py"]) | st.just(["py", "(none)"]))
def test_every_way_to_count_says_so_where_no_record_has_the_label(
    records: list[dict[str, Any]], subsets: list[str] | None
) -> None:
    """As a plain reference says: read, scanned, and from an index."""
    labels = {record.get("language") or "(none)" for record in records}
    of_all = subsets is None and labels == {"(none)"}
    of_some = subsets is not None and labels <= {"(none)"} and bool(records) and not labels & {*subsets}
    with TemporaryDirectory() as folder:
        path = written(Path(folder, "00.jsonl"), [{"text": "x", **record} for record in records] or [{}])
        if not records:
            path.write_text("\n")
        corpus = Corpus(path, label="language")
        told = [outcome(corpus, subsets)]
        told.append(outcome(as_if_large(corpus), subsets))
        build_index(corpus.shards[0], index_places(corpus.shards[0])[0], manifest=corpus.manifest)
        told.append(outcome(corpus, subsets))
    assert told[0] == told[1] == told[2]
    assert ("label at language" in told[0]) is (of_all or of_some), told[0]
    if told[0]:
        assert f"(the first has the fields {', '.join(['text', *records[0]])})" in told[0]


def test_an_absent_label_ends_each_command_whose_result_depends_on_it(code: Path, tmp_path: Path) -> None:
    """With one line; nothing stays of its folder."""
    evaluation = written(tmp_path / "evaluation.json", [{"text": "a b c d e f g h i"}])
    some = ("--subsets", "py")
    for name, *options in (
        ("stats", *CODE),
        ("stats", *CODE, "--json"),
        ("stats", *CODE, *some),
        ("select", *CODE, *some, "--out", tmp_path / "out"),
        ("clean", *CODE, *some, "--rules", "c4", "--report"),
        ("clean", *CODE, *some, "--rules", "c4", "--out", tmp_path / "out"),
        ("dedup", *CODE, *some, "--out", tmp_path / "out"),
        ("decontaminate", *CODE, *some, "--against", evaluation, "--out", tmp_path / "out"),
        ("substrings", *CODE, *some, "--out", tmp_path / "out"),
        ("head", *CODE, *some),
        ("sample", *CODE, *some),
    ):
        with pytest.raises(PilekitError) as refused:
            run(name, code, *options)
        told = str(refused.value).removeprefix("there are no documents of py: ")
        assert told.replace("the first 20 records have no label", "no record has a label") == NO_LABEL + REMEDY
        assert not (tmp_path / "out").exists()
    with pytest.raises(PilekitError, match=r"^there are no documents of py: the first 20 records have no label at"):
        run("head", code, *CODE, *some)


def test_commands_without_subsets_warn(code: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run("stats", code, "--text-field", "content", "--label", "lang", exit_code=0)
    run("select", code, "--text-field", "content", "--sample", 1, "--out", tmp_path / "all", exit_code=0)
    assert not caplog.messages
    byte_level_bpe(300).save(str(tmp_path / "tokenizer.json"))
    tokens = ("--tokenizer", tmp_path / "tokenizer.json")
    warning = f"{NO_LABEL}; if another field names the subset, give it with --label"
    of_the_first = warning.replace("no record has a label", "the first 20 records have no label")
    for command, told in (
        (("select", code, "--sample", 1, "--out", tmp_path / "selected"), warning),
        (("dedup", code, "--out", tmp_path / "unique"), warning),
        (("tokenize", code, *tokens, "--out", tmp_path / "tokens/code"), warning),
        (("stream", code, *tokens, "--seq-len", 16, "--steps", 1), warning),
        (("head", code, "-n", 1), of_the_first),
        (("head", code, "-n", 1, "--json"), of_the_first),
        (("sample", code, "-n", 1), of_the_first),
        (("grep", "words", code), warning),
        (("grep", "words", code, "--count"), warning),
        (("grep", "words", code, "-n", 1), of_the_first),
        (("reframe", code, "--out", tmp_path / "reframed"), warning),
        (("index", code), warning),
    ):
        caplog.clear()
        run(*command, *CODE, exit_code=0)
        assert caplog.messages == [told], command


def test_a_label_of_a_later_record_is_not_called_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = [{"text": "words"}, {"text": "more words", "language": "py"}]
    path = written(tmp_path / "00.jsonl", records)
    for command in (
        ("head", path, "-n", 1),
        ("sample", path, "-n", 1),
        ("grep", "words", path, "-n", 1),
        ("grep", "words", path),
        ("reframe", path, "--out", tmp_path / "reframed"),
        ("index", path),
    ):
        run(*command, "--label", "language", exit_code=0)
    assert not caplog.messages


def test_a_corpus_without_labels_is_counted_with_one_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No notice if text is all that its records have."""
    dolma = {"id": 1, "text": "x", "source": "web", "metadata": {"a": {"b": 1}}, "added": None}
    notice = "no record has a label at meta.pile_set_name (the first has the fields id, text, source, metadata.a, "
    notice += "added); if another field names the subset, give it with --label"
    for path in (
        written(tmp_path / "dolma.jsonl", [dolma]),
        tmp_path / "dolma.parquet",
    ):
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist([dolma]), path)
        caplog.clear()
        assert [subset.name for subset in corpus_stats(path).subsets] == ["(none)"]
        assert caplog.messages == [notice]
    caplog.clear()
    corpus_stats(written(tmp_path / "plain.jsonl", [{"text": "x"}]))
    assert not caplog.messages


def test_a_field_that_no_evaluation_has_is_an_error(tmp_path: Path) -> None:
    words = "one two three four five six seven eight"
    corpus = written(tmp_path / "00.jsonl", [{"text": words}])
    tests = written(tmp_path / "tests.json", [{"id": 7, "question": words, "answer": {"text": "x"}}])
    others = written(tmp_path / "others.json", [{"prompt": words}])
    for fields, against, wrong in (
        ("nope", (tests,), "no record has a field nope"),
        ("question,nope", (tests,), "no record has a field nope"),
        ("question,prompt,nope,neither", (tests, others), "no record has a field neither, nope"),
        ("question,prompt", (tests,), "no record has a field prompt"),
    ):
        named = [word for path in against for word in ("--against", path)]
        with pytest.raises(PilekitError) as refused:
            run("decontaminate", corpus, *named, "--fields", fields, "--out", tmp_path / "out")
        assert f"{wrong} (the first has the fields " in str(refused.value)
        assert not (tmp_path / "out").exists()
    both = ("--against", tests, "--against", others, "--fields", "question,prompt")
    run("decontaminate", corpus, *both, "--out", tmp_path / "out", exit_code=0)
