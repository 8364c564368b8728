"""The texts of removed documents and of the kept ones that they resemble, read again from the shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
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


def pair_texts(
    pairs: Sequence[RemovedPair], run: EarlierRun, advance: Report = lambda *_: None
) -> list[tuple[str, str]]:
    """(kept, removed) texts of each pair; long texts are cut to their beginning."""
    runs = [run, *(runs_before(run) if any(pair.kept_corpus == "against" for pair in pairs) else [])]
    # Several earlier runs may have kept a document of this shard name and number: read them all.
    keepers = [[0] if pair.kept_corpus == "this" else _kept_in(runs, pair) for pair in pairs]
    wanted: dict[tuple[int, str], set[int]] = defaultdict(set)
    for pair, possible in zip(pairs, keepers, strict=True):
        wanted[0, pair.shard].add(pair.number)
        for place in possible:
            wanted[place, pair.kept_shard].add(pair.kept_number)
    share = MOST_HELD // max(1, sum(map(len, wanted.values())))
    texts: dict[tuple[int, str, int], str] = {}
    shards = {(place, shard.name): shard for place, one in enumerate(runs) for shard in one.shards}
    total = sum(shards[key].size or 0 for key in wanted)
    for key in sorted(wanted):
        manifest = manifest_of(runs[key[0]].parameters)
        index = find_index(shards[key], manifest)
        options: dict[str, Any] = {"manifest": manifest, "advance": lambda done: advance("reading", done, total)}
        with closing(DocumentReader(shards[key], index, **options)) as reader:
            for document in reader.read(sorted(wanted[key])):
                texts[*key, document.number] = document.text[:share]
    found = []
    for pair, possible in zip(pairs, keepers, strict=True):
        removed = texts[0, pair.shard, pair.number]
        kept = [texts[place, pair.kept_shard, pair.kept_number] for place in possible]
        found.append((_most_fitting(kept, removed, pair.similarity, run.parameters["ngram"]), removed))
    return found


def manifest_of(parameters: Mapping[str, Any]) -> Manifest:
    """A manifest with the text and label fields in a run's parameters."""
    record = {name: parameters[name] for name in ("text_field", "label_path")}
    return msgspec.structs.replace(load_manifest(), **record)


def _kept_in(runs: list[EarlierRun], pair: RemovedPair) -> list[int]:
    """The indices of the earlier runs that kept a document with the shard and number of the pair's kept one."""
    found = []
    for place, run in enumerate(runs[1:], 1):
        for shard, mask in zip(run.shards, run.masks(), strict=True):
            if shard.name == pair.kept_shard and pair.kept_number < mask.header.lines:
                found += [place] * int(mask.keeps(np.array([pair.kept_number]))[0])
    return found


def _most_fitting(kept: list[str], removed: str, similarity: float, ngram: int) -> str:
    """The kept text whose similarity to the removed one is `similarity`."""
    if len(kept) == 1:
        return kept[0]
    sets = [shingle_set(np.frombuffer(text.encode(), dtype=np.uint8), ngram) for text in (removed, *kept)]
    return min(zip(kept, sets[1:], strict=True), key=lambda one: abs(jaccard(one[1], sets[0]) - similarity))[0]
