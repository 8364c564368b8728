"""`Select`: the documents of some subsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pilekit.corpus import Manifest, resolve_subsets
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.pipeline.pipeline import DocumentStage


@dataclass(frozen=True, init=False)
class Select(DocumentStage):
    """Keep the documents of the subsets `names`, in any spelling that the manifest's names and aliases allow.

    `names`, given one by one or as a list, become exact names on construction; an unknown one is a PilekitError with
    the closest matches. The manifest is the Pile's unless another is given. (Where a whole shard is read for a few
    subsets, `read(path, subsets=...)` is faster: it skips the others before decoding them.)
    """

    names: tuple[str, ...]

    def __init__(self, *names: str | Iterable[str], manifest: Manifest | None = None) -> None:
        object.__setattr__(self, "names", resolve_subsets(*names, manifest=manifest))
        if not self.names:
            raise PilekitError("Select() without a subset would keep nothing; name one, such as Select('ArXiv')")

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents of the chosen subsets; batches without any are dropped."""
        names = frozenset(self.names)
        for batch in batches:
            kept = batch.where([subset in names for subset in batch.subsets])
            if len(kept):
                yield kept
