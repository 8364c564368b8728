"""The mixtures of a design, their configs, and the shares that they are drawn around."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, design_mixtures, fit_mixtures, load_config, load_tokenizer
from pilekit.corpus.sidecar_files import RUNS_FILE
from pilekit.mixtures.design import MixtureDesign, draw_mixtures, read_design
from pilekit.mixtures.run_table import RunTable, write_runs
from pilekit.train.config.sections import differences
from tests.cli.running import refused, run
from tests.mixtures.laws import PowerLaw
from tests.tiny.models import tiny_corpus
from tests.train.runs import tiny_run


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=22), st.integers(9, 40), st.integers(0, 9), st.floats(1, 8))
def test_every_mixture_is_one_and_keeps_its_caps(sizes: list[int], runs: int, seed: int, epochs: float) -> None:
    own = np.array(sizes) / sum(sizes)
    caps = np.minimum(1, epochs * own)
    mixtures = draw_mixtures(own, caps, runs, seed)
    assert mixtures.shape == (runs, len(sizes))
    np.testing.assert_allclose(mixtures.sum(axis=1), 1, atol=1e-9)
    assert (mixtures <= caps + 0.0005 * len(sizes)).all()
    assert ((mixtures == 0) | (mixtures >= 0.0005)).all()
    assert (mixtures[:8] == mixtures[0]).all()
    np.testing.assert_allclose(mixtures[0], own, atol=0.0005 * len(sizes))
    np.testing.assert_array_equal(mixtures, draw_mixtures(own, caps, runs, seed))


def test_mixtures_are_drawn_around_the_shares_some_far_and_some_near() -> None:
    own = np.array([0.5, 0.3, 0.15, 0.05])
    mixtures = draw_mixtures(own, np.ones(4), 2008, 0)[8:]
    np.testing.assert_allclose(mixtures.mean(axis=0), own, atol=0.02)
    spread, concentrated = (mixtures[first::2].std(axis=0) for first in (0, 1))
    for deviation, parameters in ((spread, 4), (concentrated, 16)):
        np.testing.assert_allclose(deviation, np.sqrt(own * (1 - own) / (parameters + 1)), rtol=0.1)
    assert not np.array_equal(mixtures[0], draw_mixtures(own, np.ones(4), 9, 1)[8])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus that has a val shard, a tokenizer, a model's shape and tiny.toml."""
    return with_val(tiny_run(tmp_path_factory.mktemp("here"), documents=200))


def with_val(folder: Path) -> Path:
    tiny_corpus(folder / "val", shards=1, documents=40, seed=9)
    (folder / "val" / "00.jsonl.zst").rename(folder / "data" / "val.jsonl.zst")
    return folder


def designed(here: Path, out: Path, **settings: Any) -> MixtureDesign:
    return design_mixtures(out, config=here / "tiny.toml", **{"runs": 12, **settings})


def test_shares_are_those_of_tokens_and_each_run_has_a_config(here: Path, tmp_path: Path) -> None:
    design = designed(here, tmp_path / "mix", max_epochs=2, seed=5)
    tokenizer, tokens = load_tokenizer(here / "tokenizer"), Counter[str]()
    for document in Corpus(here / "data").split("train").documents():
        tokens[document.subset] += 1 + len(tokenizer.encode(document.text))
    assert design.shares == pytest.approx({name: count / tokens.total() for name, count in tokens.items()}, rel=0.05)
    assert sum(design.shares.values()) == pytest.approx(1)
    assert design.caps == pytest.approx({name: 2 * share for name, share in design.shares.items()})
    base = load_config(here / "tiny.toml")
    assert list(design.runs) == [f"{number:03d}" for number in range(12)]
    for number, (name, weights) in enumerate(design.runs.items()):
        config = load_config(design.config(name))
        assert config.data.weights == weights
        changed = {field for field, _, _ in differences(base, config)}
        assert changed <= {"data.weights", "data.seed", "train.seed", "checkpoint.keep_last"}
        assert (config.data.seed, config.train.seed) == (5 + number, 5 + number)
    assert read_design(tmp_path / "mix") == design == designed(here, tmp_path / "mix", max_epochs=2, seed=5)
    with pytest.raises(PilekitError, match="was made with other settings: seed is 5 there, 6 here"):
        designed(here, tmp_path / "mix", max_epochs=2, seed=6)
    mixed = ["data.schedule=[{step = 0, weights = {ArXiv = 1}}, {step = 2, weights = {Github = 1}}]", "data.ramp=1"]
    again = designed(here, tmp_path / "again", max_epochs=2, seed=5, changes=mixed)
    assert again.config("003").read_text() == design.config("003").read_text()
    assert (again.runs, again.shares) == (design.runs, design.shares)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runs": 8}, "runs = 8: 8 have the corpus's own shares; give more"),
        ({"max_epochs": 0.5}, "max_epochs = 0.5: give a number of at least 1"),
        ({"max_epochs": float("nan")}, "max_epochs = nan: give a number"),
        ({"tokens": 10_000_000}, "a run of 10.0M tokens reads the corpus, of about [0-9.]+k, [0-9.]+ times, more than"),
        ({"changes": {"checkpoint.dir": "x"}}, "checkpoint.dir: all runs would share it"),
        ({"changes": ["data.subsets=ArXiv"]}, "the corpus has text of 1 subset; a mixture takes two or more"),
        ({"changes": ["model.preset=pythia"]}, "model.preset = .*did you mean pythia-"),
    ],
)
def test_what_no_run_can_use_is_refused_and_leaves_nothing(
    settings: dict[str, Any], message: str, here: Path, tmp_path: Path
) -> None:
    with pytest.raises(PilekitError, match=message) as error:
        designed(here, tmp_path / "mix", **settings)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "mix").exists()


def test_runs_are_scored_on_held_out_shards_which_must_be_there(tmp_path: Path) -> None:
    made = tiny_run(tmp_path)
    refused(
        "there are no val shards among the data",
        "mix",
        "design",
        "--config",
        made / "tiny.toml",
        "--out",
        tmp_path / "mix",
    )
    change = f"train.eval_path={made / 'data' / '00.jsonl.zst'}"
    shown = run(
        "mix", "design", "--config", made / "tiny.toml", "--out", tmp_path / "mix", "--set", change, exit_code=0
    )
    assert shown.stdout.endswith(f"next: pilekit mix run {tmp_path / 'mix'}\n")
    assert read_design(tmp_path / "mix").eval_path == str(made / "data" / "00.jsonl.zst")
    assert re.search(r"^64 runs of 512 tokens, 8 of them of the corpus's own shares$", shown.stdout, re.MULTILINE)
    refused("runs.parquet: is not there; `pilekit mix run` collects", "mix", "fit", tmp_path / "mix")
    assert run("mix", "design", "--out", tmp_path / "mix", "--tokens", "many").exit_code == 2


def test_the_best_mixture_of_a_design_keeps_its_caps_and_has_a_config(here: Path, tmp_path: Path) -> None:
    design = designed(here, tmp_path / "mix", runs=64, max_epochs=1.5)
    names = tuple(design.shares)
    weights = np.array([[run.get(name, 0.0) for name in names] for run in design.runs.values()])
    law = PowerLaw.drawn(len(names), 3)
    losses = law.losses(weights) * np.exp(np.random.default_rng(0).normal(0, 1e-4, weights.shape))
    table = RunTable("", names, names, weights, losses, design.shares, design.caps)
    write_runs(tmp_path / "mix" / RUNS_FILE, table, list(design.runs))
    fit = fit_mixtures(tmp_path / "mix", target="equal")
    assert (fit.own_shares_known, fit.runs, fit.mixtures) == (True, 64, 57)
    assert {name: subset.cap for name, subset in fit.subsets.items()} == pytest.approx(design.caps)
    assert fit.weights is not None
    assert all(weight <= design.caps[name] + 1e-9 for name, weight in fit.weights.items())
    shown = run("mix", "fit", tmp_path / "mix", "--target", "equal", "--json", exit_code=0)
    assert json.loads(shown.stdout)["weights"] == fit.weights
    assert shown.stderr == f"written: {tmp_path / 'mix' / 'best.toml'}\n"
    assert load_config(tmp_path / "mix" / "best.toml").data.weights == fit.weights

    damaged = bytearray((tmp_path / "mix" / RUNS_FILE).read_bytes())
    damaged[100] ^= 1
    (tmp_path / "mix" / RUNS_FILE).write_bytes(damaged)
    refused("runs.parquet: is damaged", "mix", "fit", tmp_path / "mix")
