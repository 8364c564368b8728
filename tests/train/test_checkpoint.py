"""The state between two steps: saved and loaded, it is the same state, and training goes on as if it never stopped."""

from __future__ import annotations

import json
import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import AdamW

from pilekit.errors import PilekitError
from pilekit.train.checkpoint import Progress, find_checkpoint, load_checkpoint, newest_checkpoint, save_checkpoint
from pilekit.train.checkpoint_files import MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, write_state
from tests.tiny import Family, tiny_model

FILES = [MODEL_FILE, OPTIMIZER_FILE, STATE_FILE]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """What is computed here is so small that threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def adamw(model: nn.Module, *, backwards: bool = False) -> AdamW:
    """In two groups, in the model's order or from its end."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    if backwards:
        groups = [{**group, "params": group["params"][::-1]} for group in groups[::-1]]
    return AdamW(groups, lr=1e-2, fused=True)


def train(model: Any, optimizer: AdamW, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        ids = torch.randint(0, 300, (2, 8))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Everything that torch itself says the state is, read without the code under test."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{kind} of {name}"] = value.clone()
    return tensors


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


def save(run: Path, step: int = 3, model: Any = None, optimizer: Any = None, *, keep_last: int = 2) -> Path:
    """A checkpoint of what is given; of a model of a few numbers, all of them `step`, if nothing is."""
    if model is None:
        model = nn.Linear(2, 3)
        nn.init.constant_(model.weight, step)
    optimizer = AdamW(model.parameters()) if optimizer is None else optimizer
    progress = Progress(step, 1000 * step, {"shard": "ü/00.jsonl", "document": step}, 2)
    return save_checkpoint(
        run / "checkpoints", run / "latest", model, optimizer, progress, config={"a": {"b": 1}}, keep_last=keep_last
    )


def newest(run: Path) -> str | None:
    folder = newest_checkpoint(run / "checkpoints", run / "latest")
    return None if folder is None else folder.name


def steps_in(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


# The state


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama"])
def test_training_goes_on_bit_for_bit_in_another_model_and_optimizer(tmp_path: Path, family: Family) -> None:
    straight, straight_optimizer = (model := tiny_model(family)), adamw(model)
    train(straight, straight_optimizer, range(5))

    model = tiny_model(family)
    optimizer = adamw(model)
    train(model, optimizer, range(3))
    at_save = state_of(model, optimizer)
    folder = save(tmp_path, 3, model, optimizer)
    assert_same(state_of(model, optimizer), at_save)

    other = tiny_model(family, seed=1)
    other_optimizer = adamw(other, backwards=True)
    train(other, other_optimizer, range(7, 8))
    progress = load_checkpoint(folder, other, other_optimizer)
    assert progress == Progress(3, 3000, {"shard": "ü/00.jsonl", "document": 3}, 2)
    assert_same(state_of(other, other_optimizer), at_save)
    if (maps := Path("/proc/self/maps")).exists():  # what was loaded must not live in the files, which will be removed
        assert str(folder) not in maps.read_text()
    train(other, other_optimizer, range(3, 5))
    assert_same(state_of(other, other_optimizer), state_of(straight, straight_optimizer))


def test_going_on_in_the_same_objects_after_more_steps(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    train(model, optimizer, range(2))
    folder = save(tmp_path, 2, model, optimizer)
    train(model, optimizer, range(2, 4))
    first = state_of(model, optimizer)
    load_checkpoint(folder, model, optimizer)
    train(model, optimizer, range(2, 4))
    assert_same(state_of(model, optimizer), first)


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = tiny_model("gpt2").eval()
    assert model.lm_head.weight is model.transformer.wte.weight
    folder = save(tmp_path, 1, model)
    stored = load_file(folder / MODEL_FILE)
    assert set(stored) == {name for name, _ in model.named_parameters()}
    assert "lm_head.weight" not in stored
    other = tiny_model("gpt2", seed=1).eval()
    load_checkpoint(folder, other, AdamW(other.parameters()))
    assert other.lm_head.weight is other.transformer.wte.weight
    ids = torch.arange(8)[None]
    assert torch.equal(other(input_ids=ids).logits, model(input_ids=ids).logits)


class Odd(nn.Module):
    """What transformers' models mostly lack."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.transposed = nn.Parameter(torch.randn(4, 3).t())
        self.single = nn.Parameter(torch.randn(()))
        self.empty = nn.Parameter(torch.randn(0, 3))
        self.short = nn.Parameter(torch.randn(5).bfloat16())
        self.normal = nn.BatchNorm1d(3)
        self.register_buffer("passing", torch.randn(2), persistent=False)
        self.normal(torch.randn(7, 3))


def test_persistent_buffers_and_odd_parameters(tmp_path: Path) -> None:
    model, other = Odd(0), Odd(1)
    folder = save(tmp_path, 1, model)
    passing = other.passing.clone()
    load_checkpoint(folder, other, AdamW(other.parameters()))
    assert_same(other.state_dict(), model.state_dict())
    assert not other.transposed.is_contiguous()
    assert {"normal.running_mean", "normal.num_batches_tracked"} <= set(load_file(folder / MODEL_FILE))
    assert "passing" not in load_file(folder / MODEL_FILE)
    assert torch.equal(other.passing, passing)


def test_an_optimizer_that_has_not_stepped(tmp_path: Path) -> None:
    model = tiny_model()
    folder = save(tmp_path, 0, model, adamw(model))
    assert load_file(folder / OPTIMIZER_FILE) == {}
    other = tiny_model(seed=1)
    other_optimizer = adamw(other)
    train(other, other_optimizer, range(2))  # its own state must be gone
    load_checkpoint(folder, other, other_optimizer)
    optimizer = adamw(model)
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))
    train(model, optimizer, range(2))
    train(other, other_optimizer, range(2))
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))


def test_parameters_that_are_not_trained_have_no_state(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    for one in (model, other):
        one.bias.requires_grad_(False)
    optimizer, other_optimizer = AdamW([model.bias, model.weight]), AdamW([other.weight])
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    load_checkpoint(save(tmp_path, 1, model, optimizer), other, other_optimizer)
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))


def test_the_learning_rate_is_the_configs_not_the_checkpoints(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    folder = save(tmp_path, 1, model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    load_checkpoint(folder, model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_a_checkpoint_is_json_and_safetensors_and_tells_of_its_run(tmp_path: Path) -> None:
    model = tiny_model()
    progress = Progress(4, 7, {}, 1, "shape")
    config = {"train": {"clip_norm": float("inf"), "betas": (0.9, 0.95)}, "data": {"path": None}}
    folder = save_checkpoint(
        tmp_path / "checkpoints", tmp_path / "latest", model, adamw(model), progress, config=config, keep_last=1
    )
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    state = json.loads((folder / STATE_FILE).read_text(), parse_constant=pytest.fail)["state"]
    assert state["config"] == {"train": {"clip_norm": "inf", "betas": [0.9, 0.95]}, "data": {"path": None}}
    assert state["progress"] == {"step": 4, "tokens": 7, "stream": {}, "threads": 1, "model": "shape"}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}


# What does not fit


def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path: Path) -> None:
    theirs = nn.ModuleDict(
        {"shared": nn.Linear(2, 2), "wide": nn.Linear(2, 5), "old": nn.Linear(1, 1), "short": nn.Linear(1, 1).half()}
    )
    model = nn.ModuleDict(
        {"shared": nn.Linear(2, 2), "wide": nn.Linear(2, 4), "new": nn.Linear(1, 1), "short": nn.Linear(1, 1)}
    )
    folder = save(tmp_path, 1, theirs)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(PilekitError) as caught:
        load_checkpoint(folder, model, AdamW(model.parameters()))
    message = str(caught.value)
    assert "\n" not in message
    assert f"{folder / MODEL_FILE}: does not fit the model" in message
    assert "it lacks new.bias, new.weight;" in message
    assert "the model has no old.bias, old.weight;" in message
    assert "wide.weight ([5, 2] float32, not [4, 2] float32)" in message
    assert "short.bias ([1] float16, not [1] float32)" in message
    assert "shared" not in message
    assert_same(model.state_dict(), before)


def test_of_many_names_a_few_are_listed_and_made_visible(tmp_path: Path) -> None:
    theirs = nn.ModuleDict({f"\x1b[2J{number}": nn.Linear(1, 1) for number in range(100)})
    model = nn.Linear(1, 1)
    with pytest.raises(PilekitError, match=r"the model has no \\x1b\[2J0\.bias, .* and 195 more") as caught:
        load_checkpoint(save(tmp_path, 1, theirs), model, AdamW(model.parameters()))
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"exp_avg.weight": None}, "it lacks exp_avg.weight"),
        ({"exp_avg.gone": torch.zeros(1)}, "the optimizer has no exp_avg.gone"),
        ({"exp_avg.weight": torch.zeros(2, 3)}, r"exp_avg.weight \(\[2, 3\] float32, not \[3, 2\] float32\)"),
        ({"step.bias": torch.zeros(1)}, r"step.bias \(\[1\] float32, not \[\] float32\)"),
        ({"": torch.zeros(1), "step": torch.zeros(1)}, "the optimizer has no , step"),
    ],
)
def test_an_optimizers_state_that_does_not_fit(tmp_path: Path, change: dict[str, Tensor | None], told: str) -> None:
    model = nn.Linear(2, 3)
    optimizer = AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    folder = save(tmp_path, 1, model, optimizer)
    tensors = load_file(folder / OPTIMIZER_FILE) | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / OPTIMIZER_FILE)
    before = state_of(model, optimizer)
    with pytest.raises(PilekitError, match=told):
        load_checkpoint(folder, model, optimizer)
    assert_same(state_of(model, optimizer), before)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    model = nn.Linear(2, 3)
    torch.save({"weight": nn.Linear(2, 3)}, folder / MODEL_FILE)
    (folder / STATE_FILE).unlink()
    write_state(folder, Progress(1, 1, {}, 1), {})
    assert newest(tmp_path) == "step-1"  # its sums are right
    with pytest.raises(PilekitError, match=r"model\.safetensors: cannot be read"):
        load_checkpoint(folder, model, AdamW(model.parameters()))


# Which are kept, which is newest


def test_none_before_the_first(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    (tmp_path / "checkpoints").mkdir()
    assert newest(tmp_path) is None
    assert not (tmp_path / "latest").exists()


def test_steps_are_numbers_and_the_last_few_are_kept(tmp_path: Path) -> None:
    for step in (0, 2, 9, 10, 100):
        save(tmp_path, step, keep_last=2)
        assert newest(tmp_path) == f"step-{step}"
        assert (tmp_path / "latest").read_text() == f"checkpoints/step-{step}\n"
    assert steps_in(tmp_path) == {"step-10", "step-100"}
    save(tmp_path, 101, keep_last=1)
    assert steps_in(tmp_path) == {"step-101"}


def test_one_that_is_saved_is_kept_whatever_lies_beside_it(tmp_path: Path) -> None:
    save(tmp_path, 50)
    save(tmp_path, 60)
    assert save(tmp_path, 7, keep_last=1).is_dir()
    assert steps_in(tmp_path) == {"step-7", "step-60"}


@pytest.mark.parametrize("keep_last", [0, -1])
def test_at_least_one_must_be_kept(tmp_path: Path, keep_last: int) -> None:
    with pytest.raises(PilekitError, match="keep_last"):
        save(tmp_path, 1, keep_last=keep_last)


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 5)
    model = nn.Linear(2, 3)
    nn.init.constant_(model.weight, 77)
    folder = save(tmp_path, 5, model, keep_last=1)
    assert steps_in(tmp_path) == {"step-5"}
    assert newest(tmp_path) == "step-5"
    assert bool((load_file(folder / MODEL_FILE)["weight"] == 77).all())


def test_what_people_put_beside_checkpoints_is_left_alone(tmp_path: Path) -> None:
    save(tmp_path, 5)
    for name in ("step-9 (copy)", "step-007", "step-x", "notes", "step-6.old", "step--1"):
        (tmp_path / "checkpoints" / name).mkdir()
    (tmp_path / "checkpoints" / "step-8.txt").write_text("mine")
    before = steps_in(tmp_path)
    assert newest(tmp_path) == "step-5"
    save(tmp_path, 6, keep_last=1)
    assert steps_in(tmp_path) == before - {"step-5"} | {"step-6"}


def test_checkpoints_may_be_links_to_another_disk(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    save(elsewhere, 1)
    (run := tmp_path / "run").mkdir()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-1").symlink_to(elsewhere / "checkpoints" / "step-1")
    assert newest(run) == "step-1"
    save(run, 2, keep_last=1)
    assert steps_in(run) == {"step-2"}
    assert newest(elsewhere) == "step-1"


# A disk that is full


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """No file can grow past `size` bytes, as on a full disk: writing fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 300_000, 400_000])
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, room: int) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    folder = save(tmp_path, 1, model, optimizer)
    sizes = [(folder / name).stat().st_size for name in (MODEL_FILE, OPTIMIZER_FILE)]
    room = {0: 0, 300_000: sizes[0] + 1, 400_000: sizes[1] + 1}[room]  # nothing, the model, both files of tensors
    progress = Progress(2, 2, {"long": "x" * sizes[1]}, 1)
    with files_limited_to(room), pytest.raises(PilekitError, match=r"step-2: the checkpoint cannot be written: .*arge"):
        save_checkpoint(
            tmp_path / "checkpoints", tmp_path / "latest", model, optimizer, progress, config={}, keep_last=1
        )
    assert steps_in(tmp_path) == {"step-1"}
    assert newest(tmp_path) == "step-1"
    load_checkpoint(folder, model, optimizer)
    save_checkpoint(tmp_path / "checkpoints", tmp_path / "latest", model, optimizer, progress, config={}, keep_last=1)
    assert newest(tmp_path) == "step-2"


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(PilekitError, match=r"checkpoints: cannot be read: Not a directory"):
        newest(tmp_path)
    with pytest.raises(PilekitError, match=r"step-1: the checkpoint cannot be written: File exists"):
        save(tmp_path, 1)


def test_only_looking_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "checkpoints" / "step-2" / MODEL_FILE).unlink()
    (tmp_path / "checkpoints" / "step-3.partial").mkdir()
    (tmp_path / "latest").unlink()
    before = sorted(os.walk(tmp_path))
    with caplog.at_level(logging.WARNING):
        found, damaged = find_checkpoint(tmp_path / "checkpoints")
    assert found == tmp_path / "checkpoints" / "step-1"
    assert damaged == {tmp_path / "checkpoints" / "step-2": "it has no model.safetensors"}
    assert sorted(os.walk(tmp_path)) == before
    assert not caplog.records
