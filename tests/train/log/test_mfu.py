"""The share of a GPU's peak: the formula, the table of GPUs, and the line of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pilekit.train.log import mfu
from pilekit.train.log.metrics import read_metrics
from pilekit.train.log.mfu import operations_per_token, peak_of
from tests.tiny.models import tiny_model
from tests.train.runs import tiny_run, trainer


def test_the_peak_is_that_of_the_data_sheet_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    for name, peak in (
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40", None),
        ("Tesla V100-SXM2-16GB", None),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device, name=name: name)
        assert peak_of(cuda, "bf16") == peak, name
        assert peak_of(cuda, "fp32") is None
    assert peak_of(torch.device("cpu"), "bf16") is None


def test_a_run_tells_its_share_of_a_known_peak_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_run(tmp_path, "train.steps=2")
    trainer(made, tmp_path / "unknown").fit()
    assert [step.mfu for step in read_metrics(tmp_path / "unknown" / "metrics.jsonl")] == [None] * 2
    monkeypatch.setattr(mfu, "peak_of", lambda _device, _dtype: 1e12)
    ours = trainer(made, tmp_path / "known")
    ours.fit()
    shape = tiny_model().config
    parameters = sum(parameter.numel() for parameter in tiny_model().parameters())
    expected = 6 * parameters + 12 * shape.num_hidden_layers * shape.hidden_size * 32
    assert operations_per_token(ours.engine.lm.model, 32) == expected
    for step in read_metrics(tmp_path / "known" / "metrics.jsonl"):
        assert step.mfu == pytest.approx(expected * step.tokens_per_second / 1e12)
    model = tiny_model()
    model.get_input_embeddings().requires_grad_(False)
    assert operations_per_token(model, 32) is None
