"""`notebook_launch` in scripts, whose processes have computed with several threads before, as a notebook's has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import pilekit
from pilekit import PilekitError, notebook_launch
from tests.process_groups import ROOT
from tests.train.launch.test_launch import is_there, wait_for

SECONDS = 240.0

FUNCTIONS = """
import os, signal, sys, time, torch
from pathlib import Path
from pilekit import PilekitError, notebook_launch
from pilekit.engine.ranks import join
from pilekit.train.launch.interrupt import first_interrupt

def total(factor):
    ranks = join()
    weights = torch.ones(300, 300, requires_grad=True)
    (weights @ weights).sum().backward()
    assert weights.grad.sum() == 2 * 300**3
    return factor * ranks.sum(secret.sum().reshape(1)).item(), ranks.world_size, torch.get_num_threads()

def fail(kind):
    ranks = join()
    ranks.gather(None)
    if ranks.rank == 1:
        if kind == "told": raise PilekitError("train.steps = 0: it must be at least 1")
        if kind == "killed": os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(f"{kind}\\nmore")
    ranks.gather(None)

def loop():  # until interrupted
    ranks, step = join(), 0
    with first_interrupt() as asked:
        while not ranks.any(asked()):
            step += 1
            time.sleep(0.02)
            Path(str(ranks.rank)).touch()
    return step

def stay():  # whatever signal comes
    file = Path(str(join().rank))
    signal.signal(signal.SIGINT, lambda *_: file.write_text(f"{os.getpid()} asked"))
    file.write_text(str(os.getpid()))
    time.sleep(600)

def tell(*call):
    try: print(notebook_launch(*call))
    except KeyboardInterrupt: print("interrupted")
    except PilekitError as error:
        print("error:", error, *[note.splitlines()[-2:] for note in vars(error).get("__notes__", [])])

secret = torch.arange(1_000_000, dtype=torch.float64)
torch.ones(3, requires_grad=True).sum().backward()
torch.ones(2000, 2000).sum(), secret.sqrt().sum(), torch.ones(500, 500) @ torch.ones(500, 500)
"""


def started(program: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [sys.executable, "-c", FUNCTIONS + program],
        cwd=folder,
        env=own | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What the script printed; it is killed if it hangs."""
    try:
        return process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


CALLS = """
tell(total, 2, 3.0)
for kind in ("told", "bug", "killed"): tell(fail, 2, kind)
tell(lambda: join() and (lambda: 0), 1)
join()
tell(total, 2, 3.0)
"""


def test_results_and_failures_of_forks(tmp_path: Path) -> None:
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    for given in (None, "2"):
        with started(CALLS, tmp_path, **({} if given is None else {"OMP_NUM_THREADS": given})) as process:
            stdout, stderr = ended(process)
        assert (process.returncode, stderr) == (0, "")
        value, told, bug, killed, unpicklable, joined = stdout.splitlines()
        assert value == str((3.0 * 2 * sum(range(1_000_000)), 2, int(given or threads)))
        assert told == "error: train.steps = 0: it must be at least 1"
        assert bug == "error: rank 1 failed with ValueError: bug ['ValueError: bug', 'more']"
        assert killed == "error: rank 1 died without a message; see its output and the system's log"
        assert unpicklable.startswith("error: rank 0 failed with ")
        assert joined == (
            "error: this process has joined a process group (a Trainer does), so ranks cannot be forked from it; "
            "restart the kernel and call notebook_launch first"
        )


def test_wrong_numbers_of_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pilekit.notebook_launch is notebook_launch
    for nproc in (0, 1.5, True, "2"):
        with pytest.raises(PilekitError, match=r"^nproc is a whole number from 1 on, not "):
            notebook_launch(print, nproc)  # type: ignore[arg-type]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(PilekitError, match=r"^nproc = 2: this machine has 1 GPU, and each rank needs one"):
        notebook_launch(print, 2)


@pytest.mark.slow
def test_an_interrupt_is_passed_on_and_the_result_comes(tmp_path: Path) -> None:
    with started("tell(loop, 2)", tmp_path) as process:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        process.send_signal(signal.SIGINT)
        stdout, stderr = ended(process)
    assert (process.returncode, stderr) == (0, "")
    assert int(stdout) > 0


@pytest.mark.slow
def test_a_second_interrupt_ends_all(tmp_path: Path) -> None:
    with started("tell(stay, 2)", tmp_path) as process:
        wait_for(lambda: len([file for file in tmp_path.iterdir() if file.read_text()]) == 2)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: all(file.read_text().endswith("asked") for file in tmp_path.iterdir()))
        process.send_signal(signal.SIGINT)
        stdout, _ = ended(process)
    assert stdout == "interrupted\n"
    assert not any(is_there(int(file.read_text().split()[0])) for file in tmp_path.iterdir())


@pytest.mark.slow
def test_in_a_notebook() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    cell = dedent("""
        from pilekit import notebook_launch
        from pilekit.engine.ranks import join
        def rank_of(add):
            ranks = join()
            print("rank", ranks.rank)
            return [add + rank for rank in ranks.gather(ranks.rank)]
        assert notebook_launch(rank_of, 2, 10) == [10, 11]
    """)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
