"""A number for each document, by which the tables of a dedup and of a run are compared with all scored documents.

It is made of the content of the shard (shards/fingerprint.py) and the line number. So a shard is the same whatever it
is called: `00.jsonl` of `data/train` is `train/00.jsonl` of `data`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

import numpy as np
import pyarrow as pa

from pilekit.corpus import Shard
from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError, shortened
from pilekit.evaluate.results.records import Records
from pilekit.shards.fingerprint import fingerprint

Contents = Mapping[str, tuple[int, str]]
"""Size and sample of shards, by name."""

UNKNOWN = -1
"""The key of a document of any other shard."""

_NUMBER_BITS = 40


def contents_of(shards: Iterable[Shard]) -> Contents:
    """The contents of shards. PilekitError if one cannot be read."""
    return {shard.name: astuple(fingerprint(shard.path)) for shard in shards}


def common_shards(scored: Contents, read: Contents, reader: str, remedy: str) -> list[str]:
    """The names of the scored shards that `reader` has read, whatever it calls them.

    PilekitError if there is none, or if it has read another shard of the same name; it ends with the `remedy`.
    """
    known = set(read.values())
    for name, content in scored.items():
        if content not in known and name in read:
            raise PilekitError(f"{reader} has read another {shortened(name, 100)} than is scored; {remedy}")
    names = [name for name, content in scored.items() if content in known]
    if not names:
        shown = shortened(", ".join(read), 200)
        raise PilekitError(f"{reader} has read none of the scored shards, but {shown}; {remedy}")
    return names


@dataclass(frozen=True)
class ShardKeys:
    """Makes the keys of documents. `codes` has a number for each content."""

    codes: Mapping[tuple[int, str], int]

    @classmethod
    def of(cls, *shards: Contents) -> ShardKeys:
        """Those of documents of all these shards."""
        contents = dict.fromkeys(content for some in shards for content in some.values())
        return cls({content: code for code, content in enumerate(contents)})

    def scored(self, records: Records, contents: Contents) -> Int64:
        """The key of each scored document, int64 [documents]."""
        return self._keys(
            [self.codes[contents[name]] for name in records.shards], records.shard.astype(np.int64), records.number
        )

    def listed(self, shards: pa.Array, numbers: pa.Array, contents: Contents) -> Int64:
        """The key of each row of a table, int64 [rows], by its columns of shards' names and of numbers."""
        names = shards if isinstance(shards, pa.DictionaryArray) else shards.dictionary_encode()
        known = [self.codes[contents[name]] if name in contents else UNKNOWN for name in names.dictionary.to_pylist()]
        return self._keys(known, np.asarray(names.indices), numbers.to_numpy())

    def _keys(self, codes: list[int], places: Int64, numbers: Int64) -> Int64:
        of_rows = np.array(codes, np.int64)[places]
        keys: Int64 = np.where(of_rows == UNKNOWN, UNKNOWN, (of_rows << _NUMBER_BITS) | numbers)
        return keys


def places_in(ordered: Int64, keys: Int64) -> Int64:
    """The place of each key in `ordered`, which increase and are not empty; -1 for a key that is not there."""
    places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    found: Int64 = np.where(ordered[places] == keys, places, -1)
    return found
