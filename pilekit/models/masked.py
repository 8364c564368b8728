"""`MaskedLM`: a model that is proven to predict masked tokens from both sides.

As with causal models, names prove nothing: a few tokens are run through the model once. A mask [rows, 1, seq_len,
seq_len], True where a token may see another, keeps the documents of a row apart, together with positions that restart
in each document. `keeps_documents_apart` proves that the model obeys both.

The head runs only at chosen places (`states_at`): the trunk's output is narrowed to these places before the model's own
code continues (a dense layer, a norm). The caller then multiplies by the last matrix, whose rows are the vocabulary. If
this changes a model's logits, they are made at all places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pilekit.errors import PilekitError, shortened
from pilekit.models.causal import PROBE_TOKENS, changed_ids, differ, predicting, probe_ids
from pilekit.models.load import MASKED, load_model, positions_of
from pilekit.models.logit_transform import UNCHANGED, LogitTransform
from pilekit.stream.batch.attention_mask import document_mask

ALONE_TOLERANCE = 1e-3
"""How far a document's logits in a row may differ from its logits alone, as a share of the largest logit: sums are made
in another order. Wrong positions cause differences a hundred times as large."""


@dataclass(frozen=True, slots=True)
class MaskedLM:
    """A masked language model, made by `as_masked_lm` or `load_masked_lm`."""

    model: PreTrainedModel
    """The whole model."""
    max_length: int | None
    """Most tokens of a row, special tokens included; None: the model names no limit."""
    head_by_place: bool
    """Whether logits may be made at some places only: by `head`, from the `states_at` these places."""

    @property
    def head(self) -> nn.Linear:
        """The last matrix, from width to vocabulary."""
        return cast("nn.Linear", cast("Any", self.model).get_output_embeddings())

    @property
    def transform(self) -> LogitTransform | None:
        """The change from the head's output to logits, as of a `CausalLM`, or None if logits need the whole model."""
        return UNCHANGED if self.head_by_place else None


def load_masked_lm(
    model_dir: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    adapter: str | Path | None = None,
) -> MaskedLM:
    """The masked model of a folder, as `load_causal_lm` loads a causal model: whole, in evaluation mode.

    Raises PilekitError if there is no such model, or if its predictions do not depend on later tokens.
    """
    model = load_model(model_dir, dtype=dtype, kind=MASKED, device=device, adapter=adapter)
    try:
        return as_masked_lm(model)
    except PilekitError as error:
        raise PilekitError(f"{model_dir}: {error}") from error


def as_masked_lm(model: PreTrainedModel) -> MaskedLM:
    """The parts of `model` that scoring and training need. Raises PilekitError if it does not predict from both sides.

    The model is on any device, in any precision.
    """
    name = shortened(model.config.model_type, 60)
    ids = probe_ids(model, tokens_of(model))
    length = ids.shape[1]
    places = torch.arange(0, length, 2, device=ids.device)
    unproven = MaskedLM(model, tokens_of(model), head_by_place=True)
    try:
        with predicting(model):
            logits = cast("Any", model)(input_ids=ids).logits
            later = cast("Any", model)(input_ids=changed_ids(model, ids, slice(-1, None))).logits
    except Exception as error:  # a model that needs other inputs may raise anything
        if getattr(model.config, "pad_token_id", None) is None:
            raise PilekitError(
                f'this {name} model needs a padding token: name it as "pad_token" in a tokenizer_config.json beside '
                "the tokenizer"
            ) from error
        raise PilekitError(
            f"this {name} model cannot predict from tokens alone ({shortened(str(error) or type(error).__name__, 200)})"
        ) from error
    # The tolerance is float32's rounding in any precision: a model that sees no later token gives the same logits.
    if length > 1 and not differ(logits[:, :-1].float(), later[:, :-1].float()):
        raise PilekitError(
            f"this {name} model is not a masked language model: its prediction of a token depends on no later token; "
            'if its config.json has "is_decoder": true, set that to false'
        )
    try:
        with predicting(model):
            by_place = unproven.head(states_at(unproven, {"input_ids": ids}, places))
        proven = type(unproven.head) is nn.Linear and not differ(by_place, logits[0, places])
    except Exception:  # a model of another structure
        proven = False
    return MaskedLM(model, unproven.max_length, head_by_place=proven)


def keeps_documents_apart(lm: MaskedLM, seq_len: int) -> bool:
    """Whether each document in a row of `seq_len` tokens has the same logits as alone.

    Two documents share a row. If the first changes, the second's logits may not change, and each document must have the
    same logits as in a row of its own. The second fills nearly all of the row: models whose layers see only a window
    (ModernBERT) use the mask instead of the window, and only a long document reveals that.
    """
    ids = probe_ids(lm.model, tokens_of(lm.model), seq_len)
    half = min(PROBE_TOKENS, ids.shape[1]) // 2
    if half == 0:
        return True
    lengths = [half, ids.shape[1] - half]
    batch = {
        "doc_ids": torch.repeat_interleave(torch.arange(2), torch.tensor(lengths)).unsqueeze(0),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0),
    }
    rows = ids, changed_ids(lm.model, ids, slice(half))
    model: Any = lm.model
    try:
        with predicting(lm.model):
            packed, changed = (model(**inputs_by_document(lm, {**batch, "input_ids": row})).logits for row in rows)
            alone = torch.cat([model(input_ids=part).logits for part in (ids[:, :half], ids[:, half:])], dim=1)
    except Exception:  # a model that takes no such mask, or no positions
        return False
    as_alone = (packed - alone).abs().max() <= ALONE_TOLERANCE * alone.abs().max()
    return bool(as_alone) and not differ(packed[:, half:], changed[:, half:])


def tokens_of(model: PreTrainedModel) -> int | None:
    """The most tokens of a row, or None if the model names no limit. `model` may be on the meta device."""
    positions = positions_of(model.config)
    return None if positions is None else positions - _first_position(model)


def inputs_by_document(lm: MaskedLM, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's inputs for `batch`, so that each document of a row sees only itself.

    batch   `input_ids`, `position_ids` (from 0 in each document) and `doc_ids`, int64 [rows, seq_len]
    """
    return {
        "input_ids": batch["input_ids"],
        "position_ids": batch["position_ids"] + _first_position(lm.model),
        "attention_mask": document_mask(batch, dense=True, causal=False),
    }


def states_at(lm: MaskedLM, inputs: Mapping[str, Tensor], places: Tensor) -> Tensor:
    """[places, width]: the head's input at these places of [rows x seq_len]. The head itself does not run."""

    def narrow(_trunk: nn.Module, _inputs: Any, output: Any) -> Any:
        output["last_hidden_state"] = output["last_hidden_state"].flatten(0, 1).index_select(0, places).unsqueeze(0)
        return output

    head: Any = lm.head
    hook = lm.model.base_model.register_forward_hook(narrow)
    head.forward = lambda states: states
    try:
        return cast("Tensor", cast("Any", lm.model)(**inputs).logits[0])
    finally:
        hook.remove()
        del head.forward


def _first_position(model: PreTrainedModel) -> int:
    """The first position: 0, or one past the padding position, if the model has one."""
    words = cast("Any", model).get_input_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module is not words and "position" in name:
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0
