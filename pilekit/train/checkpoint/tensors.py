"""The tensors of a model and its optimizer, in files of torch.distributed.checkpoint and back.

They form one flat dictionary. `model.<name>` is a parameter or persistent buffer. A tensor that several modules share
is stored once. `optimizer.<parameter>.exp_avg`, `.exp_avg_sq` and `.step` are AdamW's state, `.momentum_buffer` Muon's,
and `.ema` the running mean of the weights, so neither the order of the parameters nor their groups matter. The config's
values (learning rate, betas, groups) are not stored. Keys and shapes are those of whole tensors: any world size and
ZeRO stage can load a checkpoint that any other saved.

Each rank writes its own shards. If all ranks hold a tensor whole, one of them copies and writes it.

The index of such a checkpoint is a pickle. An unpickler that allows only the few types of an index reads it, and torch
reads tensors as weights only, so nothing in a checkpoint is ever executed.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.optim import Optimizer

from pilekit.errors import PilekitError, shortened
from pilekit.train.checkpoint.state_file import INDEX_FILE, balance
from pilekit.train.step.sharding import is_first_copy, is_sharded, own_part
from pilekit.workers.ranks import Ranks

KINDS = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""The tensors that AdamW and Muon keep for a parameter."""

# torch warns that a single process saves without a process group; that is intended here.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)


def model_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each tensor once.

    The optimizer's parameters take precedence: they are the shards, whatever the modules hold at the moment.
    """
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors |= {name: parameter.detach() for name, parameter in optimizer_parameters(optimizer).items()}
    persistent = model.state_dict(keep_vars=True)
    return tensors | {name: buffer for name, buffer in model.named_buffers() if name in persistent}


def optimizer_parameters(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's parameters by name. Its groups must have `param_names`."""
    return {
        name: parameter
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }


def state_tensors(model: nn.Module, optimizer: Optimizer, ranks: Ranks) -> dict[str, Tensor]:
    """The tensors that this rank saves, by key: its shards, and its share of the tensors that all ranks hold whole.

    A parameter that the optimizer has not stepped yet has no state, so none is saved.
    """
    tensors = model_tensors(model, optimizer)
    mine = set(balance({name: tensor.numel() for name, tensor in tensors.items()}, ranks.world_size)[ranks.rank])
    named = {f"model.{name}": (name, tensor) for name, tensor in tensors.items()}
    for name, parameter in optimizer_parameters(optimizer).items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            named[f"optimizer.{name}.{kind}"] = name, value
    return {
        key: tensor
        for key, (name, tensor) in named.items()
        if (is_first_copy(tensor) if is_sharded(tensor) else name in mine)
    }


class TensorSave(DefaultSavePlanner):
    """The plan of this rank's writes, made at once by the calling thread, and `values`, which the caller may replace.

    values   this rank's part of each tensor, by key
    """

    def __init__(self, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
        super().__init__()
        super().set_up_planner(dict(tensors), is_coordinator=ranks.is_first)
        super().create_local_plan()
        self.values = {key: own_part(tensor) for key, tensor in tensors.items()}
        self.state_dict = {}

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Do nothing: the plan exists already."""

    def create_local_plan(self) -> SavePlan:
        """The plan that the constructor made."""
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """The values of a key."""
        return self.values[index.fqn]


def write_tensors(folder: Path, tensors: TensorSave, ranks: Ranks) -> None:
    """Write this rank's tensors into `folder`, which exists, and flush them to disk.

    All ranks call this together, over `ranks.control`. Raises OSError on all ranks if any rank cannot write.
    """
    try:
        save(
            {},
            storage_writer=_Writer(folder, overwrite=False),
            planner=tensors,
            process_group=ranks.control,
            no_dist=ranks.world_size == 1,
        )
    except CheckpointException as failed:
        errors = [error for _, (error, _) in sorted(failed.failures.items())]
        if all(isinstance(error, OSError) for error in errors):
            raise errors[0] from failed
        raise RuntimeError(str(failed)) from failed  # CheckpointException is no Exception


class _Writer(FileSystemWriter):
    """Keeps paths and random numbers out of the index, and passes on the system's reason if a write fails."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # torch reports that a tensor is incomplete, but not why.
            reason: BaseException | None = error
            while reason is not None and not isinstance(reason, OSError):
                reason = reason.__context__
            raise reason or error from error


def load_tensors(folder: Path, model: nn.Module, optimizer: Optimizer, ranks: Ranks) -> None:
    """Load the state in `folder`, which has been verified, into model and optimizer. All ranks call this together.

    A parameter without optimizer state in the checkpoint gets none: it had not been stepped. Raises PilekitError that
    names a tensor that does not fit, before anything is changed.
    """
    reader = _Reader(folder)
    stored = ranks.on_all_ranks(reader.forms)
    tensors = {f"model.{name}": tensor for name, tensor in model_tensors(model, optimizer).items()}
    state = {
        name: _fresh_state(parameter, group)
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
        if any(f"optimizer.{name}.{kind}" in stored for kind in KINDS)
    }
    tensors |= {f"optimizer.{name}.{kind}": value for name, kinds in state.items() for kind, value in kinds.items()}
    forms = {key: _form(tensor.shape, tensor.dtype) for key, tensor in tensors.items()}
    ranks.on_all_ranks(lambda: _check_fit(folder, stored, forms))
    try:
        load(tensors, storage_reader=reader, process_group=ranks.control, no_dist=ranks.world_size == 1)
    except CheckpointException as failed:
        rank, (error, _) = min(failed.failures.items())
        raise ranks.error(
            f"{folder}: cannot be read by rank {rank}: {shortened(str(error).partition(chr(10))[0], 200)}"
        ) from failed
    for name, parameter in optimizer_parameters(optimizer).items():
        optimizer.state.pop(parameter, None)
        if name in state:
            optimizer.state[parameter] = state[name]


def _fresh_state(parameter: Tensor, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of AdamW or Muon for a parameter before its first step, sharded like the parameter.

    The tensors have the optimizer's order, as in the files.
    """
    kinds = ["momentum_buffer"] if "momentum" in group else ["exp_avg", "exp_avg_sq"]
    kinds += ["ema"] if group.get("ema") else []
    state = {}
    if "momentum" not in group:
        on_device = group["fused"] or group["capturable"]
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
    with torch.no_grad():
        return state | {kind: torch.zeros_like(parameter) for kind in kinds}


def _form(shape: Sequence[int], dtype: torch.dtype) -> str:
    """Shape and type of a whole tensor. Both must be equal in the checkpoint and the model."""
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


class _Reader(FileSystemReader):
    """Reads the index once, and refuses an index with anything unusual in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._index: Metadata | None = None
        self._forms: dict[str, str] = {}

    def forms(self) -> dict[str, str]:
        """Shape and type of every stored tensor, by key."""
        self.read_metadata()
        return self._forms

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        if self._index is None:
            path = self._folder / INDEX_FILE
            try:
                index = _Unpickler(io.BytesIO(path.read_bytes())).load()
                if any("/" in stored.relative_path for stored in index.storage_data.values()):
                    raise pickle.UnpicklingError("it names a file outside its folder")
                for key, stored in index.state_dict_metadata.items():
                    if isinstance(stored, TensorStorageMetadata):
                        self._forms[key] = _form(stored.size, stored.properties.dtype)
                        if sum(prod(chunk.sizes) for chunk in stored.chunks) != prod(stored.size):
                            raise pickle.UnpicklingError(f"it has only a part of {key}")
            except Exception as error:  # a pickle can raise anything
                raise PilekitError(f"{path}: is not the index of a checkpoint: {shortened(error, 200)}") from error
            index.storage_meta = StorageMeta()
            self._index = index
        return self._index


class _Unpickler(pickle.Unpickler):
    """Makes descriptions of tensors and nothing else."""

    _TYPES = frozenset(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ) | {
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._TYPES or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds a {module}.{name}")


def _check_fit(folder: Path, stored: Mapping[str, str], needed: Mapping[str, str]) -> None:
    """Raise PilekitError unless the checkpoint has the same keys as the model and its optimizer, in the same forms."""
    for key in sorted(needed.keys() | stored.keys()):
        there, here = stored.get(key, "missing"), needed.get(key, "missing")
        if there != here:
            raise PilekitError(
                f"{folder}: does not fit the model and its optimizer: {shortened(key, 120)} is {there} there "
                f"and {here} here; resume with the model and settings of the run that wrote it, or train in another "
                "folder"
            )
