"""What the real frameworks would do to a stream that is given to them the usual way: refused, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks.environment import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ACCELERATE = """
import json, os
from pathlib import Path
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader
from pilekit import PileStream
from pilekit.errors import PilekitError

told = []
for dispatch in (False,):
    configuration = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    stream = PileStream("data/train", tokenizer="tokenizer.json", seq_len=256, batch_size=4)
    loader = stream.loader()
    assert accelerator.prepare(loader) is loader
    for workers in (0, 2):
        prepared = accelerator.prepare(DataLoader(stream, batch_size=None, num_workers=workers))
        assert accelerator.num_processes == int(os.environ.get("WORLD_SIZE", 1))
        try:
            for batch in prepared:
                told.append(list(batch))
                break
        except PilekitError as error:
            told.append(str(error))
Path(f"told-{accelerator.process_index}.json").write_text(json.dumps(told))
accelerator.end_training()
"""


def test_accelerate_may_not_prepare_a_loader(python: Path, folder: Path) -> None:
    """A DataLoader over the stream, with workers or without; rank 0 alone iterates it where it sends batches to all."""
    ranks = 2
    (folder / "script.py").write_text(ACCELERATE)
    ended = launch(python, "script.py", folder=folder, ranks=ranks)
    assert ended.code == 0, ended.text[-4000:]
    for rank in range(ranks):
        told = json.loads((folder / f"told-{rank}.json").read_text())
        assert len(told) == 2
        for line in told:
            assert "second time" in line
            assert "send_to_device(batch, accelerator.device)" in line


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
