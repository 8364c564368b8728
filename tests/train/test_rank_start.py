"""A rank that waits for others to come has nothing to save, and a signal ends it where it waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.process_groups import ROOT

SECONDS = 240.0
"""Against waiting for ever: a start of Python with torch takes that long on no machine, however busy."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_rank_that_waits_for_the_others(number: signal.Signals, tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    keys = store.num_keys()
    job = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
    }
    rank = subprocess.Popen(
        [sys.executable, "-m", "pilekit.train", str(tmp_path / "run.toml")],
        cwd=ROOT,
        env={**os.environ, **job, "TORCHELASTIC_USE_AGENT_STORE": "True", "CUDA_VISIBLE_DEVICES": ""},
    )
    try:
        end = time.monotonic() + SECONDS
        while store.num_keys() == keys and rank.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert rank.poll() is None
        time.sleep(0.5)  # it has left its address, and looks for that of rank 0
        rank.send_signal(number)
        assert rank.wait(SECONDS / 8) == -number
    finally:
        rank.kill()
        rank.wait()
