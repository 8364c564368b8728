"""`python -m pilekit`: the command line, also as one rank of many: `torchrun -m pilekit bpb ...`."""

from __future__ import annotations

from pilekit.cli.main import rank_main

if __name__ == "__main__":
    rank_main()
