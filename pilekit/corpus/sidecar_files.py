"""The files that pilekit writes beside shards and token files: their names, and how to tell them from shards.

The shell's `pilekit stats folder/*` includes them, but they are not input.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from pilekit.artifacts.header import HEADER_FILE, read_header
from pilekit.errors import PilekitError

INDEX_SUFFIX = ".index.parquet"

DOCUMENTS_SUFFIX = ".documents.parquet"
"""The end of the name of a token file's table of documents."""

DROPPED = "dropped.parquet"
"""The table of dropped documents that a cleaning writes beside its shards."""

TOKENS_FILE = "tokens.parquet"
"""The table of tokens that `pilekit bpb --per-token` writes into its folder."""

SEQUENCES_FILE = "sequences.parquet"
"""The table of sequences that `pilekit memorised` writes into its folder."""

RUNS_FILE = "runs.parquet"
"""The table of runs that `pilekit mix run` writes into its folder."""

SUMS_FILES = ("SHA256SUMS", "SHA256SUMS.txt")
"""Names of a file of checksums in the corpus root; pilekit writes the first."""


def index_name(name: str) -> str:
    """The name of the index beside the shard file `name`.

    Beside Parquet the index is hidden and does not end in `.parquet`: a tool that reads `*.parquet`, or the folder with
    its hidden files (polars), as one table would include it.
    """
    return f".{name}.index" if name.endswith(".parquet") else name + INDEX_SUFFIX


def written_beside(name: str) -> str | None:
    """Why a file that pilekit writes beside shards is no input, and its replacement; None for other files."""
    of_parquet = re.fullmatch(r"\.(.+\.parquet)\.index", name)
    shard = of_parquet[1] if of_parquet else name.removesuffix(INDEX_SUFFIX)
    if shard != name:
        return f"is the index of {shard}, not a shard; give {shard} itself"
    if name.endswith(DOCUMENTS_SUFFIX):
        return "lists the documents of a token file, and is not a shard; give the shards"
    if name == DROPPED:
        return "lists the documents that a cleaning dropped, and is not a shard; give the shards"
    if name == TOKENS_FILE:
        return "holds the bits of tokens that a model predicted, and is not a shard; give the shards"
    if name == SEQUENCES_FILE:
        return "holds the sequences that a model continued, and is not a shard; give the shards"
    if name == RUNS_FILE:
        return "holds the runs of a design of mixtures, and is not a shard; give the shards"
    if name == HEADER_FILE:
        return "says how its folder was made, and is not a shard; give the folder"
    if name in SUMS_FILES:
        return "holds the sums of shards, and is not one; give the shards or their folder"
    return None


def holds_ids(folder: str, name: str) -> bool:
    """Whether a file is of `pilekit tokenize --format parquet`, finished or not, by the header beside it."""
    if table := re.fullmatch(r"(.+)-\d{5,}\.parquet", name, re.DOTALL):
        for header in (f"{table[1]}.json", f"{table[1]}.unfinished/{HEADER_FILE}"):
            with suppress(PilekitError):
                return read_header(Path(folder), "token file", header).parameters.get("format") == "parquet"
    return False
