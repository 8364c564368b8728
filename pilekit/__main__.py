"""`python -m pilekit`: the command line under another name; `torchrun -m pilekit bpb ...` starts many."""

from __future__ import annotations

from pilekit.cli.main import rank_main

if __name__ == "__main__":
    rank_main()
