from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, load_manifest
from pilekit.assemble import demo_corpus
from pilekit.assemble.building import split, write_shards
from pilekit.assemble.sources import SourceDocument, standard_library
from tests.assemble.test_sources import library

SHARDS = {"train/00", "train/01", "train/02", "train/03", "val", "test"}


def records(path: Path) -> list[dict[str, object]]:
    """The records of a shard, read without pilekit."""
    with path.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return [json.loads(line) for line in io.TextIOWrapper(text, "utf-8", newline="\n")]


def corpus_records(folder: Path) -> dict[str, list[dict[str, object]]]:
    return {name: records(folder / f"{name}.jsonl.zst") for name in sorted(SHARDS)}


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.zst"))
    }


def small(folder: Path, tmp_path: Path, **parameters: int) -> bool:
    """The demo corpus from a library of a few files."""
    source = tmp_path / "library"
    if not source.exists():
        library(source)
    return demo_corpus(folder, library=source, **{"arithmetic_bytes": 400_000, **parameters})


def test_the_corpus_is_in_pile_format_and_its_splits_share_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    assert small(folder, tmp_path)
    shards = corpus_records(folder)
    assert set(digests(folder)) == {f"{name}.jsonl.zst" for name in SHARDS}
    subsets = set()
    for members in shards.values():
        assert members
        for record in members:
            assert list(record) == ["text", "meta"]
            assert isinstance(record["text"], str)
            assert isinstance(record["meta"], dict)
            assert list(record["meta"]) == ["pile_set_name"]
            subsets.add(record["meta"]["pile_set_name"])
    corpus = Corpus(folder, manifest="demo")
    assert subsets == {subset.name for subset in corpus.manifest.subsets}
    assert [shard.name for shard in corpus.split("val")] == ["val.jsonl"]
    assert len(list(corpus.split("train"))) == 4
    texts = {name: {str(record["text"]) for record in members} for name, members in shards.items()}
    train = set().union(*(members for name, members in texts.items() if name.startswith("train")))
    assert train.isdisjoint(texts["val"] | texts["test"])
    assert texts["val"].isdisjoint(texts["test"])


def test_train_repeats_subsets_as_the_manifest_says(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    small(folder, tmp_path)
    shards = corpus_records(folder)
    train = Counter(json.dumps(one) for name, found in shards.items() if name.startswith("train") for one in found)
    held_out = Counter(json.dumps(one) for name in ("val", "test") for one in shards[name])
    epochs = {subset.name: subset.epochs for subset in load_manifest("demo").subsets}
    assert max(epochs.values(), key=lambda value: value or 0) == 3
    for record, times in train.items():
        assert times == epochs[json.loads(record)["meta"]["pile_set_name"]]
    assert set(held_out.values()) == {1}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        small(tmp_path / name, tmp_path, seed=seed)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert set(digests(tmp_path / "one").values()).isdisjoint(digests(tmp_path / "three").values())


def test_a_finished_corpus_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    assert small(folder, tmp_path)
    before = digests(folder)
    (folder / "val.jsonl.zst").write_bytes(b"changed")
    assert not small(folder, tmp_path)
    assert (folder / "val.jsonl.zst").read_bytes() == b"changed"
    with pytest.raises(PilekitError, match=r"corpus: was made with other settings: seed is 0 there, 1 here; .*--out"):
        small(folder, tmp_path, seed=1)
    assert (folder / "val.jsonl.zst").read_bytes() == b"changed"
    shutil.rmtree(folder)
    assert small(folder, tmp_path)
    assert digests(folder) == before


def test_an_interrupted_corpus_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "corpus"

    def write_two(shards: dict[str, list[SourceDocument]], folder: Path) -> None:
        write_shards({name: shards[name] for name in list(shards)[:2]}, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr("pilekit.assemble.building.write_shards", write_two)
    with pytest.raises(KeyboardInterrupt):
        small(folder, tmp_path)
    assert len(digests(folder)) == 2
    monkeypatch.undo()
    assert small(folder, tmp_path)
    small(tmp_path / "whole", tmp_path)
    assert digests(folder) == digests(tmp_path / "whole")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "me.jpg").write_bytes(b"not to be lost")
    with pytest.raises(PilekitError, match=r"photos is not empty.*--out"):
        small(folder, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["me.jpg"]
    with pytest.raises(PilekitError, match="cannot be used as a folder"):
        small(folder / "me.jpg", tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/pilekit.json.123.partial").write_bytes(b"{")
    assert small(tmp_path / "empty", tmp_path)


def test_a_python_without_its_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    with pytest.raises(PilekitError, match=r"no Python files in .*library"):
        demo_corpus(tmp_path / "corpus", library=tmp_path / "library")


def document(text: str, subset: str = "Github", group: str | None = None) -> SourceDocument:
    return SourceDocument(text, subset, text if group is None else group)


GROUPED = st.lists(st.tuples(st.text(max_size=4), st.sampled_from("AB"), st.sampled_from("stuvwxyz")), max_size=60)


@given(GROUPED, st.randoms(use_true_random=False), st.integers(1, 5), st.integers(0, 9))
def test_a_split_keeps_groups_together_loses_nothing_and_ignores_the_order_of_its_input(
    members: list[tuple[str, str, str]], random: object, train_shards: int, seed: int
) -> None:
    documents = [SourceDocument(*member) for member in members]
    repeats = {"B": 3}
    shards = split(documents, train_shards=train_shards, held_out=0.25, repeats=repeats, seed=seed)
    assert list(shards) == [f"train/{shard:02}" for shard in range(train_shards)] + ["val", "test"]
    splits: dict[str, Counter[SourceDocument]] = {"train": Counter(), "val": Counter(), "test": Counter()}
    for name, found in shards.items():
        splits[name.split("/")[0]].update(found)
    for one in documents:
        homes = {name for name, found in splits.items() if any(other.group == one.group for other in found)}
        assert len(homes) == 1
        times = 3 if one.subset == "B" and homes == {"train"} else 1
        assert splits[homes.pop()][one] == times * documents.count(one)
    assert sum(sum(found.values()) for found in splits.values()) <= 3 * len(documents)
    sizes = [len(found) for name, found in shards.items() if name.startswith("train")]
    assert max(sizes) - min(sizes) <= 1
    random.shuffle(documents)  # type: ignore[attr-defined]
    again = split(documents, train_shards=train_shards, held_out=0.25, repeats=repeats, seed=seed)
    assert {name: [one.text for one in found] for name, found in again.items()} == {
        name: [one.text for one in found] for name, found in shards.items()
    }


def test_a_split_holds_out_about_the_share_asked_for_and_mixes_the_subsets() -> None:
    documents = [document(f"{subset} {number}", subset) for subset in "AB" for number in range(4000)]
    shards = split(documents, held_out=0.1)
    assert 650 < len(shards["val"]) < 950
    assert 650 < len(shards["test"]) < 950
    for found in shards.values():
        half = [one.subset for one in found[: len(found) // 2]]
        assert 0.4 < half.count("A") / len(half) < 0.6


@pytest.mark.slow
def test_this_pythons_corpus_has_10_to_20_megabytes_and_every_subset_in_every_split(tmp_path: Path) -> None:
    assert demo_corpus(tmp_path / "corpus")
    assert standard_library().is_dir()
    shards = corpus_records(tmp_path / "corpus")
    total = sum(len(str(record["text"]).encode()) for members in shards.values() for record in members)
    assert 10_000_000 < total < 20_000_000
    for members in shards.values():
        found = Counter(record["meta"]["pile_set_name"] for record in members)  # type: ignore[index]
        assert set(found) == {"Github", "Docstrings", "Python Reference", "DM Mathematics"}
