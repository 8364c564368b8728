"""Saved and loaded, the state is the same state: training continues as if it had never stopped."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import AdamW

from pilekit.errors import PilekitError
from pilekit.train.checkpoint.manifest import STATE_FILE, FileSum, Progress, verify, write_state
from pilekit.train.checkpoint.tensors import OwnParts, state_tensors, write_tensors
from tests.tiny import Family, tiny_model
from tests.train.checkpoint.saving import (
    FILES,
    SHARD,
    adamw,
    alone,
    assert_same,
    checkpoints_in,
    load,
    newest,
    progress_of,
    save,
    state_of,
    train,
)


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2"])
def test_training_continues_bit_for_bit_in_another_model_and_optimizer(tmp_path: Path, family: Family) -> None:
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
    for group in other_optimizer.param_groups:
        group["lr"] = 0.5
    assert load(folder, other, other_optimizer) == progress_of(3)
    assert [group["lr"] for group in other_optimizer.param_groups] == [0.5, 0.5]  # not the checkpoint's
    for group in other_optimizer.param_groups:
        group["lr"] = 1e-2
    assert_same(state_of(other, other_optimizer), at_save)
    if (maps := Path("/proc/self/maps")).exists():  # tensors must not live in the files, which will be removed
        assert str(folder) not in maps.read_text()
    train(other, other_optimizer, range(3, 5))
    assert_same(state_of(other, other_optimizer), state_of(straight, straight_optimizer))


def test_the_files_are_safetensors_with_each_tensor_once(tmp_path: Path) -> None:
    model, other = tiny_model("gpt2").eval(), tiny_model("gpt2", seed=1).eval()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    folder = save(tmp_path, 1, model, optimizer)
    stored = load_file(folder / SHARD)
    for name, parameter in model.named_parameters():  # the head is the embedding
        assert torch.equal(stored.pop(f"model.{name}"), parameter)
        for kind, value in optimizer.state[parameter].items():
            assert torch.equal(stored.pop(f"optimizer.{name}.{kind}"), value)
    assert not stored
    load(folder, other)
    assert other.lm_head.weight is other.transformer.wte.weight
    ids = torch.arange(8)[None]
    assert torch.equal(other(input_ids=ids).logits, model(input_ids=ids).logits)


class Odd(nn.Module):
    """Parameters and buffers that transformers' models rarely have."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.transposed = nn.Parameter(torch.randn(4, 3).t())
        self.single = nn.Parameter(torch.randn(()))
        self.empty = nn.Parameter(torch.randn(0, 3))
        self.short = nn.Parameter(torch.randn(5).bfloat16())
        self.normal = nn.BatchNorm1d(3)
        self.passing: Tensor
        self.register_buffer("passing", torch.randn(2), persistent=False)
        self.normal(torch.randn(7, 3))


def test_persistent_buffers_and_odd_parameters(tmp_path: Path) -> None:
    model, other = Odd(0), Odd(1)
    folder = save(tmp_path, 1, model)
    passing = other.passing.clone()
    load(folder, other)
    assert_same(other.state_dict(), model.state_dict())
    assert not other.transposed.is_contiguous()
    keys = set(load_file(folder / SHARD))
    assert {"model.normal.running_mean", "model.normal.num_batches_tracked"} <= keys
    assert "model.passing" not in keys
    assert torch.equal(other.passing, passing)


def test_parameters_without_optimizer_state(tmp_path: Path) -> None:
    """No step was taken yet; or one parameter is frozen."""
    model, other = tiny_model(), tiny_model(seed=1)
    folder = save(tmp_path, 0, model)
    assert not [key for key in load_file(folder / SHARD) if key.startswith("optimizer.")]
    optimizer, other_optimizer = adamw(model), adamw(other)
    train(other, other_optimizer, range(2))  # loading must drop this state
    load(folder, other, other_optimizer)
    train(model, optimizer, range(2))
    train(other, other_optimizer, range(2))
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))

    small, same = nn.Linear(2, 3), nn.Linear(2, 3)
    for one in (small, same):
        one.bias.requires_grad_(False)
    optimizer = AdamW([("bias", small.bias), ("weight", small.weight)])
    other_optimizer = AdamW([("weight", same.weight)])
    small(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    load(save(tmp_path, 1, small, optimizer), same, other_optimizer)
    assert_same(state_of(same, other_optimizer), state_of(small, optimizer))


def test_a_checkpoint_describes_its_run(tmp_path: Path) -> None:
    model = tiny_model()
    progress = Progress(4, 7, {}, 1, "shape", skipped=2, loss_scale={"value": 2.0**16, "good": 3}, world_size=4)
    config = {"train": {"clip_norm": float("inf"), "betas": (0.9, 0.95)}, "data": {"path": None}}
    checkpoints = checkpoints_in(tmp_path)
    checkpoints.save(model, adamw(model), progress, config)
    folder = checkpoints.newest()
    assert folder == tmp_path / "checkpoints" / "step-4"
    assert checkpoints.load(folder, model, adamw(model)) == progress
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    state = json.loads((folder / STATE_FILE).read_text(), parse_constant=pytest.fail)["state"]
    assert state["config"] == {"train": {"clip_norm": "inf", "betas": [0.9, 0.95]}, "data": {"path": None}}
    assert state["progress"]["loss_scale"] == {"value": 65536.0, "good": 3}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}


def test_the_same_state_is_the_same_bytes_saved_beside_training_or_not(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    contents = []
    for asynchronous in (False, True):
        run = tmp_path / str(asynchronous)
        checkpoints = checkpoints_in(run, asynchronous=asynchronous)
        checkpoints.save(model, optimizer, progress_of(1), {})
        checkpoints.finish()
        contents.append({name: (run / "checkpoints/step-1" / name).read_bytes() for name in FILES})
    assert contents[0] == contents[1]
    assert all(str(tmp_path).encode() not in content for content in contents[0].values())


def test_a_checkpoint_of_another_run_loads_too(tmp_path: Path) -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    folder = save(tmp_path / "theirs", 7, model)
    ours = checkpoints_in(tmp_path / "ours")
    assert ours.newest() is None
    assert ours.load(folder, other, adamw(other)) == progress_of(7)
    assert_same(other.state_dict(), model.state_dict())
    ours = checkpoints_in(tmp_path / "ours")
    (folder / SHARD).write_bytes(b"damage")
    for path, message in ((folder, "rank-0"), (tmp_path / "theirs", "it has no state.json; name one of the folders")):
        with pytest.raises(PilekitError, match=f"{path.name}: is not a good checkpoint: {message}"):
            ours.load(path, other, adamw(other))


def stored_as(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """A checkpoint of these tensors."""
    folder.mkdir(parents=True)
    write_state(folder, Progress(1, 1, {}, 1), {}, {SHARD: write_tensors(folder / SHARD, OwnParts(tensors, alone()))})
    return folder


def test_tensors_that_do_not_fit_are_named_and_change_nothing(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    optimizer = adamw(model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    good = state_tensors(model, optimizer, alone())
    before = state_of(model, optimizer)
    moment = "optimizer.weight.exp_avg"
    for number, (tensors, message) in enumerate(
        (
            ({**good, "model.weight": torch.zeros(2, 3)}, "model.weight ([2, 3] F32 in the checkpoint, [3, 2] F32 in"),
            ({**good, "model.bias": torch.zeros(3).half()}, "model.bias ([3] F16 in the checkpoint, [3] F32 in the"),
            ({key: good[key] for key in good if key != moment}, f"{moment} (nothing in the checkpoint, [3, 2] F32"),
            ({**good, "optimizer.gone.exp_avg": torch.zeros(1)}, "gone.exp_avg ([1] F32 in the checkpoint, nothing"),
            ({**good, **{f"\x1b[2J{i}": torch.zeros(1) for i in range(100)}}, r"\x1b[2J0 ([1] F32"),
        )
    ):
        with pytest.raises(PilekitError) as raised:
            load(stored_as(tmp_path / "checkpoints" / f"step-{number}", tensors), model, optimizer)
        assert f"step-{number}: does not fit the model and its optimizer: " in str(raised.value)
        assert message in str(raised.value)
        assert str(raised.value).isprintable()
        assert_same(state_of(model, optimizer), before)
    assert " and 95 more; " in str(raised.value)


class Malicious:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (self.path, "done")


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    """Also if all sums are right, as an attacker would make them."""
    folder = save(tmp_path, 1)
    bad = Malicious(tmp_path / "executed")
    model = nn.Linear(2, 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for write in (pickle.dump, torch.save):
        with (folder / SHARD).open("wb") as file:
            write(bad, file)
        sums = FileSum.of(folder / SHARD)
        (folder / STATE_FILE).unlink()
        write_state(folder, Progress(1, 1, {}, 1), {}, {SHARD: sums})
        verify(folder)
        assert newest(tmp_path) == "step-1"
        with pytest.raises(PilekitError, match=r"rank-0.safetensors: does not hold the tensors of a checkpoint: "):
            load(folder, model)
        assert not (tmp_path / "executed").exists()
        assert_same(model.state_dict(), before)
