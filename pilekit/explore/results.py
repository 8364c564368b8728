"""The results that were given, each on a page of its own: that of `pilekit report`, with its tables and figures.

A page is made when it is asked for, so that a run which is still training shows its newest steps. The explorer shows it
in a sandboxed frame, where the report's own policy holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pilekit.corpus import Corpus, Manifest
from pilekit.errors import PilekitError, shortened, visible
from pilekit.explore.removals import browsed_names
from pilekit.report.collect import KINDS, Artefact
from pilekit.report.page import report_page
from pilekit.train.config.file import load_config
from pilekit.train.run_folder import RunFolder

SAMPLED_STEPS = 40
"""The samples of at most this many steps of a run are shown."""


class Results:
    """Artefacts, as `pilekit.report.collect` sorts them out; `manifest` describes the corpora of saved counts."""

    def __init__(self, artefacts: Sequence[Artefact], manifest: Manifest, corpus: Corpus | None):
        self._artefacts = sorted(artefacts, key=lambda artefact: list(KINDS).index(artefact.kind))
        self._manifest, self._corpus = manifest, corpus

    def listed(self) -> list[dict[str, Any]]:
        """The title and path of each result."""
        return [{"title": KINDS[artefact.kind][0], "path": visible(artefact.path, 200)} for artefact in self._artefacts]

    def page(self, place: int) -> str:
        """The page of a result. The page of a damaged or unfinished result says so."""
        artefact = replace(self._artefacts[place], is_given=False)
        title = shortened(artefact.path, 80)
        return report_page([artefact], self._manifest, title=title, sampled_steps=SAMPLED_STEPS)[0]

    def browsed(self, place: int) -> dict[str, Any]:
        """The corpus that a run reads, and how many of its shards are browsed here.

        The corpus is None for a result that is no run, and for a run whose settings cannot be read: its page says why.
        """
        artefact, read_from, here = self._artefacts[place], None, {}
        with contextlib.suppress(PilekitError):  # its settings may be damaged, or its corpus gone
            if artefact.kind == "run":
                path = load_config(RunFolder(Path(artefact.path)).config_file).data.path
                read_from = visible(", ".join([path] if isinstance(path, str) else path or ()), 200)
                here = browsed_names(self._corpus, {shard.name: shard.path for shard in Corpus(path).shards})
        return {"corpus": read_from, "shards": len(here)}
