"""The tensors of a model and of its optimizer under the names of the parameters, in safetensors files and back.

Model: every parameter once, however many places share it, and the persistent buffers. Optimizer: `exp_avg.<name>`,
`exp_avg_sq.<name>`, `step.<name>`, so that neither the order of the parameters nor their groups matter. What the
config decides (learning rate, betas, groups) is not stored. A file is checked as a whole before anything is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from pilekit.errors import PilekitError, visible

NAMED = 5
"""How many names a message lists."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What training changes in the model, each tensor once: parameters and persistent buffers."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    persistent = model.state_dict(keep_vars=True)
    return tensors | {name: buffer for name, buffer in model.named_buffers() if name in persistent}


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by kind and parameter name; empty before its first step."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{kind}.{names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for kind, value in state.items()
    }


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a new safetensors file and flush it to disk; raises OSError or SafetensorError."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    # save_file lets nobody but the owner read; the folder was made with the permissions that the user wants.
    path.chmod(path.parent.stat().st_mode & 0o666)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def load_model(path: Path, model: nn.Module) -> None:
    """Copy the tensors of a file into the model; PilekitError names what does not fit, and nothing is changed."""
    own = model_tensors(model)
    theirs = _read(path)
    _refuse_misfit(path, theirs, {name: _Form.of(tensor) for name, tensor in own.items()}, of="the model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(theirs[name])


def load_optimizer(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Give the optimizer the state in a file, instead of its own; PilekitError names what does not fit.

    A parameter without any state stays without: it had not been stepped.
    """
    parameters = dict(model.named_parameters())
    names = {parameter: name for name, parameter in parameters.items()}
    places = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    theirs = _read(path)
    kinds = sorted({kind for kind, _ in map(_split, theirs)})
    stepped = {name for _, name in map(_split, theirs) if name in set(places)}
    form = {name: _Form.of(parameters[name]) for name in stepped}
    counter = _Form((), torch.float32)
    own = {f"{kind}.{name}": counter if kind == "step" else form[name] for kind in kinds for name in stepped}
    _refuse_misfit(path, theirs, own, of="the optimizer")
    # clone: what safetensors hands out lies in the mapped file, which would keep a removed checkpoint on the disk
    state = {
        index: {kind: theirs[f"{kind}.{name}"].clone() for kind in kinds}
        for index, name in enumerate(places)
        if name in stepped
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


class _Form(NamedTuple):
    """What must agree for a tensor to be taken as it is."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> _Form:
        return _Form(tuple(tensor.shape), tensor.dtype)

    def __str__(self) -> str:
        return f"{list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except (OSError, SafetensorError) as error:
        raise PilekitError(f"{visible(str(path))}: cannot be read: {visible(str(error), 200)}") from error


def _split(key: str) -> tuple[str, str]:
    kind, _, name = key.partition(".")
    return kind, name


def _refuse_misfit(path: Path, theirs: Mapping[str, Tensor], own: Mapping[str, _Form], *, of: str) -> None:
    found = {name: _Form.of(tensor) for name, tensor in theirs.items()}
    lacking = sorted(own.keys() - found.keys())
    unknown = sorted(found.keys() - own.keys())
    unlike = [name for name in sorted(own.keys() & found.keys()) if own[name] != found[name]]
    told = [
        f"{what} {_listed(names)}"
        for what, names in (
            ("it lacks", lacking),
            (f"{of} has no", unknown),
            ("of another form are", [f"{name} ({found[name]}, not {own[name]})" for name in unlike]),
        )
        if names
    ]
    if told:
        raise PilekitError(
            f"{visible(str(path))}: does not fit {of}: {'; '.join(told)}; "
            "resume with the model and settings of the run that wrote it, or train in another folder"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(visible(name, 120) for name in names[:NAMED])
    return shown + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
