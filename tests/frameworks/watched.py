"""Run a training script unchanged, and write down every row that reaches its model.

    python watched.py train.py

Each call of a GPT-NeoX model adds a line to `seen-RANK.jsonl` in the current folder: a JSON list with the digest of
each row. After `WATCHED_CALLS` calls, if set, the process ends in the middle of the next call, as if it were killed.
After `WATCHED_SECONDS` it reports where it hangs, and ends. This file runs in the environment of the frameworks, so it
imports nothing of the tests.
"""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

COLUMNS = ("input_ids", "labels", "position_ids")


def digests(batch: Mapping[str, torch.Tensor]) -> list[str]:
    """One digest per row, over its tokens, labels and positions."""
    columns = [batch[name].cpu().numpy() for name in COLUMNS]
    return [
        hashlib.sha256(b"".join(column[row].tobytes() for column in columns)).hexdigest()[:16]
        for row in range(len(columns[0]))
    ]


def watch() -> None:
    """From now on, models write down the digest of every row they receive."""
    from transformers import GPTNeoXForCausalLM  # takes a while, and the tests import this file for `digests` alone

    forward = GPTNeoXForCausalLM.forward
    file = Path(f"seen-{os.environ.get('RANK', '0')}.jsonl").resolve()
    most = int(os.environ.get("WATCHED_CALLS", "1000"))
    calls = 0

    @functools.wraps(forward)
    def watched(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        if calls == most:
            os._exit(1)
        calls += 1
        with file.open("a") as lines:
            lines.write(json.dumps(digests(named)) + "\n")
        return forward(self, *arguments, **named)

    GPTNeoXForCausalLM.forward = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(os.environ["WATCHED_SECONDS"]), exit=True)
    watch()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
