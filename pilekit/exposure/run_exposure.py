"""`RunExposure`: how often a run has seen scored documents, and how many steps ago it saw them last.

The pieces of all steps are looked at, from the run's log, or replayed where it has a gap, as for `seen`. A document of
a shard that the run does not read was never seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError
from pilekit.evaluate.results.memorised_groups import NONE
from pilekit.exposure.recorded_copies import Clusters
from pilekit.exposure.run_documents import RunDocuments
from pilekit.exposure.shard_keys import Contents, ShardKeys, common_shards, contents_of, places_in
from pilekit.stream.read.token_files import TokenCorpus

_TOKENIZE = "pilekit tokenize"
_REMEDY = "score shards that the run reads, and others beside them as a control"


@dataclass(frozen=True)
class RunExposure:
    """The steps in which a run has seen scored documents.

    shards   the contents of the shards that it reads, or that its token files were made of
    common   the names of the scored shards among them
    """

    documents: RunDocuments
    shards: Contents
    common: list[str]

    @classmethod
    def of(cls, run: str | Path, scored: Contents) -> RunExposure:
        """The run in a folder; PilekitError if it reads other shards, or cannot be replayed where its log has a gap."""
        documents = RunDocuments.of(run)
        data = documents.data()
        shards = data.sources if isinstance(data, TokenCorpus) else contents_of(data.shards)
        shards = {**shards, **contents_of(documents.planted())}
        if (0, "") in shards.values():
            raise PilekitError(
                f"{run}: was trained on token files that do not name their shards; make them by `{_TOKENIZE}`"
            )
        if documents.replayed:
            documents.stream()  # an error now rather than after all is scored
        return cls(
            documents, shards, common_shards(scored, shards, f"{run}: is no run on the scored data: it", _REMEDY)
        )

    def protocol(self, scored: Contents) -> dict[str, Any]:
        """What the figures depend on, as JSON types."""
        run = self.documents
        return {
            "run": str(run.run.path),
            "steps": [run.steps.start, run.steps.stop - 1],
            "replayed": [[span.start, span.stop - 1] for span in run.replayed],
            **({"began_from": run.began_from} if run.steps.start > 1 else {}),
            "not_read": [name for name in scored if name not in self.common],
        }

    def exposure(self, clusters: Clusters, make: ShardKeys) -> tuple[Int64, Int64]:
        """How often each cluster was seen, and steps since the last time, int64 [clusters]; `NONE` if it never was.

        A document is seen once more each time it begins in a row. A cluster counts as seen once at least if any token
        of it was in a step. Tokens whose labels were ignored do not count.
        """
        times, last = np.zeros((2, len(clusters.sizes)), np.int64)
        for table in self.documents.tables():
            for batch in table.to_batches():
                at = places_in(clusters.members, make.listed(batch["shard"], batch["number"], self.shards))
                is_known = (at >= 0) & ~batch["ignored"].to_numpy(zero_copy_only=False)
                begins = batch["first"].to_numpy() == 0
                np.add.at(times, clusters.owner[at[is_known & begins]], 1)
                np.maximum.at(last, clusters.owner[at[is_known]], batch["step"].to_numpy()[is_known])
        newest = self.documents.steps.stop - 1
        return np.maximum(times, last > 0), np.where(last > 0, newest - last, NONE)
