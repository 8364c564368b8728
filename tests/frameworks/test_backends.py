"""Runs with DeepSpeed and accelerate have the losses, checkpoints and exports of the native engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.frameworks.environment import SETTINGS, Ended, launch
from tests.train.launch.processes import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CONFIG = """
[data]
path = "data/train"
tokenizer = "tokenizer.json"
seq_len = 64
window = 8

[model]
config = "model"

[train]
steps = 4
global_batch_size = 12
micro_batch_size = 2        # three micro-batches on each of two ranks

[optimizer]
lr = 1e-3
layer_decay = 0.9           # several groups, of several rates

[schedule]
kind = "constant"
"""

RUNS = """
import json, sys
from pilekit import Trainer, load_config

{before}

for place, settings in json.loads(sys.argv[1]).items():
    for folder, *more in (("whole",), ("halves", "train.steps=2"), ("halves",)):
        Trainer(load_config("run.toml", [*settings, *more]), f"{{place}}/{{folder}}").fit()
"""

ON_A_CPU = """
# accelerate shards where it sees GPUs: here it is told so, and does what it would do there.
from accelerate import PartialState
from accelerate.utils import DistributedType
import torch
import pilekit.train.trainer

PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_GPU)
PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
pilekit.train.trainer.check_backend = lambda config, device: None
"""


@pytest.fixture(scope="module")
def native(python: Path, materials: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of the native engine, the materials, and `run.toml`."""
    folder = tmp_path_factory.mktemp("native")
    for thing in materials.iterdir():
        (folder / thing.name).symlink_to(thing)
    (folder / "run.toml").write_text(CONFIG)
    (folder / "runs.py").write_text(RUNS.format(before=""))
    launch(python, "runs.py", json.dumps({".": []}), folder=folder, ranks=2).well()
    return folder


@pytest.fixture
def place(native: Path, tmp_path: Path) -> Path:
    """The test's own folder with the materials and `run.toml`."""
    for thing in ("data", "tokenizer.json", "model", "run.toml", "runs.py"):
        (tmp_path / thing).symlink_to(native / thing)
    return tmp_path


def train(python: Path, folder: Path, run: str, *arguments: str, ranks: int = 2) -> Ended:
    """`pilekit train` into the folder `run`."""
    return launch(python, "-m", "pilekit.train", "run.toml", "--out", run, *arguments, folder=folder, ranks=ranks)


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_losses(run: Path, native: Path, tolerance: float) -> None:
    for own, theirs in zip(metrics(run), metrics(native / "whole"), strict=True):
        for figure in ("loss", "grad_norm"):
            assert own[figure] == pytest.approx(theirs[figure], rel=tolerance), own["step"]
        for figure in ("step", "tokens", "lr", "skipped"):
            assert own[figure] == theirs[figure]


@pytest.mark.parametrize(
    ("engine", "cases"),
    [
        ("deepspeed", [(0, "fp32"), (1, "bf16"), (2, "fp32"), (3, "bf16"), (3, "fp32, offloaded")]),
        ("accelerate", [(0, "fp32"), (0, "bf16")]),
        ("accelerate", [(2, "bf16"), (3, "fp32")]),
    ],
)
def test_the_losses_are_the_native_ones_and_a_run_goes_on_bit_for_bit(
    python: Path, native: Path, place: Path, engine: str, cases: list[tuple[int, str]]
) -> None:
    """The cases of an engine in one process each rank, one after another."""
    overruled = ON_A_CPU if engine == "accelerate" and cases[0][0] else ""
    (place / "engine.py").write_text(RUNS.format(before=overruled))
    runs = {}
    for zero, kind in cases:
        dtype, _, offloaded = kind.partition(", ")
        settings = [f"parallel.backend={engine}", f"parallel.zero={zero}", f"precision.dtype={dtype}"]
        runs[f"{zero} {kind}"] = settings + ["parallel.offload=true"] * bool(offloaded)
    launch(python, "engine.py", json.dumps(runs), folder=place, ranks=2).well()
    for case in runs:
        check(place / case, native, 5e-3 if "bf16" in case else 1e-5)


def check(place: Path, native: Path, tolerance: float) -> None:
    assert_losses(place / "whole", native, tolerance)
    whole, halves = metrics(place / "whole"), metrics(place / "halves")
    for figure in ("loss", "grad_norm", "loss_by_subset", "tokens"):
        assert [step[figure] for step in halves] == [step[figure] for step in whole], figure
    weights, others = (load_file(place / run / "model" / "model.safetensors") for run in ("whole", "halves"))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, others[name]), name

    loaded = AutoModelForCausalLM.from_pretrained(place / "whole" / "model")
    assert loaded.dtype == torch.float32
    theirs = load_file(native / "whole" / "model" / "model.safetensors")
    assert weights.keys() == theirs.keys()
    for name, weight in weights.items():  # Adam turns a rounded gradient into a step of the learning rate
        assert torch.allclose(weight, theirs[name], rtol=0, atol=2 * 4 * 1e-3), name


def test_each_engine_goes_on_from_another(python: Path, native: Path, place: Path) -> None:
    before = ""
    for steps, (engine, zero, ranks) in enumerate(
        [("native", 3, 2), ("deepspeed", 3, 2), ("accelerate", 0, 2), ("deepspeed", 1, 1)], 1
    ):
        more = ["--backend", engine, "--set", f"parallel.zero={zero}", "--set", f"train.steps={steps}"]
        told = train(python, place, "run", *more, ranks=ranks).well()
        assert (f'parallel.backend = "{engine}", which was "{before}"' in told) == bool(before)
        before = engine
    assert_losses(place / "run", native, 1e-5)


BAD_STEP = """
import sys
from pilekit import Trainer, load_config
from pilekit.errors import PilekitError
from pilekit.train.step import losses

forward, calls = losses.StepLoss.forward, []

def bad_once(self, rows, scale):
    calls.append(rows)
    loss, nll = forward(self, rows, scale)
    if len(calls) == 8:
        return (loss * 1e38 * 1e38, nll) if {gradient} else (loss, nll * float("nan"))
    return loss, nll

losses.StepLoss.forward = bad_once
trainer = Trainer(load_config("run.toml", sys.argv[1:]), "run")
for _ in range(2):
    try:
        trainer.fit()
    except PilekitError as error:
        sys.stdout.write(f"told: {{error}}\\n")  # print would write in pieces, and two ranks write at once
losses.StepLoss.forward = forward
Trainer(load_config("run.toml", sys.argv[1:]), "run").fit()
"""


@pytest.mark.parametrize(
    ("engine", "zero", "gradient"), [("deepspeed", 0, True), ("deepspeed", 3, False), ("accelerate", 0, True)]
)
def test_a_step_without_numbers_moves_nothing(
    python: Path, native: Path, place: Path, engine: str, zero: int, gradient: bool
) -> None:
    """The third step fails: a run resumes after two steps, and so may its Trainer if it had reached its update."""
    (place / "bad.py").write_text(BAD_STEP.format(gradient=gradient))
    settings = [f"parallel.backend={engine}", f"parallel.zero={zero}"]
    told = launch(python, "bad.py", *settings, folder=place, ranks=2).well()
    what = "told: step 3: the gradient's norm is " if gradient else "told: step 3: the loss is nan"
    assert what in told, told[-4000:]
    assert ("told: an earlier fit of this Trainer ended amid a step" in told) == (not gradient)
    assert_losses(place / "run", native, 1e-5)


HELD_TO_THE_END = """
import atexit, gc, sys, weakref

@atexit.register  # first, so called last
def tell():
    sys.stdout.write(f"reducers: {len(reducers)}, left: {sum(reducer() is not None for reducer in reducers)}\\n")

from pilekit import Trainer, load_config
from torch.nn.parallel import DistributedDataParallel

first = Trainer(load_config("run.toml", sys.argv[1:]), "run")
second = Trainer(load_config("run.toml", sys.argv[1:]), "run")
second.fit()
reducers = [weakref.ref(one.reducer) for one in gc.get_objects() if isinstance(one, DistributedDataParallel)]
"""


def test_no_reducer_outlives_the_process_groups(python: Path, native: Path, place: Path) -> None:
    """Even if a script holds its trainers: a reducer that is freed later may wait forever for a thread of its group."""
    (place / "held.py").write_text(HELD_TO_THE_END)
    torchrun = [str(python), "-m", "torch.distributed.run", "--standalone", "--local-addr=localhost"]
    command = [*torchrun, "--nproc-per-node=2", "held.py", "parallel.backend=accelerate", "train.steps=1"]
    with running(command, place, **SETTINGS) as process:
        stdout, stderr = process.communicate(timeout=480)
    assert process.returncode == 0, stderr[-4000:]
    assert stdout.count("reducers: 2, left: 0\n") == 2, stderr[-4000:]


def test_one_process_needs_no_launcher(python: Path, native: Path, place: Path) -> None:
    for run, more in {
        "deepspeed": ("--backend", "deepspeed", "--set", "parallel.zero=2"),
        "accelerate": ("--backend", "accelerate", "--set", "train.eval_every=4", "--set", "train.eval_path=data/train"),
    }.items():
        train(python, place, run, *more, ranks=1).well()
        assert_losses(place / run, native, 1e-5)
    assert metrics(place / "accelerate")[-1]["bpb"]["overall"] > 0


def test_standard_output_has_the_result_alone(python: Path, place: Path) -> None:
    command = [str(python), "-m", "pilekit.train", "run.toml", "--backend", "deepspeed", "--set", "parallel.zero=1"]
    done = subprocess.run(
        [*command, "--set", "train.steps=1"],
        cwd=place,
        env={**os.environ, **SETTINGS},  # its PATH: DeepSpeed may have to compile here
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[0].startswith("1 step done")
    assert len(done.stdout.splitlines()) == 2
    shutil.rmtree(place / "runs")


DEEPSPEED_FILE = {
    "train_batch_size": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 12345, "overlap_comm": False},
}

RUN_WITH_FILE = """
import sys, yaml
from pilekit import Trainer, load_config
{before}
trainer = Trainer(load_config("run.toml", sys.argv[1:]), "run")
engine = trainer.engine
config = getattr(engine._wrapped, "_config", None)
if config is not None:
    found = config.zero_config.reduce_bucket_size, config.train_batch_size
else:
    plugin = engine._accelerator.state.fsdp_plugin
    found = sorted(plugin.transformer_cls_names_to_wrap), engine._accelerator.state.debug
sys.stdout.write(f"found: {{found}}\\n")
trainer.fit()
"""


ACCELERATE_FILE = """
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: GPTNeoXLayer,GPTNeoXMLP
  fsdp_version: 2
machine_rank: 0
mixed_precision: 'no'
num_machines: 1
num_processes: 2
use_cpu: false
"""


@pytest.mark.parametrize("engine", ["deepspeed", "accelerate"])
def test_a_file_of_the_package_is_honoured_or_refused(python: Path, native: Path, place: Path, engine: str) -> None:
    if engine == "deepspeed":
        content, zero, before, found = json.dumps(DEEPSPEED_FILE), 2, "", (12345, 12)
        other, stage = json.dumps(DEEPSPEED_FILE | {"train_batch_size": 24}), 2
        unknown = json.dumps({"zero_optimization": {"no_such_setting": 1}})
        contradiction = "train_batch_size = 24, but the run asks for 12"
    else:
        content, zero, before, found = ACCELERATE_FILE, 3, ON_A_CPU, (["GPTNeoXLayer", "GPTNeoXMLP"], True)
        other, stage = ACCELERATE_FILE, 0
        unknown = "{distributed_type: NO, num_processes: 1, no_such_setting: 1}"
        contradiction = 'distributed_type = "FSDP", but the run asks for "MULTI_GPU"'
    file = place / ("ds.json" if engine == "deepspeed" else "acc.yaml")
    file.write_text(content)
    (place / "file.py").write_text(RUN_WITH_FILE.format(before=before))
    settings = [f"parallel.backend={engine}", f"parallel.zero={zero}", f"parallel.backend_config={file.name}"]
    told = launch(python, "file.py", *settings, folder=place, ranks=2).well()
    assert told.count(f"found: {found}\n") == 2, told[-4000:]
    assert_losses(place / "run", native, 1e-5)

    shutil.rmtree(place / "run")
    more = ["--backend", engine, "--set", f"parallel.zero={stage}", "--set", f"parallel.backend_config={file.name}"]
    for wrong, message in ((other, contradiction), (unknown, f"{engine} refuses it: .*no_such_setting")):
        file.write_text(wrong)
        ended = train(python, place, "run", *more, ranks=1)
        assert ended.code == 1
        assert re.search(f"error: {file.name}: {message}", ended.text), ended.text[-4000:]
    assert not (place / "run" / "metrics.jsonl").exists()
