"""`Joined`: what a finished dedup and a training run know of scored documents.

With both, exposure is that of a document and its recorded copies together: a document that the run never saw itself,
but a copy of which it saw, is no control.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.corpus import Corpus
from pilekit.corpus.shuffle import Int64
from pilekit.evaluate.results.memorised_groups import NONE
from pilekit.evaluate.results.records import Records
from pilekit.exposure.recorded_copies import Clusters, RecordedCopies
from pilekit.exposure.run_exposure import RunExposure
from pilekit.exposure.shard_keys import Contents, ShardKeys, contents_of


@dataclass(frozen=True)
class Joined:
    """A dedup and a run, each as far as given.

    scored   the contents of the scored shards
    """

    scored: Contents
    copies: RecordedCopies | None
    run: RunExposure | None

    @classmethod
    def of(cls, corpus: Corpus, copies: str | Path | None, seen: str | Path | None) -> Joined:
        """Those in these folders; PilekitError if one is not about the documents of the corpus."""
        scored = {} if copies is None and seen is None else contents_of(corpus.shards)
        return cls(
            scored,
            None if copies is None else RecordedCopies.of(copies, scored),
            None if seen is None else RunExposure.of(seen, scored),
        )

    def protocol(self) -> dict[str, Any]:
        """What the figures depend on, as JSON types: `copies` and `seen`."""
        protocol: dict[str, Any] = {}
        if self.copies is not None:
            protocol["copies"] = self.copies.protocol(self.scored)
        if self.run is not None:
            protocol["seen"] = {**self.run.protocol(self.scored), "with_copies": self.copies is not None}
        return protocol

    def facts(self, records: Records) -> dict[str, Int64]:
        """By a name of `GROUPS`, a number of each scored document, int64 [documents]."""
        if self.copies is None and self.run is None:
            return {}
        facts: dict[str, Int64] = {}
        make = ShardKeys.of(self.scored, *(source.shards for source in (self.copies, self.run) if source is not None))
        keys = make.scored(records, self.scored)
        clusters = Clusters.single(keys) if self.copies is None else self.copies.clusters(keys, make)
        if self.copies is not None:
            facts["copies"] = np.where(self.copies.is_compared(records), clusters.sizes[clusters.cluster], NONE)
        if self.run is not None:
            times, since = self.run.exposure(clusters, make)
            facts |= {"times_seen": times[clusters.cluster], "steps_since_seen": since[clusters.cluster]}
        return facts
