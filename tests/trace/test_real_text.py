"""A hundred thousand pieces of real text, counted in two shards, against a look at each place of every document."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from pilekit import count_phrases, read
from tests.trace import reference
from tests.trace.test_count_phrases import plain

HEAD = 12
Documents = list[tuple[str, bytes]]
"""The subset and the text of each document."""


def documents_of(shards: Iterable[Path]) -> Documents:
    found: Documents = []
    for shard in shards:
        with read(shard) as reader:
            found += [(document.subset, document.text.encode()) for batch in reader for document in batch]
    return found


def pieces(documents: Documents, number: int) -> list[str]:
    """Different pieces of 20 to 60 bytes, less the bytes of a character that is cut; all places are as likely."""
    rng, found = random.Random(number), dict[str, None]()
    texts = [text for _, text in documents if len(text) > 60]
    while len(found) < number:
        for text in rng.choices(texts, list(map(len, texts)), k=number - len(found)):
            begin = rng.randrange(len(text) - 60)
            found[text[begin : begin + rng.randint(20, 60)].decode(errors="ignore")] = None
    return list(found)


def counted_at_each_place(documents: Documents, phrases: Iterable[bytes]) -> dict[bytes, reference.Counts]:
    """Like `reference.counts`, for phrases of at least `HEAD` bytes: of many, only those with the head at a place."""
    with_head, counts = defaultdict[bytes, list[bytes]](list), defaultdict[bytes, reference.Counts](dict)
    for phrase in phrases:
        assert len(phrase) >= HEAD
        with_head[phrase[:HEAD]].append(phrase)
    for subset, text in documents:
        here = Counter[bytes]()
        for at in range(len(text) - HEAD + 1):
            for phrase in with_head.get(text[at : at + HEAD], ()):
                here[phrase] += text.startswith(phrase, at)
        for phrase, number in here.items():
            occurrences, held = counts[phrase].get(subset, (0, 0))
            if number:
                counts[phrase][subset] = occurrences + number, held + 1
    return counts


@pytest.mark.slow
def test_pieces_of_two_shards_are_counted_as_at_each_place(real_corpus: Path) -> None:
    shards = [real_corpus / f"minipile-0{number}.jsonl.zst" for number in (0, 1)]
    documents = documents_of(shards)
    phrases = pieces(documents, 100_000)
    expected = counted_at_each_place(documents, map(str.encode, phrases))
    counts = count_phrases(shards, phrases, jobs=2)
    assert plain(counts) == {phrase: expected[phrase.encode()] for phrase in phrases}
    assert counts.summary["found"] == counts.summary["phrases"] == 100_000
    assert sum(row["occurrences"] for row in counts.to_arrow().to_pylist()) > 150_000


@pytest.mark.slow
def test_pieces_of_words_are_counted_as_at_each_place(real_corpus: Path) -> None:
    shard = real_corpus / "val.jsonl.zst"
    documents = [(subset, reference.words(text.decode())) for subset, text in documents_of([shard])]
    phrases = [phrase for phrase in pieces(documents_of([shard]), 20_000) if len(reference.words(phrase)) > HEAD]
    forms = {phrase: reference.words(phrase) for phrase in phrases}
    expected = counted_at_each_place(documents, set(forms.values()))
    first = {form: phrase for phrase, form in reversed(forms.items())}
    counts = count_phrases(shard, phrases, words=True)
    assert plain(counts) == {phrase: expected[form] for form, phrase in first.items()}
    assert 1000 < counts.summary["found"] < counts.summary["phrases"]
