"""Find the n-grams of evaluations in documents, and the answers of records near them, shard by shard.

Common n-grams are known only after all shards have been read. So the hits of each shard are written to a file, which
`verdicts.py` reads twice: to count documents, and to join the hits that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import Shard
from pilekit.cutting.answers import Answers
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.shards import CutScope, stored_rows
from pilekit.cutting.words import Int64, characters_before
from pilekit.shards.corpus_job import Share
from pilekit.workers import Advance

NUMBER, SUBSET, WORD, START, END, NGRAM, FIRST = range(7)
"""Columns of the hits of a shard, int64. SUBSET: an index of the shard's labels; FIRST: 1 for the first hit of this
n-gram in the document. The row of an answer follows the document's hits: NGRAM is -1, and WORD is the record."""


def find_hits(
    shard: Shard,
    advance: Advance,
    *,
    path: Path,
    ngram_folder: Path,
    answer_folder: Path | None,
    reach: int,
    limit: int,
    scope: CutScope,
    share: Share,
) -> tuple[dict[str, Any], list[Path]]:
    """Write the hits of a shard to the file at `path`.

    ngram_folder    has the `NGrams`
    answer_folder   has the `Answers`; None: no record has any
    limit           n-grams in more documents of the corpus are ignored; 0: ignore none
    """
    ngrams, counts, labels = NGrams.load(ngram_folder), dict[str, Any](), dict[str, int]()
    answers = None if answer_folder is None else Answers.load(answer_folder)
    documents_of = np.zeros(len(ngrams.keys), np.uint32)
    with write_atomically(path) as file:
        for read_batch in scope.batches(shard, advance, counts, ahead=share.ahead):
            batch = scope.compared(read_batch)
            documents, word, begin, end, ngram = (hits := ngrams.find(batch)).T
            if not len(hits):
                continue
            data, offsets = batch.utf8()
            places, inverse = np.unique(np.concatenate([offsets[documents], begin, end]), return_inverse=True)
            origin, start, stop = characters_before(data, places)[inverse].reshape(3, -1)
            first = np.zeros(len(hits), np.int64)
            # The product numbers the pairs of a document and an n-gram.
            first[np.unique(documents * len(ngrams.keys) + ngram, return_index=True)[1]] = 1
            subsets = [labels.setdefault(batch.subsets[document], len(labels)) for document in documents.tolist()]
            columns = (batch.numbers[documents], subsets, word, start - origin, stop - origin, ngram, first)
            rows = np.stack(columns, axis=1)
            if answers is not None:
                # Phrases of a few words are mostly common, and what stands beside them is of no use.
                np.add.at(documents_of, ngram[first == 1], 1)
                may_count = (documents_of[ngram] <= limit) | (limit == 0)
                sizes = ngrams.words[ngram].astype(np.int64)
                asked = np.stack([rows[:, WORD], sizes, rows[:, START], rows[:, END], ngram], axis=1)
                subset_of = np.zeros(len(batch), np.int64)
                subset_of[documents] = subsets
                document, record, start, end = answers.near(batch.texts, documents, asked, may_count, reach).T
                no_ngram, none = np.full(len(document), -1), np.zeros(len(document), np.int64)
                columns = (batch.numbers[document], subset_of[document], record, start, end, no_ngram, none)
                rows = np.concatenate([rows, np.stack(columns, axis=1)])
                rows = rows[np.argsort(rows[:, NUMBER], kind="stable")]
            file.write(rows.data)
    return {**counts, "labels": list(labels)}, [path]


def stored_hits(path: Path) -> Iterator[Int64]:
    """The rows of a shard's file, some at a time, int64 [rows, columns]."""
    return (rows.view(np.int64) for rows in stored_rows(path, FIRST + 1))
