"""Edited copies of documents, as on the web, for near-duplicate removal to find.

A repost is a document with a note before it, with its end cut off, or with some words changed. A reader sees the same
text, but its hash differs. A hash of the text decides which documents are reposted, and how. A repost has its
document's group, so both are on the same side of a split.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import xxhash

from pilekit.assemble.demo.python_text import SourceDocument

LEAST_WORDS = 300
"""An edit would change too much of a shorter document."""


def _with_note(text: str) -> str:
    return f"# Mirrored from another archive; see the original for its licence and its authors.\n\n{text}"


def _cut_off(text: str) -> str:
    return text[: len(text) * 19 // 20]


def _with_other_words(text: str) -> str:
    """Replace every hundredth word."""
    words = re.split(r"(\W+)", text)
    for place in range(200, len(words), 200):  # words and separators take turns
        words[place] = "changed"
    return "".join(words)


EDITS = (_with_note, _cut_off, _with_other_words)


def reposts(documents: Iterable[SourceDocument], one_in: int) -> Iterator[SourceDocument]:
    """An edited copy of one in `one_in` of the documents with `LEAST_WORDS` words or more."""
    for document in documents:
        place = xxhash.xxh3_64_intdigest(document.text.encode())
        if place % one_in == 0 and len(document.text.split()) >= LEAST_WORDS:
            edit = EDITS[place // one_in % len(EDITS)]
            yield replace(document, text=edit(document.text))
