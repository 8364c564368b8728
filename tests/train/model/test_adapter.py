"""`train` begins from what the config names: a base, or a base and its adapter; teachers and their blocks too."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from pilekit.errors import PilekitError
from pilekit.models import folder as folder_module
from tests.refusing import refused
from tests.tiny.adapters import tiny_adapter
from tests.tiny.models import tiny_model
from tests.train.runs import tiny_run, trainer

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's files, a base with an adapter beside its weights, and peft's merged model of both."""
    folder = tiny_run(tmp_path_factory.mktemp("run"))
    tiny_model().save_pretrained(folder / "base")
    tiny_adapter(folder / "base").merge_and_unload().save_pretrained(folder / "merged")
    tiny_adapter(folder / "of-gpt2", "gpt2")
    return folder


def of(folder: Path) -> Weights:
    return dict(type(tiny_model()).from_pretrained(folder, adapter_kwargs={"subfolder": "none"}).state_dict())


def begun(made: Path, tmp_path: Path, *changes: str) -> Weights:
    """The weights with which a run begins."""
    model = trainer(made, tmp_path / "run", *changes).engine.lm.model
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def assert_same(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_a_run_begins_from_what_is_named(made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = "model.config=null", f"model.path={made}/base"
    assert_same(begun(made, tmp_path, *named), of(made / "base"))
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line for line in said if "adapter" in line] == [
        f"{made}/base: an adapter lies beside the weights, and is left out; to add it, name it (--adapter, or "
        "model.adapter)"
    ]
    caplog.clear()
    ours = trainer(made, tmp_path / "run", *named, f"model.adapter={made}/base", "train.steps=2", "parallel.zero=3")
    assert all(parameter.requires_grad for parameter in ours.engine.lm.model.parameters())
    assert_same(dict(ours.engine.full_parameters()), of(made / "merged"))
    assert not [line for line in caplog.messages if "adapter" in line]
    assert ours.fit().step == 2
    with pytest.raises(PilekitError, match=r"model.adapter = \(not given\): the run's checkpoint was made with"):
        trainer(made, tmp_path / "run", *named, "train.steps=3").fit()


def test_a_teacher_and_its_blocks_are_what_is_named(made: Path, tmp_path: Path) -> None:
    named = "model.config=null", "model.from_teacher=1", f"teacher.path={made}/base"
    for adapter, expected in (((), "base"), ((f"teacher.adapter={made}/base",), "merged")):
        ours = trainer(made, tmp_path / "run", *named, *adapter)
        model: torch.nn.Module = ours.engine._step_loss._teacher._lm.model  # type: ignore[union-attr]
        teacher = {name: value.detach() for name, value in model.state_dict().items()}
        assert_same(teacher, of(made / expected))
        student = dict(ours.engine.full_parameters())
        assert_same(student, {name: value for name, value in of(made / expected).items() if name in student})
        assert not any(parameter.requires_grad for parameter in model.parameters())


def test_an_adapter_that_cannot_be_used_is_told_before_anything_is_loaded(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = "model.config=null", f"model.path={made}/base"
    beside, other = f"model.adapter={made}/base", f"model.adapter={made}/of-gpt2"
    cases = [
        ((beside,), "model.adapter = .*: needs model.path"),
        ((f"teacher.adapter={made}/base",), "teacher.adapter = .*: needs teacher.path"),
        ((*base, beside, "lora.rank=2"), "model.adapter = .*: cannot be the base of other adapters"),
        ((*base, other), "^model.adapter: .*/of-gpt2: the model has no layer"),
        ((*base, f"model.adapter={made}/merged"), "^model.adapter: .*/merged: has no adapter_config.json"),
        (("model.config=null", f"model.path={made}/of-gpt2"), "^model.path: .*/of-gpt2: is an adapter, without"),
        ((*base, f"teacher.path={made}/base", f"teacher.adapter={made}/of-gpt2"), "^teacher.adapter: .*has no layer"),
        (
            (
                "model.config=null",
                "model.from_teacher=1",
                f"teacher.path={made}/base",
                f"teacher.adapter={made}/of-gpt2",
            ),
            "^teacher.adapter: .*has no layer",
        ),
    ]
    for changes, message in cases:
        refused(message, trainer, made, tmp_path / "run", *changes)
    monkeypatch.setattr(folder_module, "find_spec", lambda name: None)
    refused(r"^model.adapter: the adapter .* needs the package peft", trainer, made, tmp_path / "run", *base, beside)
    assert not (tmp_path / "run").exists()
