"""`run_mixtures`: trains and scores the runs of a design that are not done yet, and collects their table.

A run is a run of the trainer, in `runs/NAME`, and a result of `bits_per_byte`, in `scores/NAME`. Both resume by
themselves, so nothing else is recorded: a run is done if its result is whole. Runs do not touch each other, so any
number of processes and of parts may work at once. After each run the table of all that are done is written, so that it
is there whatever ends a job. Checkpoints of a scored run are removed, as its model stays.
"""

from __future__ import annotations

import functools
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.own_file import read_own
from pilekit.corpus import Part
from pilekit.corpus.sidecar_files import RUNS_FILE
from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError
from pilekit.evaluate.results.result import RESULT_FILE
from pilekit.evaluate.results.result_folder import RESULT, StoredResult
from pilekit.mixtures.design import MixtureDesign, read_design
from pilekit.mixtures.run_table import RunTable, write_runs
from pilekit.workers import Advance, map_shards, usable_cpus


@dataclass(frozen=True, slots=True)
class MixtureRuns(NearestNames):
    """The result of `run_mixtures`: how many runs of the design are done, of how many, and their table."""

    done: int
    runs: int
    table: Path


def run_mixtures(
    folder: str | Path, *, jobs: int = 1, part: Part | None = None, advance: Advance | None = None
) -> MixtureRuns:
    """Train and score the runs of a design that are not done yet.

    folder    that `design_mixtures` wrote
    jobs      runs at a time, each in a process; they share the CPUs, or the GPU
    part      (I, N): only each N-th run, from the I-th, for an array of jobs
    advance   called with 1 for each run that is done

    The same call resumes after an interruption. PilekitError for what is wrong with a run, which is named, when all
    others are done.
    """
    design = read_design(folder)
    names = list(design.runs)
    if part is not None and not 1 <= part[0] <= part[1]:
        raise PilekitError(f"part {part[0]} of {part[1]}: parts are counted from 1 to their number")
    mine = names if part is None else names[part[0] - 1 :: part[1]]
    to_do = [name for name in mine if stored_result(design.folder, name) is None]
    threads = max(1, usable_cpus() // jobs) if jobs > 1 else None

    def report(more: int) -> None:
        collect(design)
        if advance is not None:
            advance(more)

    map_shards(functools.partial(_run, design, threads), to_do, jobs=jobs, names=to_do, on_progress=report)
    return MixtureRuns(collect(design), len(names), design.folder / RUNS_FILE)


def _run(design: MixtureDesign, threads: int | None, name: str, advance: Advance) -> None:
    """Train and score a run. Warnings about the data are the same for each, and the design has shown them."""
    import torch

    from pilekit.evaluate.bits_per_byte import bits_per_byte
    from pilekit.train.config.check import manifest_of
    from pilekit.train.config.file import load_config
    from pilekit.train.trainer import Trainer

    if threads is not None:
        torch.set_num_threads(threads)
    config = load_config(design.config(name))
    if threads is not None and config.data.workers:
        raise PilekitError("data.workers starts processes of a process; set it to 0, or run one at a time")
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        trained = Trainer(config, design.folder / "runs" / name).fit()
        if trained.model is None:
            raise KeyboardInterrupt
        bits_per_byte(
            trained.model,
            design.eval_path or config.data.path,
            manifest=manifest_of(config.data),
            limit=config.train.eval_limit,
            on_error=config.data.on_error,
            out=design.folder / "scores" / name,
        )
    finally:
        logging.disable(level)
    shutil.rmtree(design.folder / "runs" / name / "checkpoints", ignore_errors=True)
    advance(1)


def stored_result(folder: Path, name: str) -> StoredResult | None:
    """The result of a run; None if it has none, or a damaged one, which scoring writes again."""
    path = folder / "scores" / name / RESULT_FILE
    try:
        return RESULT.open_dict(path, RESULT.parsed(path, read_own(path)), StoredResult)
    except (OSError, PilekitError):
        return None


def collect(design: MixtureDesign) -> int:
    """Write the table of all runs that are done, if there are any; returns their number."""
    with locked(design.folder / ".runs.lock"):  # whoever comes later sees the runs of both
        results = {name: result for name in design.runs if (result := stored_result(design.folder, name)) is not None}
        if not results:
            return 0
        first, *_ = results.values()
        for name, result in results.items():
            if result.protocol["data"] != first.protocol["data"] or result.subsets.keys() != first.subsets.keys():
                raise PilekitError(
                    f"{design.folder / 'scores' / name}: was scored on other documents than the other runs; remove it, "
                    "and run again"
                )
        figure = "pseudo_bpb" if first.protocol["kind"] == "masked" else "bpb"
        bits = {name: [result.subsets[name][figure] for result in results.values()] for name in first.subsets}
        bits = {name: figures for name, figures in bits.items() if None not in figures}
        if not bits:
            raise PilekitError(f"{design.folder}: the held-out documents have no text to score; design with others")
        weights = [[design.runs[name].get(subset, 0.0) for subset in design.shares] for name in results]
        table = RunTable(
            str(design.folder / RUNS_FILE),
            tuple(design.shares),
            tuple(bits),
            np.array(weights),
            np.array(list(bits.values()), np.float64).T,
            design.shares,
            design.caps,
        )
        write_runs(design.folder / RUNS_FILE, table, list(results))
    return len(results)
