"""Tiny models from a design to a fit: parts, jobs, kills, damage, and the table of all runs."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pilekit import PilekitError, bits_per_byte, corpus_stats, design_mixtures, fit_mixtures, run_mixtures
from pilekit.corpus.sidecar_files import RUNS_FILE
from pilekit.mixtures.run_table import read_runs
from tests.cli.running import PILEKIT, run
from tests.mixtures.test_design import with_val
from tests.train.runs import tiny_run


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A design of eleven runs of two steps each, none of them done."""
    here = with_val(tiny_run(tmp_path_factory.mktemp("here"), "train.steps=2", documents=100))
    return design_mixtures(here / "mix", config=here / "tiny.toml", runs=11).folder


def copied(mix: Path, out: Path) -> Path:
    return Path(shutil.copytree(mix, out))


@pytest.mark.slow
def test_killed_and_divided_runs_have_the_table_of_one_that_did_all(mix: Path, tmp_path: Path) -> None:
    whole = copied(mix, tmp_path / "whole")
    assert run("mix", "run", whole, exit_code=0).stdout == f"11 of 11 runs are done; next: pilekit mix fit {whole}\n"
    table = read_runs([whole])
    assert table.losses.shape == (11, len(table.evaluated))
    assert pq.read_table(whole / RUNS_FILE).column("run").to_pylist() == [f"{number:03d}" for number in range(11)]
    score = bits_per_byte(whole / "runs" / "004" / "model", mix.parent / "data")
    assert table.losses[4].tolist() == [score.subsets[name].bpb for name in table.evaluated]
    assert len(np.unique(table.losses[:8], axis=0)) == 8  # replicates have other seeds
    assert not (whole / "runs" / "004" / "checkpoints").exists()

    killed = copied(mix, tmp_path / "killed")
    for kills in range(1, 4):
        with subprocess.Popen([*PILEKIT, "mix", "run", str(killed)], stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and len(list(killed.glob("runs/*"))) < 2 * kills:
                time.sleep(0.02)
            time.sleep(0.3 * kills)
            process.send_signal(signal.SIGKILL)
    assert 1 <= len(read_runs([killed]).losses) < 11
    assert run_mixtures(killed, part=(2, 2)).done < 11
    assert run_mixtures(killed, part=(1, 2), jobs=2).done == 11
    np.testing.assert_allclose(read_runs([killed]).losses, table.losses, rtol=1e-5)

    fit = fit_mixtures(whole)
    assert (fit.runs, fit.mixtures, fit.own_shares_known) == (11, 4, True)
    assert fit.refused == "there are 4 different mixtures, and under 32 say too little"


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_resumes(mix: Path, tmp_path: Path) -> None:
    folder = copied(mix, tmp_path / "mix")
    command = [*PILEKIT, "mix", "run", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (folder / "runs" / "001").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, output) == (130, "")
    assert errors.splitlines()[0] == "1 run done"
    assert errors.splitlines()[-1] == "interrupted; the same command resumes"
    assert len(read_runs([folder]).losses) == 1
    with pytest.raises(PilekitError, match=r"runs.parquet: holds the runs of a design of mixtures, and is not a shard"):
        corpus_stats(folder / RUNS_FILE)


@pytest.mark.slow
def test_a_damaged_result_is_made_again_and_a_run_that_fails_is_named(mix: Path, tmp_path: Path) -> None:
    folder = copied(mix, tmp_path / "mix")
    run_mixtures(folder, part=(1, 3))
    before = (folder / "scores" / "003" / "result.json").read_bytes()
    (folder / "scores" / "003" / "result.json").write_bytes(before.replace(b'"bpb": ', b'"bpb":  1'))
    config = folder / "configs" / "005.toml"
    config.write_text(config.read_text().replace('kind = "cosine"', 'kind = "cosin"'))
    with pytest.raises(PilekitError, match=r"005.*schedule.kind = \"cosin\""):
        run_mixtures(folder)
    assert (folder / "scores" / "003" / "result.json").read_bytes() == before
    assert len(read_runs([folder]).losses) == 10
