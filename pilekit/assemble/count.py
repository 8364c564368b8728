"""The first pass: a row of four numbers for each document of a source, in a file that the plan reads several times.

Everything that decides about a document is in its row: who it is, its text, what is held out together with it, and its
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
from pilekit.shards.read.damage import BadLine, SkippedLines

Rows = npt.NDArray[np.uint64]
"""uint64 [documents, 4]: IDENTITY, TEXT (xxh3_64), GROUP (xxh3_64; the text's without groups), SIZE (UTF-8 bytes)."""

IDENTITY, TEXT, GROUP, SIZE = range(4)
ROWS_AT_A_TIME = 1 << 18
COUNTED = "scratch/counted"


def count_source(source: Source, advance: Advance, *, job: Job) -> None:
    """Write the rows of a source, and note its counts."""
    reader = SourceReader(source, job)
    path = rows_path(job.output, source)
    read = size = 0
    with write_atomically(path) as file:
        for documents in reader.documents(advance):
            numbers = np.arange(len(documents.texts))
            sizes, texts = DocumentBatch(documents.texts, documents.texts, source.name, numbers).text_hashes()
            groups = texts
            if documents.groups:
                groups = np.array([xxhash.xxh3_64_intdigest(group.encode()) for group in documents.groups], np.uint64)
            columns = documents.identities, texts, groups, sizes.astype(np.uint64)
            file.write(np.stack(columns, axis=1).tobytes())
            read += len(sizes)
            size += int(sizes.sum())
        source.check(job.inputs)
    bad_lines = [[bad.path, bad.line, bad.reason] for bad in reader.skipped.examples]
    counts = {
        "read": read + reader.empty,
        "empty": reader.empty,
        "skipped": reader.skipped.count,
        "bad_lines": bad_lines,
    }
    job.output.note(source.name, {**counts, "text_bytes": size}, path)


def rows_path(output: Output, source: Source) -> Path:
    """The file of a source's rows."""
    return output.folder / COUNTED / f"{xxhash.xxh3_128_hexdigest(source.name.encode())}.rows"


def read_rows(output: Output, sources: list[Source], subset: int) -> Iterator[Rows]:
    """The rows of all sources of a subset, in small tables."""
    for source in sources:
        if source.subset == subset:
            with rows_path(output, source).open("rb") as file:
                while len(rows := np.fromfile(file, np.uint64, 4 * ROWS_AT_A_TIME)):
                    yield rows.reshape(-1, 4)


def counts_of(output: Output, sources: list[Source], subset: int) -> tuple[dict[str, int], SkippedLines]:
    """The counts of all sources of a subset together: `read`, `empty`, `skipped`, `text_bytes`; and the bad lines."""
    notes = [note for source in sources if source.subset == subset if (note := output.result(source.name))]
    skipped = SkippedLines()
    for note in notes:
        skipped.merge(SkippedLines(note["skipped"], [BadLine(*bad) for bad in note["bad_lines"]]))
    return {name: sum(note[name] for note in notes) for name in ("read", "empty", "skipped", "text_bytes")}, skipped
