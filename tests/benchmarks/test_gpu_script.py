"""gpu.sh, as a machine with a GPU runs it, in its dry run on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.gpu_table import scoring, training

SCRIPT = Path(__file__).with_name("gpu.sh")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_a_dry_run_measures_every_part(tmp_path: Path) -> None:
    # The script runs the `python3` that PATH finds, as on a machine whose own torch is to be measured.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["sh", SCRIPT, tmp_path, "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    logs = [path.read_text()[-2000:] for path in tmp_path.glob("*.log")]
    assert done.returncode == 0, (done.stdout, done.stderr, *logs)
    trained = json.loads((tmp_path / "train-pythia-14m.json").read_text())
    assert [each["name"] for each in trained] == [
        "pilekit, blocks, varlen",
        "bare, labels",
        "pilekit, step, varlen, CUDA graphs",
    ]
    assert not [each["failed"] for each in trained if "failed" in each]
    losses = [each["losses"] for each in trained]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] == pytest.approx(losses[2], rel=1e-3)
    (scored,) = json.loads((tmp_path / "bpb.json").read_text())
    assert scored["tokens"] > 100
    assert (tmp_path / "table.md").read_text() == "\n".join([*training(trained), "", *scoring([scored]), ""])


def test_the_tables_of_a_gpu() -> None:
    measured = {
        **{"gpu": "H200", "torch": "2.11", "mfu": 0.3434, "tokens_per_second": 350123.0, "idle": 0.198},
        "memory": 14e9,
    }
    run = {"shape": "pythia-160m", "step_seconds": [0.2, 0.187, 0.1], "data_wait_share": 0.0151, **measured}
    figures = [
        {"name": "pilekit, step, varlen", **run},
        {"name": "bare, labels", **run},
        {"shape": "pythia-1.4b", "name": "pilekit, blocks", "failed": "ended | with status 1"},
    ]
    assert list(training(figures)) == [
        "H200, torch 2.11\n",
        "| | s a step | tokens/s | MFU | data wait | idle | memory |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| **Pythia-160m** | | | | | | |",
        '| `compile = "step"`, `"varlen"` | 0.187 | 350,000 | 34.3 % | 1.5 % | 19.8 % | 14.0 GB |',
        "| bare loop, the model's own loss | 0.187 | 350,000 | 34.3 % |  | 19.8 % | 14.0 GB |",
        "| **Pythia-1.4b** | | | | | | |",
        "| compiled blocks | does not run: ended   with status 1 | | | | | |",
    ]
    (*_, line) = scoring([{"shape": "pythia-160m", "tokenizing": 0.05, **measured}])
    assert line == "| Pythia-160m | 350,000 | 34.3 % | 5.0 % | 19.8 % | 14.0 GB |"
    assert next(scoring([])) == "nothing was measured\n"
