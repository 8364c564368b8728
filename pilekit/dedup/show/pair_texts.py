"""The texts of removed documents and of the kept ones that they resemble, read again from the shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from pilekit.corpus import Manifest, load_manifest
from pilekit.dedup.previous_runs import EarlierRun, runs_before
from pilekit.dedup.show.removed_pairs import RemovedPair
from pilekit.dedup.sketch.shingles import jaccard, shingle_set
from pilekit.progress import Report
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import DocumentReader

MOST_HELD = 100_000_000
"""Characters of all texts in memory. Each text gets the same share, so that each shard is read once."""

_Key = tuple[int, str, int]
"""A document: the run's place, 0 for the given one, the shard's name, and the number."""


def pair_texts(
    pairs: Sequence[RemovedPair], run: EarlierRun, advance: Report = lambda *_: None
) -> list[tuple[str, str]]:
    """(kept, removed) texts of each pair; long texts are cut to their beginning."""
    runs = [run, *(runs_before(run) if any(pair.kept_corpus == "against" for pair in pairs) else [])]
    keys = [[(0, pair.shard, pair.number), *_keepers(runs, pair)] for pair in pairs]
    wanted = sorted({key for some in keys for key in some})
    shards = {(place, shard.name): shard for place, one in enumerate(runs) for shard in one.shards}
    total = sum(shards[key].size or 0 for key in {key[:2] for key in wanted})
    texts: dict[_Key, str] = {}
    for (place, name), some in groupby(wanted, itemgetter(0, 1)):
        manifest, shard = manifest_of(runs[place].parameters), shards[place, name]
        options: dict[str, Any] = {"manifest": manifest, "advance": lambda done: advance("reading", done, total)}
        with closing(DocumentReader(shard, find_index(shard, manifest), **options)) as reader:
            for document in reader.read([number for _, _, number in some]):
                texts[place, name, document.number] = document.text[: MOST_HELD // len(wanted)]
    found = []
    for pair, (removed, *kept) in zip(pairs, keys, strict=True):
        fitting = _most_fitting([texts[key] for key in kept], texts[removed], pair.similarity, run.parameters["ngram"])
        found.append((fitting, texts[removed]))
    return found


def manifest_of(parameters: Mapping[str, Any]) -> Manifest:
    """A manifest with the text and label fields in a run's parameters."""
    record = {name: parameters[name] for name in ("text_field", "label_path")}
    return msgspec.structs.replace(load_manifest(), **record)


def _keepers(runs: list[EarlierRun], pair: RemovedPair) -> list[_Key]:
    """The documents that may be the kept one: several earlier runs may have kept one of this shard and number."""
    key = (pair.kept_shard, pair.kept_number)
    if pair.kept_corpus == "this":
        return [(0, *key)]
    found = []
    for place, run in enumerate(runs[1:], 1):
        for shard, mask in zip(run.shards, run.masks(), strict=True):
            if shard.name == pair.kept_shard and pair.kept_number < mask.header.lines:
                found += [(place, *key)] * int(mask.keeps(np.array([pair.kept_number]))[0])
    return found


def _most_fitting(kept: list[str], removed: str, similarity: float, ngram: int) -> str:
    """The kept text whose similarity to the removed one is `similarity`."""
    if len(kept) == 1:
        return kept[0]
    sets = [shingle_set(np.frombuffer(text.encode(), dtype=np.uint8), ngram) for text in (removed, *kept)]
    return min(zip(kept, sets[1:], strict=True), key=lambda one: abs(jaccard(one[1], sets[0]) - similarity))[0]
