"""The sketch of a shard: a Parquet file with everything that matching needs of its documents.

A row for each selected document, in the shard's order: `number`, `text_bytes`, `subset` (a place in the header's
`counts`), the xxh3_128 of its text (`hash_high`, `hash_low`) and a key for each band (`key_000`, ...). Columns are
stored plain (`subset` in a few bits) in row groups of 65,536, so each is read without the others, at the speed of the
disk and in bounded memory. The `SketchHeader` in the file's metadata describes the whole shard, documents of other
subsets included.

Pages have checksums and the header has a sum, so damage is an error and never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy.typing as npt
import pyarrow as pa

from pilekit.artifacts.parquet_rows import required
from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.corpus import Shard
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Fingerprint, fingerprint

SKETCH = SealedKind("a sketch", 2, "remove it, and run dedup again")
SUFFIX = ".parquet"
ROWS_PER_GROUP = 1 << 16

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Column = npt.NDArray[Any]


class SketchHeader(SealedHeader, frozen=True, kw_only=True):
    """The shard as a whole, and how its sketch was made."""

    shard: str
    """The shard's name."""
    size: Count
    """With `sample`, the fingerprint of the shard."""
    sample: str
    text_field: str
    label_path: str
    subsets: list[str] | None
    """The selected subsets, exact names in alphabetical order; None: all."""
    ngram: int
    bands: int
    lines: Count
    """One more than the number of the last document, selected or not."""
    skipped: Count
    """Bad lines passed over."""
    examples: list[tuple[Count, str]]
    """The first bad lines: (line counted from 1, reason)."""
    counts: dict[str, tuple[Count, Count]]
    """(documents, UTF-8 bytes of their texts) of each subset, selected or not, in the order of first occurrence."""


@dataclass(frozen=True)
class ShardSketch:
    """A sketch on disk: the header is in memory, rows are read on request."""

    path: str
    header: SketchHeader

    @property
    def documents(self) -> int:
        """Number of rows: the selected documents."""
        counts, selected = self.header.counts, self.header.subsets
        return sum(counts[name][0] for name in counts if selected is None or name in selected)

    @property
    def subset_names(self) -> list[str]:
        """The names for the numbers in the column `subset`."""
        return list(self.header.counts)

    def chunks(self, columns: Sequence[str]) -> Iterator[dict[str, Column]]:
        """These columns of the rows, 65,536 rows at a time; `PilekitError` if they are damaged.

        `number`, `text_bytes` and `subset` (see `subset_names`) are uint32, all others uint64.
        """
        with SKETCH.opened(self.path) as table:
            for group in range(table.metadata.num_row_groups):
                rows = table.read_row_group(group, columns=list(columns), use_threads=False)
                values = {name: rows[name].to_numpy() for name in columns}
                if "subset" in values and values["subset"].max() >= len(self.header.counts):
                    raise ValueError("it has documents of subsets that its header lacks")
                yield values


def sketch_schema(bands: int) -> pa.Schema:
    """The columns of a sketch with this number of bands."""
    small, large = ("number", "text_bytes", "subset"), ("hash_high", "hash_low", *map(key_column, range(bands)))
    return required(**dict.fromkeys(small, pa.uint32()), **dict.fromkeys(large, pa.uint64()))


def key_column(band: int) -> str:
    """The name of the column with the keys of this band, from 0."""
    return f"key_{band:03d}"


def check_unchanged(shard: Shard, sketch: ShardSketch) -> None:
    """Raise `PilekitError` if the shard differs from the sketched shard."""
    if fingerprint(shard.path) != Fingerprint(sketch.header.size, sketch.header.sample):
        raise shard_changed(shard)


def shard_changed(shard: Shard) -> PilekitError:
    """The error for a shard that differs from the sketched shard."""
    return PilekitError(
        f"{shard.path}: has changed since it was sketched; restore it, or start again in another folder"
    )


def load_sketch(path: str | Path) -> ShardSketch:
    """Load the sketch at a path; `PilekitError` if it is no sketch, is damaged, or has another format."""
    path = str(path)
    with SKETCH.opened(path) as table:
        metadata, schema = table.metadata, table.schema_arrow
        header = SKETCH.open_metadata(path, metadata.metadata, SketchHeader)
        sketch = ShardSketch(path, header)
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if (
            not schema.equals(sketch_schema(header.bands), check_metadata=False)
            or sum(groups) != sketch.documents
            or any(not 0 < rows <= ROWS_PER_GROUP for rows in groups)
        ):
            raise ValueError("its rows do not match its header")
    return sketch
