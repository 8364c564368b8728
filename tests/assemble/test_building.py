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

from pilekit import Corpus, PilekitError
from pilekit.assemble import demo_corpus
from pilekit.assemble.building import split, write_shards
from pilekit.assemble.sources import SourceDocument
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
    """Train repeats subsets as the manifest says; held-out documents occur once."""
    folder = tmp_path / "corpus"
    assert small(folder, tmp_path)
    shards = corpus_records(folder)
    assert set(digests(folder)) == {f"{name}.jsonl.zst" for name in SHARDS}
    splits: dict[str, Counter[tuple[str, str]]] = {"train": Counter(), "val": Counter(), "test": Counter()}
    for name, members in shards.items():
        assert members
        for record in members:
            assert list(record) == ["text", "meta"]
            assert isinstance(record["meta"], dict)
            assert list(record["meta"]) == ["pile_set_name"]
            splits[name.split("/")[0]][str(record["text"]), record["meta"]["pile_set_name"]] += 1
    corpus = Corpus(folder, manifest="demo")
    assert [shard.name for shard in corpus.split("val")] == ["val.jsonl"]
    assert len(list(corpus.split("train"))) == 4
    epochs = {subset.name: subset.epochs for subset in corpus.manifest.subsets}
    assert {subset for found in splits.values() for _, subset in found} == set(epochs)
    assert all(times == epochs[subset] for (_, subset), times in splits["train"].items())
    assert set((splits["val"] + splits["test"]).values()) == {1}
    train, val, test = ({text for text, _ in found} for found in splits.values())
    assert train.isdisjoint(val | test)
    assert val.isdisjoint(test)


def test_a_finished_corpus_is_kept_and_an_interrupted_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "corpus"
    assert small(folder, tmp_path)
    before = digests(folder)
    (folder / "val.jsonl.zst").write_bytes(b"changed")
    assert not small(folder, tmp_path)
    with pytest.raises(PilekitError, match=r"corpus: was made with other settings: seed is 0 there, 1 here; .*--out"):
        small(folder, tmp_path, seed=1)
    assert (folder / "val.jsonl.zst").read_bytes() == b"changed"
    shutil.rmtree(folder)

    def write_two(shards: dict[str, list[SourceDocument]], folder: Path) -> None:
        write_shards({name: shards[name] for name in list(shards)[:2]}, folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pilekit.assemble.building.write_shards", write_two)
        with pytest.raises(KeyboardInterrupt):
            small(folder, tmp_path)
    assert len(digests(folder)) == 2
    assert small(folder, tmp_path)
    assert digests(folder) == before
    small(tmp_path / "other", tmp_path, seed=1)
    assert set(before.values()).isdisjoint(digests(tmp_path / "other").values())


def test_folders_of_something_else_and_without_source(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "me.jpg").write_bytes(b"not to be lost")
    with pytest.raises(PilekitError, match=r"photos is not empty.*--out"):
        small(folder, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["me.jpg"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(PilekitError, match=r"no Python files in .*empty"):
        demo_corpus(tmp_path / "corpus", library=tmp_path / "empty")


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
    texts = [(f"{subset} {number}", subset) for subset in "AB" for number in range(4000)]
    shards = split([SourceDocument(text, subset, text) for text, subset in texts], held_out=0.1)
    assert 650 < len(shards["val"]) < 950
    assert 650 < len(shards["test"]) < 950
    for found in shards.values():
        half = [one.subset for one in found[: len(found) // 2]]
        assert 0.4 < half.count("A") / len(half) < 0.6


@pytest.mark.slow
def test_this_pythons_corpus_has_10_to_20_megabytes_and_every_subset_in_every_split(tmp_path: Path) -> None:
    assert demo_corpus(tmp_path / "corpus")
    shards = corpus_records(tmp_path / "corpus")
    total = sum(len(str(record["text"]).encode()) for members in shards.values() for record in members)
    assert 10_000_000 < total < 20_000_000
    for members in shards.values():
        found = Counter(record["meta"]["pile_set_name"] for record in members)  # type: ignore[index]
        assert set(found) == {"Github", "Docstrings", "Python Reference", "DM Mathematics"}
