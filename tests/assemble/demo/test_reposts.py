from __future__ import annotations

from pilekit.assemble.demo.python_text import SourceDocument
from pilekit.assemble.demo.reposts import EDITS, LEAST_WORDS, reposts
from tests.dedup import reference

DOCUMENTS = [
    SourceDocument(" ".join(f"word{number * place % 4093}" for place in range(600)), "Github", f"group {number}")
    for number in range(1, 200)
]


def test_a_repost_is_another_text_but_a_near_duplicate_of_the_same_group() -> None:
    by_group = {document.group: document for document in DOCUMENTS}
    found = list(reposts(DOCUMENTS, 1))
    assert len(found) == len(DOCUMENTS)
    for repost in found:
        original = by_group[repost.group]
        assert repost.text != original.text
        assert repost.subset == original.subset
        shingles = [reference.shingles(text, 5) for text in (original.text, repost.text)]
        assert 0.85 <= reference.jaccard(*shingles) < 1
    some = list(reposts(DOCUMENTS, 5))
    assert 20 <= len(some) <= 60
    for edit in EDITS:
        assert {edit(document.text) for document in DOCUMENTS} & {document.text for document in some}
    short = [SourceDocument(" ".join(["word"] * (LEAST_WORDS - 1)), "Github", "group")]
    assert list(reposts(short, 1)) == []
