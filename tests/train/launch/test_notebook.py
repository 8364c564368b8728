"""`notebook_launch`: functions of modules in fresh processes, functions of a script or a notebook in forks."""

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
from tests.train.launch import notebook_functions
from tests.train.launch.test_launch import is_there, wait_for

SECONDS = 240.0


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def script(program: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a script, which has a file."""
    with started(program, *arguments, **environment) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
        return process.returncode, stdout, stderr


def started(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [sys.executable, "-c", dedent(program), *arguments],
        env=own | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_function_of_a_module_runs_in_fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert pilekit.notebook_launch is notebook_launch
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    found = notebook_launch(notebook_functions.about, 2, "ü", Path("here"))
    assert found == [(rank, 2, rank, threads, True, ("ü", Path("here"))) for rank in range(2)]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("told", "train.steps = 0: it must be at least 1"),
        ("bug", "rank 1 failed with ValueError: bug"),
        ("killed", "rank 1 died without a message; see its output and the system's log (memory?)"),
    ],
)
def test_a_failure_is_one_line(kind: str, line: str) -> None:
    with pytest.raises(PilekitError) as error:
        notebook_launch(notebook_functions.fail, 2, kind)
    assert str(error.value) == line
    notes = "".join(getattr(error.value, "__notes__", []))
    assert ('raise ValueError(f"{kind}' in notes) == (kind == "bug")


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(PilekitError, match=r"^rank 0 failed with "):
        notebook_launch(notebook_functions.unpicklable, 1)


def test_a_wrong_number_of_ranks_is_refused() -> None:
    for nproc in (0, 1.5, True, "2"):
        with pytest.raises(PilekitError, match=r"^nproc is a whole number from 1 on, not "):
            notebook_launch(notebook_functions.about, nproc)  # type: ignore[arg-type]


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(PilekitError, match=r"^nproc = 2: this machine has 1 GPU, and each rank needs one"):
        notebook_launch(notebook_functions.about, 2)


# A script's own functions; its process has computed with several threads before, as a notebook's has.

FORKS = """
    import sys, torch
    from pilekit import PilekitError, notebook_launch
    from pilekit.engine.ranks import join
    secret = torch.arange(1_000_000, dtype=torch.float64)
    def total(factor):
        ranks = join()
        weights = torch.ones(300, 300, requires_grad=True)
        (weights @ weights).sum().backward()
        assert weights.grad.sum() == 2 * 300**3
        return factor * ranks.sum(secret.sum().reshape(1)).item(), torch.get_num_threads()
    torch.ones(3, requires_grad=True).sum().backward()
    torch.ones(2000, 2000).sum(), secret.sqrt().sum(), torch.ones(500, 500) @ torch.ones(500, 500)
    what = sys.argv[1]
    if what == "joined": join()
    try: print(notebook_launch(total, 2, 3.0))
    except PilekitError as error: print(f"error: {error}")
"""


def test_a_function_of_a_script_runs_in_forks() -> None:
    total = 3.0 * 2 * sum(range(1_000_000))
    for threads in ("1", "2"):
        assert script(FORKS, "plain", OMP_NUM_THREADS=threads) == (0, f"{(total, int(threads))}\n", "")


@pytest.mark.slow
def test_what_cannot_be_forked_says_so() -> None:
    code, stdout, _ = script(FORKS, "joined")
    assert (code, stdout) == (
        0,
        "error: this process has joined a process group (a Trainer does), so ranks cannot be forked from it; put the "
        "function into a module and import it from there, or restart the kernel and call notebook_launch first\n",
    )


LOOPS = """
    import sys
    from pathlib import Path
    from pilekit import notebook_launch
    from tests.train.launch.notebook_functions import loop, stay
    def own(folder): return loop(folder)
    function = {"fresh": loop, "fork": own, "stay": stay}[sys.argv[1]]
    try: print(notebook_launch(function, 2, Path(sys.argv[2])))
    except KeyboardInterrupt: print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fresh", "fork"])
def test_an_interrupt_is_passed_on_and_the_result_comes(tmp_path: Path, way: str) -> None:
    with started(LOOPS, way, str(tmp_path)) as process:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert (process.returncode, stderr) == (0, "")
    assert int(stdout) > 0


@pytest.mark.slow
def test_a_second_interrupt_ends_all(tmp_path: Path) -> None:
    with started(LOOPS, "stay", str(tmp_path)) as process:
        wait_for(lambda: len([file for file in tmp_path.iterdir() if file.read_text()]) == 2)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: all(file.read_text().endswith("asked") for file in tmp_path.iterdir()))
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=SECONDS)
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
        from tests.train.launch.notebook_functions import about
        assert [one[:2] for one in notebook_launch(about, 2)] == [(0, 2), (1, 2)]
    """)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
