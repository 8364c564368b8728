from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.corpus import Manifest, load_manifest
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.evaluate.results.group0 import Group0, load_group0

PILE = load_manifest()
SHORT_NAMES = {
    "Github": "github",
    "ArXiv": "arxiv",
    "Wikipedia (en)": "wikipedia",
    "OpenSubtitles": "opensubtitles",
    "OpenWebText2": "openwebtext2",
    "Gutenberg (PG-19)": "gutenberg",
    "DM Mathematics": "dm-mathematics",
    "Enron Emails": "enron",
    "Books3": "bibliotik",
    "PubMed Abstracts": "pubmed-abstracts",
    "YoutubeSubtitles": "youtubesubtitles",
    "HackerNews": "hackernews",
    "Pile-CC": "commoncrawl",
    "EuroParl": "europarl",
    "USPTO Backgrounds": "uspto",
    "FreeLaw": "freelaw",
    "NIH ExPorter": "nih-exporter",
    "StackExchange": "stackexchange",
    "PubMed Central": "pubmed-central",
}
"""The folders of EleutherAI/lm_perplexity's lists."""
WHOLE = {"Ubuntu IRC", "BookCorpus2", "PhilPapers"}


def batches(labels: list[str], size: int = 3, shard: str = "test.jsonl") -> list[DocumentBatch]:
    return [
        DocumentBatch(
            [f"text {number}" for number in range(begin, min(begin + size, len(labels)))],
            labels[begin : begin + size],
            shard,
            np.arange(begin, min(begin + size, len(labels)), dtype=np.int64),
        )
        for begin in range(0, len(labels), size)
    ]


def kept(lists: Group0, labels: list[str], size: int = 3) -> list[int]:
    return [number for batch in batches(labels, size) for number in lists.of(batch).numbers.tolist()]


def folder(root: Path, lists: dict[str, Any]) -> Path:
    for name, numbers in lists.items():
        (root / name).mkdir(parents=True)
        (root / name / "group0.json").write_text(json.dumps(numbers, indent=2), encoding="utf-8")
    return root


def test_the_folders_of_the_papers_scorer_are_known_by_their_names(tmp_path: Path) -> None:
    lists = load_group0(folder(tmp_path, {short: [1, 3] for short in SHORT_NAMES.values()}), PILE)
    assert set(lists.lists) == set(SHORT_NAMES)
    assert lists.whole == WHOLE
    assert set(SHORT_NAMES) | WHOLE == {subset.name for subset in PILE.subsets}


def test_numbers_count_the_documents_of_their_subset(tmp_path: Path) -> None:
    labels = ["ArXiv", "Github", "ArXiv", "PhilPapers", "Github", "ArXiv", "Mine", "ArXiv", "Books3"]
    (tmp_path / "lists.json").write_text('{"arxiv": [0, 2], "GitHub": [1]}')
    lists = load_group0(tmp_path / "lists.json", PILE)
    assert kept(lists, labels) == [0, 3, 4, 5]


def test_other_files_in_the_folder_are_passed_over(tmp_path: Path) -> None:
    folder(tmp_path, {"arxiv": [0]})
    (tmp_path / "arxiv" / "group1.json").write_text("no JSON")
    (tmp_path / "README.md").write_text("lists")
    assert load_group0(tmp_path, PILE).lists == {"ArXiv": frozenset([0])}


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from(sorted(SHORT_NAMES)), st.frozensets(st.integers(0, 12)), min_size=1),
    st.lists(st.sampled_from([*sorted(SHORT_NAMES), "PhilPapers", "Mine"]), max_size=60),
    st.integers(1, 9),
)
def test_what_is_kept_is_what_is_listed(lists: dict[str, frozenset[int]], labels: list[str], size: int) -> None:
    """As the paper's scorer does it: a counter for each subset, over all documents."""
    counter: dict[str, int] = {}
    expected = []
    for number, label in enumerate(labels):
        place = counter.get(label, 0)
        counter[label] = place + 1
        if label == "PhilPapers" or place in lists.get(label, ()):
            expected.append(number)
    found = Group0(lists, frozenset(WHOLE))
    assert kept(found, labels, size) == expected
    left = {name: len([n for n in numbers if n >= counter.get(name, 0)]) for name, numbers in lists.items()}
    assert found.unmet() == {name: count for name, count in left.items() if count}


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(sorted(SHORT_NAMES)), st.lists(st.integers(0, 10**6), unique=True, max_size=30), min_size=1
    ),
    st.randoms(use_true_random=False),
)
def test_both_forms_are_the_same_lists(
    tmp_path_factory: pytest.TempPathFactory, lists: dict[str, list[int]], order: random.Random
) -> None:
    root = tmp_path_factory.mktemp("lists")
    as_folder = load_group0(folder(root / "a", {SHORT_NAMES[name]: numbers for name, numbers in lists.items()}), PILE)
    shuffled = [(name, order.sample(numbers, len(numbers))) for name, numbers in lists.items()]
    order.shuffle(shuffled)
    (root / "b.json").write_text(json.dumps(dict(shuffled)))
    as_file = load_group0(root / "b.json", PILE)
    assert as_folder.lists == as_file.lists == {name: frozenset(numbers) for name, numbers in lists.items()}
    assert as_folder.fingerprint == as_file.fingerprint
    some = next(iter(lists))
    changed = Group0({**as_file.lists, some: as_file.lists[some] ^ {10**7}}, as_file.whole)
    assert changed.fingerprint != as_file.fingerprint


def test_a_manifest_without_tenths_has_only_what_is_listed(tmp_path: Path) -> None:
    (tmp_path / "lists.json").write_text('{"A": [0]}')
    lists = load_group0(tmp_path / "lists.json", Manifest(name="own"))
    assert (lists.lists, lists.whole) == ({"A": frozenset([0])}, frozenset())


@pytest.mark.parametrize("shard", ["val.jsonl", "train/00.jsonl"])
def test_the_numbers_are_of_test(shard: str) -> None:
    with pytest.raises(PilekitError, match=r"is a (val|train) shard, and group0 numbers the documents of test"):
        Group0({"ArXiv": frozenset([0])}, frozenset()).of(batches(["ArXiv"], shard=shard)[0])


MALFORMED = {
    "": "is not JSON",
    "{": "is not JSON",
    "\ufeff{": "is not JSON",
    "[" * 100_000: "is not JSON",
    "9" * 10_000: "is not JSON",
    "[1, 2]": "holds a list, not an object",
    '"text"': "holds a string, not an object",
    "null": "holds null, not an object",
    "1": "holds a number, not an object",
    "true": "holds a truth value, not an object",
    "{}": "lists no subset",
    '{"ArXiw": [1]}': r'unknown subset "ArXiw" .* did you mean ArXiv\?',
    '{"ArXiv\\u001b[31m": [1]}': r"\\x1b\[31m",
    '{"ArXiv": [1], "arxiv": [2]}': "has ArXiv twice",
    '{"ArXiv": [1], "ArXiv": [2]}': "has ArXiv twice",
    '{"ArXiv": 1}': "ArXiv: holds a number, not a list",
    '{"ArXiv": {"0": 1}}': "ArXiv: holds an object, not a list",
    '{"ArXiv": null}': "ArXiv: holds null, not a list",
    '{"ArXiv": [0, -1]}': "ArXiv: entry 1 is -1, not a document number",
    '{"ArXiv": [0, 1.0]}': "entry 1 is 1.0, not",
    '{"ArXiv": [NaN]}': "entry 0 is nan, not",
    '{"ArXiv": [true]}': "entry 0 is True, not",
    '{"ArXiv": ["1"]}': "entry 0 is '1', not",
    '{"ArXiv": [[1]]}': "entry 0 is a list, not",
    '{"ArXiv": [1, 2, 1]}': "lists document 1 twice",
    '{"ArXiv": [99999999999999999999]}': "entry 0 is 9999",
}


@pytest.mark.parametrize(("text", "message"), list(MALFORMED.items()), ids=lambda value: repr(value[:30]))
def test_each_malformed_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lists.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PilekitError, match=message) as told:
        load_group0(path, PILE)
    line = str(told.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 700


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=40) | st.text('{}[]":,0123ArXivn ', max_size=40).map(str.encode))
def test_any_bytes_are_lists_or_one_clear_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "lists.json"
    path.write_bytes(content)
    try:
        load_group0(path, PILE)
    except PilekitError as error:
        assert "\n" not in str(error)


def test_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match="no such file or folder"):
        load_group0(tmp_path / "absent", PILE)
    with pytest.raises(PilekitError, match=r"has no <subset>/group0.json; give the folder assets/test_subsample"):
        load_group0(tmp_path, PILE)
    folder(tmp_path, {"arxiv": [1], "ArXiv_": [2]})
    with pytest.raises(PilekitError, match="is a second list of ArXiv"):
        load_group0(tmp_path, PILE)
    with pytest.raises(PilekitError, match=r"pilexiv/group0.json: unknown subset"):
        load_group0(folder(tmp_path / "x", {"pilexiv": [1]}), PILE)
    with pytest.raises(PilekitError, match=r"arxiv/group0.json: holds an object, not a list"):
        load_group0(folder(tmp_path / "y", {"arxiv": {"ArXiv": [1]}}), PILE)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "lists.json"
    with path.open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(PilekitError, match="larger than 64 MiB"):
        load_group0(path, PILE)
