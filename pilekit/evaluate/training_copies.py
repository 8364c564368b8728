"""Which evaluation documents the training shards hold too, word for word: what a model may have learnt by heart.

A document's text is its hash (xxh3_64 of its UTF-8), which every record has and every index of a shard. So the training
text is not read again where it is indexed: its hashes go by, 100,000 at a time, and only those of the evaluation
documents are held, however long the training shards are. Two different texts share a hash with probability 2^-64.

It finds whole documents only: an edited copy, or a passage within another document, is not found.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from pilekit.corpus import Corpus
from pilekit.engine import Advance
from pilekit.errors import visible
from pilekit.evaluate.results.records import Records
from pilekit.shards.index.build import index_corpus
from pilekit.shards.read.reader import OnError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingCopies:
    """How many of the evaluation documents have a text that occurs in the training shards.

    overall   of all
    subsets   by name, for all subsets that were evaluated, 0 among them
    shards    names of the training shards
    """

    overall: int
    subsets: dict[str, int]
    shards: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """`{"overall": 3, "subsets": {name: 3}, "shards": [names]}`."""
        return {"overall": self.overall, "subsets": self.subsets, "shards": list(self.shards)}


def count_training_copies(
    records: Records, train: Corpus, *, on_error: OnError = "raise", advance: Advance | None = None
) -> TrainingCopies:
    """Count the evaluation documents of each subset whose text hash occurs in the indexes of the shards of `train`.

    Indexes that are missing are built, beside the shards or in the cache folder. A warning tells if there are copies.

    records    the evaluation documents
    train      the training shards; its val and test shards are left out, if it has others
    on_error   at a bad line of a shard that has no index yet
    advance    called with each further amount of stored bytes dealt with

    PilekitError for whatever is wrong with the training shards.
    """
    train = train.without_held_out()
    held, position = np.unique(records.text, return_inverse=True)
    found = np.zeros(len(held), dtype=np.bool_)
    for index in index_corpus(train, on_error=on_error, advance=advance, whole=False):
        for rows in index.row_groups(["text_hash"]):
            hashes = rows["text_hash"].to_numpy()
            if len(held):
                at = np.minimum(np.searchsorted(held, hashes), len(held) - 1)
                found[at[held[at] == hashes]] = True
    copies = found[position]
    of_subset = np.bincount(records.subset[copies], minlength=len(records.subsets)).tolist()
    documents = np.bincount(records.subset, minlength=len(records.subsets)).tolist()
    subsets = {name: copied for name, copied, there in zip(records.subsets, of_subset, documents, strict=True) if there}
    total = int(np.count_nonzero(copies))
    if total:
        most = max(subsets, key=lambda name: subsets[name])
        logger.warning(
            "%s of %s evaluation documents occur word for word in the training shards (most in %s: %s); their figures "
            "show what was learnt by heart",
            f"{total:,}",
            f"{len(records):,}",
            visible(most, 80),
            f"{subsets[most]:,}",
        )
    return TrainingCopies(total, subsets, tuple(shard.name for shard in train.shards))
