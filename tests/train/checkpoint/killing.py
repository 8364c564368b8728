"""Kill real processes while they save, and check their leftovers; a program of its own, because it forks.

    python -m tests.train.checkpoint.killing moments FOLDER N    at every Nth file operation of a save, of a resume
    python -m tests.train.checkpoint.killing ranks FOLDER N      one of two ranks, at every Nth file operation of a save

It fails with a traceback if the newest good state is not found, differs from what was saved, or leaves files about. It
prints how many processes it has killed. All tensors of a state are filled with its number of tokens.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

from pilekit.errors import PilekitError
from pilekit.train.checkpoint.state_file import Progress, verify
from pilekit.workers.ranks import Ranks, join
from tests.kills import kill_at, killed_at
from tests.train.checkpoint.saving import checkpoints_in, with_adamw


def save(run: Path, step: int, tokens: int, *, keep_last: int, ranks: Ranks | None = None) -> None:
    model, optimizer = with_adamw(nn.Linear(8, 8))
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    checkpoints = checkpoints_in(run, ranks, keep_last=keep_last, asynchronous=True)
    fill(model, optimizer, tokens)
    checkpoints.save(model, optimizer, Progress(step, tokens, {"place": [1, 2]}, 1), {})
    checkpoints.before_update()
    fill(model, optimizer, -1)  # training goes on
    checkpoints.finish()


def fill(model: nn.Module, optimizer: torch.optim.AdamW, tokens: int) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *(t for state in optimizer.state.values() for t in state.values())):
            tensor.fill_(tokens)


def resume(run: Path) -> Progress | None:
    """Find the newest state; prove that it was saved and that no other files are left."""
    checkpoints = checkpoints_in(run)
    folder = checkpoints.newest()
    if folder is None:
        assert not list((run / "checkpoints").glob("*"))
        return None
    model, optimizer = with_adamw(nn.Linear(8, 8))
    progress = checkpoints.load(folder, model, optimizer)
    tensors = [*model.parameters(), *(tensor for state in optimizer.state.values() for tensor in state.values())]
    assert len(tensors) == 2 + 2 * 3
    assert all(bool((tensor == progress.tokens).all()) for tensor in tensors)
    assert folder.name == f"step-{progress.step}"
    leftovers = [path.name for path in run.rglob("*") if not path.name.startswith(("step-", "__0_", "__1_"))]
    assert sorted(set(leftovers)) == [".metadata", "checkpoints", "state.json"], leftovers
    assert all(path.suffix == "" for path in (run / "checkpoints").iterdir())
    verify(folder)
    return progress


def copied(folder: Path, run: Path) -> None:
    """Make `run` a copy of `folder`, which is faster than saves."""
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(folder, run)


def begun(folder: Path, *more: int) -> Path:
    """Save step 1 of state 100 and, of state 200, these steps."""
    save(folder, 1, 100, keep_last=2)
    for step in more:
        save(folder, step, 200, keep_last=2)
    return folder


def with_damage(folder: Path) -> Path:
    """The folder, whose step 2 is damaged now."""
    with (folder / "checkpoints" / "step-2" / "__0_0.distcp").open("r+b") as file:
        file.write(b"damage")
    return folder


def moments(run: Path, every: int) -> int:
    def kill_each_moment(
        prepare: Callable[[], object], action: Callable[[], object], check: Callable[[bool], object]
    ) -> int:
        """Kill `action` at every Nth of its file operations, each time after `prepare`; the number of kills."""
        for kills, moment in enumerate(itertools.count(0, every)):
            prepare()
            killed = killed_at(moment, action)
            check(killed)
            if not killed:
                return kills
        raise AssertionError

    def check_second(killed: bool) -> None:
        found = resume(run)
        assert found is not None
        assert found.tokens in (100, 200) if killed else found.tokens == 200
        save(run, 3, 300, keep_last=1)
        assert resume(run) == Progress(3, 300, {"place": [1, 2]}, 1)
        assert len(list((run / "checkpoints").iterdir())) == 1

    def check_first(killed: bool) -> None:
        found = resume(run)
        assert found.tokens == 100 if found is not None else killed

    first, empty = begun(run.with_name("begun")), run.with_name("empty")
    empty.mkdir()
    kills = kill_each_moment(partial(copied, empty, run), lambda: save(run, 1, 100, keep_last=1), check_first)
    damaged = with_damage(begun(run.with_name("damaged"), 2))
    for start in (first, damaged):  # the next step, and the same step again, in place of a damaged folder
        kills += kill_each_moment(partial(copied, start, run), lambda: save(run, 2, 200, keep_last=1), check_second)
    left = begun(run.with_name("left"), 2)  # as a save leaves it that was killed before its last rename
    (left / "checkpoints" / "step-2").rename(left / "checkpoints" / "step-2.partial")
    for start in (left, damaged):
        kills += kill_each_moment(partial(copied, start, run), lambda: checkpoints_in(run).newest(), check_first)
    return kills


def one_of_two(run: Path, every: int) -> int:
    """Kill one rank of two at every Nth of its file operations: the other ends by itself."""
    first, kills = begun(run.with_name("begun")), 0
    for start in (first, with_damage(begun(run.with_name("damaged"), 2))):
        for victim in (0, 1):
            for moment in itertools.count(0, every):
                copied(start, run)
                killed = rank_killed_at(run, 2, victim, moment)
                found = resume(run)
                assert found is not None
                assert found.tokens in (100, 200) if killed else found.tokens == 200
                if not killed:
                    break
                kills += 1
    return kills


def rank_killed_at(run: Path, step: int, victim: int, moment: int) -> bool:
    """Save in two ranks, one of which is killed before its file operation number `moment`; false if it has fewer."""
    store = run / "store"
    children = []
    for rank in (0, 1):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(120)  # no rank waits forever
                dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
                ranks = join()
                if rank == victim:
                    kill_at(moment)
                save(run, step, 200, keep_last=1, ranks=ranks)
                code = 0
            except PilekitError as error:
                code = 3 if "another rank is gone" in str(error) else 1
            finally:
                os._exit(code)
        children.append(child)
    status = [os.waitpid(child, 0)[1] for child in children]
    store.unlink(missing_ok=True)
    other = status[1 - victim]
    if not os.WIFSIGNALED(status[victim]):
        assert status == [0, 0], status
        return False
    assert os.WTERMSIG(status[victim]) == signal.SIGKILL
    assert os.WIFEXITED(other), other
    assert os.WEXITSTATUS(other) in (0, 3), other  # 0: its part was done
    return True


def main() -> None:
    what, run, every = sys.argv[1:]
    logging.disable()
    torch.set_num_threads(1)
    save(Path(run) / "first", 1, 100, keep_last=1)  # imports during the first save do not count as moments
    assert resume(Path(run) / "first")
    folder = Path(run) / "run"
    folder.mkdir()
    print({"moments": moments, "ranks": one_of_two}[what](folder, int(every)))


if __name__ == "__main__":
    main()
