"""What a finished deduplication is: a folder, and how to look into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pilekit.artifacts.header import read_header
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus
from pilekit.dedup.previous_runs import KIND, RECORDS
from pilekit.dedup.sketch.minhash import SEED, permutations, signatures
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Fingerprint, fingerprint
from pilekit.shards.index.format import find_index
from pilekit.shards.random_access.document_reader import DocumentReader
from pilekit.shards.read.damage import BadLine, SkippedLines

if TYPE_CHECKING:
    import datasketch
    import pyarrow as pa

REMOVED, SUMMARY = "removed.parquet", "summary.json"


@dataclass(frozen=True)
class Deduplication:
    """A finished run.

    folder     where it is: clean/, masks/, sketches/, removed.parquet, summary.json
    summary    what is in summary.json: read, kept, removed, exact, near, skipped, and the same for each subset
    skipped    the bad lines passed over
    """

    folder: Path
    summary: dict[str, Any]
    skipped: SkippedLines
    _corpus: Corpus = field(repr=False)

    @classmethod
    def of(cls, output: Output, corpus: Corpus) -> Deduplication:
        """The run whose folder is complete."""
        records = output.results()[RECORDS]
        bad_lines = [BadLine(corpus.shards[place].path, line, reason) for place, line, reason in records["bad_lines"]]
        summary = msgspec.json.decode((output.folder / SUMMARY).read_bytes())
        return cls(output.folder, summary, SkippedLines(summary["skipped"], bad_lines), corpus)

    @property
    def removed(self) -> pa.Table:
        """All removed documents, in the order of shard and number, each with the kept one that it resembles."""
        import pyarrow.parquet as pq

        return pq.read_table(self.folder / REMOVED)

    def minhash(self, document: tuple[str, int]) -> datasketch.MinHash:
        """The MinHash of a document, given by (shard name, document number), made anew from the shard.

        `PilekitError` if the shard is not the one that was deduplicated, or has no such document.
        """
        from datasketch import MinHash

        name, number = document
        shard = next((shard for shard in self._corpus.shards if shard.name == name), None)
        if shard is None:
            raise PilekitError(
                f"there is no shard {visible(str(name))} in what {visible(str(self.folder))} was made of"
            )
        header = read_header(self.folder, KIND)
        if fingerprint(shard.path) != Fingerprint(*header.inputs[name]):
            raise PilekitError(f"{visible(shard.path)}: was changed since it was deduplicated; bring it back as it was")
        manifest, num_perm = self._corpus.manifest, header.parameters["num_perm"]
        reader = DocumentReader(shard, find_index(shard, manifest), manifest=manifest)
        try:
            text = reader.document(number).text.encode()
        finally:
            reader.close()
        data = np.frombuffer(text, dtype=np.uint8)
        offsets = np.array([0, len(data)])
        values = signatures(data, offsets, header.parameters["ngram"], *permutations(num_perm))[0]
        return MinHash(num_perm, SEED, scheme="affine32", hashfunc=_low_half, hashvalues=values)


def _low_half(shingle: int) -> int:
    """The 32-bit hash of a shingle, of which `pilekit.dedup.sketch.shingles` makes 64 bits."""
    return shingle & 0xFFFFFFFF
