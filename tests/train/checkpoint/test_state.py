"""Saved and loaded, the state is the same state: training continues as if it had never stopped."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from pilekit.errors import PilekitError
from pilekit.train.checkpoint.state_file import INDEX_FILE, STATE_FILE, Progress, own_sums, write_state
from pilekit.train.checkpoint.tensors import TensorSave, state_tensors, write_tensors
from pilekit.train.step.loss_scale import LossScaleState
from tests.refusing import refused
from tests.tiny.models import Family, tiny_model
from tests.train.checkpoint.saving import (
    FILES,
    SHARD,
    Run,
    adamw,
    assert_same,
    progress_of,
    single_rank,
    state_of,
    train,
    with_adamw,
)


def stored(folder: Path, into: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, read by torch's own converter."""
    dcp_to_torch_save(folder, into)
    tensors: dict[str, Tensor] = torch.load(into, weights_only=True)
    return tensors


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama"])
def test_training_continues_bit_for_bit_in_another_model_and_optimizer(run: Run, family: Family) -> None:
    straight, straight_optimizer = (model := tiny_model(family)), adamw(model)
    train(straight, straight_optimizer, range(5))

    model, optimizer = with_adamw(tiny_model(family))
    train(model, optimizer, range(3))
    at_save = state_of(model, optimizer)
    folder = run.save(3, model, optimizer)
    assert_same(state_of(model, optimizer), at_save)

    other = tiny_model(family, seed=1)
    other_optimizer = adamw(other, backwards=True)
    train(other, other_optimizer, range(7, 8))
    for group in other_optimizer.param_groups:
        group["lr"] = 0.5
    assert run.load(folder, other, other_optimizer) == progress_of(3)
    assert [group["lr"] for group in other_optimizer.param_groups] == [0.5, 0.5]  # not the checkpoint's
    for group in other_optimizer.param_groups:
        group["lr"] = 1e-2
    assert_same(state_of(other, other_optimizer), at_save)
    if (maps := Path("/proc/self/maps")).exists():  # tensors must not live in the files, which will be removed
        assert str(folder) not in maps.read_text()
    train(other, other_optimizer, range(3, 5))
    assert_same(state_of(other, other_optimizer), state_of(straight, straight_optimizer))


def test_tied_weights_are_stored_once_and_stay_tied(run: Run) -> None:
    model, other = tiny_model("gpt2").eval(), tiny_model("gpt2", seed=1).eval()
    folder = run.save(1, model)
    keys = set(stored(folder, run.path / "stored"))
    assert keys == {f"model.{name}" for name, _ in model.named_parameters()}
    assert "model.lm_head.weight" not in keys
    run.load(folder, other)
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


def test_persistent_buffers_and_odd_parameters(run: Run) -> None:
    model, other = Odd(0), Odd(1)
    folder = run.save(1, model)
    passing = other.passing.clone()
    run.load(folder, other)
    assert_same(other.state_dict(), model.state_dict())
    assert not other.transposed.is_contiguous()
    keys = set(stored(folder, run.path / "stored"))
    assert {"model.normal.running_mean", "model.normal.num_batches_tracked"} <= keys
    assert "model.passing" not in keys
    assert torch.equal(other.passing, passing)


def test_an_optimizer_that_has_not_stepped(run: Run) -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    folder = run.save(0, model)
    assert not [key for key in stored(folder, run.path / "stored") if key.startswith("optimizer.")]
    optimizer, other_optimizer = adamw(model), adamw(other)
    train(other, other_optimizer, range(2))  # loading must drop this state
    run.load(folder, other, other_optimizer)
    train(model, optimizer, range(2))
    train(other, other_optimizer, range(2))
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))


def test_a_checkpoint_describes_its_run(run: Run) -> None:
    model = tiny_model()
    scale: LossScaleState = {"value": 2.0**16, "good_steps": 3, "patience": 1}
    progress = Progress(4, 7, {}, 1, "shape", skipped=2, loss_scale=scale, world_size=4)
    config = {"train": {"clip_norm": float("inf"), "betas": (0.9, 0.95)}, "data": {"path": None}}
    checkpoints = run.checkpoints()
    checkpoints.save(model, adamw(model), progress, config)
    folder = checkpoints.newest()
    assert folder == run.folder / "step-4"
    assert checkpoints.load(folder, model, adamw(model)) == progress
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    state = json.loads((folder / STATE_FILE).read_text(), parse_constant=pytest.fail)
    assert state["config"] == {"train": {"clip_norm": "inf", "betas": [0.9, 0.95]}, "data": {"path": None}}
    assert state["progress"]["loss_scale"] == {"value": 65536.0, "good_steps": 3, "patience": 1}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}


def test_the_same_state_is_the_same_bytes_saved_beside_training_or_not(run: Run) -> None:
    model, optimizer = with_adamw(tiny_model("gpt2"))
    train(model, optimizer, range(1))
    contents = []
    for asynchronous in (False, True):
        own = Run(run.path / str(asynchronous))
        checkpoints = own.checkpoints(asynchronous=asynchronous)
        checkpoints.save(model, optimizer, progress_of(1), {})
        checkpoints.finish()
        contents.append({name: (own.folder / "step-1" / name).read_bytes() for name in FILES})
    assert contents[0] == contents[1]
    assert all(str(run.path).encode() not in content for content in contents[0].values())


def test_a_checkpoint_of_another_run_loads_too(run: Run) -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    folder, ours = Run(run.path / "theirs").save(7, model), Run(run.path / "ours").checkpoints()
    assert ours.newest() is None
    assert ours.load(folder, other, adamw(other)) == progress_of(7)
    assert_same(other.state_dict(), model.state_dict())
    with (folder / SHARD).open("r+b") as file:
        file.write(b"damage")
    with pytest.raises(PilekitError, match=r"step-7: is not a good checkpoint: __0_0\.distcp is not as it was written"):
        ours.load(folder, other, adamw(other))
    with pytest.raises(PilekitError, match=r"theirs: is not a good checkpoint: it has no state\.json; name one of"):
        ours.load(run.path / "theirs", other, adamw(other))


def test_an_optimizer_state_that_does_not_fit_is_named_and_changes_nothing(run: Run) -> None:
    changes: list[tuple[dict[str, Tensor | None], str]] = [
        ({"optimizer.weight.exp_avg": None}, "optimizer.weight.exp_avg is missing there and "),
        (
            {"optimizer.gone.exp_avg": torch.zeros(1)},
            r"optimizer.gone.exp_avg is \[1\] float32 there and missing here;",
        ),
        (
            {"optimizer.weight.exp_avg": torch.zeros(2, 3)},
            r"exp_avg is \[2, 3\] float32 there and \[3, 2\] float32 here",
        ),
        ({"": torch.zeros(1), "step": torch.zeros(1)}, r":  is \[1\] float32 there and missing here"),
    ]
    model, optimizer = with_adamw(nn.Linear(2, 3))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before = state_of(model, optimizer)
    for step, (change, message) in enumerate(changes):
        tensors = state_tensors(model, optimizer, single_rank()) | change
        folder = run.folder / f"step-{step}"
        folder.mkdir(parents=True)
        kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        write_tensors(folder, TensorSave(kept, single_rank()), single_rank())
        write_state(folder, Progress(step, 1, {}, 1), {}, own_sums(folder, 0))
        refused(message, run.load, folder, model, optimizer)
        assert_same(state_of(model, optimizer), before)


class Malicious:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (self.path, "done")


def sign_again(folder: Path) -> None:
    """Make the sums right, as an attacker would."""
    (folder / STATE_FILE).unlink()
    write_state(folder, Progress(1, 1, {}, 1), {}, own_sums(folder, 0))


@pytest.mark.parametrize("name", [INDEX_FILE, SHARD])
def test_nothing_in_a_checkpoint_is_executed(run: Run, name: str) -> None:
    folder = run.save(1)
    bad = Malicious(run.path / "executed")
    with (folder / name).open("wb") as file:
        torch.save(bad, file) if name == SHARD else pickle.dump(bad, file)
    sign_again(folder)
    assert run.newest() == "step-1"
    model = nn.Linear(2, 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(PilekitError, match=r"\.metadata: is not the index of|step-1: cannot be read by rank 0") as told:
        run.load(folder, model)
    assert "\n" not in str(told.value)
    assert not (run.path / "executed").exists()
    assert_same(model.state_dict(), before)


def test_an_index_of_wrong_values_is_one_error(run: Run) -> None:
    folder = run.save(1)
    good = (folder / INDEX_FILE).read_bytes()
    changes = [{"size": None}, {"size": 3}, {"properties": None}, {"properties": "x"}, {"chunks": None}, {"chunks": []}]
    for change in [*changes, None, "x", 3]:
        index = pickle.loads(good)
        if isinstance(change, dict):
            vars(index.state_dict_metadata["model.weight"]).update(change)
        else:
            index.state_dict_metadata = change
        (folder / INDEX_FILE).write_bytes(pickle.dumps(index))
        sign_again(folder)
        with pytest.raises(PilekitError, match=r"\.metadata: is not the index of a checkpoint: "):
            run.load(folder, nn.Linear(2, 3))


def test_an_index_names_no_file_outside_its_folder(run: Run) -> None:
    folder = run.save(1)
    index = pickle.loads((folder / INDEX_FILE).read_bytes())
    for entry in index.storage_data.values():
        entry.relative_path = "../step-1/" + SHARD
    (folder / INDEX_FILE).write_bytes(pickle.dumps(index))
    sign_again(folder)
    with pytest.raises(PilekitError, match=r"is not the index of a checkpoint: it names a file outside its folder"):
        run.load(folder, nn.Linear(2, 3))
