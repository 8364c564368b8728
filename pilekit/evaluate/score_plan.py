"""`Plan`: how a corpus is scored, decided and checked before weights are read.

The weights may take minutes to read. So errors in the arguments, the tokenizer, the corpus or the machine are found
with the model's configuration and shapes alone.

The plan's protocol is everything that a figure depends on, as JSON types. Bits per byte of one model differ with the
window, the prefix, the data, and what counts as a byte, so a number without these cannot be compared with another. The
protocol is stored and printed with the figures. Fingerprints stand for the model's weights and the tokenizer's file.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import xxhash
from transformers import PreTrainedModel

from pilekit.artifacts.settings import check_settings
from pilekit.corpus import Corpus, subsets_or_all
from pilekit.errors import PilekitError, counted, shortened
from pilekit.evaluate.results.result_folder import record_key
from pilekit.evaluate.score.pseudo_nll import Template, template_of
from pilekit.evaluate.settings import ScoreSettings
from pilekit.models.causal import check_vocabulary
from pilekit.models.device import dtype_of
from pilekit.models.folder import adapter_files, check_folder
from pilekit.models.load import (
    MASKED,
    kind_in_memory,
    kind_of,
    outline,
    positions_of,
    stored_dtype,
    weight_files,
)
from pilekit.models.masked import tokens_of
from pilekit.pipeline.stages import Sample
from pilekit.shards.read.change_check import version_of
from pilekit.tokenize import Tokenizer, load_tokenizer
from pilekit.version import __version__

USUAL_MAX_LENGTH = 2048
"""The window of a model that declares no limit, as in lm-evaluation-harness."""

MLM_SEED = 0
"""Seed of the sample of tokens in a masked model's windows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The text to score, and how.

    options          the caller's settings
    subsets          exact names; None: all
    max_length       tokens in a window
    prefix_id        the token before a document's first token; None: no prefix
    template         the special tokens of a masked model's windows; None for a causal model
    dtype            the precision to compute in
    shard_versions   `version_of` each shard, by path, when the plan was made
    model_versions   `version_of` each file of the model and its adapter, by path; empty for a model in memory
    protocol         everything that a figure depends on, as JSON types
    sample           the documents among which are those to score; None: all
    """

    corpus: Corpus
    tokenizer: Tokenizer
    options: ScoreSettings
    subsets: tuple[str, ...] | None
    max_length: int
    prefix_id: int | None
    template: Template | None
    dtype: torch.dtype
    shard_versions: dict[str, str]
    model_versions: dict[str, str]
    protocol: dict[str, Any]
    sample: Sample | None = None

    @property
    def key(self) -> str:
        """The name of the records' folder; see `record_key`."""
        return record_key(self.protocol)

    @property
    def shards(self) -> list[str]:
        """The names of the shards."""
        return [shard.name for shard in self.corpus.shards]


def prepare(
    model: str | Path | PreTrainedModel,
    corpus: Corpus,
    options: ScoreSettings,
    *,
    tokenizer: Any = None,
    adapter: str | Path | None = None,
    dtype: str = "auto",
    device: torch.device,
    world_size: int = 1,
) -> Plan:
    """The plan for a model in memory, or in a folder, whose weights are not read; PilekitError for anything wrong."""
    check_settings(options)
    if world_size > 1 and any(shard.path == "-" for shard in corpus.shards):
        raise PilekitError("standard input (-) can be read by one process only; save it to a file first")
    subsets = subsets_or_all(options.subsets, corpus.manifest)  # before the files of the model, which take longer
    shard_versions, model_versions = {shard.path: version_of(shard.path) for shard in corpus.shards}, dict[str, str]()
    if isinstance(model, PreTrainedModel):
        if tokenizer is None:
            raise PilekitError("a model in memory needs its tokenizer; give it as tokenizer=")
        kind, folder, shape, name = kind_in_memory(model), None, model, "the model"
    elif not isinstance(model, str | Path):
        raise PilekitError(f"a {type(model).__name__} is not a model of transformers, nor the path of its folder")
    else:
        kind, folder, name = kind_of(model), Path(model), str(model)
        check_folder(folder, adapter)
        added = () if adapter is None else adapter_files(adapter)
        files = [folder / "config.json", *weight_files(folder), *added]
        model_versions = {str(file): version_of(str(file)) for file in files}
        shape = outline(model, kind, adapter)
    loaded = load_tokenizer(folder if tokenizer is None else tokenizer)
    check_vocabulary(shape, loaded, name)
    computed = shape.dtype if folder is None else dtype_of(dtype, device, stored_dtype(folder))
    template = template_of(loaded) if kind is MASKED else None
    options.check_kind(shape.config.model_type, template is not None)
    positions = positions_of(shape.config) if template is None else tokens_of(shape)
    max_length = options.max_length or positions or USUAL_MAX_LENGTH
    if positions is not None and max_length > positions:
        raise PilekitError(
            f"max_length is {max_length:,}, but the model has {positions:,} positions; give at most that"
        )
    if options.context_len > max_length:
        raise PilekitError(
            f"context_len is {options.context_len:,}, but a window has only {counted(max_length, 'token')}; "
            "give at most that"
        )
    if template is not None:
        template.room(max_length)
    prefix = None if template is not None else prefix_token(options.prefix, loaded, shape)
    plan = Plan(
        corpus, loaded, options, subsets, max_length, prefix, template, computed, shard_versions, model_versions, {}
    )
    plan.protocol.update(_protocol(plan, shape, device.type, folder))
    if adapter is not None:
        plan.protocol["model"]["adapter"] = {"path": str(adapter), "files": _fingerprint(adapter_files(adapter))}
    return plan


def check_in_memory(
    model: str | Path | PreTrainedModel, *, adapter: object, out: object, dtype: str, device: str
) -> None:
    """PilekitError if a model in memory comes with what a model in a folder alone may have."""
    if isinstance(model, PreTrainedModel) and (adapter, out, dtype, device) != (None, None, "auto", "auto"):
        raise PilekitError(
            "adapter, out, dtype and device are for a model in a folder; save this one, or leave them out"
        )


def prefix_token(prefix: str | int, tokenizer: Tokenizer, model: PreTrainedModel) -> int | None:
    """The token id of a prefix ("auto", "bos", "eos", or an id of the model); None for "none"."""
    text = str(prefix)
    if text == "none":
        return None
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    named = {"auto": eos if bos is None else bos, "bos": bos, "eos": eos}
    if text in named:
        if named[text] is None:
            raise PilekitError(
                f"the tokenizer {tokenizer.path} has no token for the prefix {text}; give a token's id "
                "as prefix, or none"
            )
        return named[text]
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise PilekitError(f"prefix is auto, bos, eos, none or a token's id, not {shortened(text, 40)!r}")
    rows = cast("torch.nn.Embedding", model.get_input_embeddings()).num_embeddings
    if int(text) >= rows:
        raise PilekitError(f"prefix is the token id {text}, but the model has only the ids 0 to {rows - 1}")
    return int(text)


def _protocol(plan: Plan, model: PreTrainedModel, device: str, model_dir: Path | None) -> dict[str, Any]:
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
            "weights": None if model_dir is None else _fingerprint(weight_files(model_dir)),
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
        "prefix": {
            "given": "none" if template is not None else str(options.prefix),
            "id": prefix,
            "token": None if prefix is None else tokenizer.decode([prefix]),
        },
        **masked,
        **({"per_token": True} if options.per_token else {}),
        "data": [{"name": shard.name, "size": shard.size} for shard in plan.corpus.shards],
        "manifest": plan.corpus.manifest.name,
        "subsets": None if plan.subsets is None else list(plan.subsets),
        "limit": options.limit,
        **({} if options.limit_bytes is None else {"limit_bytes": options.limit_bytes}),
        "paper": options.paper,
    }


def _fingerprint(files: Iterable[Path]) -> str:
    """XXH3 (128 bits) of the bytes of the files, one after another."""
    digest = xxhash.xxh3_128()
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
    return f"xxh3:{digest.hexdigest()}"
