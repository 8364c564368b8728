"""`merge_token_files`: several token files as one, or in another format, without losing a document.

Ids are copied as they are, in the order of the files; the files beside them are rebuilt. An entry of doc_idx counts
sequences, so each file's entries grow by the number of sequences in the files before it. (Other tools' merges
omit that, and lose all documents but those of the first file.) A killed run resumes after the last file copied
whole. Memory does not grow with the files, which are read in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.folders import check_free_disk
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Shard
from pilekit.display.progress import Report
from pilekit.display.table_result import TableResult
from pilekit.documents import add_counts
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.shards.fingerprint import Inputs
from pilekit.tokenize.files.formats import ENDED_BY_EOD, Format, token_files, write_idx
from pilekit.tokenize.files.growing_output import GrowingOutput
from pilekit.tokenize.files.publish import finished_output
from pilekit.tokenize.files.token_documents import ROWS
from pilekit.tokenize.files.token_file import TokenFile, index_paths

logger = message_logger(__name__)


@dataclass(frozen=True, repr=False)
class MergedTokens(TableResult):
    """The result of `merge_token_files`.

    summary   `documents`, `sequences`, `tokens`, `dtype` and `files` of the output, all files but the header; `inputs`,
              the documents and tokens of each file read, by its path
    """

    ROWS: ClassVar[tuple[str, str]] = ("file", "inputs")

    summary: dict[str, Any]


def merge_token_files(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    format: Format = "megatron",
    sequences_are_documents: bool = False,
    advance: Report = lambda *_: None,
) -> MergedTokens:
    """Join token files, in the order given, into files whose names begin with `out`.

    sources                   prefixes or paths of `.idx` files; a prefix of several files names them all
    out                       a prefix such as `tokens/pile`; a killed run of the same job is resumed
    format                    "megatron", "npy", "ds", "llmc" or "parquet", with files of its usual size
    sequences_are_documents   treat each sequence as a document, for files with a broken doc_idx
    advance                   receives the progress, in bytes of ids

    The tables of documents are joined if every file has one. Raises `PilekitError` for ids of different widths,
    different tokenizers, a file that contradicts itself, and an output that is an input.
    """
    prefixes = [sources] if isinstance(sources, str | Path) else sources
    paths = [path for prefix in prefixes for path in index_paths(prefix) or [Path(prefix)]]
    inputs = [TokenFile(path, sequences_are_documents=sequences_are_documents) for path in paths]
    if not inputs:
        raise PilekitError("no token file is given; name one or more prefixes")
    files = token_files(out, format, None, inputs[0].dtype.name)
    made_by = _made_by(inputs)
    written = {(files.prefix.parent / name).resolve() for name in files.names(0)}
    tables = [file.table() for file in inputs]
    without = [str(file.path) for file, table in zip(inputs, tables, strict=True) if table is None]
    joined_tables = [[table[0]] if table and not without else [] for table in tables]
    read_files = [[file.path, *file.bins(), *table] for file, table in zip(inputs, joined_tables, strict=True)]
    if clash := next((path for path in chain.from_iterable(read_files) if path.resolve() in written), None):
        raise PilekitError(f"{clash}: is an input and the output; name another prefix with --out")
    if format in ENDED_BY_EOD and "eod" in made_by and made_by["eod"] is None:
        logger.warning("without EOD, readers of %s files cannot tell documents apart", format)
    if without:
        logger.warning("no table of documents is written, because there is none for %s", ", ".join(without))
    parameters = {**made_by, "format": format, "tokens_per_file": files.limit}
    parameters["sequences_are_documents"] = sequences_are_documents
    shards = [
        Shard(f"{n:05} {path.name}", str(path))
        for n, files_of_input in enumerate(read_files)
        for path in files_of_input
    ]
    counts = {"documents": sum(map(len, inputs)), "sequences": sum(file.sequences for file in inputs)}
    counts["tokens"] = sum(file.tokens for file in inputs)

    def sizes() -> Iterator[npt.NDArray[np.int32]]:
        return (file.sizes[first : first + ROWS] for file in inputs for first in range(0, file.sequences, ROWS))

    def make(output: Output, versions: Inputs) -> dict[str, Any]:
        rows = [partial(file.rows, file.path.name.removesuffix(".idx"), by_table=not without) for file in inputs]
        parts = {f"/{number}": rows_of_input for number, rows_of_input in enumerate(rows)}
        header = inputs[0].header if made_by else None
        tokenizer = header.results.get("tokenizer") if header else None
        growing_output = GrowingOutput(files, output, parts, tokenizer["sha256"] if tokenizer else "unknown")
        size = files.item * counts["tokens"]
        copied_bytes = files.item * sum(file.tokens for file in inputs[: growing_output.appended_parts])
        advance("merging", copied_bytes, size)
        check_free_disk(output.folder, size - copied_bytes, "merging")
        for part, file in zip(parts, inputs, strict=True):
            growing_output.append(part, {}, file.bins(), advance=lambda amount: advance("merging", amount, size))
        for shard in shards:
            versions.check(shard)
        if files.format == "megatron":
            with write_atomically(growing_output.folder / files.names(0)[1]) as index:
                write_idx(index, files.dtype, sizes, counts["sequences"], _doc_idx(inputs), counts["documents"])
        finished = growing_output.finish(with_table=not without)
        tokenized = {name: fingerprint for file in inputs for name, fingerprint in file.shards.items()}
        return {**counts, **finished, "tokenizer": tokenizer, "shards": tokenized}

    results, _ = finished_output(files, parameters, shards, make)
    written_files = [str(files.prefix.parent / name) for name in results["files"]]
    merged: dict[str, Any] = {}
    for file in inputs:  # a file that is given twice counts twice
        merged = add_counts(merged, {str(file.path): {"documents": len(file), "tokens": file.tokens}})
    return MergedTokens({**counts, "dtype": results["dtype"], "files": written_files, "inputs": merged})


def _made_by(inputs: Sequence[TokenFile]) -> dict[str, Any]:
    """The `made_by` in which all files agree; empty if a file has none. PilekitError if two files differ."""
    first_values: dict[str, tuple[TokenFile, Any]] = {}
    all_made_by = [file.made_by for file in inputs]
    for file, made_by in zip(inputs, all_made_by, strict=True):
        if not made_by:
            logger.warning("%s: has no header, so its tokenizer is not known", file.path)
        for name, value in {"dtype": file.dtype, **made_by}.items():
            first, expected = first_values.setdefault(name, (file, value))
            if value != expected:
                raise PilekitError(
                    f"{file.path}: {name} is {shortened(value, 80)}, but {shortened(expected, 80)} "
                    f"in {first.path}; merge only files of one kind"
                )
    return all_made_by[0] if all(all_made_by) else {}


def _doc_idx(inputs: Sequence[TokenFile]) -> Iterator[npt.NDArray[np.int64]]:
    yield np.zeros(1, np.int64)
    before = 0
    for file in inputs:
        for begin in range(1, len(file) + 1, ROWS):
            yield before + file.first_sequences(np.arange(begin, min(begin + ROWS, len(file) + 1)))
        before += file.sequences
