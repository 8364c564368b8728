"""The scripts of docs/frameworks.md, unchanged, in the real frameworks: killed, and started again.

torchdata's StatefulDataLoader resumes after any batch. A stream that is given to a framework the usual way, which would
misuse it, is refused with the remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.conftest import Rows
from tests.frameworks.environment import ROOT, launch

PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
SCRIPTS = {
    title: re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
WATCHED = ROOT / "tests" / "frameworks" / "watched.py"

STEPS = 6
"""Optimizer steps of each script; it saves after every second one."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def seen(folder: Path, rank: int) -> Rows:
    return [json.loads(line) for line in (folder / f"seen-{rank}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("title", SCRIPTS)
def test_killed_and_started_again(title: str, python: Path, folder: Path, alone: Callable[..., Rows]) -> None:
    """Killed in the fourth step, a script resumes after the second, the last saved; each rank has its own rows."""
    (script,) = SCRIPTS[title]
    (folder / "train.py").write_text(script, encoding="utf-8")
    ranks, per_step = (1, 1) if title == "StatefulDataLoader" else (2, 2)
    sizes = {"batch_size": 16 // ranks // per_step, "grad_accum": per_step, "world_size": ranks}
    wanted = [alone(STEPS * per_step, **sizes, rank=rank) for rank in range(ranks)]

    calls = 3 * per_step + per_step // 2
    killed = launch(python, WATCHED, "train.py", folder=folder, ranks=ranks, WATCHED_CALLS=str(calls))
    assert killed.code != 0
    assert all((folder / f"seen-{rank}.jsonl").exists() for rank in range(ranks)), killed.text[-4000:]
    for rank in range(ranks):
        first = seen(folder, rank)
        assert first == wanted[rank][: len(first)], killed.text[-4000:]
        assert 3 * per_step <= len(first) <= calls, killed.text[-4000:]
        (folder / f"seen-{rank}.jsonl").unlink()

    again = launch(python, WATCHED, "train.py", folder=folder, ranks=ranks).well()
    rest = [seen(folder, rank) for rank in range(ranks)]
    for rank in range(ranks):
        assert rest[rank] == wanted[rank][2 * per_step :], again[-4000:]

    for step, together in enumerate(alone(STEPS)[2:]):
        parts = [rows for own in rest for batch in own[step * per_step : (step + 1) * per_step] for rows in batch]
        assert sorted(parts) == sorted(together)


STATEFUL = f"""
import itertools, json, pickle, sys
sys.path.insert(0, {str(ROOT / "tests" / "frameworks")!r})
from torchdata.stateful_dataloader import StatefulDataLoader
from pilekit import PileStream
from watched import digests

tokenizer = PileStream("data/train", tokenizer="tokenizer.json", seq_len=256, batch_size=16).tokenizer
found = []

def loader(workers, every):
    stream = PileStream("data/train", tokenizer=tokenizer, seq_len=256, batch_size=16, lanes=(8, 2))
    return StatefulDataLoader(stream, batch_size=None, num_workers=workers, snapshot_every_n_steps=every)

for workers, every in [(0, 1), (1, 5), (2, 1), (2, 5), (3, 1), (3, 5)]:
    whole = loader(workers, every)
    begun, first, states = iter(whole), [], []
    for _ in range(8):
        states.append(pickle.dumps(whole.state_dict()) if first else None)
        first.append(digests(next(begun)))
    found.append([workers, every, 0, first])
    for done in (1, 2, 5, 7):
        other = loader(workers, every)
        other.load_state_dict(pickle.loads(states[done]))
        rest = [digests(batch) for batch in itertools.islice(other, 4)]
        found.append([workers, every, done, rest])
        if done == 5:  # and once more, from within what went on
            again = loader(workers, every)
            state = other.state_dict()
            again.load_state_dict(state)
            found.append([workers, every, 9, [digests(batch) for batch in itertools.islice(again, 3)]])
print(json.dumps(found))
"""


def test_it_goes_on_exactly_after_any_batch(python: Path, folder: Path, alone: Callable[..., Rows]) -> None:
    (folder / "script.py").write_text(STATEFUL)
    told = launch(python, "script.py", folder=folder, ranks=1).well()
    found = json.loads(told.splitlines()[-1])
    whole = alone(16, lanes=(8, 2))
    assert len(found) == 6 * 6
    for workers, every, done, rows in found:
        assert rows == whole[done : done + len(rows)], (workers, every, done)


ACCELERATE = """
import sys
from accelerate import Accelerator
from torch.utils.data import DataLoader
from pilekit import PileStream

accelerator = Accelerator(cpu=True)
stream = PileStream("data/train", tokenizer="tokenizer.json", seq_len=256, batch_size=4)
loader = stream.loader()
assert accelerator.prepare(loader) is loader
for batch in accelerator.prepare(DataLoader(stream, batch_size=None, num_workers=int(sys.argv[1]))):
    raise SystemExit("a batch was given")
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_may_not_prepare_a_loader(python: Path, folder: Path, workers: int) -> None:
    """Rank 0 alone iterates a prepared DataLoader over a stream, and would send its batches to all ranks."""
    (folder / "script.py").write_text(ACCELERATE)
    ended = launch(python, "script.py", str(workers), folder=folder, ranks=2)
    assert ended.code != 0
    assert "a batch was given" not in ended.text
    assert "pilekit.errors.PilekitError: accelerate would share this stream out" in ended.text
    assert "send_to_device(batch, accelerator.device)" in ended.text


TRAINER = """
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
from pilekit import PileStream

arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, max_steps=2, use_cpu=True, report_to="none"
)
stream = PileStream("data/train", tokenizer="tokenizer.json", seq_len=256, batch_size=4)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
Trainer(model, arguments, train_dataset=stream).train()
"""


def test_trainer_may_not_have_a_stream_as_its_dataset(python: Path, folder: Path) -> None:
    (folder / "script.py").write_text(TRAINER)
    ended = launch(python, "script.py", folder=folder, ranks=2)
    assert ended.code != 0
    assert "pilekit.errors.PilekitError: accelerate would share this stream out" in ended.text
    assert "override get_train_dataloader" in ended.text


LIGHTNING = """
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoConfig, AutoModelForCausalLM
from pilekit import PileStream

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
    def training_step(self, batch, index):
        return self.model(**batch, use_cache=False).loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

stream = PileStream("data/train", tokenizer="tokenizer.json", seq_len=256, batch_size=16)
keep = ModelCheckpoint("checkpoints", every_n_train_steps=2, save_last=True)
trainer = lightning.Trainer(accelerator="cpu", max_steps=9, callbacks=[keep], logger=False)
trainer.fit(Model(), stream.loader(num_workers=2), ckpt_path="last")
"""


def test_lightning_is_told_of_reading_ahead(python: Path, folder: Path) -> None:
    (folder / "script.py").write_text(LIGHTNING)
    ended = launch(python, "script.py", folder=folder, ranks=1)
    assert "reads a batch ahead of stream.loader()" in ended.text
