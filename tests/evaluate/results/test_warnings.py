"""Results from a folder: warnings about the data, and published figures only if they may be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilekit.corpus import Corpus, load_manifest
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.result_folder import read_result
from tests.evaluate.documents import manifest_of, write


def test_a_shard_without_any_known_label_is_told(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.jsonl", [("Foo\x1b", "x"), ("Bar", "x"), (None, "x")])
    write(tmp_path / "b.jsonl", [("Foo", "x"), ("ArXiv", "x")])
    bits_per_byte(model_dir, tmp_path)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("a.jsonl: has no label that the manifest pile knows, only (none), Bar, Foo\\x1b; if its")
    caplog.clear()
    bits_per_byte(model_dir, Corpus(tmp_path, manifest_of()))
    assert caplog.text == ""


PILE_LABELS = [subset.name for subset in load_manifest().subsets]


def test_published_figures_need_the_piles_labels(tmp_path: Path, model_dir: Path) -> None:
    """Also if only one subset is requested: skipped labels count, on a first reading and from records."""
    cases: list[tuple[list[str], dict[str, Any], str | None]] = [
        (PILE_LABELS, {}, None),
        (PILE_LABELS, {"limit": 2}, "only 1 of the Pile's 22 labels were met in these shards; --limit may have ended"),
        ([*PILE_LABELS, "Mine"], {}, "these shards have a label that is none of the Pile's: Mine"),
        (PILE_LABELS, {"context_len": 4}, "these windows overlap"),
    ]
    for number, (labels, arguments, why) in enumerate(cases):
        folder = tmp_path / str(number)
        write(folder / "corpus" / "val" / "0.jsonl", [("ArXiv", "a text"), ("ArXiv", "one more")])
        write(folder / "corpus" / "val" / "1.jsonl", [(label, "a text") for label in labels])
        for _ in range(2):
            result = bits_per_byte(model_dir, folder / "corpus", subsets=["arxiv"], out=folder / "out", **arguments)
            assert (result.published is None) == (why is not None)
            assert (result.withheld or "").startswith(why or "")
            assert list(result.subsets) == ["ArXiv"]
            again = read_result(folder / "out")
            assert (again.published, again.withheld) == (result.published, result.withheld)


def test_few_foreign_labels_are_told(tmp_path: Path, model_dir: Path) -> None:
    foreign = [(f"label {n}", "x") for n in range(100)]
    shard = write(tmp_path / "val.jsonl", [*foreign, ("Github", "x"), ("ArXiv", "x")])
    result = bits_per_byte(model_dir, shard, subsets=["Github"])
    labels = result.protocol["labels"]
    assert labels[:3] == [*(name for name in PILE_LABELS if name in ("ArXiv", "Github")), "label 0"]
    assert len(labels) == 32
    assert result.overall.documents == 1


def test_constants_of_another_tokenizer_are_warned_of(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tiny model's tokens are short."""
    shard = write(tmp_path / "val.jsonl", [(label, "Some text of words and words. " * 3) for label in PILE_LABELS])
    result = bits_per_byte(model_dir, shard, paper=True)
    [warning] = result.warnings
    assert warning.startswith("the paper's constants are those of the GPT-2 tokenizer, by which this text has 0.")
    assert f"here it has {result.overall.tokens_per_byte:.3f}" in warning
    assert caplog.messages == [warning]
    assert (result.published, result.withheld) == (None, "the paper's constants are not those of this tokenizer")
    caplog.clear()
    assert bits_per_byte(model_dir, shard).published is not None
    assert caplog.messages == []


def test_copies_in_the_training_shards_are_counted(tmp_path: Path, model_dir: Path) -> None:
    write(tmp_path / "val.jsonl", [("ArXiv", "one"), ("Github", "two"), ("ArXiv", "three")])
    train = write(tmp_path / "train" / "00.jsonl", [("Github", "three"), ("Github", "four"), ("Github", "three")])
    result = bits_per_byte(model_dir, tmp_path / "val.jsonl", train=train, out=tmp_path / "out")
    assert result.training_copies is not None
    assert result.training_copies.overall == 1
    assert result.training_copies.subsets == {"ArXiv": 1, "Github": 0}
    assert read_result(tmp_path / "out").training_copies == result.training_copies
