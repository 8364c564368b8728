"""How a model attends: the implementation that the config asks for, and proofs that it keeps documents apart.

Names prove nothing, so the model computes a few tokens. It does so twice: as it was built, before the ranks cut it, and
with a faster implementation on the device that trains.

Without a name in the config, "varlen" is tried where it is faster: on a GPU, in bf16 or fp16, with rows of documents.
There it must also make a backward pass. If it does not, the model attends as it was built, and a warning says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import msgspec
import torch
from transformers import PreTrainedModel

from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.models.causal import CausalLM, isolates_documents, probe_ids
from pilekit.models.load import quiet
from pilekit.models.masked import MaskedLM, keeps_documents_apart
from pilekit.train.config.sections import AttentionKernel, TrainConfig
from pilekit.train.model.varlen import VARLEN
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import Ranks

logger = message_logger(__name__)


def chosen_attention(config: TrainConfig, device: str, runs: Callable[[], bool] = lambda: True) -> AttentionKernel:
    """The config's implementation of attention; for "auto" the fastest on this type of device.

    runs   whether "varlen" trains the model there; called only if that would be faster
    """
    named = config.model.attention_implementation
    if named != "auto":
        return named
    # With a mask of documents, sdpa cannot use flash attention.
    is_faster = (
        device == "cuda"
        and config.precision.dtype != "fp32"
        and config.data.attention == "document"
        and config.train.objective == "clm"
        and config.parallel.backend == "native"
    )
    return VARLEN if is_faster and runs() else "sdpa"


def with_attention(config: TrainConfig, kernel: AttentionKernel) -> TrainConfig:
    """The config with this implementation of attention by name."""
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, attention_implementation=kernel))


def choose_attention(engine: StepEngine, config: TrainConfig, device: str | None = None) -> None:
    """Make the engine's model attend as the config says, or for "auto" by the fastest implementation that runs.

    device   the type of device to choose for; default: the engine's

    Raises PilekitError if an implementation that the config names does not run, or mixes documents.
    """
    built = engine.lm.model.config._attn_implementation

    def runs() -> bool:
        try:
            try_attention(engine, VARLEN, config)
            _try_to_train(engine, config)
        except PilekitError as error:
            use_attention(engine.lm.model, built)
            engine.attention = "sdpa"
            if engine.ranks.is_first:
                logger.warning("attention is computed by sdpa, because varlen cannot be: %s", error)
        return engine.attention == VARLEN

    chosen = chosen_attention(config, device or engine.ranks.device.type, runs)
    if chosen != engine.attention:
        try_attention(engine, chosen, config)


def use_attention(model: PreTrainedModel, implementation: str) -> None:
    """Make `model` compute attention in another way. Raises PilekitError if it cannot."""
    try:
        with quiet():
            model.set_attn_implementation(implementation)
    except (ValueError, ImportError, RuntimeError) as error:
        raise PilekitError(
            f'model.attention_implementation = "{implementation}": a {shortened(model.config.model_type, 60)} model '
            f'cannot use it ({shortened(" ".join(str(error).split()), 200)}); set "sdpa"'
        ) from error


def check_documents_apart(models: Sequence[CausalLM | MaskedLM], config: TrainConfig, ranks: Ranks) -> None:
    """If `data.attention` is "document", raise PilekitError unless rank 0's models keep a row's documents apart."""
    for lm in models if config.data.attention == "document" else ():
        if not ranks.on_rank0(partial(_keeps_documents_apart, lm, config.data.seq_len)):
            raise ranks.error(
                f"a {shortened(lm.model.config.model_type, 60)} model cannot keep the documents of a row apart; "
                f'set data.attention = "{"row" if config.train.objective == "mlm" else "causal"}"'
            )


def _keeps_documents_apart(lm: CausalLM | MaskedLM, seq_len: int) -> bool:
    return keeps_documents_apart(lm, seq_len) if isinstance(lm, MaskedLM) else isolates_documents(lm)


def try_attention(engine: StepEngine, kernel: AttentionKernel, config: TrainConfig) -> None:
    """Make the engine's model attend by `kernel`.

    Raises PilekitError on all ranks unless it computes there and keeps documents apart, if the config asks for it.
    Several rows are tried if micro-batches have several: some implementations keep documents apart in one row only.
    """
    lm, ranks, rows = engine.lm, engine.ranks, min(2, config.train.micro_batch_size)
    assert isinstance(lm, CausalLM), "masked models use sdpa"
    ranks.on_all_ranks(lambda: use_attention(lm.model, kernel))
    engine.attention = kernel

    def mixes() -> bool:
        try:
            return not isolates_documents(lm, rows)
        except RuntimeError as error:  # the kernels lack a shape: those of flex attention need heads of 16 or wider
            raise _does_not_run(kernel, error) from error

    with engine.evaluating(), uncompiled(config):
        is_mixed = ranks.any(ranks.on_all_ranks(mixes))
    if is_mixed and config.data.attention == "document":
        remedy = "train.micro_batch_size = 1, or " if rows > 1 else ""
        raise ranks.error(
            f'model.attention_implementation = "{kernel}": mixes the documents of a row here; set '
            f'{remedy}"sdpa", or data.attention = "causal"'
        )


def _try_to_train(engine: StepEngine, config: TrainConfig) -> None:
    """Raise PilekitError on all ranks unless the engine makes a forward and backward pass; its gradient is dropped."""
    assert isinstance(engine.lm, CausalLM), "masked models use sdpa"
    ids = probe_ids(engine.lm.model, engine.lm.max_length).cpu()
    positions = torch.arange(ids.shape[1])[None] % max(1, ids.shape[1] // 2)
    rows = {"input_ids": ids, "labels": ids, "position_ids": positions, "doc_ids": torch.zeros_like(ids)}

    def train() -> None:
        try:
            engine.forward_backward(rows, scale=1.0, last=True)
        except RuntimeError as error:
            raise _does_not_run(engine.attention, error) from error

    try:
        with uncompiled(config):
            engine.ranks.on_all_ranks(train)
    finally:
        engine.forget()


def uncompiled(config: TrainConfig) -> AbstractContextManager[object]:
    """Inside: no compiled code, which each new length would compile again, and then for any length."""
    return torch.compiler.set_stance("force_eager") if config.parallel.compile else nullcontext()


def _does_not_run(kernel: str, error: Exception) -> PilekitError:
    return PilekitError(
        f'model.attention_implementation = "{kernel}": does not run with this model here '
        f'({shortened(" ".join(str(error).split()), 200)}); set "sdpa"'
    )
