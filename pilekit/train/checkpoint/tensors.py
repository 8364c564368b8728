"""The tensors of a model and of its optimizer, in files of torch.distributed.checkpoint and back.

One flat dictionary: `model.<parameter or persistent buffer>`, every tensor once, however many places share it, and
`optimizer.<parameter>.exp_avg`, `.exp_avg_sq`, `.step`, so that neither the order of the parameters nor their groups
matter. What the config decides (learning rate, betas, groups) is not stored. Keys and values are those of the whole
tensors: how they are sharded is not part of the state, so any world size and stage loads what any other saved.

Each rank writes its own shards. A tensor that all ranks hold whole is written by one of them, and kept in memory for
that by this one alone.

The index of such a checkpoint is a pickle. Here it is read by an unpickler that knows the few types an index is made
of, and torch reads tensors as weights only: so nothing that a file says is ever executed.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.optim import Optimizer

from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible
from pilekit.train.checkpoint.files import INDEX_FILE, deal
from pilekit.train.step.sharding import is_sharded

NAMED = 5
"""How many names a message lists."""

# One process has nobody to talk to, and needs no process group for it; torch warns of that.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)


def model_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """What training changes in the model, by name, each tensor once: parameters and persistent buffers.

    Parameters are the optimizer's, where it has them: those are the shards, whatever the modules show at the moment.
    """
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors |= {name: parameter.detach() for name, parameter in optimized(optimizer).items()}
    persistent = model.state_dict(keep_vars=True)
    return tensors | {name: buffer for name, buffer in model.named_buffers() if name in persistent}


def optimized(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's parameters by their names, which its groups must know (`param_names`)."""
    return {
        name: parameter
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }


def state_tensors(model: nn.Module, optimizer: Optimizer, ranks: Ranks) -> dict[str, Tensor]:
    """What this rank is to save, by key: its shards, and its part of the tensors that all ranks hold whole.

    The optimizer has no state for a parameter that it has not stepped yet, and none is saved.
    """
    parameters = optimized(optimizer)
    tensors = model_tensors(model, optimizer)
    mine = set(deal({name: tensor.numel() for name, tensor in tensors.items()}, ranks.world_size)[ranks.rank])
    found = {f"model.{name}": (name, tensor) for name, tensor in tensors.items()}
    for name, parameter in parameters.items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{name}.{kind}"] = name, value
    return {key: tensor for key, (name, tensor) in found.items() if is_sharded(tensor) or name in mine}


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write what this rank saves into `folder`, which exists, and flush it to disk; all ranks call it, over `saving`.

    `tensors` say which part of what they are, `values` hold the numbers (`own_part` of them, or a copy). Raises OSError
    where any rank cannot write.
    """
    try:
        save(
            dict(tensors),
            storage_writer=_Writer(folder, overwrite=False),
            planner=_Planner(values),
            process_group=ranks.saving,
            no_dist=ranks.world_size == 1,
        )
    except CheckpointException as failed:
        errors = [error for _, (error, _) in sorted(failed.failures.items())]
        if all(isinstance(error, OSError) for error in errors):
            raise errors[0] from failed
        raise RuntimeError(str(failed)) from failed  # CheckpointException is no Exception


class _Planner(DefaultSavePlanner):
    """Takes the numbers from elsewhere than from the tensors that say what is saved."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._values = values

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._values[index.fqn]


class _Writer(FileSystemWriter):
    """Keeps paths and random numbers out of the index, and tells what the system said of a file that cannot be."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # Writing a tensor stops in the middle of it, which torch complains of instead of the reason.
            reason: BaseException | None = error
            while reason is not None and not isinstance(reason, OSError):
                reason = reason.__context__
            raise reason or error from error


def load_tensors(folder: Path, model: nn.Module, optimizer: Optimizer, ranks: Ranks) -> None:
    """Bring model and optimizer into the state in `folder`, which has been verified; all ranks call it.

    A parameter without any state of the optimizer stays without: it had not been stepped. PilekitError names what does
    not fit, before anything is changed.
    """
    reader = _Reader(folder)
    theirs = ranks.on_all_ranks(reader.forms)
    own = {f"model.{name}": tensor for name, tensor in model_tensors(model, optimizer).items()}
    parameters = optimized(optimizer)
    stepped = {name: p for name, p in parameters.items() if any(f"optimizer.{name}.{kind}" in theirs for kind in KINDS)}
    state = {name: _fresh_state(p, optimizer) for name, p in stepped.items()}
    own |= {f"optimizer.{name}.{kind}": value for name, kinds in state.items() for kind, value in kinds.items()}
    _refuse_misfit(folder, theirs, {key: _Form.of(tensor) for key, tensor in own.items()})
    try:
        load(own, storage_reader=reader, process_group=ranks.control, no_dist=ranks.world_size == 1)
    except CheckpointException as failed:
        rank, (error, _) = min(failed.failures.items())
        raise PilekitError(
            f"{visible(str(folder))}: cannot be read by rank {rank}: {visible(str(error).partition(chr(10))[0], 200)}"
        ) from failed
    for name, parameter in parameters.items():
        optimizer.state.pop(parameter, None)
        if name in state:
            optimizer.state[parameter] = state[name]


KINDS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps for a parameter."""


def _fresh_state(parameter: Tensor, optimizer: Optimizer) -> dict[str, Tensor]:
    """AdamW's state of a parameter before its first step, sharded as the parameter is."""
    on_device = any(group["fused"] or group["capturable"] for group in optimizer.param_groups)
    step = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
    with torch.no_grad():
        return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


class _Form(NamedTuple):
    """What must agree for a tensor to be taken as it is: of the whole tensor, not of a shard."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> _Form:
        return _Form(tuple(tensor.shape), tensor.dtype)

    def __str__(self) -> str:
        return f"{list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


class _Reader(FileSystemReader):
    """Reads the index once, and nothing from it but what an index is made of."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._index: Metadata | None = None

    def forms(self) -> dict[str, _Form]:
        """Shape and type of everything that is stored, by key."""
        return {
            key: _Form(tuple(stored.size), stored.properties.dtype)
            for key, stored in self.read_metadata().state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        if self._index is None:
            path = self._folder / INDEX_FILE
            try:
                index = _Unpickler(io.BytesIO(path.read_bytes())).load()
                names = {stored.relative_path for stored in index.storage_data.values()}
                if any("/" in name for name in names):
                    raise pickle.UnpicklingError("it leads out of its folder")
            except Exception as error:  # whatever a pickle can raise
                raise PilekitError(
                    f"{visible(str(path))}: is not the index of a checkpoint: {visible(str(error), 200)}"
                ) from error
            index.storage_meta = StorageMeta()
            self._index = index
        return self._index


class _Unpickler(pickle.Unpickler):
    """Makes tensors' descriptions and nothing else."""

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


def _refuse_misfit(folder: Path, theirs: Mapping[str, _Form], own: Mapping[str, _Form]) -> None:
    lacking = sorted(own.keys() - theirs.keys())
    unknown = sorted(theirs.keys() - own.keys())
    unlike = [key for key in sorted(own.keys() & theirs.keys()) if own[key] != theirs[key]]
    told = [
        f"{what} {_listed(keys)}"
        for what, keys in (
            ("it lacks", lacking),
            ("it alone has", unknown),
            ("of another form are", [f"{key} ({theirs[key]}, not {own[key]})" for key in unlike]),
        )
        if keys
    ]
    if told:
        raise PilekitError(
            f"{visible(str(folder))}: does not fit the model and its optimizer: {'; '.join(told)}; "
            "resume with the model and settings of the run that wrote it, or train in another folder"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(visible(name, 120) for name in names[:NAMED])
    return shown + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
