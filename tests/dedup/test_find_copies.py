"""`find_copies` finds each pair that comparing every pair finds, with the same similarity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pilekit import Corpus
from pilekit.dedup.find_copies import find_copies
from pilekit.shards.corpus_job import CorpusJob
from tests.dedup import reference
from tests.dedup.checking import write_corpus
from tests.dedup.planted import planted
from tests.kills import left_at_each_renaming
from tests.memory_limit import NO_HOLES
from tests.refusing import refused
from tests.shards import making

Found = list[tuple[str, int, tuple[str, int], float, str]]

NAMES = ("00.jsonl", "01.jsonl")


def expected(originals: list[str], texts: list[list[str]], threshold: float) -> tuple[Found, int]:
    """The copies, by comparing each pair, in their order; and how many given documents have one."""
    found = []
    for number, original in enumerate(originals):
        if originals.index(original) == number:
            for place, shard in enumerate(texts):
                for document, text in enumerate(shard):
                    similarity = reference.jaccard(reference.shingles(original), reference.shingles(text))
                    if similarity >= threshold:
                        found.append((number, -similarity, place, document, "exact" if text == original else "near"))
    copied = {originals[number] for number, *_ in found}
    rows = [
        (NAMES[place], document, ("given.jsonl", number), -s, reason)
        for number, s, place, document, reason in sorted(found)
    ]
    return rows, sum(original in copied for original in originals)


def assert_found(folder: Path, originals: list[str], texts: list[list[str]], threshold: float, jobs: int = 1) -> None:
    corpus = write_corpus(
        folder / "data",
        {name[:2]: [making.record(text) for text in shard] for name, shard in zip(NAMES, texts, strict=True)},
    )
    given = write_corpus(folder / "given", {"given": [making.record(text) for text in originals]})
    search = find_copies(Corpus(given), CorpusJob.of_steps(Corpus(corpus), jobs=jobs), threshold)
    rows, copied = expected(originals, texts, threshold)
    assert [tuple(copy) for copy in search] == rows
    assert {(shard, number) for shard, numbers in search.numbers().items() for number in numbers} == {
        (shard, number) for shard, number, *_ in rows
    }
    assert (search.originals, search.copied) == (len(originals), copied)
    assert search.documents == sum(map(len, texts))
    assert search.skipped.count == 0


WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=24).map(" ".join)
TEXTS = st.one_of(WORDS, WORDS.map(str.upper), st.sampled_from(["", " ", "!?", "a b c d " * 9, "b a, " * 20]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(TEXTS, min_size=1, max_size=6),
    st.tuples(st.lists(TEXTS, min_size=1, max_size=8), st.lists(TEXTS, min_size=1, max_size=8)),
    st.sampled_from([0.1, 0.5, 0.8, 1.0]),
)
@example(["", ""], (["", "a"], ["!"]), 0.8)
def test_all_pairs_of_short_texts(
    tmp_path_factory: pytest.TempPathFactory, originals: list[str], texts: tuple[list[str], list[str]], threshold: float
) -> None:
    assert_found(tmp_path_factory.mktemp("copies"), originals, list(texts), threshold)


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_pairs_of_edited_documents_on_any_number_of_processes(tmp_path: Path, jobs: int) -> None:
    """Their similarities spread over 0.5 to 0.99; many are near the threshold, and of none is the fate a chance."""
    documents = planted(200, seed=7, alone=20, words=(20, 120))
    originals = [documents.texts[pair.original] for pair in documents.pairs]
    copies = [documents.texts[pair.copy] for pair in documents.pairs]
    assert_found(tmp_path, [*originals, originals[3]], [copies[:120], [*copies[120:], originals[3]]], 0.8, jobs)


def test_nothing_given_is_an_error_and_bad_lines_are_counted(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "data", {"00": [making.record("some text")]})
    (tmp_path / "none.jsonl").write_text("\n")
    refused("holds no document", find_copies, Corpus(tmp_path / "none.jsonl"), CorpusJob.of_steps(Corpus(corpus)))
    (tmp_path / "bad.jsonl").write_text('{"text": "Some text."}\nbad\n')
    job = CorpusJob.of_steps(Corpus(corpus), on_error="skip")
    search = find_copies(Corpus(tmp_path / "bad.jsonl"), job)
    assert [copy.reason for copy in search] == ["near"]
    assert search.skipped.count == 1


def searched(given: Path, corpus: Path, **work: Any) -> Found:
    return [tuple(copy) for copy in find_copies(Corpus(given), CorpusJob.of_steps(Corpus(corpus), jobs=1, **work))]


def test_a_killed_search_resumes_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = planted(40, seed=3, alone=5, words=(20, 60))
    texts = [documents.texts[pair.copy] for pair in documents.pairs]
    corpus = write_corpus(tmp_path / "data", {f"{n:02}": [*map(making.record, texts[n::3])] for n in range(3)})
    originals = [making.record(documents.texts[pair.original]) for pair in documents.pairs]
    given = write_corpus(tmp_path / "given", {"a": originals[:20], "b": originals[20:]})

    def search(out: Path) -> None:
        monkeypatch.setenv("PILEKIT_CACHE", str(out / "cache"))
        (out / "found.json").write_text(json.dumps(searched(given, corpus)))

    def in_folder(out: Path) -> None:
        out.mkdir(exist_ok=True)
        search(out)

    (tmp_path / "kills").mkdir()
    moments, left = left_at_each_renaming(tmp_path / "kills", in_folder)
    assert moments > 12
    assert any(name.endswith("/pairs/01.jsonl.pairs") for name in left)
    assert len(json.loads((tmp_path / "kills/whole/found.json").read_text())) > 10
    assert {path.name for path in (tmp_path / "kills/whole").rglob("*") if path.is_file()} == {"found.json"}


def test_a_cache_folder_that_cannot_be_made_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "data", {"00": [making.record("some text")]})
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "file"))
    refused("copies: cannot be made: Not a directory; set .PILEKIT_CACHE to a folder", searched, corpus, corpus)


def test_a_search_that_failed_resumes_with_documents_that_have_changed_since(tmp_path: Path) -> None:
    text, other = " ".join(map(str, range(30))), " ".join(map(str, range(50, 90)))
    corpus = write_corpus(tmp_path / "data", {"00": [making.record(text), making.record(other)]})
    (tmp_path / "data/01.jsonl").write_text("bad\n")
    given = tmp_path / "given.jsonl"
    given.write_bytes(making.record(text))
    refused("01.jsonl, line 1", searched, given, corpus)
    given.write_bytes(making.record(f"{other} !"))
    assert searched(given, corpus, on_error="skip") == [("00.jsonl", 1, ("given.jsonl", 0), 1.0, "near")]


SEARCH = """
import sys
from pathlib import Path
from tests.dedup.test_find_copies import Corpus, CorpusJob, find_copies
from tests.memory_limit import limit_memory

def search(given):
    return find_copies(Corpus(given), CorpusJob.of_steps(Corpus(folder / "data"), jobs=1))

folder = Path(sys.argv[1])
search(folder / "few.jsonl")
limit_memory(int(sys.argv[2]))
found = search(folder / "given.jsonl")
print(len(found.pairs), found.copied, next(iter(found)).original[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_documents_that_share_hashes(tmp_path: Path) -> None:
    """3,000 given documents share hashes with each of 2,000 others; 900 and 900 have a long text in common too."""
    shared, more = (" ".join(f"{name}{number}" for number in range(40)) for name in ("licence", "more"))

    def texts(name: str, count: int) -> list[bytes]:
        own = (" ".join(f"{name}{number}x{place}" for place in range(10)) for number in range(count))
        return [
            making.record(f"{shared} {more} {name}{number}" if number < 900 else f"{shared} {words}")
            for number, words in enumerate(own)
        ]

    lines, others = texts("given", 3000), texts("other", 2000)
    write_corpus(tmp_path / "data", {"00": others})
    (tmp_path / "given.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "few.jsonl").write_bytes(b"\n".join(lines[:3]))
    command = [sys.executable, "-c", SEARCH, str(tmp_path), str(150_000_000)]
    done = subprocess.run(command, check=False, env=os.environ | NO_HOLES, capture_output=True, text=True)
    assert done.stdout.split() == [str(900 * 900), "900", "0"], done.stderr[-2000:]
