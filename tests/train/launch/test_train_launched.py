"""Whole runs in several processes, under `pilekit train` and torchrun: killed, stopped and resumed."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pilekit.train.config.file import load_config
from pilekit.train.run_folder import open_run
from tests.process_groups import ProcessGroups
from tests.stopping import wait_for
from tests.train.launch import processes
from tests.train.launch.processes import SECONDS, ranks_in
from tests.train.ranks.fitting import fit
from tests.train.runs import lines, tiny_run

pytestmark = pytest.mark.slow

STEPS = 60
"""Enough steps that a signal after the first ones always comes before the last."""
BIN = Path(sys.executable).parent
running = partial(processes.running, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = (f"train.steps={STEPS}", "train.micro_batch_size=1", "parallel.zero=2", "checkpoint.every=7")
    return tiny_run(tmp_path_factory.mktemp("launched"), *changes)


def command(launcher: str, config: Path, *options: str, restarts: int = 0) -> list[str]:
    if launcher == "pilekit":
        start = [str(BIN / "pilekit"), "train", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    else:
        start = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
        start += ["-m", "pilekit.train"]
    return [*start, str(config), *options]


def steps_in(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(made: Path, tmp_path_factory: pytest.TempPathFactory, process_group: ProcessGroups) -> Path:
    """Two ranks in a process group of the tests, without a launcher."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert [one.finished for one in process_group(2).run(fit, made, run, ())] == [(STEPS, False)] * 2
    return run


def test_a_terminal_shows_each_phase_of_the_start(made: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "CUDA_VISIBLE_DEVICES": ""}
    start = [sys.executable, "-m", "pilekit", "train", "--nproc-per-node", "2", made / "tiny.toml", "--out", tmp_path]
    with subprocess.Popen([*start, "--set", "train.steps=2"], stdout=theirs, stderr=theirs, env=environment) as train:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the last process has closed it
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
    assert train.returncode == 0, shown
    phases = "starting 2 ranks", "loading torch", "preparing the model", "starting the first step", "2 steps done"
    places = [shown.find(phase.encode()) for phase in phases]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(("launcher", "victim", "kills"), [("pilekit", 1, 2), ("torchrun", 0, 1)])
def test_killed_ranks_start_again_and_end_with_the_same_weights(
    made: Path, undisturbed: Path, tmp_path: Path, launcher: str, victim: int, kills: int
) -> None:
    run = tmp_path / "runs" / "tiny"
    rng = random.Random(f"{launcher} {victim}")
    with running(command(launcher, made / "tiny.toml", restarts=3), tmp_path) as process:
        now: dict[int, int] = {}
        before: set[int] = set()

        def begins(moment: int) -> bool:
            """Whether all ranks run that were started last, and the run has done so many steps."""
            now.clear()
            now.update(ranks_in(tmp_path))
            return victim in now and not before & set(now.values()) and steps_in(run) >= moment

        for moment in sorted(rng.sample(range(1, STEPS // 2), kills)):
            wait_for(lambda: begins(moment))  # noqa: B023
            before = set(now.values())
            os.kill(now[victim], signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, stderr
    assert re.match(rf"{STEPS} steps done, [\d,]+ tokens: loss \d\.\d{{4}}\nthe model is in runs/tiny/model", stdout)
    assert f"a rank was lost; all have started again (restart {kills} of 3)\n" in stderr
    for file in ("model/model.safetensors", "model/config.json"):
        assert (run / file).read_bytes() == (undisturbed / file).read_bytes()
    assert lines(run) == lines(undisturbed)


@pytest.mark.parametrize(
    ("launcher", "number", "code"), [("pilekit", signal.SIGINT, 130), ("torchrun", signal.SIGTERM, None)]
)
def test_a_run_that_is_stopped_saves_and_resumes(
    made: Path, undisturbed: Path, tmp_path: Path, launcher: str, number: signal.Signals, code: int | None
) -> None:
    """Both launchers pass the signal on to the ranks."""
    run = tmp_path / "runs" / "tiny"
    config = made / "tiny.toml"
    with running(command(launcher, config, restarts=1), tmp_path) as process:
        wait_for(lambda: steps_in(run) >= 10)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert not ranks_in(tmp_path)
    if code is not None:
        assert process.returncode == code, stderr
    assert stdout == ""
    said = re.search(
        rf"^stopped after step (\d+) of {STEPS}, which is saved; the same command resumes there", stderr, re.M
    )
    assert said is not None, stderr
    assert "error:" not in stderr
    assert steps_in(run) == int(said[1]) < STEPS
    assert (run / "checkpoints" / f"step-{said[1]}" / "state.json").exists()
    with running(command(launcher, config), tmp_path) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, stderr
    assert (run / "model/model.safetensors").read_bytes() == (undisturbed / "model/model.safetensors").read_bytes()
    assert lines(run) == lines(undisturbed)


def test_an_error_of_all_ranks_is_printed_once(made: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with running(command("torchrun", made / "tiny.toml", "--set", 'data.subsets=["nothing"]'), tmp_path) as process:
        _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert len(re.findall("^error: ", stderr, re.M)) == 1, stderr


def test_a_run_that_another_process_holds_is_refused_once(made: Path, tmp_path: Path) -> None:
    held, config = tmp_path / "held", made / "tiny.toml"
    with (
        open_run(held, load_config(config)),
        running(command("pilekit", config, "--out", str(held)), tmp_path) as process,
    ):
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert (process.returncode, stdout) == (1, "")
    *_, told, launcher = stderr.splitlines()
    assert "trains in this folder" in told
    assert launcher.startswith("error: rank 0 of the run ended with exit code 1; see its message above")


LOST = """if 1:
    import os, signal, sys
    from pilekit.cli import main
    from pilekit.errors import RankLost
    from pilekit.train.launch.interrupt import first_interrupt
    from pilekit.train.trainer import Trainer

    def fit(trainer, *listeners):
        with first_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
            raise RankLost("another rank is gone")

    Trainer.fit, main.REPORT_SECONDS = fit, 1e6
    main.rank_main()
"""


def test_a_rank_that_is_asked_to_end_and_then_loses_another_does_not_wait_for_its_report(
    made: Path, tmp_path: Path
) -> None:
    """On a busy machine the launcher's SIGTERM comes before the loss is noticed; it kills ranks that still wait."""
    job = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "1"}
    with running([sys.executable, "-c", LOST, "train", str(made / "tiny.toml")], tmp_path, **job) as process:
        _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, stderr
    assert "error" not in stderr
