"""What `pilekit decontaminate` and `pilekit substrings` cut, with the evaluation's record or the earlier document."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from pilekit.corpus import Corpus
from pilekit.cutting.cut_folder import CutFolder, Row, evidence
from pilekit.cutting.cut_texts import passages
from pilekit.errors import PilekitError, visible, visible_lines
from pilekit.explore.comparison import compared
from pilekit.explore.removals import browsed_names
from pilekit.shards.index.build import index_of

PAGE = 50
"""Cuts in a list."""


class Cuts:
    """A finished folder of one of the commands; its shards get an index if they have none."""

    def __init__(self, folder: Path, corpus: Corpus | None):
        self._cuts = CutFolder(folder)
        manifest = self._cuts.manifest
        indexes = [index_of(shard, manifest=manifest, on_error="skip") for shard in self._cuts.shards()]
        self.written = [index.path for index in indexes if index.built]
        self._browsed = browsed_names(corpus, self._cuts.paths)
        self._count = functools.lru_cache(maxsize=64)(self._cuts.count)
        self.subsets = self._cuts.subsets()
        self.title = "Decontaminated" if self._cuts.kind == "decontamination" else "Repeated passages"

    def listed(self, start: int, subset: str | None) -> dict[str, Any]:
        """A page of the subset's cuts from place `start` on, in the order of the corpus."""
        rows = self._cuts.rows(start, PAGE, subset=subset)
        return {"cuts": [self._shown(row) for row in rows], "start": start, "of": self._count(subset)}

    def cut(self, place: int, **values: Any) -> dict[str, Any]:
        """Compare a cut passage with the text that it repeats; `place` counts the cuts that have these values.

        Parts of the kind "around" are the text around both.
        """
        rows = self._cuts.rows(place, 1, **values)
        if not rows:
            raise PilekitError("there is no such cut")
        [pair] = passages(self._cuts, rows)
        comparison = compared(*(passage.text for passage in pair))
        before, after = ([visible_lines(getattr(passage, side)) for passage in pair] for side in ("before", "after"))
        return {
            **self._shown(rows[0]),
            **comparison,
            "parts": [["around", *before], *comparison["parts"], ["around", *after]],
            "of": [visible(passage.place, 200) for passage in pair],
        }

    def in_document(self, shard: str, number: int) -> dict[str, Any]:
        """The first cuts in a document of the browsed corpus, and `key`, the name of its shard in the run."""
        for name, browsed in self._browsed.items():
            if browsed == shard:
                rows = self._cuts.rows(0, PAGE, shard=name, number=number)
                return {"cuts": [self._shown(row) for row in rows], "key": name}
        return {"cuts": [], "key": shard}

    def _shown(self, row: Row) -> dict[str, Any]:
        """A row for the page, with the browsed shards of the cut document and of the earlier one."""
        source = row.get("first_shard")
        if source is None:
            place = f"{row['evaluation']} record {row['record']:,}"
        else:
            place = f"{source} {row['first_number']:,}"
        return {
            "shard": visible(row["shard"], 100),
            "number": row["number"],
            "subset": visible(row["subset"], 60),
            "how": evidence(row),
            "source": visible(place, 100),
            "here": self._browsed.get(row["shard"]),
            "kept_here": None if source is None else self._browsed.get(source),
            "kept_number": row.get("first_number"),
        }
