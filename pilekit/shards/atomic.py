"""Files that are either complete or not there.

Output is written beside its final name, as `<name>.partial`, flushed to disk, and renamed when complete. Such a name is
never taken for a shard, and the next attempt overwrites it, so a killed command leaves nothing that could be mistaken
for a result and nothing that piles up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pilekit.errors import PilekitError, visible

PARTIAL = ".partial"


@contextmanager
def write_atomically(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block ends well, and vanishes when it does not.

    The folder is made if it is missing. Raises `PilekitError` where it cannot be written, a full disk included.
    """
    final = Path(path)
    partial = final.with_name(final.name + PARTIAL)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("wb")
    except OSError as error:
        raise PilekitError(f"{visible(str(final))}: cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(final)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise PilekitError(f"{visible(str(final))}: cannot be written: {error.strerror}") from error
        raise
