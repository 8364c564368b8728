"""What pilekit writes beside shards: how such files are called, and how they are told from shards.

`pilekit stats folder/*` names them too, as the shell does not know them; they are no input.
"""

from __future__ import annotations

import re

from pilekit.artifacts.header import HEADER_FILE
from pilekit.errors import visible

INDEX_SUFFIX = ".index.parquet"

SUMS_FILES = ("SHA256SUMS", "SHA256SUMS.txt")
"""What a file of sums in the corpus root is called; the first is what pilekit writes."""


def index_name(name: str) -> str:
    """What the index beside the shard file of this name is called.

    Beside Parquet it is hidden, and does not end in `.parquet`: what reads `*.parquet` or the whole folder as one table
    (polars looks at hidden files too) would take it for a part of that.
    """
    return f".{name}.index" if name.endswith(".parquet") else name + INDEX_SUFFIX


def written_beside(name: str) -> str | None:
    """What a file of this name is, if it is one that pilekit writes beside shards, and what to give in its place."""
    of_parquet = re.fullmatch(r"\.(.+\.parquet)\.index", name)
    shard = of_parquet[1] if of_parquet else name.removesuffix(INDEX_SUFFIX)
    if shard != name:
        return f"is the index of {visible(shard)}, not a shard; give {visible(shard)} itself"
    if name == HEADER_FILE:
        return "says how its folder was made, and is not a shard; give the folder"
    if name in SUMS_FILES:
        return "holds the sums of shards, and is not one; give the shards or their folder"
    return None
