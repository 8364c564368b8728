"""Pseudo-log-likelihoods of documents (Salazar et al. 2020): each token from all others of its window, one at a time.

    documents -> disjoint windows, each framed by the tokenizer's template ([CLS] tokens [SEP])
              -> a row for each token, in which that one is masked -> batches of rows of one length, the longest first
              -> the trunk, and the head at the masked place alone -> sums per window, then per document, in float64

The cost is one forward pass over a window for each of its tokens, and so grows with the square of a window's length;
`sample` tokens of each window are scored instead where it is given. Which ones, is a hash of the seed, the document's
text and the window's number: neither ranks nor batches nor order have a say, and two models with one tokenizer are
measured at the same places. Every choice is equally likely, so the sum over the chosen, times tokens / chosen, is right
in the mean; how far it is off in one document is part of what differs between documents, and so of the interval.

The rows of a window are of one length, and there are as many as it has tokens. So batches are full without padding, and
no attention mask is needed that a model might not heed: a row is exactly what a window alone would be. Of windows of
the length of 1,068 documents' of 22 subsets, at most 512, batches of 4,096 inputs are 99 % full, 97 % with a sample of
64 tokens and 86 % with one of 8. A row of 512 tokens takes `distilroberta` 0.54 s of one CPU core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from pilekit.errors import PilekitError, visible
from pilekit.evaluate.masked.model import MaskedLM, states_at
from pilekit.evaluate.model.fitting import Fitting
from pilekit.evaluate.score.causal_nll import (
    OBJECT_TOKENS,
    ScoredDocument,
    TokenizedDocument,
    chunk_rows,
    failed,
    ignore,
    no_number,
    usual_batch_tokens,
)
from pilekit.stream.order.shuffle import mix
from pilekit.tokenize import Tokenizer

LOOK_AHEAD_BATCHES = 256
"""Rows of so many batches are sorted by length together: it is also about what an interrupted evaluation loses."""


@dataclass(frozen=True, slots=True)
class Template:
    """What a masked model's tokenizer makes of a window; of it only `mask` is put in the place of a token.

    before, behind   ids of the special tokens around the tokens of a window; none may be
    mask             id of the mask token
    """

    before: tuple[int, ...]
    behind: tuple[int, ...]
    mask: int

    def room(self, max_length: int) -> int:
        """The tokens of a document that a window of `max_length` has place for; PilekitError where it has for none."""
        room = max_length - len(self.before) - len(self.behind)
        if room < 1:
            raise PilekitError(
                f"max_length is {max_length:,}, and {len(self.before) + len(self.behind)} of these are the special "
                "tokens that the tokenizer puts around a text; give a larger one"
            )
        return room


def template_of(tokenizer: Tokenizer) -> Template:
    """The template of a masked model's tokenizer; PilekitError where it has no mask token or no readable template."""
    shown = visible(str(tokenizer.path))
    if tokenizer.mask_id is None:
        raise PilekitError(
            f"the tokenizer {shown} has no mask token, which a masked model needs; name it as "
            '"mask_token" in a tokenizer_config.json beside it'
        )
    around = tokenizer.around()
    if around is None:
        raise PilekitError(
            f"the tokenizer {shown} does not put the same special tokens around every text, so what a window looks "
            'like cannot be told; give its tokenizer.json a "post_processor" that does, or none'
        )
    before, behind = around
    return Template(tuple(before), tuple(behind), tokenizer.mask_id)


def pseudo_score_documents(
    lm: MaskedLM,
    documents: Iterable[TokenizedDocument],
    *,
    template: Template,
    max_length: int,
    sample: int | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    scored: Callable[[int], None] = ignore,
) -> Iterator[ScoredDocument]:
    """Yield every document with its negative pseudo-log-likelihood, as soon as it is scored.

    The model is used in its mode, device and dtype. All tokens of a document count as its `tokens`, sampled or not.

        lm = load_masked_lm(model_dir, dtype=dtype, device=device)      # where kind_of(model_dir) is MASKED
        template = template_of(tokenizer)
        pseudo_score_documents(lm, documents, template=template, max_length=max_length_of(lm.max_length, given))

    template       what stands around the tokens of a window, and what in the place of the one that is told
    max_length     the most inputs of a window, special tokens among them: `lm.max_length` at most
    sample         tokens scored of each window; None: all, and so it is where a window has no more
    seed           of the choice of these
    batch_tokens   inputs in a batch; one row always fits. None: what suits the device
    scored         called with each further number of tokens scored, those that a sample stands for included

    A loss that is no finite number is a PilekitError that names the document, and so is what the model raises.
    """
    room = template.room(max_length)
    if sample is not None and sample < 1:
        raise PilekitError(f"mlm_sample is a whole number from 1 on, not {sample}")
    batch_tokens = batch_tokens or usual_batch_tokens(lm.model.device)
    share: Fitting[_Row] = Fitting(lambda row: len(row.window.inputs))
    held: list[_Window] = []
    cost = 0
    for document in documents:
        current = _Open(document)
        for number, begin in enumerate(range(0, len(document.ids), room)):
            if cost >= LOOK_AHEAD_BATCHES * batch_tokens:
                yield from _score(lm, template, held, batch_tokens, scored, share)
                held, cost = [], 0
            held.append(_window(current, number, document.ids[begin : begin + room], template, sample, seed))
            current.held += 1
            cost += OBJECT_TOKENS + len(held[-1].places) * len(held[-1].inputs)
        current.whole = True
        if not current.held:
            yield current.scored()
    yield from _score(lm, template, held, batch_tokens, scored, share)


def chosen(tokens: int, sample: int | None, seed: int, text: int, window: int) -> npt.NDArray[np.int64]:
    """Which of the `tokens` of a window are scored, int64, increasing: all, or `sample` of them.

    Every choice of so many is equally likely: those tokens are taken whose hashes are the smallest.
    """
    if sample is None or sample >= tokens:
        return np.arange(tokens)
    hashes = mix(seed, text, window, np.arange(tokens))
    return np.sort(np.argsort(hashes, kind="stable")[:sample])


@dataclass(slots=True)
class _Open:
    """A document whose windows are being scored.

    held    how many of its windows are not scored yet
    whole   whether these are all that are left
    sums    of each window that is, by its number
    """

    document: TokenizedDocument
    held: int = 0
    whole: bool = False
    sums: dict[int, float] = field(default_factory=dict)

    def scored(self) -> ScoredDocument:
        of = self.document
        nll = math.fsum(self.sums.values())
        return ScoredDocument(of.shard, of.number, of.text, of.subset, of.bytes, len(of.ids), nll)


@dataclass(slots=True)
class _Window:
    """A window of which some tokens are to be scored.

    inputs   int64 [tokens and special tokens], nothing masked
    tokens   how many of them are the document's
    places   int64 [chosen]: where in `inputs` those stand that are scored
    losses   float64 [chosen], of which the first `done` are known
    """

    of: _Open
    number: int
    inputs: npt.NDArray[np.int64]
    tokens: int
    places: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]
    done: int = 0


class _Row(NamedTuple):
    window: _Window
    place: int


def _window(
    of: _Open, number: int, ids: npt.NDArray[np.uint32], template: Template, sample: int | None, seed: int
) -> _Window:
    inputs = np.concatenate((template.before, ids, template.behind)).astype(np.int64)
    places = len(template.before) + chosen(len(ids), sample, seed, of.document.text, number)
    return _Window(of, number, inputs, len(ids), places, np.empty(len(places)))


def _score(
    lm: MaskedLM,
    template: Template,
    held: list[_Window],
    batch_tokens: int,
    scored: Callable[[int], None],
    share: Fitting[_Row],
) -> Iterator[ScoredDocument]:
    """Add the losses of all windows to their documents', and yield those that are complete."""

    def forward(batch: list[_Row]) -> list[float]:
        try:
            return _losses(lm, batch, template.mask)
        except (RuntimeError, IndexError, ValueError, MemoryError) as error:
            first = batch[0].window
            raise failed(first.of.document, len(batch), len(first.inputs), error) from error

    made = list(_batches(held, batch_tokens, _most_rows(lm)))
    for batch, losses in zip(made, share(made, forward), strict=True):
        for (window, _), nll in zip(batch, losses, strict=True):
            if not math.isfinite(nll):
                raise no_number(window.of.document, nll)
            window.losses[window.done] = nll
            window.done += 1
            if window.done == len(window.places):
                current = window.of
                current.sums[window.number] = window.tokens / window.done * math.fsum(window.losses)
                current.held -= 1
                scored(window.tokens)
                if current.whole and not current.held:
                    yield current.scored()


def _batches(held: list[_Window], batch_tokens: int, most_rows: Callable[[int], int]) -> Iterator[list[_Row]]:
    """Rows of one length, those of a window in order; the longest first: what does not fit shows at once."""

    def length(window: _Window) -> int:
        return len(window.inputs)

    for of_length, windows in groupby(sorted(held, key=length, reverse=True), length):
        most = max(1, min(batch_tokens // of_length, most_rows(of_length)))
        batch: list[_Row] = []
        for window in windows:
            for place in window.places.tolist():
                batch.append(_Row(window, place))
                if len(batch) == most:
                    yield batch
                    batch = []
        if batch:
            yield batch


def _most_rows(lm: MaskedLM) -> Callable[[int], int]:
    """How many rows of a given length may have their logits held: at one place of each, where that can be had."""
    rows = chunk_rows(lm.model.device, cast("Any", lm.model).get_input_embeddings().num_embeddings)
    return lambda length: rows if lm.head_by_place else rows // length


@torch.no_grad()
def _losses(lm: MaskedLM, batch: list[_Row], mask: int) -> list[float]:
    """The negative log-likelihood of the token in each row's place."""
    # Not inference_mode: what a model keeps from this forward (rotary tables) must serve training too.
    input_ids = torch.from_numpy(np.stack([row.window.inputs for row in batch]))
    rows, length = input_ids.shape
    places = torch.tensor([row.place for row in batch]) + length * torch.arange(rows)
    targets = input_ids.flatten()[places].to(lm.model.device)
    input_ids.view(-1)[places] = mask
    # No attention mask: nothing is padded. RoBERTa's kind counts positions from the tokens themselves.
    inputs, places = {"input_ids": input_ids.to(lm.model.device)}, places.to(lm.model.device)
    if lm.head_by_place:
        logits = lm.head(states_at(lm, inputs, places))
    else:
        logits = cast("Any", lm.model)(**inputs).logits.flatten(0, 1)[places]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses: list[float] = cross_entropy(logits, targets, reduction="none").double().tolist()
    return losses
