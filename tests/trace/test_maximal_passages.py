"""The passages that are found are those of the slow reference, whatever repeats in texts and documents."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import compacted
from pilekit.documents import DocumentBatch
from pilekit.trace.maximal_passages import ShardPassages, joined
from pilekit.trace.run_automaton import RunAutomaton
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
    for name, documents in enumerate(shards):
        passages = ShardPassages(ngrams, automaton, most, common)
        for at in range(0, len(documents), 2):
            batch = documents[at : at + 2]
            passages.add(
                DocumentBatch(batch, ["A"] * len(batch), str(name), np.arange(before + at, before + at + len(batch)))
            )
        results.append((str(name), passages.result(ngrams.first)))
        before += len(documents)
    traced: list[list[Passage]] = [[] for _ in texts]
    everything = [document for documents in shards for document in documents]
    for passage in joined(automaton, ngrams.first, least, results, most, common):
        text = long_enough[passage.text]
        words = words_of(texts[text])[passage.begin : passage.end]
        for _, place in passage.places:
            assert words_of(place.text) == words
            assert everything[place.number][place.start : place.end] == place.text
        numbers = [place.number for _, place in passage.places]
        if passage.documents > common > 0:
            assert numbers == []
            numbers = [-passage.documents]
        else:
            assert len(numbers) == min(most, passage.documents)
        traced[text].append(Passage(passage.begin, passage.end, numbers))
    return traced


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.integers(1, 5), st.sampled_from([0, 0, 1, 2, 4]))
@settings(max_examples=300, deadline=None)
def test_passages_are_those_of_the_reference(
    texts: list[str], shards: list[list[str]], least: int, common: int
) -> None:
    if not any(len(words_of(text)) >= least for text in texts):
        return
    documents = [document for shard in shards for document in shard]
    expected = [copied_passages(text, documents, least) for text in texts]
    assert found(texts, shards, least, common) == [
        [
            passage._replace(documents=[-len(passage.documents)]) if len(passage.documents) > common > 0 else passage
            for passage in passages
        ]
        for passages in expected
    ]
