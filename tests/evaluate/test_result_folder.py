"""DIR/records and DIR/result.json: nothing recorded is lost or scored again, nothing that does not fit is used."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from pilekit.corpus import Corpus, load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate import bits_per_byte as module
from pilekit.evaluate import causal_lm, scoring
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.compare import compare
from pilekit.evaluate.comparison_table import comparison_table
from pilekit.evaluate.protocol import record_key
from pilekit.evaluate.records import Records
from pilekit.evaluate.result import BitsPerByte
from pilekit.evaluate.result_folder import (
    RecordFile,
    held_folder,
    read_line,
    read_records,
    read_result,
    record_line,
    record_path,
)
from pilekit.evaluate.scoring import ScoredDocument, TokenizedDocument
from pilekit.evaluate.table import result_table
from pilekit.shards import read_corpus
from tests.process_groups import ROOT
from tests.small_disk import small_disk
from tests.stopping import kill, stop_when
from tests.tiny import tiny_corpus, tiny_model_dir

KEY = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), documents=25)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model_dir: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[BitsPerByte, Path]:
    """What one undisturbed run finds, and its folder."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return bits_per_byte(model_dir, corpus, out=out), out


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The documents whose scoring began, of every evaluation of this test."""
    begun: list[tuple[str, int]] = []
    score_documents = scoring.score_documents

    def counted(lm: Any, documents: Iterable[TokenizedDocument], **options: Any) -> Iterator[ScoredDocument]:
        def counting() -> Iterator[TokenizedDocument]:
            for document in documents:
                begun.append((document.shard, document.number))
                yield document

        return score_documents(lm, counting(), **options)

    monkeypatch.setattr(module, "score_documents", counted)
    return begun


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted((out / "records").glob("*.jsonl")) for line in file.open()]


def record_file(out: Path) -> Path:
    [file] = (out / "records").glob("*.jsonl")
    return file


def same(one: BitsPerByte, other: BitsPerByte) -> None:
    """Figures and all, but for rounding in sums made in another order."""
    assert list(one.subsets) == list(other.subsets)
    for name, score in (("", one.overall), *one.subsets.items()):
        of = other.subsets[name] if name else other.overall
        assert (score.documents, score.bytes, score.tokens) == (of.documents, of.bytes, of.tokens)
        assert score.nll == pytest.approx(of.nll, rel=1e-7)
        assert score.interval == (None if of.interval is None else pytest.approx(of.interval, rel=1e-7))


# ---- a line


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCORED = st.builds(
    ScoredDocument,
    TEXT,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    TEXT,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.floats(0, allow_nan=False, allow_infinity=False),
)


@given(SCORED)
@example(ScoredDocument("a", 0, 0, "", 0, 0, 0.1 + 0.2))
@example(ScoredDocument("a", 0, 2**64 - 1, "\x00\n", 0, 0, 5e-324))
def test_a_line_gives_back_what_was_written(document: ScoredDocument) -> None:
    line = record_line(document)
    assert line.count(b"\n") == 1
    told = json.loads(line)
    assert told.pop("check")
    assert list(told) == ["shard", "document", "text", "subset", "bytes", "tokens", "nll"]
    assert told["nll"] == document.nll
    assert read_line(line[:-1]) == document


@given(st.lists(SCORED, max_size=8, unique_by=lambda one: (one.shard, one.number)), st.data())
def test_of_a_torn_file_all_whole_lines_are_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[ScoredDocument], data: st.DataObject
) -> None:
    """And what is appended to it stands behind the last whole one, however it was torn."""
    out = tmp_path_factory.mktemp("torn")
    shards = sorted({one.shard for one in documents} | {"new"})
    manifest = load_manifest()
    with RecordFile(record_path(out, KEY, 3)) as file:
        for document in documents:
            file.append(document)
    content = file.path.read_bytes()
    assert content == b"".join(map(record_line, documents))
    cut = data.draw(st.integers(0, len(content)))
    file.path.write_bytes(content[:cut])
    left = documents[: content[:cut].count(b"\n")]
    expected = Records.of(left, shards, manifest)
    assert _rows(read_records(out, KEY, shards, manifest)) == _rows(expected)
    new = ScoredDocument("new", 2**63 - 1, 1, "s", 1, 1, 1.0)
    if ("new", new.number) in {(one.shard, one.number) for one in left}:
        return
    with RecordFile(record_path(out, KEY, 3)) as file:
        file.append(new)
    assert file.path.read_bytes() == b"".join(map(record_line, [*left, new]))
    shutil.rmtree(out)


@given(st.lists(SCORED, min_size=1, max_size=5, unique_by=lambda one: (one.shard, one.number)), st.data())
def test_of_a_damaged_file_nothing_wrong_is_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[ScoredDocument], data: st.DataObject
) -> None:
    out = tmp_path_factory.mktemp("damaged")
    shards = sorted({one.shard for one in documents})
    manifest = load_manifest()
    with RecordFile(record_path(out, KEY, 0)) as file:
        for document in documents:
            file.append(document)
    content = bytearray(file.path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(content)))
        end = min(len(content), begin + data.draw(st.integers(0, 5)))
        content[begin:end] = data.draw(st.binary(max_size=5) | st.sampled_from([b"\n", b"0", b'"', b"}"]))
    file.path.write_bytes(content)
    found = _rows(read_records(out, KEY, shards, manifest))
    assert set(found) <= set(_rows(Records.of(documents, shards, manifest)))
    shutil.rmtree(out)


def _rows(records: Records) -> list[tuple[Any, ...]]:
    return [
        (
            records.shards[records.shard[i]],
            *(int(column[i]) for column in (records.number, records.text, records.bytes, records.tokens)),
            records.subsets[records.subset[i]],
            float(records.nll[i]),
        )
        for i in range(len(records))
    ]


# ---- a folder


def test_every_document_is_recorded(whole: tuple[BitsPerByte, Path], corpus: Path) -> None:
    result, out = whole
    records = result.records
    assert records is not None
    told = {(line["shard"], line["document"]): line for line in lines(out)}
    assert len(told) == len(lines(out)) == result.overall.documents == 50
    for batch in read_corpus(Corpus(corpus)):
        sizes, hashes = batch.text_hashes()
        for i, number in enumerate(batch.numbers.tolist()):
            line = told[batch.shard, number]
            assert (line["text"], line["subset"], line["bytes"]) == (hashes[i], batch.subsets[i], sizes[i])
    assert sum(line["nll"] for line in told.values()) == pytest.approx(result.overall.nll, rel=1e-12)
    assert {path.name for path in (out / "records").iterdir()} == {
        "pilekit.json",
        f"{result.protocol['records']}.json",
        f"{result.protocol['records']}.0.jsonl",
    }


def test_the_result_is_made_again_of_the_records(whole: tuple[BitsPerByte, Path]) -> None:
    result, out = whole
    again = read_result(out)
    assert json.loads((out / "result.json").read_text()) == again.to_json() == json.loads(json.dumps(result.to_json()))
    assert again.records is not None
    assert result.records is not None
    assert _rows(again.records) == _rows(result.records)
    assert record_key(again.protocol) == again.protocol["records"]


def test_in_memory_it_is_the_same(whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path) -> None:
    result = bits_per_byte(model_dir, corpus)
    assert result.protocol == {**whole[0].protocol, "records": None}
    assert (result.overall, result.subsets) == (whole[0].overall, whole[0].subsets)


def test_a_finished_run_answers_from_its_records(
    whole: tuple[BitsPerByte, Path],
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "load_causal_lm", lambda *_, **__: pytest.fail("the weights were read"))
    out = shutil.copytree(whole[1], tmp_path / "out")
    before = record_file(out).read_bytes()
    told: list[int] = []
    result = bits_per_byte(model_dir, corpus, out=out, batch_tokens=7, advance=told.append)
    assert result.to_json() == whole[0].to_json()
    assert record_file(out).read_bytes() == before
    assert sum(told) == sum(path.stat().st_size for path in corpus.iterdir())
    (out / "result.json").unlink()
    assert bits_per_byte(model_dir, corpus, out=out).to_json() == whole[0].to_json()
    assert (out / "result.json").exists()


@pytest.mark.parametrize("share", [0.0, 0.13, 0.5, 0.97])
def test_a_torn_run_goes_on(
    share: float,
    whole: tuple[BitsPerByte, Path],
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    scored: list[tuple[str, int]],
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    (out / "result.json").unlink()
    content = record_file(out).read_bytes()
    record_file(out).write_bytes(content[: int(share * len(content))])
    left = content[: int(share * len(content))].count(b"\n")
    result = bits_per_byte(model_dir, corpus, out=out)
    same(result, whole[0])
    assert len(scored) == 50 - left
    assert max(Counter((line["shard"], line["document"]) for line in lines(out)).values()) == 1
    assert len(lines(out)) == 50
    assert read_result(out).to_json() == json.loads((out / "result.json").read_text())


def test_a_damaged_line_is_scored_again(
    whole: tuple[BitsPerByte, Path],
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    scored: list[tuple[str, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    content = record_file(out).read_bytes().splitlines(keepends=True)
    of = json.loads(content[20])
    content[20] = content[20].replace(b'"nll":', b'"nll":1')
    record_file(out).write_bytes(b"".join(content))
    with pytest.raises(
        PilekitError, match="is of 50 documents, but 49 are recorded in records/; score the model again"
    ):
        read_result(out)
    result = bits_per_byte(model_dir, corpus, out=out)
    same(result, whole[0])
    assert scored == [(of["shard"], of["document"])]
    assert "1 line is damaged and passed over" in caplog.text
    same(read_result(out), whole[0])


class Stop(BaseException):
    pass


@pytest.mark.parametrize("batch_tokens", [1, 64, 4096])
def test_at_most_the_batch_under_way_is_lost(
    batch_tokens: int, whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    """Interrupted between any two forward passes, what was complete then is recorded, and nothing is torn."""
    rounds = 0
    for stop_at in (1, 2, 5, 11, 40):
        passes = 0
        out = tmp_path / str(stop_at)

        def advance(amount: int, stop_at: int = stop_at) -> None:
            nonlocal passes
            passes += 1
            if passes == stop_at:
                raise Stop

        try:
            result = bits_per_byte(model_dir, corpus, out=out, batch_tokens=batch_tokens, advance=advance)
        except Stop:
            rounds += 1
            assert not (out / "result.json").exists()
            for line in record_file(out).read_bytes().splitlines(keepends=True):
                assert read_line(line[:-1]) is not None
            result = bits_per_byte(model_dir, corpus, out=out, batch_tokens=batch_tokens)
        same(result, whole[0])
        assert len(lines(out)) == 50
    assert rounds


def test_documents_are_recorded_while_others_are_scored(
    model_dir: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long ones, of several windows, among them: their windows are scored in a row."""
    out = tmp_path / "out"
    recorded: list[int] = []
    load = causal_lm.load_causal_lm

    def loaded(*arguments: Any, **options: Any) -> Any:
        lm = load(*arguments, **options)
        lm.trunk.register_forward_hook(lambda *_: recorded.append(len(lines(out))))
        return lm

    monkeypatch.setattr(module, "load_causal_lm", loaded)
    bits_per_byte(model_dir, corpus, out=out, batch_tokens=32)
    assert len(recorded) > 50
    behind = [of for of in recorded if of]
    assert len(behind) > len(recorded) * 0.8
    assert recorded == sorted(recorded)


# ---- the key


def test_the_key_is_of_all_that_a_record_depends_on(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    changed = shutil.copytree(model_dir, tmp_path / "model")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({**config, "rope_theta": 99.0}))
    other_weights = tiny_model_dir(tmp_path / "other", seed=1)
    longer = shutil.copytree(corpus, tmp_path / "longer")
    text = zstandard.ZstdDecompressor().decompressobj().decompress((longer / "01.jsonl.zst").read_bytes())
    (longer / "01.jsonl.zst").write_bytes(zstandard.compress(text + b'{"text": "more"}\n'))
    settings: list[tuple[Path, Path, dict[str, Any]]] = [
        (model_dir, corpus, {}),
        (model_dir, corpus, {"max_length": 16}),
        (model_dir, corpus, {"context_len": 4}),
        (model_dir, corpus, {"prefix": "none"}),
        (model_dir, corpus, {"prefix": 5}),
        (model_dir, corpus, {"subsets": ["ArXiv"]}),
        (model_dir, corpus, {"limit": 2}),
        (model_dir, corpus, {"dtype": "bf16"}),
        (changed, corpus, {}),
        (other_weights, corpus, {}),
        (model_dir, longer, {}),
        (model_dir, corpus / "00.jsonl.zst", {}),
    ]
    results = [bits_per_byte(model, data, out=out, **options) for model, data, options in settings]
    keys = [result.protocol["records"] for result in results]
    assert len(set(keys)) == len(keys)
    for result, (model, data, options) in zip(results, settings, strict=True):
        alone = bits_per_byte(model, data, **options)
        assert (result.overall, result.subsets) == (alone.overall, alone.subsets)
    # The same model elsewhere, and other ways to say and to compute the same.
    moved = shutil.copytree(model_dir, tmp_path / "moved")
    for options in ({}, {"batch_tokens": 50}, {"prefix": "eos"}, {"prefix": 0}, {"device": "cpu", "dtype": "fp32"}):
        assert bits_per_byte(moved, corpus, out=out, **options).protocol["records"] == keys[0]
    newest = bits_per_byte(moved, corpus, out=out, prefix=0, dtype="fp32")
    assert read_result(out).to_json() == newest.to_json()


def rewrite(shard: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change documents of a shard that is stored plain, whose size stays."""
    documents = [json.loads(line) for line in shard.read_text().splitlines()]
    size = shard.stat().st_size
    change(documents)
    shard.write_text("".join(json.dumps(document) + "\n" for document in documents))
    assert shard.stat().st_size == size


def test_what_does_not_fit_the_corpus_is_refused(model_dir: Path, tmp_path: Path) -> None:
    def other_text(documents: list[dict[str, Any]]) -> None:
        documents[1]["text"] = "twx"

    def other_label(documents: list[dict[str, Any]]) -> None:
        documents[1]["meta"]["pile_set_name"] = "Github"[::-1]

    def gone(documents: list[dict[str, Any]]) -> None:
        documents[0]["text"] += "." * (len(json.dumps(documents.pop())) + 1)

    for change, words in (
        (other_text, "document 1: is not the text that was scored and recorded, so the corpus has changed"),
        (other_label, "document 1: is not the text that was scored"),
        (gone, "document 0: is not the text"),
    ):
        shard, out = tmp_path / change.__name__ / "a.jsonl", tmp_path / f"{change.__name__}.out"
        shard.parent.mkdir()
        shard.write_text(
            "".join(
                json.dumps({"text": text, "meta": {"pile_set_name": "Github"}}) + "\n" for text in ("one", "two", "six")
            )
        )
        bits_per_byte(model_dir, shard, out=out)
        rewrite(shard, change)
        with pytest.raises(PilekitError, match=rf"^a\.jsonl, {words}") as error:
            bits_per_byte(model_dir, shard, out=out)
        assert "remove its records/" in str(error.value)
        shutil.rmtree(out / "records")
        bits_per_byte(model_dir, shard, out=out)


def test_a_record_of_no_document_is_refused(
    whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    content = record_file(out).read_bytes()
    for line, words in (
        (ScoredDocument("00.jsonl", 999, 1, "ArXiv", 1, 1, 1.0), r"^00\.jsonl, document 999: is recorded, but not"),
        (ScoredDocument("02.jsonl", 0, 1, "ArXiv", 1, 1, 1.0), r"\*\.jsonl: 02\.jsonl: is no shard of this corpus"),
    ):
        record_file(out).write_bytes(content + record_line(line))
        with pytest.raises(PilekitError, match=words):
            bits_per_byte(model_dir, corpus, out=out)
    first = content.splitlines(keepends=True)[0]
    of = read_line(first[:-1])
    assert of is not None
    record_file(out).write_bytes(content + record_line(replace(of, nll=of.nll + 1)))
    with pytest.raises(PilekitError, match="is recorded twice, and not alike; remove these files to score it all"):
        bits_per_byte(model_dir, corpus, out=out)


def test_a_record_that_is_there_twice_counts_once(
    whole: tuple[BitsPerByte, Path],
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    scored: list[tuple[str, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    content = record_file(out).read_bytes()
    record_file(out).write_bytes(content + content.splitlines(keepends=True)[7])
    assert read_result(out).to_json() == whole[0].to_json()
    [message] = caplog.messages
    assert message.endswith("is recorded twice, alike; 1 copy of a record is passed over")
    assert bits_per_byte(model_dir, corpus, out=out).to_json() == whole[0].to_json()
    assert scored == []


# ---- folders that cannot be used


def test_one_run_at_a_time(whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    protocol = whole[0].protocol
    with (
        held_folder(out, KEY, protocol, load_manifest()),
        pytest.raises(PilekitError, match=r"records/\.lock: another process holds this lock; wait until it is done"),
    ):
        bits_per_byte(model_dir, corpus, out=out)
    record_file(out).write_bytes(b"")
    held = r"\.0\.jsonl: another process writes it; wait until it is done"
    with RecordFile(record_path(out, protocol["records"], 0)), pytest.raises(PilekitError, match=held):
        bits_per_byte(model_dir, corpus, out=out)
    same(bits_per_byte(model_dir, corpus, out=out), whole[0])


def test_a_folder_of_something_else(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "records").mkdir(parents=True)
    (tmp_path / "a" / "records" / "mine.jsonl").write_text("")
    with pytest.raises(PilekitError, match=r"records: holds something that is no record of an evaluation \(mine"):
        bits_per_byte(model_dir, corpus, out=tmp_path / "a")
    assert [path.name for path in (tmp_path / "a" / "records").iterdir()] == ["mine.jsonl"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "records").write_text("")
    with pytest.raises(PilekitError, match="records: is a file, where a folder of records belongs"):
        bits_per_byte(model_dir, corpus, out=tmp_path / "b")


def test_a_model_s_folder_gets_no_results(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model_dir, tmp_path / "model")
    before = sorted(copy.iterdir())
    with pytest.raises(PilekitError, match=r"model: holds a model \(config\.json\).*; give --out a folder of its own$"):
        bits_per_byte(copy, corpus, out=copy)
    assert sorted(copy.iterdir()) == before


def test_records_are_not_taken_for_shards(whole: tuple[BitsPerByte, Path], corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(whole[1], tmp_path / "pile" / "out")
    shutil.copy(corpus / "00.jsonl.zst", tmp_path / "pile")
    assert [shard.name for shard in Corpus(tmp_path / "pile")] == ["00.jsonl"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda out: (out / "result.json").unlink(), r"has no result\.json; score a model with --out"),
        (lambda out: (out / "result.json").write_text("{"), r"result\.json: is no result with records"),
        (lambda out: (out / "result.json").write_text('{"overall": {"documents": 3}, "protocol": {}}'), "is no result"),
        (lambda out: record_file(out).write_bytes(b""), "is of 50 documents, but 0 are recorded"),
        (lambda out: next((out / "records").glob("????*.json")).unlink(), r"\.json: is missing; copy the whole folder"),
        (lambda out: shutil.rmtree(out / "records"), r"\.json: is missing; copy the whole folder"),
    ],
)
def test_what_is_no_result(
    damage: Callable[[Path], None], words: str, whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    (out / "records" / "pilekit.json").unlink()
    damage(out)
    with pytest.raises(PilekitError, match=words):
        read_result(out)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda of: st.lists(of, max_size=2) | st.dictionaries(st.sampled_from(["name", "id", "path"]), of, max_size=2),
    max_leaves=4,
)


def places(told: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in it the values are, those in others too."""
    items = told.items() if isinstance(told, dict) else enumerate(told) if isinstance(told, list) else ()
    for name, value in items:
        yield (*path, name)
        yield from places(value, (*path, name))


def with_value(told: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy of it with another value there, or (Ellipsis) with none."""
    told = json.loads(json.dumps(told))
    of = told
    for name in path[:-1]:
        of = of[name]
    if value is ...:
        del of[path[-1]]
    else:
        of[path[-1]] = value
    return told


def answer(result: BitsPerByte, beside: BitsPerByte) -> Any:
    """The figures and what they say beside another's; that both can be shown is a part of it."""
    comparison = compare([result, beside], ["z1", "z5"])
    shown = Console(width=80, file=io.StringIO())
    shown.print(result_table(result, 80))
    shown.print(comparison_table(comparison, 80))
    return comparison.to_json(), result.overall, result.subsets, result.weighted


@pytest.fixture(scope="module")
def to_damage(whole: tuple[BitsPerByte, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = shutil.copytree(whole[1], tmp_path_factory.mktemp("to_damage") / "out")
    return out, answer(whole[0], whole[0])


@pytest.mark.parametrize("which", ["result", "key"])
@settings(max_examples=150)
@given(data=st.data())
def test_of_damaged_json_comes_the_same_answer_or_one_line(
    which: str, whole: tuple[BitsPerByte, Path], to_damage: tuple[Path, Any], data: st.DataObject
) -> None:
    out, expected = to_damage
    file = out / ("result.json" if which == "result" else f"records/{whole[0].protocol['records']}.json")
    content = file.read_text()
    told = json.loads(content)
    outer = data.draw(st.sampled_from(["protocol", *told]))
    path = data.draw(st.sampled_from([(outer,), *places(told[outer], (outer,))]))
    file.write_text(json.dumps(with_value(told, path, data.draw(st.just(...) | JSON))))
    try:
        assert answer(read_result(out), whole[0]) == expected
    except PilekitError as error:
        assert "\n" not in str(error)
    finally:
        file.write_text(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("overall", "documents"), "x"),
        (("overall",), None),
        (("training_copies",), 5),
        (("training_copies",), {"overall": 1, "subsets": {"ArXiv": "1"}, "shards": []}),
        (("protocol",), 7),
        (("protocol", "records"), None),
        (("protocol", "records"), "../records"),
        (("protocol", "skipped_lines"), "none"),
    ],
)
def test_a_damaged_result_is_no_result(
    path: tuple[str, ...], value: Any, whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    file = shutil.copytree(whole[1], tmp_path / "out") / "result.json"
    file.write_text(json.dumps(with_value(json.loads(file.read_text()), path, value)))
    with pytest.raises(PilekitError, match=r"result\.json: is no result with records"):
        read_result(file.parent)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("protocol", "kind"), ...),
        (("protocol", "kind"), "masked"),
        (("protocol", "kind"), "other"),
        (("protocol", "prefix"), 3),
        (("protocol", "model"), None),
        (("protocol", "model", "path"), 5),
        (("protocol", "tokenizer", "fingerprint"), ...),
        (("protocol", "max_length"), 0),
        (("protocol", "dtype"), None),
        (("protocol", "data"), [{"size": 3}]),
        (("manifest", "subsets"), 5),
        (("manifest",), ...),
    ],
)
def test_a_protocol_of_another_shape_is_damaged(
    path: tuple[str, ...], value: Any, whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    """Also without a sum, as of older versions; and the same command mends it."""
    out = shutil.copytree(whole[1], tmp_path / "out")
    [file] = (out / "records").glob(f"{whole[0].protocol['records']}.json")
    told = with_value(json.loads(file.read_text()), ("check",), ...)
    file.write_text(json.dumps(told))
    assert read_result(out).to_json() == whole[0].to_json()
    file.write_text(json.dumps(with_value(told, path, value)))
    with pytest.raises(PilekitError, match=r"\.json: is damaged \(.*\); copy it again, or score the model again"):
        read_result(out)


def test_an_edited_protocol_is_damaged_and_the_same_command_mends_it(
    whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    [file] = (out / "records").glob(f"{whole[0].protocol['records']}.json")
    file.write_text(json.dumps(with_value(json.loads(file.read_text()), ("protocol", "max_length"), 64)))
    with pytest.raises(PilekitError, match=r"is damaged \(it is not what was written\)"):
        read_result(out)
    bits_per_byte(model_dir, corpus, out=out)
    assert read_result(out).to_json() == whole[0].to_json()


# ---- real processes


def command(model_dir: Path, corpus: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "pilekit", "bpb", str(model_dir), str(corpus), "--out", str(out), *more]


@pytest.fixture(scope="module")
def slow_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As long as it takes to stop a run in the middle."""
    return tiny_corpus(tmp_path_factory.mktemp("slow"), documents=400)


@pytest.mark.parametrize("number", [signal.SIGKILL, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 15))])
def test_a_process_that_is_stopped_goes_on(
    number: int, model_dir: Path, slow_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "out"

    def recorded() -> int:
        return sum(file.read_bytes().count(b"\n") for file in (out / "records").glob("*.jsonl"))

    stop = kill if number == signal.SIGKILL else lambda process: process.send_signal(number)
    code, errors = stop_when(
        command(model_dir, slow_corpus, out, "--batch-tokens", "32"), lambda: recorded() >= 100, stop
    )
    assert code == (130 if number == signal.SIGINT else -number), errors
    before = recorded()
    assert 100 <= before < 800
    content = record_file(out).read_bytes()
    assert content.endswith(b"\n")
    expected = bits_per_byte(model_dir, slow_corpus)
    same(bits_per_byte(model_dir, slow_corpus, out=out), expected)
    assert record_file(out).read_bytes().startswith(content)
    assert len(lines(out)) == 800


def test_a_full_disk_is_one_line_and_keeps_what_is_recorded(model_dir: Path, slow_corpus: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 136_000) as disk:
        out = disk.path / "out"
        ended = subprocess.run(
            command(model_dir, slow_corpus, out),
            cwd=ROOT,
            capture_output=True,
            text=True,
            preexec_fn=disk.limit,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 1
        [line] = ended.stderr.splitlines()
        assert "cannot be written: " in line
        assert "the same command goes on from there" in line
        content = record_file(out).read_bytes()
        assert content.endswith(b"\n")
        disk.grow()
        same(bits_per_byte(model_dir, slow_corpus, out=out), bits_per_byte(model_dir, slow_corpus))
        assert record_file(out).read_bytes().startswith(content)
