"""`Embeddings`: a Parquet file with a vector for each document, and a search for a document's nearest ones.

    shard: dictionary<string>   number: int64   subset: dictionary<string>
    embedding: fixed_size_list<float16 or float32>[width], null for a document without a token

The metadata holds the protocol that made the vectors. The search is brute force: one row group at a time is compared
with a vector. So memory holds one group, and every answer is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, shortened
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.results.write_items import PLACE, Items, item_rows, write_items

GROUP_BYTES = 16 << 20
NULL_VECTORS = 26
"""The first version of pyarrow that writes and reads a fixed-size list that is null."""
_PROTOCOL = b"pilekit"


class Embeddings(NearestNames):
    """The embeddings in a file of `pilekit embed`; PilekitError for any other file.

    width      numbers in a vector
    protocol   how they were made
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = pq.ParquetFile(self.path)
            schema = self._file.schema_arrow
            self.width: int = schema.field("embedding").type.list_size
            self.protocol: dict[str, Any] = json.loads(schema.metadata[_PROTOCOL])
            if any(schema.field(name).type != type for name, type in PLACE.items()):
                raise TypeError("its columns are others")
        except FileNotFoundError:
            raise PilekitError(f"{path}: there is no such file") from None
        except (OSError, pa.ArrowException, KeyError, TypeError, AttributeError, ValueError) as error:
            raise PilekitError(f"{path}: is no file of embeddings, as `pilekit embed` writes") from error

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __repr__(self) -> str:
        return f"Embeddings({str(self.path)!r}, documents={len(self):,}, width={self.width})"

    def groups(self) -> Iterator[tuple[pa.Table, npt.NDArray[np.float32]]]:
        """Each row group: its documents (`shard`, `number`, `subset`) and float32 [documents, width] of length 1.

        A document without a token has a zero vector, similar to none.
        """
        for group in range(self._file.num_row_groups):
            try:
                table = self._file.read_row_group(group)
            except (OSError, pa.ArrowException) as error:
                why = shortened(error, 200)
                raise PilekitError(f"{self.path}: cannot be read: {why}; remove it, and embed again") from error
            column = table.column("embedding").combine_chunks()
            flat = np.nan_to_num(column.values.to_numpy(zero_copy_only=False).astype(np.float32))
            vectors = flat.reshape(-1, self.width)[: len(table)]
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            yield table.drop_columns("embedding"), vectors / np.where(lengths > 0, lengths, 1)

    def near(self, shard: str, number: int, count: int = 10) -> list[dict[str, Any]]:
        """The `count` documents with the most similar vectors, the nearest first, without the document itself.

        Each has "shard", "number", "subset" and "similarity", the cosine of the angle between the vectors, -1 to 1.
        PilekitError if the document has no vector here.
        """
        query = self._vector(shard, number)
        best: list[dict[str, Any]] = []
        for table, vectors in self.groups():
            similar = vectors @ query
            nearest = np.argsort(-similar, kind="stable")[: count + 1]
            rows = table.take(nearest).to_pylist()
            best += [{**row, "similarity": float(similar[at])} for row, at in zip(rows, nearest, strict=True)]
            best = [neighbour for neighbour in best if (neighbour["shard"], neighbour["number"]) != (shard, number)]
            best = sorted(best, key=lambda neighbour: -neighbour["similarity"])[:count]
        return best

    def _vector(self, shard: str, number: int) -> npt.NDArray[np.float32]:
        shards: set[str] = set()
        for table, vectors in self.groups():
            shards.update(table["shard"].unique().to_pylist())
            same = pc.equal(table["shard"].cast(pa.string()), shard).to_numpy() & (table["number"].to_numpy() == number)
            for row in np.flatnonzero(same):
                if not vectors[row].any():
                    raise PilekitError(f"{shortened(shard, 200)}, document {number}: has no token, so it has no vector")
                vector: npt.NDArray[np.float32] = vectors[row]
                return vector
        shard_names = shortened(", ".join(sorted(shards)), 200)
        raise PilekitError(
            f"{self.path}: has no document {number} of {shortened(shard, 200)}; its shards are {shard_names}"
        )


def write_embeddings(
    path: Path,
    documents: Iterable[tuple[ScoredDocument, Items]],
    width: int,
    item: npt.DTypeLike,
    protocol: dict[str, Any],
    group_bytes: int = GROUP_BYTES,
    null_vectors: int = NULL_VECTORS,
) -> Embeddings:
    """Write the vectors of documents, `width` numbers of type `item` each; the whole file or none.

    A document without a vector has NaN everywhere. A group of rows has about `group_bytes`. pyarrow stores null vectors
    from version `null_vectors` on.
    """
    number = pa.float16() if np.dtype(item) == np.float16 else pa.float32()
    metadata = {_PROTOCOL: json.dumps(protocol).encode()}
    schema = pa.schema({**PLACE, "embedding": pa.list_(number, width)}, metadata=metadata)

    def batches() -> Iterator[pa.RecordBatch]:
        for document, vector in documents:
            missing = bool(np.isnan(vector).any())
            if missing and int(pa.__version__.split(".")[0]) < null_vectors:
                raise PilekitError(
                    f"{shortened(document.shard, 200)}, document {document.number}: has no token, and pyarrow "
                    f"{pa.__version__} cannot store a null vector; install pyarrow {null_vectors}, and run again"
                )
            flat, mask = pa.array(vector.astype(item), number), pa.array([missing])
            yield item_rows(document, schema, pa.FixedSizeListArray.from_arrays(flat, width, mask=mask))

    write_items(path, schema, batches(), max(1, group_bytes // (4 * width)), follow_links=True)
    return Embeddings(path)
