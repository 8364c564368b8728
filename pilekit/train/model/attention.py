"""How a model attends: the implementation that the config asks for, and proofs that it keeps documents apart.

Names prove nothing, so the model computes a few tokens. It does so twice: as it was built, before the ranks cut it, and
with a faster implementation on the device that trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from transformers import PreTrainedModel

from pilekit.errors import PilekitError, shortened
from pilekit.models.causal import CausalLM, isolates_documents
from pilekit.models.load import quiet
from pilekit.models.masked import MaskedLM, keeps_documents_apart
from pilekit.train.config.sections import TrainConfig
from pilekit.workers.ranks import Ranks


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


def try_attention(lm: CausalLM, config: TrainConfig, ranks: Ranks) -> None:
    """Raise PilekitError unless `lm` computes on these ranks and keeps documents apart, if the config asks for it.

    Several rows are tried if micro-batches have several: some implementations keep documents apart in one row only.
    """
    rows, implementation = min(2, config.train.micro_batch_size), config.model.attention_implementation

    def mixes() -> bool:
        try:
            return not isolates_documents(lm, rows)
        except RuntimeError as error:  # the kernels lack a shape: those of flex attention need heads of 16 or wider
            raise PilekitError(
                f'model.attention_implementation = "{implementation}": does not run with this model here '
                f'({shortened(" ".join(str(error).split()), 200)}); set "sdpa"'
            ) from error

    if ranks.any(ranks.on_all_ranks(mixes)) and config.data.attention == "document":
        remedy = "train.micro_batch_size = 1, or " if rows > 1 else ""
        raise ranks.error(
            f'model.attention_implementation = "{implementation}": mixes the documents of a row here; set '
            f'{remedy}"sdpa", or data.attention = "causal"'
        )
