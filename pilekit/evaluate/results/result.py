"""`BitsPerByte`: the figures of an evaluation, and the protocol that they depend on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pilekit.corpus import Manifest, load_manifest
from pilekit.display.fitted_table import FittedTable
from pilekit.display.table_result import TableResult
from pilekit.errors import PilekitError
from pilekit.evaluate.results.by_column import grouped
from pilekit.evaluate.results.intervals import METHOD
from pilekit.evaluate.results.published import Published, published_beside, warnings_on
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.scores import Cost, Score, Weighted, rounded
from pilekit.evaluate.results.tabulate import tabulate
from pilekit.evaluate.show.tables import figures_table
from pilekit.evaluate.training_copies import TrainingCopies

RESULT_FILE = "result.json"


@dataclass(frozen=True, slots=True)
class BitsPerByte(TableResult):
    """The result of `bits_per_byte`. `result["ArXiv"]` is the `Score` of a subset.

    overall           all documents pooled: every byte that was read counts alike
    subsets           by name, in the manifest's order, then other labels in the order of their first documents
    protocol          all that the figures depend on, as JSON types; results compare only if theirs are equal
    weighted          all subsets weighted by the corpus's mixture; None if the manifest has no weights
    records           the scored documents that the figures are made of
    published         published figures that these may be compared with, and the differences; or None
    warnings          facts a reader must know about the data, a sentence each
    training_copies   documents whose text is in the training shards too, if asked for
    cost              the cost of this call; None if all documents were recorded before. Not in `to_dict`
    """

    FIGURES: ClassVar[tuple[str, ...]] = (
        *("overall", "weighted", "subsets", "published", "warnings", "training_copies", "protocol"),
    )

    overall: Score
    subsets: dict[str, Score]
    protocol: dict[str, Any]
    weighted: Weighted | None = None
    records: Records | None = field(default=None, repr=False, compare=False)
    published: Published | None = None
    warnings: tuple[str, ...] = ()
    training_copies: TrainingCopies | None = None
    cost: Cost | None = field(default=None, compare=False)

    @classmethod
    def of(cls, records: Records, protocol: dict[str, Any], manifest: Manifest) -> BitsPerByte:
        """The result of these records.

        protocol   how the documents were scored; the result's protocol also says how intervals were made
        manifest   its order of subsets, weights, constants of the paper, and published figures
        """
        overall, subsets, weighted = tabulate(records, bool(protocol["paper"]), manifest)
        protocol = {**protocol, "intervals": METHOD}
        published, warnings = published_beside(records, protocol, manifest), warnings_on(records, protocol, manifest)
        return cls(overall, subsets, protocol, weighted, records, published, warnings)

    @property
    def is_masked(self) -> bool:
        """Whether the model is masked: then all figures are pseudo-bits per byte, another measure."""
        return bool(self.protocol.get("kind") == "masked")

    @property
    def key(self) -> str:
        """The name of the figure in JSON: "bpb", or "pseudo_bpb" for a masked model."""
        return "pseudo_bpb" if self.is_masked else "bpb"

    @property
    def outside_pile(self) -> list[str]:
        """Labels of a corpus that was scored with the Pile's manifest, the default, but that the Pile does not have."""
        if self.protocol["manifest"] != "pile":
            return []
        pile = {subset.name for subset in load_manifest("pile").subsets}
        return [label for label in self.protocol.get("labels", ()) if label not in pile]

    @property
    def mixture(self) -> Weighted | None:
        """`weighted`; None if its weights are the Pile's and the corpus is not the Pile."""
        return None if self.outside_pile else self.weighted

    def __repr__(self) -> str:
        pooled = self.overall
        figures = (
            f"documents={pooled.documents:,}, {self.key}={rounded(pooled.bpb)}, interval={rounded(pooled.interval)}"
        )
        return f"BitsPerByte({figures}, subsets={len(self.subsets)})"

    def _rows(self) -> dict[str, Score]:
        """The score of each subset."""
        return self.subsets

    def by(self, column: str) -> BitsPerByte:
        """The same figures in other groups, as its `subsets`: "length", or `FILE:COLUMN` of a table of documents.

        PilekitError for a result of the paper's variant, whose constants belong to subsets, for a table that does not
        fit, and for more than 200 groups.
        """
        if self.records is None or self.protocol["paper"]:
            raise PilekitError("only a result with records, and without --paper, can be grouped by a column")
        manifest = Manifest(name=self.protocol["manifest"])
        groups = BitsPerByte.of(grouped(self.records, column), {**self.protocol, "by": column}, manifest)
        return replace(groups, overall=self.overall, weighted=self.weighted, warnings=self.warnings)

    def table(self) -> FittedTable[Any]:
        """A row per subset, and the totals."""
        return figures_table(
            self.subsets, self.overall, self.mixture, self.protocol, self.published, self.training_copies
        )

    def to_dict(self) -> dict[str, Any]:
        """`{"overall": {...}, "weighted": {...}, "subsets": {name: {...}}, "published", ..., "protocol"}`."""
        figures = TableResult.to_dict(self)
        if self.is_masked:
            scores = [figures["overall"], *figures["subsets"].values(), *filter(None, [figures["weighted"]])]
            for score in scores:
                values = list(score.items())
                score.clear()
                score.update((self.key if name == "bpb" else name, value) for name, value in values)
        return figures
