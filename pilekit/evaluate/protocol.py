"""The protocol: everything that a figure depends on, as JSON types.

Bits per byte of one model differ with the window, the prefix, the data, and what counts as a byte, so a number without
these cannot be compared with another. The protocol is stored and printed with the figures. Fingerprints stand for the
model's weights and the tokenizer's file.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from transformers import PreTrainedModel

from pilekit import __version__
from pilekit.evaluate.model.load import weight_files

if TYPE_CHECKING:
    from pilekit.evaluate.plan import Plan

MLM_SEED = 0
"""Seed of the sample of tokens in a masked model's windows."""


def describe(plan: Plan, model: PreTrainedModel, device: str, model_dir: Path | None) -> dict[str, Any]:
    """The protocol of a plan; a model in memory (`model_dir` None) has no path and no fingerprints."""
    options, tokenizer, template, prefix = plan.options, plan.tokenizer, plan.template, plan.prefix_id
    masked = {}
    if template is not None:
        masked = {
            "template": {"before": list(template.before), "behind": list(template.behind), "mask": template.mask},
            "mlm_sample": options.mlm_sample,
            "mlm_seed": MLM_SEED,
        }
    return {
        "pilekit": __version__,
        "torch": str(torch.__version__),  # a subclass of str
        "transformers": importlib.metadata.version("transformers"),
        "kind": "causal" if template is None else "masked",
        "model": {
            "path": None if model_dir is None else str(model_dir),
            "weights": None if model_dir is None else weights_fingerprint(model_dir),
            "config": None if model_dir is None else _fingerprint([model_dir / "config.json"]),
            "model_type": model.config.model_type,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "tokenizer": {
            "fingerprint": f"sha256:{tokenizer.fingerprint}",
            "backend": f"{tokenizer.backend} {importlib.metadata.version(tokenizer.backend)}",
            "special_tokens": tokenizer.special_tokens,
        },
        "dtype": str(plan.dtype).removeprefix("torch."),
        "device": device,
        "max_length": plan.max_length,
        "context_len": options.context_len,
        "windows": _windows(plan),
        "prefix": {
            "given": "none" if template is not None else str(options.prefix),
            "id": prefix,
            "token": None if prefix is None else tokenizer.decode([prefix]),
        },
        **masked,
        "bytes": "UTF-8 bytes of the raw text",
        "data": [{"name": shard.name, "size": shard.size} for shard in plan.corpus.shards],
        "manifest": plan.corpus.manifest.name,
        "subsets": None if plan.subsets is None else list(plan.subsets),
        "limit": options.limit,
        "paper": options.paper,
    }


def weights_fingerprint(model_dir: str | Path) -> str:
    """XXH3 (128 bits) of the bytes of the weight files, in the order of their names."""
    return _fingerprint(weight_files(model_dir))


def _fingerprint(files: Iterable[Path]) -> str:
    digest = xxhash.xxh3_128()
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
    return f"xxh3:{digest.hexdigest()}"


def _windows(plan: Plan) -> str:
    """How documents are cut into windows, in words."""
    sample = plan.options.mlm_sample
    if plan.template is not None:
        each = "each token" if sample is None else f"{sample:,} tokens, drawn at random,"
        return (
            "each document alone, as disjoint windows of at most max_length tokens, the tokenizer's special "
            f"ones around them included; {each} masked one at a time and predicted from all others of the window"
        )
    cut = "disjoint windows of max_length inputs, of which the last reaches back so that its inputs are full too"
    if plan.options.context_len > 1:
        cut = (
            "windows of max_length inputs that overlap, so that each token behind the first window is predicted from "
            "at least context_len inputs"
        )
    first = "the first from the prefix"
    if plan.prefix_id is None:
        first = "but the first, which is context only, while its bytes count"
    return f"each document alone, as {cut}; each token predicted once, {first}"
