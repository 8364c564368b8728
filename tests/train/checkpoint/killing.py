"""Kill real processes while they save, and check their leftovers; a program of its own, because it forks.

    python -m tests.train.checkpoint.killing moments FOLDER      at every file operation of a save, of a resume
    python -m tests.train.checkpoint.killing twice FOLDER        at every one of a save, then of the resume
    python -m tests.train.checkpoint.killing random FOLDER N     N times, at random moments of a loop of saves
    python -m tests.train.checkpoint.killing ranks FOLDER N      one of two ranks, at every Nth file operation of a save

It fails with a traceback if the newest good state is not found, differs from what was saved, or leaves files about. It
prints how many processes it has killed. All tensors of a state are filled with its number of tokens.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

from pilekit.engine.ranks import Ranks, join
from pilekit.errors import PilekitError
from pilekit.train.checkpoint import Progress
from pilekit.train.checkpoint.manifest import verify
from tests.train.checkpoint.saving import adamw, checkpoints_in

CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree", "os.scandir"}
"""Python announces these to audit hooks; between two of them only the inside of a file changes."""


def save(run: Path, step: int, tokens: int, *, keep_last: int, width: int = 8, ranks: Ranks | None = None) -> None:
    model = nn.Linear(width, width)
    optimizer = adamw(model)
    model(torch.ones(1, width)).sum().backward()
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


def resume(run: Path, *, width: int = 8) -> Progress | None:
    """Find the newest state; prove that it was saved and that no other files are left."""
    checkpoints = checkpoints_in(run)
    folder = checkpoints.newest()
    if folder is None:
        assert not list((run / "checkpoints").glob("*"))
        return None
    model = nn.Linear(width, width)
    optimizer = adamw(model)
    progress = checkpoints.load(folder, model, optimizer)
    tensors = [*model.parameters(), *(tensor for state in optimizer.state.values() for tensor in state.values())]
    assert len(tensors) == 2 + 2 * 3
    assert all(bool((tensor == progress.tokens).all()) for tensor in tensors)
    assert folder.name == f"step-{progress.step}"
    assert (run / "latest").read_text() == f"checkpoints/{folder.name}\n"
    leftovers = [path.name for path in run.rglob("*") if not path.name.startswith(("step-", "__0_", "__1_"))]
    assert sorted(set(leftovers)) == [".metadata", "checkpoints", "latest", "state.json"], leftovers
    assert all(path.suffix == "" for path in (run / "checkpoints").iterdir())
    verify(folder)
    return progress


def kill_at(moment: int) -> None:
    """Have this process killed before its file operation number `moment`, in any thread."""
    counter = itertools.count()

    def hook(event: str, _: object) -> None:
        if event in CHANGES and next(counter) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def killed_at(moment: int, action: Callable[[], object]) -> bool:
    """Do `action` in a process that is killed before its file operation number `moment`; false if it has fewer."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kill_at(moment)
            action()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def begin(run: Path) -> None:
    """Step 1 with state 100, and nothing else."""
    shutil.rmtree(run, ignore_errors=True)
    save(run, 1, 100, keep_last=1)


def kill_each_moment(
    prepare: Callable[[], object], action: Callable[[], object], check: Callable[[bool], object]
) -> int:
    """Kill `action` at each of its file operations, each time after `prepare`; the number of kills."""
    for moment in itertools.count():
        prepare()
        killed = killed_at(moment, action)
        check(killed)
        if not killed:
            return moment
    raise AssertionError


def moments(run: Path) -> int:
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

    def empty() -> None:
        shutil.rmtree(run)
        run.mkdir()

    def damage_second() -> None:
        begin(run)
        save(run, 2, 200, keep_last=2)
        with (run / "checkpoints" / "step-2" / "__0_0.distcp").open("r+b") as file:
            file.write(b"damage")

    kills = kill_each_moment(empty, lambda: save(run, 1, 100, keep_last=1), check_first)
    for step in (2, 1):  # the next step, and the same step again
        kills += kill_each_moment(lambda: begin(run), partial(save, run, step, 200, keep_last=1), check_second)
    return kills + kill_each_moment(damage_second, lambda: checkpoints_in(run).newest(), check_first)


def twice(run: Path) -> int:
    """Kill a save, and then the resume after it."""
    kills = 0
    for step, first in ((step, first) for step in (2, 1) for first in range(60)):
        for second in itertools.count():
            begin(run)
            killed = killed_at(first, partial(save, run, step, 200, keep_last=1))
            killed_again = killed_at(second, lambda: checkpoints_in(run).newest())
            found = resume(run)
            assert found is not None
            assert found.tokens in (100, 200) if killed else found.tokens == 200
            kills += killed + killed_again
            if not (killed and killed_again):
                break
    assert not killed  # 60 operations are more than a save has
    return kills


def at_random(run: Path, times: int) -> int:
    """A loop of saves of 3 MB each, killed from outside; the last reported step must be found, or a newer one."""
    rng = random.Random(0)
    step = 0
    for _ in range(times):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(read_end)
                while True:
                    step += 1
                    save(run, step, step, keep_last=rng.choice([1, 2]), width=512)
                    os.write(write_end, b"%d\n" % step)
            finally:
                os._exit(1)
        os.close(write_end)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        with os.fdopen(read_end, "rb") as pipe:
            told = [int(line) for line in pipe]
        found = resume(run, width=512)
        saved = max(told, default=step)
        step = 0 if found is None else found.step
        assert saved <= step <= saved + 1
    return times


def one_of_two(run: Path, every: int) -> int:
    """Kill one rank of two at every Nth of its file operations: the other ends by itself."""
    kills = 0
    for step in (2, 1):
        for victim in (0, 1):
            for moment in itertools.count(0, every):
                begin(run)
                killed = rank_killed_at(run, step, victim, moment)
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
    what, run, *times = sys.argv[1:]
    logging.disable()
    torch.set_num_threads(1)
    begin(Path(run) / "first")  # imports during the first save do not count as moments
    assert resume(Path(run) / "first")
    folder = Path(run) / "run"
    folder.mkdir()
    if what == "random":
        print(at_random(folder, int(times[0])))
    elif what == "ranks":
        print(one_of_two(folder, int(times[0])))
    else:
        print({"moments": moments, "twice": twice}[what](folder))


if __name__ == "__main__":
    main()
