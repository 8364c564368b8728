"""A folder for results that is in use, of something else, or of another corpus is not used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilekit.corpus import Corpus, load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import RecordFile, held_folder, read_line, record_line, record_path
from pilekit.evaluate.score.causal_nll import ScoredDocument
from tests.evaluate.folders import record_file, same

KEY = "0123456789abcdef" * 2


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
