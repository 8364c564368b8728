"""`notebook_launch`: functions of a module, a script or a notebook in forks, as often as asked."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import pilekit
from pilekit import PilekitError, notebook_launch
from tests.notebook_kernels import execute
from tests.process_groups import ROOT, ProcessGroups
from tests.refusing import refused
from tests.stopping import is_there, wait_for
from tests.train.launch.processes import SECONDS, running
from tests.train.runs import lines, tiny_run

# The process has computed with several threads before, as a notebook's has.
PROGRAM = """
    import os, sys, torch
    from pathlib import Path
    from pilekit import PilekitError, notebook_launch
    from pilekit.workers.ranks import join
    from tests.train.launch.notebook_functions import about, fail, train
    del os.environ["OMP_NUM_THREADS"]
    torch.set_num_threads(2)
    torch.ones(3, requires_grad=True).sum().backward()
    secret = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    def total(factor):
        weights = torch.ones(300, 300, requires_grad=True)
        (weights @ weights).sum().backward()
        assert weights.grad.sum() == 2 * 300**3
        return factor * join().sum(secret[0, :1].double()).item()
    def line_of(kind):
        try: return notebook_launch(fail, 2, kind)
        except PilekitError as error:
            assert ('raise ValueError(f"{kind}' in "".join(getattr(error, "__notes__", []))) == (kind == "bug")
            return str(error)
    print([notebook_launch(total, 2, 3.0) for _ in range(2)])
    print(notebook_launch(about, 2, "\u00fc", Path("here")))
    for kind in ("told", "bug", "killed", "unpicklable"): print(line_of(kind))
    folder = Path(sys.argv[1])
    print(notebook_launch(train, 2, folder, folder / "run"))
    os.environ["OMP_NUM_THREADS"] = "1"
    print(notebook_launch(about, 1)[0][3])
    join()
    print(line_of("joined"))
"""


def test_functions_run_in_forks_again_and_again(tmp_path: Path, process_group: ProcessGroups) -> None:
    assert pilekit.notebook_launch is notebook_launch
    tiny_run(tmp_path, "train.steps=3", "train.micro_batch_size=1")
    code, stdout, stderr = process_group.script(dedent(PROGRAM), str(tmp_path))
    assert code == 0, stderr
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    twice, found, *failures, unpicklable, steps, own_threads, joined = stdout.splitlines()
    assert twice == str([3.0 * 2 * 2000] * 2)
    assert found == str([(rank, 2, rank, threads, ("\u00fc", Path("here"))) for rank in range(2)])
    assert failures == [
        "train.steps = 0: it must be at least 1",
        "rank 1 failed with ValueError: bug",
        "rank 1 was killed by SIGKILL (signal 9), as the system does when memory runs out; see its output and the "
        "system's log",
    ]
    assert unpicklable.startswith("rank 0 failed with ")
    assert (steps, own_threads) == ("3", "1")
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3]
    assert joined == (
        "this process has joined a process group (a Trainer does), so ranks cannot be forked from it; restart the "
        "kernel and call notebook_launch first, or put the function into a script and start that with torchrun"
    )


THREADS_AT_FORKS = """
    import os, threading, time
    from pilekit import PilekitError, notebook_launch
    from tests.train.launch.notebook_functions import about, fail
    others, errors = [], []
    def count():
        end = time.monotonic() + 3  # the system may count a thread a little longer than Python
        while (more := len(os.listdir("/proc/self/task")) - threading.active_count()) and time.monotonic() < end:
            time.sleep(0.01)
        others.append(more)
    os.register_at_fork(before=count)
    for _ in range(3):
        assert [rank for rank, *_ in notebook_launch(about, 4)] == [0, 1, 2, 3]
        try: notebook_launch(fail, 2, "told")
        except PilekitError as error: errors.append(error)  # as a notebook keeps the last one
    print(len(errors), others)
"""


def test_no_thread_of_the_store_runs_while_ranks_are_forked(process_group: ProcessGroups) -> None:
    # In such a thread the C library may hold the lock of its resolver, which the fork then waits for without end.
    code, stdout, stderr = process_group.script(dedent(THREADS_AT_FORKS))
    assert code == 0, stderr
    assert stdout == f"3 {[0] * 3 * (4 + 2)}\n"


def test_numbers_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for nproc in (0, 1.5, True, "2"):
        with pytest.raises(PilekitError, match=r"^nproc is a whole number from 1 on, not "):
            notebook_launch(print, nproc)  # type: ignore[arg-type]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    refused(r"^nproc = 2: this machine has 1 GPU, and each rank needs one", notebook_launch, print, 2)


LOOPS = """
    import sys
    from pathlib import Path
    from pilekit import notebook_launch
    from tests.train.launch.notebook_functions import loop, stay
    try: print(notebook_launch({"loop": loop, "stay": stay}[sys.argv[1]], 2, Path(sys.argv[2])))
    except KeyboardInterrupt: print("interrupted")
"""


@pytest.mark.slow
def test_an_interrupt_is_passed_on_and_a_second_one_ends_all(tmp_path: Path) -> None:
    for kind in ("loop", "stay"):
        (folder := tmp_path / kind).mkdir()
        with running([sys.executable, "-c", dedent(LOOPS), kind, str(folder)], tmp_path) as process:
            wait_for(lambda: len(list(folder.iterdir())) == 2)
            if kind == "stay":
                wait_for(lambda: all(file.read_text() for file in folder.iterdir()))
            process.send_signal(signal.SIGINT)
            if kind == "stay":
                wait_for(lambda: all(file.read_text().endswith("asked") for file in folder.iterdir()))
                process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, stderr
        assert "Traceback" not in stderr  # torchao, which transformers imports, tells of libraries that it lacks
        if kind == "loop":
            assert int(stdout) > 0
        else:
            assert stdout == "interrupted\n"
            assert not any(is_there(int(file.read_text().split()[0])) for file in folder.iterdir())


@pytest.mark.slow
def test_in_a_notebook() -> None:
    nbformat = pytest.importorskip("nbformat")
    # At each fork, another thread of the kernel is printing: it has the lock of stdout, whose text is not sent yet.
    cell = dedent("""
        import os, sys, threading
        from pilekit import notebook_launch
        from pilekit.workers.ranks import join
        printing, forked = threading.Semaphore(0), threading.Semaphore(0)
        def prints():
            with sys.stdout._buffer_lock:
                print("once")
                printing.release()
                forked.acquire()
        def before():
            threading.Thread(target=prints).start()
            printing.acquire()
        os.register_at_fork(before=before, after_in_parent=forked.release)
        def rank_of(add):
            ranks = join()
            print("rank", ranks.rank)
            return [add + rank for rank in ranks.gather(ranks.rank)]
        assert [notebook_launch(rank_of, 2, add) for add in (10, 20)] == [[10, 11], [20, 21]]
    """)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    execute(notebook, ROOT, SECONDS)
    stdout = "".join(output["text"] for output in notebook.cells[0].outputs if output.get("name") == "stdout")
    assert stdout.count("once") == 2 * 2
