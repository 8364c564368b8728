"""The folder for files that pilekit can rebuild and that cannot be stored beside the data."""

from __future__ import annotations

import os
from pathlib import Path

from pilekit.errors import PilekitError

ENVIRONMENT = "PILEKIT_CACHE"


def cache_folder() -> Path:
    """`$PILEKIT_CACHE`, else `$XDG_CACHE_HOME/pilekit`, else `~/.cache/pilekit`; it may not exist yet."""
    if named := os.environ.get(ENVIRONMENT):
        return Path(named)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():  # The XDG specification: ignore a relative path.
        return Path(shared) / "pilekit"
    try:
        return Path.home() / ".cache" / "pilekit"
    except RuntimeError as error:
        raise PilekitError(f"there is no home folder to keep a cache in; set ${ENVIRONMENT} to a folder") from error
