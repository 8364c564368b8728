"""Which evaluation documents are also in the training shards, word for word: a model may have memorised them.

Documents are compared by the hash of their text (xxh3_64 of its UTF-8), which every record and every index has. So
indexed training text is not read again: its hashes are read in blocks, and only the evaluation documents' hashes are
held, however large the training shards are. Two different texts share a hash with probability 2^-64.

Only whole documents are found: no edited copies, and no passages within other documents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pilekit.corpus import Corpus
from pilekit.display.table_result import Result
from pilekit.evaluate.results.records import Records
from pilekit.shards.index.build import index_corpus
from pilekit.shards.read.reader import OnError


@dataclass(frozen=True, slots=True)
class TrainingCopies(Result):
    """How many evaluation documents have a text that occurs in the training shards.

    overall   the number in all subsets
    subsets   the number in each subset that was evaluated, also if it is 0
    shards    names of the training shards
    """

    overall: int
    subsets: dict[str, int]
    shards: tuple[str, ...]


def count_training_copies(records: Records, train: Corpus, *, on_error: OnError = "raise") -> TrainingCopies:
    """Count the evaluation documents of each subset whose text is in the training shards.

    Missing indexes are built, beside the shards or in the cache folder.

    records    the evaluation documents
    train      the training shards; val and test shards among others are left out
    on_error   for bad lines of a shard that has no index yet
    """
    train = train.without_held_out()
    hashes, place = np.unique(records.text, return_inverse=True)
    copied_texts = np.zeros(len(hashes), dtype=np.bool_)
    for index in index_corpus(train, on_error=on_error, whole=False):
        for rows in index.row_groups(["text_hash"]):
            # The default way overflows on 64-bit hashes with numpy 2.0, and sorts in later versions too.
            copied_texts |= np.isin(hashes, rows["text_hash"].to_numpy(), kind="sort")
    copied = records.subset[copied_texts[place]]
    subsets = {records.subsets[code]: int(np.sum(copied == code)) for code in np.unique(records.subset)}
    return TrainingCopies(len(copied), subsets, tuple(shard.name for shard in train.shards))
