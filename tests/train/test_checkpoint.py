"""The state between two steps: saved and loaded, it is the same state, and training goes on as if it never stopped."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.optim import AdamW

from pilekit.errors import PilekitError
from pilekit.train.checkpoint import Progress, find_checkpoint
from pilekit.train.checkpoint.files import INDEX_FILE, STATE_FILE, own_sums, write_state
from pilekit.train.checkpoint.tensors import state_tensors, write_tensors
from tests.small_disk import files_limited_to
from tests.tiny import Family, tiny_model
from tests.train.saving import (
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
    steps_in,
    train,
    warnings_in,
)


def stored(folder: Path, into: Path) -> dict[str, Tensor]:
    """All that a checkpoint holds, read by torch's own converter."""
    dcp_to_torch_save(folder, into)
    tensors: dict[str, Tensor] = torch.load(into, weights_only=True)
    return tensors


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """What is computed here is so small that threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    progress = load(folder, other, other_optimizer)
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
    load(folder, model, optimizer)
    train(model, optimizer, range(2, 4))
    assert_same(state_of(model, optimizer), first)


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = tiny_model("gpt2").eval()
    assert model.lm_head.weight is model.transformer.wte.weight
    folder = save(tmp_path, 1, model)
    keys = set(stored(folder, tmp_path / "stored"))
    assert keys == {f"model.{name}" for name, _ in model.named_parameters()}
    assert "model.lm_head.weight" not in keys
    other = tiny_model("gpt2", seed=1).eval()
    load(folder, other)
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
    keys = set(stored(folder, tmp_path / "stored"))
    assert {"model.normal.running_mean", "model.normal.num_batches_tracked"} <= keys
    assert "model.passing" not in keys
    assert torch.equal(other.passing, passing)


def test_an_optimizer_that_has_not_stepped(tmp_path: Path) -> None:
    model = tiny_model()
    folder = save(tmp_path, 0, model, adamw(model))
    assert not [key for key in stored(folder, tmp_path / "stored") if key.startswith("optimizer.")]
    other = tiny_model(seed=1)
    other_optimizer = adamw(other)
    train(other, other_optimizer, range(2))  # its own state must be gone
    load(folder, other, other_optimizer)
    optimizer = adamw(model)
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))
    train(model, optimizer, range(2))
    train(other, other_optimizer, range(2))
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))


def test_parameters_that_are_not_trained_have_no_state(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    for one in (model, other):
        one.bias.requires_grad_(False)
    optimizer = AdamW([("bias", model.bias), ("weight", model.weight)])
    other_optimizer = AdamW([("weight", other.weight)])
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    load(save(tmp_path, 1, model, optimizer), other, other_optimizer)
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))


def test_the_learning_rate_is_the_configs_not_the_checkpoints(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    folder = save(tmp_path, 1, model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    load(folder, model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_a_checkpoint_tells_of_its_run(tmp_path: Path) -> None:
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
    assert state["progress"] == {
        "step": 4,
        "tokens": 7,
        "stream": {},
        "threads": 1,
        "model": "shape",
        "skipped": 2,
        "loss_scale": {"value": 65536.0, "good": 3},
        "world_size": 4,
    }
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}


def test_the_same_state_is_the_same_bytes(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    one, other = save(tmp_path / "one", 1, model, optimizer), save(tmp_path / "other", 1, model, optimizer)
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
        assert str(tmp_path).encode() not in (one / name).read_bytes()


def test_a_checkpoint_of_another_run_loads_too(tmp_path: Path) -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    folder = save(tmp_path / "theirs", 7, model)
    ours = checkpoints_in(tmp_path / "ours")
    assert ours.newest() is None
    assert ours.load(folder, other, adamw(other)) == progress_of(7)
    assert_same(other.state_dict(), model.state_dict())
    with (folder / SHARD).open("r+b") as file:
        file.write(b"damage")
    with pytest.raises(PilekitError, match=r"step-7: is not a good checkpoint: __0_0\.distcp is not as it was written"):
        ours.load(folder, other, adamw(other))
    with pytest.raises(PilekitError, match=r"theirs: is not a good checkpoint: it has no state\.json; name one of"):
        ours.load(tmp_path / "theirs", other, adamw(other))


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
        load(folder, model)
    message = str(caught.value)
    assert "\n" not in message
    assert f"{folder}: does not fit the model and its optimizer" in message
    assert "it lacks model.new.bias, model.new.weight;" in message
    assert "it alone has model.old.bias, model.old.weight;" in message
    assert "model.wide.weight ([5, 2] float32, not [4, 2] float32)" in message
    assert "model.short.bias ([1] float16, not [1] float32)" in message
    assert "shared" not in message
    assert_same(model.state_dict(), before)


def test_of_many_names_a_few_are_listed_and_made_visible(tmp_path: Path) -> None:
    theirs = nn.ModuleDict({f"\x1b[2J{number}": nn.Linear(1, 1) for number in range(100)})
    model = nn.Linear(1, 1)
    with pytest.raises(PilekitError, match=r"it alone has model\.\\x1b\[2J0\.bias, .* and 195 more") as caught:
        load(save(tmp_path, 1, theirs), model)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"optimizer.weight.exp_avg": None}, "it lacks optimizer.weight.exp_avg;"),
        ({"optimizer.gone.exp_avg": torch.zeros(1)}, "it alone has optimizer.gone.exp_avg;"),
        ({"optimizer.weight.exp_avg": torch.zeros(2, 3)}, r"exp_avg \(\[2, 3\] float32, not \[3, 2\] float32\)"),
        ({"optimizer.bias.step": torch.zeros(1)}, r"optimizer.bias.step \(\[1\] float32, not \[\] float32\)"),
        ({"": torch.zeros(1), "step": torch.zeros(1)}, "it alone has , step;"),
    ],
)
def test_a_state_that_does_not_fit(tmp_path: Path, change: dict[str, Tensor | None], told: str) -> None:
    model = nn.Linear(2, 3)
    optimizer = adamw(model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tensors = state_tensors(model, optimizer, alone()) | change
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    folder = tmp_path / "checkpoints" / "step-1"
    folder.mkdir(parents=True)
    write_tensors(folder, kept, kept, alone())
    write_state(folder, Progress(1, 1, {}, 1), {}, own_sums(folder, 0))
    before = state_of(model, optimizer)
    with pytest.raises(PilekitError, match=told):
        load(folder, model, optimizer)
    assert_same(state_of(model, optimizer), before)


class Malicious:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (self.path, "done")


def sealed(folder: Path, step: int = 1) -> None:
    """Make the sums right, as who wants to mislead would."""
    (folder / STATE_FILE).unlink()
    write_state(folder, Progress(step, 1, {}, 1), {}, own_sums(folder, 0))


@pytest.mark.parametrize("name", [INDEX_FILE, SHARD])
def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1)
    model = nn.Linear(2, 3)
    bad = Malicious(tmp_path / "executed")
    with (folder / name).open("wb") as file:
        if name == SHARD:
            torch.save(bad, file)
        else:
            pickle.dump(bad, file)
    sealed(folder)
    assert newest(tmp_path) == "step-1"  # its sums are right
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        PilekitError, match=r"\.metadata: is not the index of a|step-1: cannot be read by rank 0"
    ) as told:
        load(folder, model)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "executed").exists()
    assert_same(model.state_dict(), before)


def test_an_index_leads_to_no_other_folder(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    index = pickle.loads((folder / INDEX_FILE).read_bytes())
    for stored in index.storage_data.values():
        stored.relative_path = "../step-1/" + SHARD
    (folder / INDEX_FILE).write_bytes(pickle.dumps(index))
    sealed(folder)
    with pytest.raises(PilekitError, match=r"\.metadata: is not the index of a checkpoint: it leads out of its folder"):
        load(folder, nn.Linear(2, 3))


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
    assert bool((stored(folder, tmp_path / "stored")["model.weight"] == 77).all())


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


@pytest.mark.parametrize("room", ["nothing", "a part of the tensors", "the tensors", "all but the state"])
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, room: str) -> None:
    model = tiny_model()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    folder = save(tmp_path, 1, model, optimizer)
    shard, index = (folder / SHARD).stat().st_size, (folder / INDEX_FILE).stat().st_size
    assert index < shard
    limit = {"nothing": 0, "a part of the tensors": shard // 2, "the tensors": shard - 1, "all but the state": shard}
    progress = Progress(2, 2, {"long": "x" * shard}, 1)
    checkpoints = checkpoints_in(tmp_path, keep_last=1)
    full = pytest.raises(PilekitError, match=r"step-2: the checkpoint cannot be written: File too large; earlier .*")
    with files_limited_to(limit[room]), full as told:
        checkpoints.save(model, optimizer, progress, {})
    assert "\n" not in str(told.value)
    assert checkpoints.saved == []
    assert steps_in(tmp_path) == {"step-1"}
    assert newest(tmp_path) == "step-1"
    load(folder, model, optimizer)
    checkpoints.save(model, optimizer, progress, {})
    assert checkpoints.saved == [2]
    checkpoints.finish()
    assert newest(tmp_path) == "step-2"


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(PilekitError, match=r"checkpoints: cannot be read: Not a directory"):
        newest(tmp_path)
    with pytest.raises(PilekitError, match=r"step-1: the checkpoint cannot be written: File exists"):
        save(tmp_path, 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_folder_that_may_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    save(tmp_path, 1)
    model = nn.Linear(2, 3)
    checkpoints = checkpoints_in(tmp_path, asynchronous=asynchronous)

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:  # who runs the tests as root may write everywhere
        patch.setattr(Path, "mkdir", refused)
        with pytest.raises(PilekitError, match=r"step-2: the checkpoint cannot be written: Read-only file system; .*"):
            checkpoints.save(model, adamw(model), progress_of(2), {})
            checkpoints.finish()
    assert not warnings_in(caplog)
    assert steps_in(tmp_path) == {"step-1"}
    assert newest(tmp_path) == "step-1"


def test_only_looking_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "checkpoints" / "step-2" / SHARD).unlink()
    (tmp_path / "checkpoints" / "step-3.partial").mkdir()
    (tmp_path / "latest").unlink()
    before = sorted(os.walk(tmp_path))
    with caplog.at_level(logging.WARNING):
        found, damaged = find_checkpoint(tmp_path / "checkpoints")
    assert found == tmp_path / "checkpoints" / "step-1"
    assert damaged == {tmp_path / "checkpoints" / "step-2": "it has no __0_0.distcp"}
    assert sorted(os.walk(tmp_path)) == before
    assert not warnings_in(caplog)
