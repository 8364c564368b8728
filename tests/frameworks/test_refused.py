"""The real frameworks would misuse a stream that is given to them the usual way: refused, with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.environment import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

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
