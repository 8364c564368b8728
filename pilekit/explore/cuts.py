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
        """A page of cuts from place `start` among those of the subset, in the order of the corpus."""
        rows = self._cuts.rows(start, PAGE, subset=subset)
        return {"cuts": [self._shown(row) for row in rows], "start": start, "of": self._count(subset)}

    def cut(self, place: int, **of: Any) -> dict[str, Any]:
        """A cut, by its place among those with these values: what it repeats and the cut passage, compared.

        Parts of the kind "around" are the text around both.
        """
        rows = self._cuts.rows(place, 1, **of)
        if not rows:
            raise PilekitError("there is no such cut")
        [(stays, cut)] = passages(self._cuts, rows)
        found = compared(stays.text, cut.text)
        before, after = ([visible_lines(getattr(one, side)) for one in (stays, cut)] for side in ("before", "after"))
        parts = [["around", *before], *found["parts"], ["around", *after]]
        return {
            **self._shown(rows[0]),
            **found,
            "parts": parts,
            "of": [visible(one.place, 200) for one in (stays, cut)],
        }

    def in_document(self, browsed: str, number: int) -> dict[str, Any]:
        """The first cuts in a document of the browsed corpus, and `key`, the name of its shard in the run."""
        for name, other in self._browsed.items():
            if other == browsed:
                rows = self._cuts.rows(0, PAGE, shard=name, number=number)
                return {"cuts": [self._shown(row) for row in rows], "key": name}
        return {"cuts": [], "key": browsed}

    def _shown(self, row: Row) -> dict[str, Any]:
        """A row for the page, with the browsed shards of the cut document and of the earlier one."""
        source = row.get("first_shard")
        if source is None:
            where = f"{row['evaluation']} record {row['record']:,}"
        else:
            where = f"{source} {row['first_number']:,}"
        return {
            "shard": visible(row["shard"], 100),
            "number": row["number"],
            "subset": visible(row["subset"], 60),
            "how": evidence(row),
            "source": visible(where, 100),
            "here": self._browsed.get(row["shard"]),
            "kept_here": None if source is None else self._browsed.get(source),
            "kept_number": row.get("first_number"),
        }
