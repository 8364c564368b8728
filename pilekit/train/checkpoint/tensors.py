"""The tensors of a model and its optimizer, in safetensors files and back.

They form one flat dictionary. `model.<name>` is a parameter or persistent buffer; a tensor that several modules share
is stored once. `optimizer.<parameter>.exp_avg`, `.exp_avg_sq` and `.step` are AdamW's state, so neither the order of
the parameters nor their groups matter. The config's values (learning rate, betas, groups) are not stored.

Each rank writes one file with its own parts: consecutive rows of whole tensors, because ZeRO cuts the first dimension.
If all ranks hold a tensor whole, one of them copies and writes it. The metadata of a file tells where its parts begin,
and the shapes of the whole tensors. A rank that loads reads the rows that it needs from all files. So any world size
and ZeRO stage can load a checkpoint that any other saved.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible
from pilekit.train.checkpoint.manifest import FileSum, deal
from pilekit.train.step.sharding import is_sharded, own_part

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of types in safetensors."""

NAMED = 5
"""How many names a message lists."""


class Part(msgspec.Struct, frozen=True):
    """The rows from `first` on of a whole tensor of this shape."""

    first: int
    shape: list[int]


class OwnParts:
    """This rank's parts of tensors: `values` by key, which the caller may replace by copies, and their places."""

    def __init__(self, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
        self.values = {key: own_part(tensor) for key, tensor in tensors.items()}
        self.places = {key: Part(first_row(tensor, ranks), list(tensor.shape)) for key, tensor in tensors.items()}


def first_row(tensor: Tensor, ranks: Ranks) -> int:
    """The row of the whole tensor with which this rank's part begins; ranks have as many rows each, the last fewer."""
    return min(len(tensor), ranks.rank * -(-len(tensor) // ranks.world_size)) if is_sharded(tensor) else 0


def model_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each tensor once.

    The optimizer's parameters come first: these are the shards, whatever the modules show at the moment.
    """
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors |= {name: parameter.detach() for name, parameter in optimized(optimizer).items()}
    persistent = model.state_dict(keep_vars=True)
    return tensors | {name: buffer for name, buffer in model.named_buffers() if name in persistent}


def optimized(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's parameters by name; its groups must have `param_names`."""
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
    mine = set(deal({name: tensor.numel() for name, tensor in tensors.items()}, ranks.world_size)[ranks.rank])
    found = {f"model.{name}": (name, tensor) for name, tensor in tensors.items()}
    for name, parameter in optimized(optimizer).items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{name}.{kind}"] = name, value
    return {key: tensor for key, (name, tensor) in found.items() if is_sharded(tensor) or name in mine}


def write_tensors(path: Path, parts: OwnParts) -> FileSum:
    """Write the parts into a new file and flush it to disk; returns its size and hash. Raises OSError.

    (The library's own writer would stop all threads while it writes.)
    """
    values = sorted(parts.values.items(), key=lambda item: (-item[1].itemsize, item[0]))  # each is aligned
    header: dict[str, Any] = {"__metadata__": {"parts": msgspec.json.encode(parts.places).decode()}}
    end = 0
    for key, value in values:
        begin, end = end, end + value.nbytes
        header[key] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    head = msgspec.json.encode(header)
    head += b" " * (-len(head) % 8)
    digest = xxhash.xxh3_128(len(head).to_bytes(8, "little") + head)
    with path.open("xb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, value in values:
            raw = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
            file.write(raw)
            digest.update(raw)
        file.flush()
        os.fsync(file.fileno())
        return FileSum(file.tell(), digest.hexdigest())


def load_tensors(folder: Path, files: Sequence[str], model: nn.Module, optimizer: Optimizer, ranks: Ranks) -> None:
    """Load the state in these files of `folder`, which are verified, into model and optimizer. All ranks call this.

    A parameter without optimizer state in the checkpoint gets none: it had not been stepped. Raises PilekitError that
    names what does not fit, before anything is changed.
    """
    parameters = optimized(optimizer)

    def load() -> None:
        with ExitStack() as opened:
            stored = _open(folder, files, opened)
            state = {
                name: _fresh_state(parameter, optimizer)
                for name, parameter in parameters.items()
                if any(f"optimizer.{name}.{kind}" in stored for kind in ("step", "exp_avg", "exp_avg_sq"))
            }
            own = {f"model.{name}": tensor for name, tensor in model_tensors(model, optimizer).items()}
            own |= {f"optimizer.{name}.{kind}": value for name, kinds in state.items() for kind, value in kinds.items()}
            _check_fit(folder, stored, own)
            for key, tensor in own.items():
                _read_into(own_part(tensor), first_row(tensor, ranks), stored[key], key)
        for name, parameter in parameters.items():
            optimizer.state.pop(parameter, None)
            if name in state:
                optimizer.state[parameter] = state[name]

    ranks.on_all_ranks(load)


def _open(folder: Path, files: Sequence[str], opened: ExitStack) -> dict[str, list[tuple[Any, Part]]]:
    """For each key, the open files that hold rows of it, and which rows."""
    stored: dict[str, list[tuple[Any, Part]]] = defaultdict(list)
    for name in files:
        try:
            file = opened.enter_context(safe_open(folder / name, framework="pt"))
            parts = msgspec.json.decode(file.metadata()["parts"], type=dict[str, Part])
            for key in file.keys():  # noqa: SIM118 (it has no other way)
                stored[key].append((file, parts[key]))
        except (SafetensorError, OSError, KeyError, TypeError, msgspec.DecodeError) as error:
            raise PilekitError(
                f"{visible(str(folder / name))}: does not hold the tensors of a checkpoint: {visible(str(error), 200)}"
            ) from error
    return stored


def _read_into(part: Tensor, first: int, stored: Sequence[tuple[Any, Part]], key: str) -> None:
    """Fill `part`, the rows from `first` on of a whole tensor, from the files that hold these rows."""
    with torch.no_grad():
        for file, place in stored:
            if part.dim() == 0:
                part.copy_(file.get_tensor(key))
                continue
            rows = file.get_slice(key)
            begin = max(first, place.first)
            end = min(first + len(part), place.first + rows.get_shape()[0])
            if begin < end:
                part[begin - first : end - first].copy_(rows[begin - place.first : end - place.first])


def _fresh_state(parameter: Tensor, optimizer: Optimizer) -> dict[str, Tensor]:
    """AdamW's state of a parameter before its first step, sharded as the parameter is."""
    on_device = any(group["fused"] or group["capturable"] for group in optimizer.param_groups)
    step = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
    with torch.no_grad():
        return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


def _check_fit(folder: Path, stored: Mapping[str, Sequence[tuple[Any, Part]]], own: Mapping[str, Tensor]) -> None:
    """Raise PilekitError unless the checkpoint has the same keys as the model and its optimizer, in the same forms."""
    theirs = {key: f"{place.shape} {file.get_slice(key).get_dtype()}" for key, ((file, place), *_) in stored.items()}
    ours = {key: f"{list(tensor.shape)} {DTYPES[tensor.dtype]}" for key, tensor in own.items()}
    differing = [
        f"{visible(key, 120)} ({theirs.get(key, 'nothing')} in the checkpoint, {ours.get(key, 'nothing')} in the model)"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key) != ours.get(key)
    ]
    if differing:
        more = f" and {len(differing) - NAMED:,} more" if len(differing) > NAMED else ""
        raise PilekitError(
            f"{visible(str(folder))}: does not fit the model and its optimizer: {', '.join(differing[:NAMED])}{more}; "
            "resume with the model and settings of the run that wrote it, or train in another folder"
        )
