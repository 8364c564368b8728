"""DIR/records and DIR/result.json: a document is recorded once, a stopped run resumes, damage is an error."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pilekit.artifacts.sealed import _sum_of_fields
from pilekit.corpus import Corpus, load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate import bits_per_byte as module
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import (
    locked_records,
    read_records,
    read_result,
    record_file,
    record_line,
    records_folder,
)
from pilekit.evaluate.score_plan import prepare
from pilekit.evaluate.settings import ScoreSettings
from pilekit.models import causal as causal_lm
from pilekit.shards.read.reader import read_corpus
from tests.evaluate.folders import figures_in, lines, only_file, same
from tests.shards.making import flipped
from tests.tiny.models import tiny_model_dir

KEY = "0123456789abcdef" * 2
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
SEVERAL = st.lists(SCORED, max_size=6, unique_by=lambda one: (one.shard, one.number))


@given(SEVERAL, st.data())
def test_a_torn_line_is_dropped_and_scored_again(
    tmp_path_factory: pytest.TempPathFactory, documents: list[ScoredDocument], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    shards = sorted({one.shard for one in documents} | {"new"})
    with record_file(folder / "records.3.jsonl") as append:
        for document in documents:
            append(document, b"")
    file = folder / "records.3.jsonl"
    content = file.read_bytes()
    assert content == b"".join(map(record_line, documents))
    cut = data.draw(st.integers(0, len(content)))
    file.write_bytes(content[:cut])
    left = documents[: content[:cut].count(b"\n")]
    expected = Records.of(left, shards, load_manifest()).documents()
    assert read_records(folder, shards, load_manifest()).documents() == expected
    with record_file(folder / "records.3.jsonl") as append:
        append(new := ScoredDocument("new", 2**63 - 1, 1, "s", 1, 1, 1.0), b"")
    assert file.read_bytes() == b"".join(map(record_line, [*left, new]))
    shutil.rmtree(folder)


@given(SEVERAL.filter(bool), st.data())
def test_damage_is_an_error_or_a_torn_end(
    tmp_path_factory: pytest.TempPathFactory, documents: list[ScoredDocument], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    shards = sorted({one.shard for one in documents})
    content = bytearray(b"".join(map(record_line, documents)))
    begin = data.draw(st.integers(0, len(content)))
    end = min(len(content), begin + data.draw(st.integers(0, 5)))
    content[begin:end] = data.draw(st.binary(max_size=5) | st.sampled_from([b"\n", b"0", b'"', b"}"]))
    (folder / "records.0.jsonl").write_bytes(content)
    try:
        found = read_records(folder, shards, load_manifest()).documents()
    except PilekitError as error:
        assert "\n" not in str(error)
        assert "remove this folder" in str(error)
    else:
        whole = [document for document in documents if record_line(document) in content]
        assert found == Records.of(whole, shards, load_manifest()).documents()
    shutil.rmtree(folder)


def test_every_document_is_recorded(whole: tuple[BitsPerByte, Path], corpus: Path) -> None:
    result, out = whole
    assert list(lines(out)[0]) == ["shard", "document", "text", "subset", "bytes", "tokens", "nll", "check"]
    told = {(line["shard"], line["document"]): line for line in lines(out)}
    assert len(told) == len(lines(out)) == result.overall.documents == 50
    for batch in read_corpus(Corpus(corpus)):
        sizes, hashes = batch.text_hashes()
        for i, number in enumerate(batch.numbers.tolist()):
            line = told[batch.shard, number]
            assert (line["text"], line["subset"], line["bytes"]) == (hashes[i], batch.subsets[i], sizes[i])
    assert sum(line["nll"] for line in told.values()) == pytest.approx(result.overall.nll, rel=1e-12)
    files = sorted(path.name for path in records_folder(out, result.protocol["records"]).iterdir())
    assert files == ["pilekit.json", "records.0.jsonl"]


def test_the_key_is_of_all_that_a_record_depends_on(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    def key(model: Path = model_dir, data: Path = corpus, dtype: str = "auto", **options: Any) -> str:
        cpu = torch.device("cpu")
        return prepare(model, Corpus(data), ScoreSettings(**options), dtype=dtype, device=cpu).key

    changed = shutil.copytree(model_dir, tmp_path / "model")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({**config, "rope_theta": 99.0}))
    longer = shutil.copytree(corpus, tmp_path / "longer")
    (longer / "01.jsonl.zst").write_bytes((longer / "01.jsonl.zst").read_bytes() * 2)
    others = [
        key(context_len=4),
        key(prefix=5),
        key(limit=2),
        key(limit_bytes=2),
        key(subsets=["ArXiv"]),
        key(dtype="bf16"),
        key(changed),
    ]
    others += [key(tiny_model_dir(tmp_path / "other", seed=1)), key(data=longer), key(data=corpus / "00.jsonl.zst")]
    assert len({key(), *others}) == 11
    # The same model in another place, and other ways to request and to compute the same.
    moved = shutil.copytree(model_dir, tmp_path / "moved")
    same_key = {key(moved, batch_tokens=50), key(prefix="eos"), key(prefix=0, dtype="fp32"), key(paper=True)}
    assert same_key == {key()}


def test_a_torn_run_resumes_and_a_whole_one_is_made_again_of_its_records_without_the_weights(
    whole: tuple[BitsPerByte, Path],
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    scored: list[tuple[str, int]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    (out / "result.json").unlink()
    content = only_file(out).read_bytes()
    only_file(out).write_bytes(content := content[: int(0.6 * len(content))])
    left = content.count(b"\n")
    result = bits_per_byte(model_dir, corpus, out=out)
    same(result, whole[0])
    assert len(scored) == 50 - left
    assert caplog.messages == [f"resuming: {left} documents are scored already, recorded in {out}"]
    assert len({(line["shard"], line["document"]) for line in lines(out)}) == len(lines(out)) == 50
    again = read_result(out)
    assert figures_in(out) == again.to_dict() == json.loads(json.dumps(result.to_dict()))
    assert again.records is not None
    assert result.records is not None
    assert again.records.documents() == result.records.documents()

    caplog.clear()
    monkeypatch.setattr(module, "load_causal_lm", lambda *_, **__: pytest.fail("the weights were read"))
    reported: list[int | None] = []
    report = lambda done, total, bits: reported.extend((done, total))  # noqa: E731
    records = only_file(out).read_bytes()
    assert bits_per_byte(model_dir, corpus, out=out, batch_tokens=7, report=report).to_dict() == result.to_dict()
    assert only_file(out).read_bytes() == records
    assert reported[-2:] == [sum(path.stat().st_size for path in corpus.iterdir())] * 2
    assert caplog.messages == [f"already done: 50 documents are scored already, recorded in {out}"]


def test_a_document_is_recorded_as_soon_as_it_is_scored(
    model_dir: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[int] = []
    load, out = causal_lm.load_causal_lm, tmp_path / "out"

    def loaded(*arguments: Any, **options: Any) -> Any:
        lm = load(*arguments, **options)
        lm.trunk.register_forward_hook(lambda *_: recorded.append(len(lines(out))))
        return lm

    with monkeypatch.context() as patch:
        patch.setattr(module, "load_causal_lm", loaded)
        bits_per_byte(model_dir, corpus, out=out, batch_tokens=32)
    assert recorded == sorted(recorded)
    assert len([of for of in recorded if of]) > len(recorded) * 0.8 > 40


def edited(file: Path, *path: str, value: Any) -> None:
    """Change a value in a JSON file, and make its sum right if it has one."""
    content = inner = json.loads(file.read_text())
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    if "sum" in content:
        content["sum"] = _sum_of_fields(content)
    file.write_text(json.dumps(content))


def without_header(file: Path) -> None:
    """Leave the fields that the first versions wrote."""
    content = json.loads(file.read_text())
    fields = {name: value for name, value in content.items() if name not in ("sum", "kind", "format", "pilekit")}
    file.write_text(json.dumps(fields))


def test_any_flipped_bit_and_any_cut_is_refused_or_changes_nothing(
    whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    """In result.json, the header and the records; a torn last line is a document less, and so other figures."""
    out = shutil.copytree(whole[1], tmp_path / "out")
    header = records_folder(out, whole[0].protocol["records"]) / "pilekit.json"
    result = read_result(out)
    assert result.records is not None
    choose = random.Random(1)
    for path in (out / "result.json", header, only_file(out)):
        content = path.read_bytes()
        for place in choose.sample(range(8 * len(content)), 700):
            path.write_bytes(flipped(content, place // 8, 1 << place % 8))
            unless_refused(out, result, f"{path.name}, bit {place}")
        for size in choose.sample(range(len(content) - 1), 100):
            path.write_bytes(content[:size])
            unless_refused(out, result, f"{path.name}, {size} bytes")
        path.write_bytes(content)


def unless_refused(out: Path, result: BitsPerByte, damage: str) -> None:
    """The result of `out` is this one, unless it is refused with a remedy."""
    try:
        found = read_result(out)
    except PilekitError as error:
        assert re.fullmatch(r"[^\n]*; [^\n]*(again|--out, to its end)[^\n]*", str(error)), damage
        return
    assert found.to_dict() == result.to_dict(), damage
    assert found.records is not None
    assert result.records is not None
    assert found.records.documents() == result.records.documents(), damage


def test_a_damaged_result_is_one_line_and_the_same_command_mends_it(
    whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result, header = out / "result.json", records_folder(out, whole[0].protocol["records"]) / "pilekit.json"
    differs = "result.json: does not match its records in records/"
    other_fields = "result.json: is damaged (it"
    damages: list[tuple[Callable[[], object], str]] = [
        (lambda: result.unlink(), "has no result.json; score a model with --out"),
        (lambda: header.write_text("{"), "is not a header of pilekit: it is empty or cut off; score the model again"),
        (lambda: only_file(out).write_bytes(b""), differs),
        (lambda: shutil.rmtree(out / "records"), "there is no such folder"),
        (lambda: edited(header, "inputs", "manifest", value=5), differs),
        (lambda: edited(result, "protocol", "records", value="../records"), differs),
        (lambda: edited(result, "overall", "bpb", value=1.25), differs),
        (lambda: edited(result, "protocol", value=7), other_fields),
        (lambda: without_header(result), 'no "kind": another version of pilekit wrote it, or another program); score'),
        (lambda: edited(result, "training_copies", value={"overall": 1}), other_fields),
    ]
    for damage, words in damages:
        shutil.copytree(whole[1], out)
        damage()
        with pytest.raises(PilekitError) as error:
            read_result(out)
        assert words in str(error.value)
        assert "\n" not in str(error.value)
        bits_per_byte(model_dir, corpus, out=out)
        same(read_result(out), whole[0])
        shutil.rmtree(out)
    shutil.copytree(whole[1], out)
    only_file(out).write_bytes(only_file(out).read_bytes().replace(b'"nll":', b'"nll":1', 1))
    for call in (partial(read_result, out), partial(bits_per_byte, model_dir, corpus, out=out)):
        with pytest.raises(PilekitError, match=r"line 1 of records\.0\.jsonl is damaged .*; remove this folder, and"):
            call()


def test_records_of_another_text_or_of_no_document_are_refused(
    whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    shard, out = tmp_path / "a.jsonl", tmp_path / "small"

    def document(text: str, label: str = "Github") -> str:
        return json.dumps({"text": text, "meta": {"pile_set_name": label}}) + "\n"

    original = document("one") + document("two") + document("six")
    for changed, words in (
        (original.replace("two", "twx"), "document 1: is not the text that was scored and recorded, so the corpus has"),
        (document("one") + document("two", "buhtiG") + document("six"), "document 1: is not the text that was scored"),
    ):
        shard.write_text(original)
        bits_per_byte(model_dir, shard, out=out)
        shard.write_text(changed)
        with pytest.raises(PilekitError, match=rf"^a\.jsonl, {words}") as error:
            bits_per_byte(model_dir, shard, out=out)
        assert "remove its records/" in str(error.value)
        shutil.rmtree(out)

    out = shutil.copytree(whole[1], tmp_path / "out")
    content = only_file(out).read_bytes()
    for one, words in (
        (ScoredDocument("00.jsonl", 999, 1, "ArXiv", 1, 1, 1.0), r"^00\.jsonl, document 999: is recorded, but is not"),
        (ScoredDocument("02.jsonl", 0, 1, "ArXiv", 1, 1, 1.0), r": 02\.jsonl: is no shard of .*; remove this folder"),
    ):
        only_file(out).write_bytes(content + record_line(one))
        with pytest.raises(PilekitError, match=words):
            bits_per_byte(model_dir, corpus, out=out)


def test_one_run_at_a_time(whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    protocol = whole[0].protocol
    with (
        locked_records(out, KEY, protocol, load_manifest()),
        pytest.raises(PilekitError, match=r"records/\.lock: another process holds this lock; wait until it is done"),
    ):
        bits_per_byte(model_dir, corpus, out=out)
    only_file(out).write_bytes(b"")
    held = r"records\.0\.jsonl\.lock: another process holds this lock; wait until it is done"
    with record_file(only_file(out)), pytest.raises(PilekitError, match=held):
        bits_per_byte(model_dir, corpus, out=out)
    same(bits_per_byte(model_dir, corpus, out=out), whole[0])
    (out / "records").rename(tmp_path / "elsewhere")
    (out / "records").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PilekitError, match="out/records: is a link, and nothing is written through it"):
        bits_per_byte(model_dir, corpus, out=out)
