"""The stages of this package: `Select`, `Match`, `MinBytes` and `Sample` keep some documents, `Write` stores all.

To add a stage that keeps some documents, let its `__call__` return `filtered`, as `MinBytes` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.corpus import Described, resolve_subsets
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.pipeline import DocumentStage
from pilekit.shards.write.shard_writer import ShardWriter

KeepFlags = Sequence[bool] | npt.NDArray[np.bool_]


def filtered(batches: Iterator[DocumentBatch], keeps: Callable[[DocumentBatch], KeepFlags]) -> Iterator[DocumentBatch]:
    """The documents for which `keeps`, [documents], is true; batches without any are dropped."""
    for batch in batches:
        passed = batch.where(keeps(batch))
        if len(passed):
            yield passed


@dataclass(frozen=True, init=False)
class Select(DocumentStage):
    """Keep the documents of the subsets `names`, in any spelling that the manifest's names and aliases allow.

    `names`, given one by one or as a list, become exact names on construction; an unknown name is a `PilekitError` with
    the closest matches. The manifest is the Pile's unless another is given. (To read a whole shard for a few subsets,
    `read(path, subsets=...)` is faster: it skips the others before decoding them.)
    """

    names: tuple[str, ...]

    def __init__(self, *names: str | Iterable[str], manifest: Described = None) -> None:
        object.__setattr__(self, "names", resolve_subsets(*names, manifest=manifest))
        if not self.names:
            raise PilekitError("Select() without a subset would keep nothing; name one, such as Select('ArXiv')")

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents of the chosen subsets."""
        names = frozenset(self.names)
        return filtered(batches, lambda batch: [subset in names for subset in batch.subsets])


@dataclass(frozen=True)
class Match(DocumentStage):
    """Keep the documents whose text holds a match of `regex` (Python's `re`; flags are written inside it, as `(?i)`).

    A regular expression that backtracks badly can take very long on a hostile text: `re` has no time limit.
    """

    regex: str
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "pattern", re.compile(self.regex))
        except (re.error, TypeError) as error:
            raise PilekitError(
                f"{shortened(repr(self.regex), 200)} is no regular expression: {shortened(error, 200)}"
            ) from error

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents whose text holds a match."""
        return filtered(batches, lambda batch: [self.pattern.search(text) is not None for text in batch.texts])


@dataclass(frozen=True)
class MinBytes(DocumentStage):
    """Keep the documents whose text has at least `minimum` UTF-8 bytes."""

    minimum: int

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents whose text is long enough."""
        return filtered(batches, lambda batch: batch.text_bytes() >= self.minimum)


@dataclass(frozen=True)
class Sample(DocumentStage):
    """Keep about `fraction` (0 to 1) of the documents, chosen by hash of `seed` and document identity.

    A document is kept if its hash lies below `fraction` of the hash's range. So the choice does not depend on order,
    batches, ranks or workers, survives recompression, and is nested: with one seed, a smaller fraction keeps a subset
    of what a larger one keeps.
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.fraction, int | float) or not 0 <= self.fraction <= 1:
            raise PilekitError(
                f"a sample's fraction must lie between 0 and 1, not {shortened(repr(self.fraction), 80)}"
            )

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents in the sample."""
        return filtered(batches, lambda batch: self.keeps(batch.shard, batch.numbers))

    def keeps(self, shard: str, numbers: npt.NDArray[np.int64]) -> list[bool]:
        """Whether each of these documents of a shard, [documents], is in the sample."""
        limit = int(self.fraction * 2**64)
        # As Python integers: the limit of fraction 1 is 2^64, which uint64 cannot hold.
        return [value < limit for value in document_hashes(shard, numbers, self.seed).tolist()]


def document_hashes(shard: str, numbers: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """The hash of (seed, shard, number) of each document, uint64 [documents], uniform over the 64 bits."""
    # NUL cannot occur in a file's name, so no two identities are spelt alike.
    prefix = f"{seed}\0{shard}\0".encode("utf-8", "surrogateescape")
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(b"%s%d" % (prefix, number)) for number in numbers.tolist()), np.uint64, len(numbers))


@dataclass(frozen=True)
class Write(DocumentStage):
    """Write every document to the shard `path` (kind by suffix, as `ShardWriter`) and pass it on.

    Lines are copied byte for byte, but for a text that a stage changed. The shard appears under its name
    when the last batch has passed. If the iterator is closed early or anything fails, it never appears.
    (`for _ in pipeline(batches): pass` runs a pipeline only for its output.)
    """

    path: str | Path

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The same batches, each written before it is passed on; empty batches are dropped."""
        with ShardWriter(self.path) as writer:
            for batch in batches:
                if len(batch):
                    writer.write(batch)
                    yield batch
