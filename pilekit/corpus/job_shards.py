"""Where the shards are in a folder that a job of pilekit wrote, by the header of the folder.

The folder of a finished job stands for the shards that the job wrote, so that one command reads what another wrote. A
job that writes tables too, which a search would take for shards, has its shards in `clean/`.
"""

from __future__ import annotations

import functools

from pilekit.artifacts.header import HEADER_FILE, decode_header
from pilekit.errors import PilekitError, message_logger

logger = message_logger(__name__)

CLEAN = "clean"

IN_CLEAN = {"dedup": "dedup", "decontamination": "decontaminate", "substrings": "substrings"}
"""The kinds of folders whose shards are in `clean/`, each with its command."""

UNFINISHED = "is not finished, so shards may be missing; run the command that wrote it again to finish it"


def folder_of_shards(folder: str, encoded: bytes) -> str:
    """The path of the shards below `folder`, a path or URL: `clean` or ""; `encoded` is the folder's header.

    A warning names `clean` once for each folder. PilekitError if the job is not finished or wrote no shards, or if this
    pilekit cannot read the header.
    """
    shown = folder.rstrip("/") or folder
    try:
        header = decode_header(encoded, f"{shown}/{HEADER_FILE}")
    except PilekitError as error:
        raise PilekitError(f"{error}; run its command into another folder, or name shards in it by a glob") from error
    if header.finished is False:
        raise PilekitError(f"{shown}: {UNFINISHED}")
    if header.kind not in IN_CLEAN:
        return ""
    command = IN_CLEAN[header.kind]
    if header.parameters.get("write") is False:
        masks = f"give `stream`, `tokenize` or `substrings` the corpus that it read, with --dedup {shown}, or "
        masks = masks if header.kind == "dedup" else ""
        raise PilekitError(
            f"{shown}: holds no shards, as it was made with --no-write; {masks}run `pilekit {command}` without "
            "--no-write into another folder"
        )
    _say_once(f"{shown}: was written by `pilekit {command}`; its shards, in {CLEAN}/, are read")
    return CLEAN


@functools.cache
def _say_once(message: str) -> None:
    logger.warning("%s", message)
