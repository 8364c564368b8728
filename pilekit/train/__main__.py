"""`python -m pilekit.train`: one rank of `pilekit train`, with its options. `torchrun -m pilekit.train` starts many."""

from __future__ import annotations

import sys

from pilekit.cli.main import rank_main
from pilekit.train.launch.launch import end_with_launcher

if __name__ == "__main__":
    end_with_launcher()
    sys.argv[1:1] = ["train"]
    rank_main()
