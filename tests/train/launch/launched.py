"""A rank that `launch` starts in its tests in place of a training run; its arguments say what it does.

    python -m tests.train.launch.launched FOLDER KIND [more arguments]

Every rank writes `FOLDER/<rank>.<attempt>.json` and waits until all have; one that is only "starting" imports no torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pilekit.errors import PilekitError
from pilekit.train.launch.interrupt import ended_by_sigterm, first_interrupt
from pilekit.train.launch.launch import end_with_launcher

if TYPE_CHECKING:
    from pilekit.workers.ranks import Ranks


def main(folder: Path, kind: str, *more: str) -> None:
    end_with_launcher()
    with ended_by_sigterm():
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if kind == "starting":
            (folder / f"{os.environ['RANK']}.starting").touch()
            time.sleep(120)
        import torch

        from pilekit.workers.ranks import join

        ranks = join()
        about = {"threads": torch.get_num_threads(), "more": more}
        (folder / f"{ranks.rank}.{attempt}.json").write_text(json.dumps(about))
        ranks.gather(None)
        if kind == "killed":
            if ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            ranks.gather(None)
        else:
            assert kind == "loops"
            loop(ranks, folder)


def loop(ranks: Ranks, folder: Path) -> None:
    with first_interrupt() as asked:
        step = 0
        while not ranks.any(asked()):
            step += 1
            time.sleep(0.02)
            (folder / f"{ranks.rank}.loops").touch()
        time.sleep(0.5)  # it saves
        (folder / f"{ranks.rank}.saved").write_text(str(step))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except PilekitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
