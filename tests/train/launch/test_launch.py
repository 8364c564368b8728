"""`launch`: ranks of one machine, the line for a failed rank, restarts, and signals that reach all ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from pilekit.errors import PilekitError
from pilekit.train.launch.environment import check_gpus
from pilekit.train.launch.launch import first_failed, how_ended
from tests.process_groups import ROOT
from tests.stopping import wait_for
from tests.train.launch.processes import SECONDS, ranks_in, running

PROGRAM = """
import sys
from pilekit.errors import PilekitError
from pilekit.train.launch.launch import launch
try: sys.exit(launch(int(sys.argv[1]), sys.argv[3:], int(sys.argv[2]), module="tests.train.launch.launched"))
except PilekitError as error: sys.exit(f"error: {error}")
"""


def launched(folder: Path, kind: str, *more: str, restarts: int = 0) -> AbstractContextManager[Popen[str]]:
    """The launcher of two ranks of this kind."""
    return running([sys.executable, "-c", PROGRAM, "2", str(restarts), str(folder), kind, *more], folder)


@pytest.mark.slow
def test_a_killed_rank_is_one_line(tmp_path: Path) -> None:
    with launched(tmp_path, "killed") as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert (process.returncode, stdout) == (1, "")
    *lost, told = stderr.splitlines()
    # Rank 0 may be ended before it can report the loss.
    assert not lost or [line.startswith("error: rank 0: another rank is gone, ") for line in lost] == [True]
    assert told == (
        "error: rank 1 of the run was killed by SIGKILL (signal 9), as the system does when memory runs out; the same "
        "command resumes from the newest checkpoint"
    )


def test_ranks_get_their_arguments_share_the_cores_and_save_after_a_signal(tmp_path: Path) -> None:
    odd = ["--set", 'data.subsets=["a b"]', "$HOME ${local_rank} $$", "", "--debug", "ü"]
    with launched(tmp_path, "loops", *odd, restarts=2) as process:
        wait_for(lambda: len(list(tmp_path.glob("*.loops"))) == 2)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert (process.returncode, stdout, stderr) == (130, "", "")
    found = [json.loads((tmp_path / f"{rank}.0.json").read_text()) for rank in range(2)]
    cores = len(os.sched_getaffinity(0))
    assert [(one["threads"], one["more"]) for one in found] == [(max(1, cores // 2), odd)] * 2
    first, second = (int((tmp_path / f"{rank}.saved").read_text()) for rank in range(2))
    assert first == second > 0
    assert not list(tmp_path.glob("*.1.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "targets"),
    [
        (signal.SIGTERM, "launcher and ranks"),
        (signal.SIGTERM, "one rank"),
        (signal.SIGHUP, "launcher"),  # a closed terminal
    ],
)
def test_a_signal_stops_all_ranks_after_the_same_step(tmp_path: Path, number: signal.Signals, targets: str) -> None:
    with launched(tmp_path, "loops") as process:
        wait_for(lambda: len(list(tmp_path.glob("*.loops"))) == 2)
        ranks = ranks_in(tmp_path)
        pids = {"launcher": [process.pid], "one rank": [ranks[1]]}.get(targets, [*ranks.values(), process.pid])
        for pid in pids:
            os.kill(pid, number)
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert (process.returncode, stdout, stderr) == (0, "", "")
        # The launcher has waited until all have saved.
        assert (tmp_path / "0.saved").read_text() == (tmp_path / "1.saved").read_text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell")
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with launched(tmp_path, "loops") as process:
        wait_for(lambda: len(list(tmp_path.glob("*.loops"))) == 2)
        process.kill()
        wait_for(lambda: not ranks_in(tmp_path))
    assert len(list(tmp_path.glob("*.saved"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)])
def test_a_signal_before_there_is_anything_to_save(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    with launched(tmp_path, "starting", restarts=2) as process:
        wait_for(lambda: len(list(tmp_path.glob("*.starting"))) == 2)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert (process.returncode, stdout, stderr) == (expected, "", "")


def test_a_signal_ends_a_rank_that_waits_for_the_others(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    keys = store.num_keys()
    job = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    job |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pilekit.train", str(tmp_path / "run.toml")]
    rank = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **job})
    try:
        wait_for(lambda: store.num_keys() > keys or rank.poll() is not None)
        assert rank.poll() is None
        time.sleep(0.5)  # it has stored its address, and looks for rank 0's address
        rank.send_signal(signal.SIGTERM)
        assert rank.wait(SECONDS / 8) == -signal.SIGTERM
    finally:
        rank.kill()
        rank.wait()


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(PilekitError, match=r"^--nproc-per-node 3: this machine has 2 GPUs, and each rank needs one;"):
        check_gpus(3, "--nproc-per-node")


def test_the_rank_that_failed_first_is_named() -> None:
    for codes, own, how in (
        ({0: 1, 1: -9}, [], "was killed by SIGKILL (signal 9), as the system does when memory runs out"),
        ({0: 1, 1: -11, 2: 1}, [], "was killed by SIGSEGV (signal 11)"),
        ({0: -15, 1: 1}, [], "ended with exit code 1"),
        ({1: -9, 0: -9}, [], "was killed by SIGKILL (signal 9), as"),  # the agent killed rank 0 half a minute later
        ({0: -9, 1: 3}, [1], "ended with exit code 3"),  # rank 1 left a message, and rank 0 was killed after it
    ):
        assert first_failed(codes, own) == 1
        assert how_ended(codes[1]).startswith(how)
