"""`[[data.schedule]]`: a run whose mixture changes, its epochs in metrics.jsonl, and how it may be extended."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from pilekit.errors import PilekitError
from pilekit.train.config.file import load_config
from pilekit.train.data import open_stream
from tests.refusing import refused
from tests.train.runs import interrupt_at, lines, tiny_run, trainer

SCHEDULE = "data.schedule=[{step=0, weights={ArXiv=1, github=1}}, {step=10, weights={Pile-CC=1}}]"
LONGER = f"{SCHEDULE[:-1]}, {{step=15, weights={{ArXiv=1}}}}]"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("made"), SCHEDULE, "data.packing=concat", "train.steps=24", documents=60)


def logged(run: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.dataset.dataset(run / "documents", format="parquet").to_table().to_pylist()
    return rows


def subsets_begun(run: Path) -> dict[str, set[int]]:
    """For each subset, the entries in whose steps its documents begin: up to step 10, up to 15, and later."""
    entries: dict[str, set[int]] = {}
    for row in logged(run):
        if row["first"] == 0:
            entries.setdefault(row["subset"], set()).add((row["step"] > 10) + (row["step"] > 15))
    return entries


def test_epochs_are_those_of_the_documents_log(made: Path, tmp_path: Path) -> None:
    """Also after a stop; and the log's subsets follow the schedule."""
    trainer(made, tmp_path / "run").fit(interrupt_at(11))
    trainer(made, tmp_path / "run").fit()
    trainer(made, tmp_path / "whole").fit()
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    stream = open_stream(load_config(made / "tiny.toml"))
    own = {name: of["documents"] for name, of in stream.explain()["epochs"].items()}
    assert set(own) == {"ArXiv", "Github", "Pile-CC"}
    begun: Counter[str] = Counter()
    table = logged(tmp_path / "run")
    for line in lines(tmp_path / "run"):
        rows = [row for row in table if row["step"] == line["step"]]
        begun.update(row["subset"] for row in rows if row["first"] == 0)
        assert line["epochs_by_subset"] == pytest.approx({name: begun[name] / own[name] for name in own})
    assert subsets_begun(tmp_path / "run") == {"ArXiv": {0}, "Github": {0}, "Pile-CC": {1, 2}}


def test_a_schedule_may_be_extended_and_its_past_not_changed(made: Path, tmp_path: Path) -> None:
    trainer(made, tmp_path, "train.steps=12").fit()
    refused(
        r"cannot resume with other data \(weights: 12 steps of the run are done, and step 0 had ArXiv 0\.5, "
        r"Github 0\.5, not Github 1; keep the entries and the ramp before step 12, and change later ones\)",
        trainer(made, tmp_path, "data.schedule=[{step=0, weights={github=1}}]").fit,
    )
    trainer(made, tmp_path, LONGER).fit()
    assert subsets_begun(tmp_path) == {"ArXiv": {0, 2}, "Github": {0}, "Pile-CC": {1}}
    state = json.loads(next((tmp_path / "checkpoints").glob("step-24/state.json")).read_text())
    (change,) = state["progress"]["stream"]["changes"]
    assert change["until_step"] == 12


def test_wrong_tables_are_named(made: Path) -> None:
    for change, words in (
        (
            "data.schedule=[{step=4, weights={ArXiv=1}}, {step=4, weights={ArXiv=1}}]",
            r"^data\.schedule: weights: step 4",
        ),
        ("data.schedule=[{step=0, weights={Arxif=1}}]", r'^data\.schedule: step 0: unknown subset "Arxif"'),
        ("data.schedule=[{step=0, weights={EuroParl=1}}]", r"^data\.schedule: weights names EuroParl, which has no do"),
    ):
        refused(words, open_stream, load_config(made / "tiny.toml", [change]))
    for changes in (["data.schedule=[{step=0}]"], ["data.schedule=[]"], ["data.weights={ArXiv=1}"]):
        with pytest.raises(PilekitError, match=r"data\.(schedule|weights)"):
            load_config(made / "tiny.toml", changes)
