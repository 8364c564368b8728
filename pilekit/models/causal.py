"""`CausalLM`: a model that is proven to predict each token from the tokens before it, and from nothing else.

transformers loads more than causal language models under `AutoModelForCausalLM`. So names prove nothing: a few tokens
are run through the model once, and show it.

This run also finds `transform`, which turns the head's output into logits. With it, logits can be made from the trunk's
output in chunks, and the logits of a whole batch are never held (16 x 2,048 tokens of a vocabulary of 50,304 are 6.6 GB
of float32). The transform must reproduce the logits of a few tokens. It must also reproduce the model's logits when the
head gives numbers from far below to far above any cap, because the logits of a fresh head are too small to show a cap.
Without a transform, only the model's own logits are right. Probing takes 0.08 s for `pythia-14m` on one core.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pilekit.errors import PilekitError, shortened
from pilekit.models.folder import few_rows
from pilekit.models.load import load_model, positions_of
from pilekit.models.logit_transform import LogitTransform, logit_transform_of, same_numbers
from pilekit.tokenize import Tokenizer

PROBE_TOKENS = 8
PROBE_LOGIT = 100.0
"""The head is made to give numbers from -PROBE_LOGIT to PROBE_LOGIT. Known caps are 15 to 50."""
_LENGTH_DEPENDENT = re.compile("'rope_type': '(longrope|dynamic)")  # with one kind of layer, or several


@dataclass(frozen=True, slots=True)
class CausalLM:
    """A causal language model and its parts, made by `as_causal_lm` or `load_causal_lm`."""

    model: PreTrainedModel
    """The whole model."""
    trunk: nn.Module
    """The model without the head: `trunk(input_ids=..., position_ids=..., use_cache=False).last_hidden_state`."""
    head: nn.Linear
    """Hidden states to logits. It may have a bias, and its weight may be the input embedding's."""
    max_length: int | None
    """Positions of the model; None: the model names no limit."""
    transform: LogitTransform | None
    """The model's logits are exactly `transform(head(...))` of the trunk's output, so they may be made in chunks. None:
    only the model itself makes the right logits."""

    @classmethod
    def from_model(cls, model: PreTrainedModel, transform: LogitTransform | None) -> CausalLM:
        """The parts of `model`, which is causal and has a head."""
        head = cast("nn.Linear", cast("Any", model).get_output_embeddings())
        return cls(model, model.base_model, head, positions_of(model.config), transform)


def load_causal_lm(
    model_dir: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    adapter: str | Path | None = None,
) -> CausalLM:
    """The model of a folder with config.json and safetensors, in `dtype` on `device`, in evaluation mode.

    adapter   a folder whose adapter is added to the weights

    Raises PilekitError if the folder or its weights are missing or incomplete, if transformers does not know the type,
    if the model needs code of its own, or if it is not causal. Nothing is downloaded, unpickled or executed.
    """
    model = load_model(model_dir, dtype=dtype, device=device, adapter=adapter)
    try:
        return as_causal_lm(model)
    except PilekitError as error:
        raise PilekitError(f"{model_dir}: {error}") from error


def as_causal_lm(model: PreTrainedModel) -> CausalLM:
    """The parts of `model` that scoring and training need. Raises PilekitError if it is not a causal language model."""
    name = shortened(model.config.model_type, 60)
    head: nn.Module | None = cast("Any", model).get_output_embeddings()
    if head is None:
        raise PilekitError(f"{type(model).__name__} has no language-model head; it cannot predict tokens")
    ids = probe_ids(model, positions_of(model.config))
    try:
        with predicting(model):
            logits, transform = _probe_head(model, head, ids)
            changed_logits = model(input_ids=changed_ids(model, ids, slice(-1, None)), use_cache=False).logits
    except Exception as error:  # a model that needs other inputs may raise anything
        raise PilekitError(
            f"this {name} model cannot predict from tokens alone ({shortened(str(error) or type(error).__name__, 200)})"
        ) from error
    if differ(logits[:, :-1], changed_logits[:, :-1]):
        raise PilekitError(
            f"this {name} model is not a causal language model: its prediction of a token depends on later "
            "tokens, as in a masked language model; give one that predicts from the left"
        )
    return CausalLM.from_model(model, transform)


def check_vocabulary(model: PreTrainedModel, tokenizer: Tokenizer, name: str) -> None:
    """Raise `PilekitError`, with the model's `name`, if the tokenizer has ids that it has no embedding for."""
    rows = _embeddings(model).num_embeddings
    predicted = getattr(cast("Any", model).get_output_embeddings(), "out_features", rows)
    if tokenizer.vocab_size > min(rows, predicted):
        raise PilekitError(few_rows(name, min(rows, predicted), tokenizer.path, tokenizer.vocab_size))


def isolates_documents(lm: CausalLM, rows: int = 1) -> bool:
    """Whether restarted positions keep the documents of a row apart, in the call documented at `CausalLM.trunk`.

    Two documents share a row. If the first changes, the second's output may not change. Some implementations of
    attention keep them apart in a single row only, so all of `rows` are tried at once.
    """
    ids = probe_ids(lm.model, lm.max_length).repeat(rows, 1)
    length = ids.shape[1]
    if length < 2:
        return True
    half = length // 2
    positions = torch.cat([torch.arange(half), torch.arange(length - half)]).repeat(rows, 1).to(ids.device)
    changed = changed_ids(lm.model, ids, slice(half))
    try:
        with predicting(lm.model):
            hidden, changed_hidden = (
                lm.trunk(input_ids=row, position_ids=positions, use_cache=False).last_hidden_state
                for row in (ids, changed)
            )
    except TypeError:  # a model without positions
        return False
    return not differ(hidden[:, half:], changed_hidden[:, half:])


def depends_on_length(model: PreTrainedModel) -> bool:
    """Whether a model's prediction of a token depends on the length of its input, padding included.

    Rotary embeddings of the types longrope and dynamic use other factors for a longer input.
    """
    return bool(_LENGTH_DEPENDENT.search(repr(getattr(model.config.get_text_config(), "rope_parameters", None))))


def _probe_head(model: PreTrainedModel, head: nn.Module, ids: Tensor) -> tuple[Tensor, LogitTransform | None]:
    """The logits of `ids`, and the transform that makes them, bit for bit, from the head's output (None if unknown)."""
    if type(head) is not nn.Linear or model.base_model is model:
        return cast("Tensor", model(input_ids=ids, use_cache=False).logits), None
    states, output, logits = _run_with_head(model, head, ids, lambda output: output)
    trunk = model.base_model(input_ids=ids, use_cache=False)
    if not same_numbers(getattr(trunk, "last_hidden_state", None), states):
        return logits, None
    _, spread_output, spread_logits = _run_with_head(model, head, ids, _from_low_to_high)
    return logits, logit_transform_of(model.config, [(output, logits), (spread_output, spread_logits)])


def _run_with_head(
    model: PreTrainedModel, head: nn.Linear, ids: Tensor, instead: Callable[[Tensor], Tensor]
) -> tuple[Any, Any, Tensor]:
    """(the head's input, its output, the model's logits) for `ids`. `instead` changes the head's output.

    The first two are None if the model does not call its head.
    """
    recorded: dict[str, Any] = {}

    def note(_head: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        output = instead(output)
        recorded["input"], recorded["output"] = inputs[0] if inputs else None, output
        return output.clone()  # some models write into it

    hook = head.register_forward_hook(note)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    return recorded.get("input"), recorded.get("output"), logits


def _from_low_to_high(output: Tensor) -> Tensor:
    """Evenly spaced numbers from low to high."""
    steps = torch.linspace(-PROBE_LOGIT, PROBE_LOGIT, output.numel(), dtype=torch.float64, device=output.device)
    return steps.to(output.dtype).view_as(output)


def differ(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    if left.numel() == 0:
        return False
    tolerance = 8 * torch.finfo(left.dtype).eps * left.abs().max()
    return bool((left - right).abs().max() > tolerance)


@contextmanager
def predicting(model: nn.Module) -> Iterator[None]:
    """Inside: no dropout and no gradients."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def probe_ids(model: PreTrainedModel, most: int | None, length: int = PROBE_TOKENS) -> Tensor:
    """Ids [1, length], or `most` if that is less; as different as the vocabulary allows, without padding."""
    ids = _ordinary_ids(model)
    return ids[torch.arange(3, 3 + min(length, most or length)) % len(ids)].unsqueeze(0)


def changed_ids(model: PreTrainedModel, ids: Tensor, where: slice) -> Tensor:
    """`ids` with other tokens at `where`."""
    ordinary = _ordinary_ids(model)
    changed = ids.clone()
    places = torch.searchsorted(ordinary, ids[:, where].contiguous())
    changed[:, where] = ordinary[(places + 1) % len(ordinary)]
    return changed


def _ordinary_ids(model: PreTrainedModel) -> Tensor:
    """All ids, increasing, without the padding id, which has no position of its own in some models."""
    embeddings = _embeddings(model)
    ids = torch.arange(embeddings.num_embeddings, device=embeddings.weight.device)
    return ids[ids != padding] if (padding := getattr(model.config, "pad_token_id", None)) is not None else ids


def _embeddings(model: PreTrainedModel) -> nn.Embedding:
    return cast("nn.Embedding", model.get_input_embeddings())
