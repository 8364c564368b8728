"""DIR/records and DIR/result.json: every document is recorded, once, under the key of what it depends on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pilekit.corpus import Corpus
from pilekit.evaluate import bits_per_byte as module
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.model import causal as causal_lm
from pilekit.evaluate.results.protocol import record_key
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import read_result
from pilekit.shards.read.reader import read_corpus
from tests.evaluate.folders import lines, record_file, rows
from tests.tiny import tiny_model_dir


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
    assert rows(again.records) == rows(result.records)
    assert record_key(again.protocol) == again.protocol["records"]


def test_in_memory_it_is_the_same(whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path) -> None:
    result = bits_per_byte(model_dir, corpus)
    assert result.protocol == {**whole[0].protocol, "records": None}
    assert (result.overall, result.subsets) == (whole[0].overall, whole[0].subsets)


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
