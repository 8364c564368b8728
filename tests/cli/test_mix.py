"""`pilekit mix` on the command line: table, JSON, plot, and the line to paste."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import fit_mixtures, load_config
from pilekit.mixtures.result import as_toml
from pilekit.mixtures.run_table import RunTable
from tests.cli.running import refused, run
from tests.mixtures.laws import PowerLaw, runs_of


def write_table(path: Path, runs: RunTable) -> Path:
    """A .csv file of these runs."""
    head = [*(f"weight.{name}" for name in runs.subsets), *(f"loss.{name}" for name in runs.evaluated)]
    rows = zip(runs.weights.tolist(), runs.losses.tolist(), strict=True)
    path.write_text("\n".join([",".join(head), *(",".join(map(repr, [*one, *other])) for one, other in rows)]))
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "runs.csv", runs_of(PowerLaw.drawn(4, 2), 64, 2))


def test_the_last_line_is_the_mixture_as_a_config_takes_it(table: Path) -> None:
    fit = fit_mixtures(table, target="equal")
    shown = run("mix", "fit", table, "--target", "equal", exit_code=0).stdout.splitlines()
    weights = tomllib.loads(shown[-1])["weights"]
    assert weights == fit.weights
    changes = [f"data.{shown[-1].replace(' = ', '=', 1)}"]
    config = {"data": {"tokenizer": "x"}, "model": {"preset": "pythia-14m"}, "train": {"steps": 1}}
    assert load_config(config, changes).data.weights == weights
    assert shown[0].split()[:2] == ["Rank", "Error"]
    assert any(line.startswith("predicted gain over the mean of these mixtures: ") for line in shown)


def test_json_and_plot(table: Path, tmp_path: Path) -> None:
    arguments = ("--shares", "Subset 0=1,Subset 1=1", "--caps", "Subset 3=0.1", "--target", "Subset 3")
    shown = run("mix", "fit", table, *arguments, "--json", "--plot", tmp_path / "mixture.svg", exit_code=0)
    caps, shares = {"Subset 3": 0.1}, {"Subset 0": 1.0, "Subset 1": 1.0}
    fit = fit_mixtures(table, target="Subset 3", shares=shares, caps=caps)
    assert json.loads(shown.stdout) == fit.to_dict()
    assert (tmp_path / "mixture.svg").read_bytes().startswith(b"<?xml")
    assert shown.stderr == f"drawn: {tmp_path / 'mixture.svg'}\n"


def test_a_refusal_says_why_in_the_place_of_the_mixture(tmp_path: Path) -> None:
    few = write_table(tmp_path / "few.csv", runs_of(PowerLaw.drawn(3, 1), 20, 1))
    shown = run("mix", "fit", few, "--target", "equal", exit_code=0).stdout
    assert shown.endswith("no recommendation: there are 13 different mixtures, and under 32 say too little\n")
    answer = json.loads(run("mix", "fit", few, "--json", exit_code=0).stdout)
    assert (answer["weights"], answer["refused"][:9]) == (None, "there are")


def test_what_is_wrong_is_one_line(table: Path, tmp_path: Path) -> None:
    refused("no such loss; did you mean Subset 1", "mix", "fit", table, "--target", "Subset1")
    refused("nosuch.csv: cannot be read", "mix", "fit", tmp_path / "nosuch.csv")
    refused("give it one of these suffixes", "mix", "fit", table, "--plot", "mixture.txt")
    assert run("mix", "fit").exit_code == 2
    assert run("mix", "fit", table, "--caps", "x").exit_code == 2


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.floats(0.001, 1), max_size=3))
def test_any_names_are_written_so_that_toml_reads_them(weights: dict[str, float]) -> None:
    line = f"weights = {as_toml(weights)}"
    assert tomllib.loads(line)["weights"] == pytest.approx(weights, rel=1e-5)
    assert line.isprintable()
