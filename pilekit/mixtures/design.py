"""`design_mixtures`: the mixtures of many small runs, and a training config for each.

    MIX/pilekit.json          the corpus's own shares, the caps, and the mixture of each run
        configs/000.toml ...  a config each, with its own seeds; the first eight have the corpus's own shares
        runs/, scores/        the runs and their bits per byte (run.py)
        runs.parquet          their table (run_table.py)

Mixtures are drawn from Dirichlet distributions around the corpus's own shares, in turn a spread and a concentrated one:
spread ones teach what each subset is good for, concentrated ones are where a good mixture is likely to be. Runs of the
own shares with other seeds show the noise, and make the fit exact where a gain is counted from.

A share is one of tokens. The stream of a config measures it (stream/read/mixture.py). The cap of a subset is what a run
as long as the corpus reads in `max_epochs` of its epochs: `max_epochs` times its own share. If the small runs are
longer than the corpus, it is what they read in so many epochs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.header import finished_header
from pilekit.artifacts.job_folder import output_folder
from pilekit.corpus import Source
from pilekit.display.fitted_table import Column, FittedTable, percentage, rounded_count
from pilekit.display.table_result import Result, TableResult
from pilekit.errors import PilekitError, counted
from pilekit.mixtures.optimum import capped, rounded
from pilekit.mixtures.run_table import Float64

KIND, COMMAND = "mixtures", "pilekit mix design"
REPLICATES = 8
SPREAD, CONCENTRATED = 1.0, 4.0
"""The sum of a Dirichlet distribution's parameters, per subset."""

TOKENS_PER_BYTE = 0.3
"""About what a byte of text takes, to compare the length of a run with the corpus; shares do not depend on it."""

BASE: dict[str, Any] = {
    "data": {"seq_len": 1024},
    "model": {"preset": "pythia-14m"},
    "train": {"tokens": 50_000_000, "global_batch_size": 64},
    "optimizer": {"lr": 1e-3},
    "schedule": {"warmup": 50},
}
"""The config of a design without one. It lacks a tokenizer."""


@dataclass(frozen=True, slots=True)
class DesignedSubset(Result):
    """A subset in a design: its share in the corpus, its cap, and its least, median and greatest weight in the runs."""

    share: float
    cap: float
    least: float
    median: float
    most: float


@dataclass(frozen=True, slots=True)
class MixtureDesign(TableResult):
    """The result of `design_mixtures`.

    folder    of the configs
    tokens    that each run trains on
    shares    the corpus's own, by subset
    caps      the largest weight of each subset
    runs      the weights of each run, by its name, which is that of its config
    eval_path the held-out documents that all runs are scored on; None: the val shards among the data
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("folder=name", "tokens", "subsets", "runs", "eval_path")

    folder: Path
    tokens: int
    shares: dict[str, float]
    caps: dict[str, float]
    runs: dict[str, dict[str, float]]
    eval_path: str | list[str] | None

    @property
    def name(self) -> str:
        """The folder, as text."""
        return str(self.folder)

    @property
    def subsets(self) -> dict[str, DesignedSubset]:
        """The subsets, by name."""
        weights = {name: [run.get(name, 0.0) for run in self.runs.values()] for name in self.shares}
        return {
            name: DesignedSubset(self.shares[name], self.caps[name], min(drawn), float(np.median(drawn)), max(drawn))
            for name, drawn in weights.items()
        }

    def config(self, run: str) -> Path:
        """The config of a run."""
        return self.folder / "configs" / f"{run}.toml"

    def table(self) -> FittedTable[tuple[str, DesignedSubset]]:
        """A row per subset, in per cent."""

        def column(title: str, name: str) -> Column[tuple[str, DesignedSubset]]:
            return Column(title, lambda row: percentage(getattr(row[1], name)))

        titles = {"Corpus %": "share", "Cap %": "cap", "Least %": "least", "Median %": "median", "Most %": "most"}
        columns = [Column[tuple[str, DesignedSubset]]("Subset", lambda row: row[0])]
        columns += [column(title, name) for title, name in titles.items()]
        length = f"{counted(len(self.runs), 'run')} of {rounded_count(self.tokens)} tokens"
        note = f"{length}, {min(REPLICATES, len(self.runs))} of them of the corpus's own shares"
        return FittedTable(list(self.subsets.items()), columns, notes=[note])


def design_mixtures(
    out: str | Path,
    data: Source | None = None,
    *,
    config: str | Path | Mapping[str, Any] | None = None,
    runs: int = 64,
    max_epochs: float = 4.0,
    tokens: int | None = None,
    seed: int = 0,
    changes: Mapping[str, Any] | Sequence[str] = (),
) -> MixtureDesign:
    """Design small runs of different mixtures, and write a training config for each.

    out          a new folder; the same call returns the design that is there
    data         shards; None: those of the config
    config       the config of every run, as `load_config` takes it. None: pythia-14m, which needs `data.tokenizer`
    runs         number of runs, of which eight have the corpus's own shares: 9 at least, 40 for a recommendation
    max_epochs   caps: no mixture reads a subset more often, in a run as long as the corpus
    tokens       of each run; None: the config's
    seed         of the mixtures, and added to those of the config
    changes      other values of the config, as for `load_config`

    PilekitError for a config that no run can use, a corpus without held-out shards for a config without
    `train.eval_path`, and caps that no mixture keeps.
    """
    from pilekit.train.config.file import load_config, to_toml

    if not 1 <= max_epochs < math.inf:
        raise PilekitError(f"max_epochs = {max_epochs:g}: give a number of at least 1")
    if runs <= REPLICATES:
        raise PilekitError(f"runs = {runs}: {REPLICATES} have the corpus's own shares; give more, such as 64")
    given: dict[str, Any] = {"data.path": data, "train.tokens": tokens}
    given = {field: value for field, value in given.items() if value is not None}
    if not isinstance(changes, Mapping):  # in the form of these lines, so that all change the config at once
        lines = [f"{field}={json.dumps(value, default=str)}" for field, value in given.items()]
    whole = load_config(config or BASE, {**given, **changes} if isinstance(changes, Mapping) else [*lines, *changes])
    without: dict[str, Any] = dict.fromkeys(("data.weights", "data.schedule", "data.repeats", "train.eval_path"))
    base = load_config(whole, {**without, "data.ramp": 0, "train.eval_every": 0, "checkpoint.keep_last": 1})
    if base.checkpoint.dir is not None:
        raise PilekitError("checkpoint.dir: all runs would share it; leave it out")
    parameters = {"runs": runs, "max_epochs": max_epochs, "seed": seed, "config": to_toml(whole)}
    with output_folder(out, kind=KIND, parameters=parameters, inputs={}) as output:
        if output.finished:
            return read_design(out)
        shares, length = _own_shares(base, has_eval_path=whole.train.eval_path is not None)
        total = base.steps * base.train.global_batch_size * base.data.seq_len
        epochs = max_epochs * min(1.0, length / total)
        if epochs < 1:
            raise PilekitError(
                f"a run of {rounded_count(total)} tokens reads the corpus, of about {rounded_count(length)}, "
                f"{total / length:.1f} times, more than max_epochs = {max_epochs:g}; give fewer tokens or more epochs"
            )
        own = np.array(list(shares.values()))
        caps = np.minimum(1.0, epochs * own)
        names = [f"{number:0{max(3, len(str(runs - 1)))}d}" for number in range(runs)]
        mixtures = {
            name: {subset: float(weight) for subset, weight in zip(shares, row, strict=True) if weight}
            for name, row in zip(names, draw_mixtures(own, caps, runs, seed), strict=True)
        }
        design = MixtureDesign(
            Path(out), total, shares, dict(zip(shares, caps.tolist(), strict=True)), mixtures, whole.train.eval_path
        )
        for number, (name, weights) in enumerate(mixtures.items()):
            seeds = {f"{section}.seed": getattr(base, section).seed + seed + number for section in ("data", "train")}
            mine = load_config(base, {"data.weights": weights, "data.subsets": None, **seeds})
            with write_atomically(design.config(name)) as file:
                file.write(to_toml(mine).encode())
        kept = {field: getattr(design, field) for field in ("tokens", "shares", "caps", "runs", "eval_path")}
        output.note(KIND, kept, *map(design.config, names))
    return design


def read_design(folder: str | Path) -> MixtureDesign:
    """The design in a folder; PilekitError if there is none, or it is not finished."""
    header = finished_header(folder, KIND, COMMAND)
    try:
        return msgspec.convert({"folder": Path(folder), **header.results[KIND]["result"]}, MixtureDesign)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise PilekitError(f"{folder}: its pilekit.json holds no design; design again into another folder") from error


def write_best(folder: str | Path, weights: Mapping[str, float]) -> Path:
    """Write `best.toml`, the config of the first run of a design with these weights; returns its path."""
    from pilekit.train.config.file import load_config, to_toml

    design = read_design(folder)
    config = load_config(design.config(next(iter(design.runs))), {"data.weights": weights})
    with write_atomically(best := design.folder / "best.toml") as file:
        file.write(to_toml(config).encode())
    return best


def draw_mixtures(own: Float64, caps: Float64, runs: int, seed: int) -> Float64:
    """The mixtures, float64 [runs, subsets], in four decimals, each within the caps; the first eight are `own`."""
    draw = np.random.Generator(np.random.PCG64(seed))
    sums = [(SPREAD, CONCENTRATED)[run % 2] * len(own) for run in range(runs)]
    drawn = np.stack([draw.dirichlet(own * total) for total in sums])
    drawn[:REPLICATES] = own
    return np.stack([rounded(row, caps) for row in capped(drawn, caps)])


def _own_shares(base: Any, *, has_eval_path: bool) -> tuple[dict[str, float], float]:
    """(each subset's share of the corpus's tokens, about how many tokens it has)."""
    from pilekit.shards.read.reader import Corpus
    from pilekit.stats.summary import corpus_stats
    from pilekit.stream.pile_stream import PileStream
    from pilekit.train.config.check import check_model, manifest_of
    from pilekit.train.data import open_stream

    check_model(base)
    stream = open_stream(base, world_size=1)  # builds missing indexes
    corpus, data = stream.corpus, base.data
    if not isinstance(corpus, Corpus):
        raise PilekitError("data.path: token files cannot be scored; give the shards that they were made of")
    if not has_eval_path and not Corpus(data.path, manifest_of(data)).held_out:
        raise PilekitError(
            "there are no val shards among the data to score the runs on; name held-out shards as train.eval_path"
        )
    counts = corpus_stats(corpus, subsets=data.subsets)
    sizes = {subset.name: subset.bytes for subset in counts.subsets if subset.bytes}
    if len(sizes) < 2:
        raise PilekitError(f"the corpus has text of {counted(len(sizes), 'subset')}; a mixture takes two or more")
    rows = msgspec.structs.asdict(msgspec.structs.replace(data.rows, weights=sizes, subsets=None))
    weighed = PileStream(corpus, stream.tokenizer, global_batch_size=base.train.global_batch_size, **rows)
    tokens = {name: size / weighed.repeats.get(name, 1.0) for name, size in sizes.items()}
    total = sum(tokens.values())
    return {name: count / total for name, count in tokens.items()}, TOKENS_PER_BYTE * sum(sizes.values())
