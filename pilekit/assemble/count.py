"""The first pass: a row of four numbers for each document of a source, in a file that the plan reads several times.

A row holds everything that decides a document's fate: its identity, hashes of its text and of its group, and its
size. The plan needs no text, and the second pass finds the fate of each document in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output
from pilekit.assemble.find_sources import Source
from pilekit.assemble.read_source import Job, SourceReader
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance
from pilekit.shards.fingerprint import Inputs

Rows = npt.NDArray[np.uint64]
"""uint64 [documents, 4]: IDENTITY, TEXT (xxh3_64), GROUP (xxh3_64; the text's without groups), SIZE (UTF-8 bytes)."""

IDENTITY, TEXT, GROUP, SIZE = range(4)
ROWS_AT_A_TIME = 1 << 16
SCRATCH, COUNTED = "scratch", "counted"


def count_source(source: Source, advance: Advance, *, job: Job, output: Output, inputs: Inputs, ahead: bool) -> None:
    """Write the rows of a source, and note its counts."""
    reader = SourceReader(source, job, ahead)
    path = scratch_path(output, COUNTED, source.name)
    read = size = 0
    with write_atomically(path) as file:
        for documents in reader.documents(advance):
            numbers = np.arange(len(documents.texts))
            sizes, texts = DocumentBatch(documents.texts, documents.texts, source.name, numbers).text_hashes()
            groups = texts
            if job.manifest.subsets[source.subset].group:
                groups = np.array([xxhash.xxh3_64_intdigest(group.encode()) for group in documents.groups], np.uint64)
            columns = documents.identities, texts, groups, sizes.astype(np.uint64)
            file.write(np.stack(columns, axis=1).tobytes())
            read += len(sizes)
            size += int(sizes.sum())
        source.check(inputs)
    skipped = reader.skipped
    counts = {"read": read + reader.empty, "empty": reader.empty, "skipped": skipped.count, "text_bytes": size}
    output.note(source.name, {**counts, "bad_lines": skipped.listed()}, path)


def scratch_path(output: Output, kind: str, source: str) -> Path:
    """A file of the source of this name in a folder for its kind."""
    return output.folder / SCRATCH / kind / xxhash.xxh3_128_hexdigest(source.encode())


def read_rows(output: Output, sources: list[Source], subset: int) -> Iterator[Rows]:
    """The rows of all sources of a subset, in small tables."""
    for source in sources:
        if source.subset == subset:
            with scratch_path(output, COUNTED, source.name).open("rb") as file:
                while len(rows := np.fromfile(file, np.uint64, 4 * ROWS_AT_A_TIME)):
                    yield rows.reshape(-1, 4)
