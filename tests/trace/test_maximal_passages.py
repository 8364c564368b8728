"""The passages that are found are those of the slow reference, whatever repeats in texts and documents."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import compacted
from pilekit.documents import DocumentBatch
from pilekit.trace import maximal_passages
from pilekit.trace.maximal_passages import MaximalPassages
from pilekit.trace.run_automaton import RunAutomaton
from pilekit.trace.shard_passages import ShardPassages
from tests.trace.copied_passages import Passage, copied_passages, words_of

FEW_WORDS = st.lists(st.sampled_from("ab"), max_size=24).map(" ".join)
MORE_WORDS = st.lists(st.sampled_from("abcd"), max_size=30).map(" ".join)
PERIODIC = st.builds(
    lambda part, times, end: " ".join([*part * times, *end]),
    *(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
        st.integers(1, 9),
        st.lists(st.sampled_from("abc"), max_size=3),
    ),
)
TEXTS = st.lists(st.one_of(FEW_WORDS, MORE_WORDS, PERIODIC), min_size=1, max_size=5)


def found(texts: list[str], shards: list[list[str]], least: int, common: int, most: int = 100) -> list[list[Passage]]:
    """The passages of each text; documents are numbered through all shards. Each batch has two documents.

    Of a common passage no document is listed: the list holds the number of documents, as a negative number.
    """
    long_enough = [i for i, text in enumerate(texts) if len(words_of(text)) >= least]
    ngrams = NGrams.build((compacted(texts[i]) for i in long_enough), least)
    automaton = RunAutomaton.build(ngrams.numbers, ngrams.first, len(ngrams.keys))
    results, before = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, documents in enumerate(shards):
            passages = ShardPassages(ngrams, automaton, most, common, Path(folder))
            for at in range(0, len(documents), 2):
                batch = documents[at : at + 2]
                numbers = np.arange(before + at, before + at + len(batch))
                passages.add(DocumentBatch(batch, ["A"] * len(batch), str(name), numbers))
            passages.write(ngrams.first, Path(folder, f"{name}.npy"))
            results.append((str(name), Path(folder, f"{name}.npy")))
            before += len(documents)
        traced: list[list[Passage]] = [[] for _ in texts]
        everything = [document for documents in shards for document in documents]
        added = MaximalPassages(automaton, ngrams.first, least, results, most, common)
        for text, of_text in zip(long_enough, added.by_text(len(long_enough)), strict=True):
            covered = set[int]()
            for passage in of_text:
                words = words_of(texts[text])[passage.begin : passage.end]
                assert passage.new == len({*range(passage.begin, passage.end)} - covered)
                covered |= {*range(passage.begin, passage.end)}
                for _, place in passage.places:
                    assert words_of(place.text) == words
                    assert everything[place.number][place.start : place.end] == place.text
                listed = [place.number for _, place in passage.places]
                if passage.documents > common > 0:
                    assert listed == []
                    listed = [-passage.documents]
                else:
                    assert len(listed) == min(most, passage.documents)
                traced[text].append(Passage(passage.begin, passage.end, listed))
    return traced


@given(
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=3),
    *(st.integers(1, 5), st.sampled_from([0, 0, 1, 2, 4]), st.sampled_from([1, 300, 1 << 15])),
)
@settings(max_examples=300, deadline=None)
def test_passages_are_those_of_the_reference(
    texts: list[str], shards: list[list[str]], least: int, common: int, at_a_time: int
) -> None:
    if not any(len(words_of(text)) >= least for text in texts):
        return
    documents = [document for shard in shards for document in shard]
    expected = [copied_passages(text, documents, least) for text in texts]
    with pytest.MonkeyPatch.context() as patch:  # places in memory: of a passage, of some, of all
        patch.setattr(maximal_passages, "_PLACES_AT_A_TIME", at_a_time)
        passages = found(texts, shards, least, common)
    assert passages == [
        [
            passage._replace(documents=[-len(passage.documents)]) if len(passage.documents) > common > 0 else passage
            for passage in passages
        ]
        for passages in expected
    ]
