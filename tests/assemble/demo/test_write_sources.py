"""The demo's sources, and the corpus that is assembled from them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from pilekit import Corpus, PilekitError, load_manifest
from pilekit.assemble import demo_corpus
from pilekit.assemble.demo import write_demo_sources
from tests.assemble.demo.test_python_text import library
from tests.assemble.reference import records_of
from tests.stopping import tree


def test_the_corpus_holds_out_files_with_their_docstrings_and_edited_copies(tmp_path: Path) -> None:
    demo_corpus(tmp_path / "corpus", arithmetic_bytes=400_000, library=library(tmp_path / "library"))
    shards = records_of(tmp_path / "corpus")
    assert [len(Corpus(tmp_path / "corpus").split(split).shards) for split in ("train", "val", "test")] == [4, 1, 1]
    groups: dict[str, str] = {}
    subsets = load_manifest("demo").subsets
    for subset in subsets:
        lines = (tmp_path / "sources" / f"{subset.name}.jsonl").read_text().splitlines()
        groups |= {record["text"]: record["group"] for record in map(json.loads, lines)}
    homes = defaultdict(set)
    copies: Counter[str] = Counter()
    for name, records in shards.items():
        for record in records:
            homes[groups[record["text"]]].add(name.split("/")[0])
            copies[record["meta"]["pile_set_name"]] += name.startswith("train")
    assert all(len(home) == 1 for home in homes.values())
    assert set(copies) == {subset.name for subset in subsets}


def test_finished_sources_are_kept_and_other_folders_refused(tmp_path: Path) -> None:
    source, folder = library(tmp_path / "library"), tmp_path / "sources"
    assert write_demo_sources(folder, arithmetic_bytes=50_000, library=source)
    before = tree(folder)
    assert not write_demo_sources(folder, arithmetic_bytes=50_000, library=source)
    with pytest.raises(PilekitError, match=r"sources: was made with other settings: seed is 0 there, 1 here; .*--out"):
        write_demo_sources(folder, arithmetic_bytes=50_000, library=source, seed=1)
    assert tree(folder) == before
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_bytes(b"not to be lost")
    with pytest.raises(PilekitError, match=r"photos: is not empty.*--out"):
        write_demo_sources(tmp_path / "photos", library=source)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PilekitError, match=r"no Python files in .*empty"):
        write_demo_sources(tmp_path / "new", library=tmp_path / "empty")


@pytest.mark.slow
def test_this_pythons_corpus_has_10_to_20_megabytes_and_every_subset_in_every_shard(tmp_path: Path) -> None:
    demo_corpus(tmp_path / "corpus")
    shards = records_of(tmp_path / "corpus").values()
    assert 10_000_000 < sum(len(record["text"].encode()) for records in shards for record in records) < 20_000_000
    for records in shards:
        found = Counter(record["meta"]["pile_set_name"] for record in records)
        assert set(found) == {"Github", "Docstrings", "Python Reference", "DM Mathematics"}
