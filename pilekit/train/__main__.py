"""`python -m pilekit.train`: one rank of `pilekit train`, with its options; `torchrun -m pilekit.train` starts many.

A rank that fails among others leaves without taking leave: closing its connections in good order can mean waiting for
ranks that wait for it, while nobody has been told yet.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

from pilekit.cli.main import main
from pilekit.train.launch import end_with_launcher


def rank() -> None:
    """Run the command in this process, which ends with its exit code."""
    end_with_launcher()
    sys.argv[1:1] = ["train"]
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code == 0 or os.environ.get("WORLD_SIZE", "1") == "1":
            raise
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    rank()
