"""`prune_model`: a smaller or sparser copy of a model, made without any data.

By magnitude, the smallest weights of each matrix inside the blocks become 0 (`torch.nn.utils.prune.l1_unstructured`).
The file keeps its size, but compresses.

By heads, each layer loses its weakest heads: those whose part of the output projection has the smallest norm. If
config.json states the width of a head (`head_dim`, as Llama's and Mistral's do), their rows and columns are cut out of
the matrices, and heads that share keys are cut together. In other models the width of a head follows from their number,
so no config.json can describe fewer: the parts of these heads become 0 in the output projection, which gives the same
logits. transformers 5 has no `prune_heads` any more.
"""

from __future__ import annotations

import filecmp
import shutil
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pilekit.display.table_result import Result
from pilekit.errors import PilekitError
from pilekit.models.causal import load_causal_lm
from pilekit.models.load import MASKED, Kind, kind_of, model_on_meta, stored_dtype, weight_files
from pilekit.models.masked import load_masked_lm
from pilekit.models.transformer_blocks import blocks_of
from pilekit.tokenize import load_tokenizer
from pilekit.train.model.export import export_model

_ATTENTION = ("attention", "attn", "self_attn", "self_attention")
_SPLIT = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True, slots=True)
class PruneResult(Result):
    """The result of `prune_model`.

    parameters   number of parameters of the model before and after
    zeros        share of the parameters that are 0, before and after
    bytes        bytes of the weight files before and after
    heads        "cut" or "zeroed" if heads were pruned, else None
    """

    folder: str
    parameters: tuple[int, int]
    zeros: tuple[float, float]
    bytes: tuple[int, int]
    heads: str | None


def prune_model(
    model_dir: str | Path,
    out: str | Path,
    *,
    magnitude: float | None = None,
    heads: int | None = None,
    adapter: str | Path | None = None,
) -> PruneResult:
    """Write a pruned copy of a causal or masked model, with its tokenizer, into the new folder `out`.

    adapter     a folder whose adapter is added to the weights first
    magnitude   the share of each matrix's weights that become 0, above 0 and below 1
    heads       the number of heads that each layer loses; give one of the two

    If `out` holds this very copy, it stays: so a killed `pilekit prune` can run again. Raises PilekitError if `out`
    holds anything else, for a wrong share or number, and if the parts of the heads cannot be found.
    """
    if (magnitude is None) == (heads is None):
        raise PilekitError("give magnitude or heads, one of the two")
    if magnitude is not None and not 0 < magnitude < 1:
        raise PilekitError(f"magnitude is {magnitude:g}, but it is a share above 0 and below 1")
    out_exists = PilekitError(f"{out}: exists already; name a new folder")
    if Path(out).exists() and not Path(out, "config.json").exists():
        raise out_exists
    kind = kind_of(model_dir)
    load = load_masked_lm if kind is MASKED else load_causal_lm
    lm, tokenizer = load(model_dir, dtype=stored_dtype(model_dir), adapter=adapter), load_tokenizer(model_dir)
    before = _counts(lm.model)
    blocks, how = blocks_of(lm.model), None
    if not blocks:
        raise PilekitError(f"{model_dir}: has no list of blocks, so it cannot be pruned")
    with torch.no_grad():
        if magnitude is not None:
            for module in (module for block in blocks for module in block.modules()):
                for name in _matrices(module):
                    prune.l1_unstructured(module, name, magnitude)  # type: ignore[no-untyped-call]
                    prune.remove(module, name)  # type: ignore[no-untyped-call]
        else:
            assert heads is not None
            how = _prune_heads(lm.model, kind, heads)
    after = _counts(lm.model)
    if not Path(out).exists():
        export_model(out, lm, tokenizer)
    else:
        export_model(again := Path(f"{Path(out)}.partial"), lm, tokenizer)
        names = {path.name for folder in (out, again) for path in Path(folder).iterdir()}
        same, *_ = filecmp.cmpfiles(out, again, names, shallow=False)
        shutil.rmtree(again)
        if len(same) < len(names):
            raise out_exists
    sizes = [sum(file.stat().st_size for file in weight_files(folder)) for folder in (model_dir, out)]
    return PruneResult(str(out), (before[0], after[0]), (before[1], after[1]), (sizes[0], sizes[1]), how)


def _matrices(module: nn.Module) -> list[str]:
    """The names of a module's own matrices. transformers stacks those of experts in a parameter of three dimensions."""
    if isinstance(module, nn.Linear | Conv1D):
        return ["weight"]
    is_convolution = isinstance(module, nn.Conv1d)
    return [
        name for name, parameter in module.named_parameters(recurse=False) if parameter.ndim == 3 and not is_convolution
    ]


def _counts(model: nn.Module) -> tuple[int, float]:
    """The number of parameters, and the share of them that are 0."""
    every = sum(parameter.numel() for parameter in model.parameters())
    return every, sum(int((parameter == 0).sum()) for parameter in model.parameters()) / every


def _prune_heads(model: PreTrainedModel, kind: Kind, count: int) -> str:
    """Remove `count` heads of each block, and change the configuration if they are cut out: "cut" or "zeroed"."""
    config: Any = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None) or 1
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    attentions = [_attention(block, heads * width) for block in blocks_of(model)]
    if not 0 < count < heads:
        raise PilekitError(f"heads is {count}, but a layer has {heads}; give 1 to {heads - 1}")
    shared = getattr(config, "num_key_value_heads", None) or heads
    rows = [heads * width, shared * width, shared * width]
    cut = "head_dim" in config.to_dict() and shared > 1 and all(_rows(attention) == rows for attention in attentions)
    group = heads // shared if cut else 1
    if count % group:
        raise PilekitError(
            f"heads is {count}, but {group} heads of this model share their keys; give a multiple of {group}"
        )
    smaller = {"num_attention_heads": heads - count, "num_key_value_heads": shared - count // group, "head_dim": width}
    cut = cut and _can_be_made(model, smaller, kind)
    for attention in attentions:
        columns = _columns(_linears(attention)[-1])
        norms = columns.float().view(len(columns), heads // group, -1).norm(dim=(0, 2))
        weakest, strongest = norms.argsort(stable=True).split([count // group, (heads - count) // group])
        if not cut:
            columns[:, _places(weakest, group * width)] = 0
            continue
        queries, keys = (_places(strongest.sort().values, size) for size in (group * width, width))
        for name, axis, places in zip(_SPLIT, (0, 0, 0, 1), (queries, keys, keys, queries), strict=True):
            linear: Any = getattr(attention, name)
            linear.weight = nn.Parameter(linear.weight.index_select(axis, places))
            if linear.bias is not None and axis == 0:
                linear.bias = nn.Parameter(linear.bias[places])
    if cut:
        config.update(smaller)
    return "cut" if cut else "zeroed"


def _rows(attention: Any) -> list[int]:
    """The rows of the matrices for queries, keys and values; empty if these and the output are not matrices apart."""
    matrices: list[Any] = [getattr(attention, name, None) for name in _SPLIT]
    return (
        [matrix.out_features for matrix in matrices[:3]]
        if all(isinstance(matrix, nn.Linear) for matrix in matrices)
        else []
    )


def _can_be_made(model: PreTrainedModel, sizes: dict[str, int], kind: Kind) -> bool:
    """Whether transformers accepts the configuration with these sizes, and it changes no other matrix."""
    smaller = deepcopy(model.config)
    smaller.get_text_config().update(sizes)
    try:
        parameters = model_on_meta(type(smaller).from_dict(smaller.to_dict()), "", kind).named_parameters()
        changed = {
            name.split(".")[-2] for name, parameter in parameters if parameter.shape != model.get_parameter(name).shape
        }
    except Exception:  # such as a width that is no multiple of the number of heads
        return False
    return changed == set(_SPLIT)


def _attention(block: nn.Module, inputs: int) -> nn.Module:
    """The attention of a block, whose last matrix is the output projection of `inputs` numbers."""
    for name, module in block.named_modules():
        linears = _linears(module) if name.rsplit(".", 1)[-1] in _ATTENTION else []
        if linears and _columns(linears[-1]).shape[1] == inputs:
            return cast("nn.Module", module)
    raise PilekitError("the heads of this model's attention cannot be told from its modules; use magnitude")


def _linears(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear | Conv1D)]


def _columns(linear: nn.Module) -> Tensor:
    """The weight as [outputs, inputs]. GPT-2's is stored transposed."""
    weight = cast("Tensor", linear.weight)
    return weight.T if isinstance(linear, Conv1D) else weight


def _places(heads: Tensor, width: int) -> Tensor:
    """The indices of all rows or columns of these heads."""
    return (heads.unsqueeze(1) * width + torch.arange(width)).flatten()
