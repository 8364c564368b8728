"""A stream that accelerate would share out once more is refused; the real frameworks are in tests/frameworks."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from pilekit.errors import PilekitError
from pilekit.stream import PileStream
from tests.stream.conftest import Corpora, Settings


def test_under_accelerate_only_the_loader_is_iterated_on_several_ranks(
    corpora: Corpora, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("accelerate.state")
    module.PartialState = SimpleNamespace(_shared_state={})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    one = PileStream(corpora["few"].folder, **settings, batch_size=16)
    two = PileStream(corpora["few"].folder, **settings, batch_size=8, rank=1, world_size=2)
    next(iter(two))
    module.PartialState._shared_state["backend"] = "gloo"
    next(iter(one))
    for workers in (0, 1):
        next(iter(two.loader(num_workers=workers)))
        with pytest.raises(PilekitError, match=r"second time.*send_to_device\(batch, accelerator.device\)"):
            next(iter(DataLoader(two, batch_size=None, num_workers=workers)))
    with pytest.raises(PilekitError, match="override get_train_dataloader"):
        iter(two)


def test_lightning_is_told_of_once(
    corpora: Corpora, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loader = PileStream(corpora["few"].folder, **settings, batch_size=16).loader()
    with caplog.at_level(logging.WARNING):
        next(iter(loader))
        assert "Lightning" not in caplog.text
        monkeypatch.setitem(sys.modules, "lightning.pytorch", ModuleType("lightning.pytorch"))
        loader = loader.stream.loader()  # type: ignore[attr-defined]
        next(iter(loader))
        next(iter(loader))
    assert caplog.text.count("call stream.advance(batch) in training_step") == 1
