"""`bits_per_byte`: documents in, figures per subset out.

    selected -> this rank's documents that are not recorded yet -> tokens -> score_documents -> records -> tabulate

The figures are a function of the records alone: a document may be scored now or in an earlier run, alone or on one rank
of many. Ranks share nothing while they score, and meet at the end, so an interrupted run can be resumed on any number
of ranks.

A document's bytes are those of its raw text as UTF-8, whatever a tokenizer's normaliser makes of it. Its text is
encoded unchanged: no token is added, and special tokens in the text are text. Errors are found before the weights are
read, which may take minutes; if all documents are recorded, the weights are never read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from pilekit.corpus import Corpus
from pilekit.documents import DocumentBatch
from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, counted, visible
from pilekit.evaluate.masked.model import MaskedLM, as_masked_lm, load_masked_lm
from pilekit.evaluate.masked.pseudo_nll import pseudo_score_documents
from pilekit.evaluate.model.causal import CausalLM, as_causal_lm, load_causal_lm
from pilekit.evaluate.model.device import device_of
from pilekit.evaluate.plan import MLM_SEED, Data, Options, Plan, corpus_of, make_plan, prepare
from pilekit.evaluate.ranks import alone, apart, ranks_of_job
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte, write_result
from pilekit.evaluate.results.result_folder import check_out, held_folder, record_file, records_folder, scored_before
from pilekit.evaluate.results.tabulate import tabulate
from pilekit.evaluate.score.batching import Share, TokenizedDocument, ignore
from pilekit.evaluate.score.causal_nll import score_documents
from pilekit.evaluate.select_documents import Recorded, dealt, selected, tokenized
from pilekit.evaluate.training_copies import count_training_copies
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.reader import OnError
from pilekit.tokenize import Tokenizer

logger = logging.getLogger(__name__)

MOST_OTHERS = 30
"""How many labels that the manifest does not know the protocol lists; there may be thousands."""
BYTES_PER_TOKEN = 1.3
READ_AHEAD = 4 << 20


def bits_per_byte(
    model: str | Path | PreTrainedModel,
    data: Data = None,
    *,
    tokenizer: Any = None,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    context_len: int = 1,
    prefix: str | int = "auto",
    paper: bool = False,
    train: Data = None,
    mlm_sample: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    out: str | Path | None = None,
    on_error: OnError = "raise",
    advance: Callable[[int], None] = ignore,
) -> BitsPerByte:
    """Score a model in Hugging Face's format, or in memory, on a corpus.

    Returns a `BitsPerByte`: a `Score` for each subset that has documents, in `.subsets`, and one over all in `.overall`
    (`.bpb` is the figure, `.interval` its 95 % interval); `.protocol` says what the figures depend on. A masked model
    (of BERT's or RoBERTa's kind) is recognised by its config.json; its figures are pseudo-bits per byte.

    model          a folder with config.json, safetensors and tokenizer.json, or a model of `transformers`, which is
                   scored as it is, on its device and in its precision, and not changed
    data           a path, glob or URL, several of them, a `Corpus`, or None for the default places. If there are val or
                   test shards among others, only these are scored, and a warning names them
    tokenizer      what `load_tokenizer` takes; None: the folder's
    subsets        only documents of these subsets, in any spelling the manifest knows; None: all
    limit          only this many documents of each subset, from the first; None: all. Reading ends when all subsets
                   asked for are full, or else all subsets of the manifest and all others met so far
    max_length     tokens in a window; None: the model's positions, or 2048 if it declares no limit
    context_len    the least number of inputs before each predicted token, in windows after the first. Published
                   figures are made with 1, disjoint windows; more context gives lower figures at a higher cost
    prefix         the token before a document's first token: "bos", "eos", a token's id, "auto" (BOS, else EOS), or
                   "none": then the first token is context only and is not predicted, while its bytes count
    paper          figures as in the Pile's paper, by its fixed constants of tokens per byte
    train          training shards: documents whose text occurs in them are counted, in `.training_copies`
    mlm_sample     for a masked model: score only this many tokens of each window, drawn at random; None: all
    dtype          "fp32", "bf16", "fp16", or "auto": fp32 on a CPU, the precision of the stored weights on a GPU
    device         "cpu", "cuda", "cuda:N", or "auto": a GPU if there is one
    batch_tokens   tokens in a forward pass, for speed and memory; figures do not depend on it. None: the device's
                   default. If memory does not suffice, batches become smaller, and a warning says so
    out            a folder for result.json and the record of every document, written as soon as it is scored: the same
                   call resumes after an interruption, and answers at once when all is recorded
    on_error       "raise": a bad line is a `PilekitError`; "skip": bad lines are passed over, and counted in a warning
                   and in "skipped_lines" of the protocol
    advance        called with each further number of stored bytes that are done

    With several processes (torchrun, or an initialised process group) all must make the same call: each scores its
    share of the documents, all get the same result, and rank 0 writes it. Anything wrong with the model, its tokenizer,
    the corpus or the folder is a PilekitError on all of them, and so is a selection without documents.
    """
    ranks = ranks_of_job()
    options = Options(
        subsets=subsets,
        limit=limit,
        max_length=max_length,
        context_len=context_len,
        prefix=prefix,
        paper=paper,
        mlm_sample=mlm_sample,
        batch_tokens=batch_tokens,
        on_error=on_error,
    )
    place = ranks.on_all_ranks(lambda: model.device if isinstance(model, PreTrainedModel) else device_of(device, ranks))

    def check() -> Plan:
        if isinstance(model, PreTrainedModel) and (out, dtype, device) != (None, "auto", "auto"):
            raise PilekitError("out, dtype and device are for a model in a folder; save this one, or leave them out")
        if out is not None:
            check_out(out)
        size = ranks.world_size
        plan = prepare(model, data, options, tokenizer=tokenizer, dtype=dtype, device=place, world_size=size)
        if train is not None:
            corpus_of(train)  # must exist; it is read at the end
        return plan

    plan = ranks.on_rank0(check)

    def load() -> CausalLM | MaskedLM:
        if isinstance(model, PreTrainedModel):
            held.callback(model.train, model.training)
            model.train(False)
            return as_causal_lm(model) if plan.template is None else as_masked_lm(model)
        load_lm = load_causal_lm if plan.template is None else load_masked_lm
        return load_lm(model, dtype=plan.dtype, device=place)

    with ExitStack() as held:

        def recorded() -> Records:
            if out is None:
                return Records.of([], plan.shards, plan.corpus.manifest)
            records = held.enter_context(held_folder(out, plan.key, plan.protocol, plan.corpus.manifest))
            if len(records):
                documents = counted(len(records), "document is", "documents are")
                what = "already done" if scored_before(out, plan.key) else "resuming"
                logger.warning("%s: %s scored already, recorded in %s", what, documents, visible(str(out)))
            return records

        records, found = _score(plan, load, ranks, ranks.on_rank0(recorded), out=out, advance=advance)

        def finish() -> BitsPerByte:
            result = tabulate(records, {**found, "records": None if out is None else plan.key}, plan.corpus.manifest)
            for warning in result.warnings:
                logger.warning("%s", visible(warning, 1000))
            if train is not None:
                copies = count_training_copies(records, corpus_of(train), on_error=on_error)
                result = replace(result, training_copies=copies)
            if out is not None:
                write_result(result, out)
            return result

        return ranks.on_rank0(finish)


def score_corpus(
    lm: CausalLM, tokenizer: Tokenizer, corpus: Corpus, *, share: Share | None = None, **options: Any
) -> BitsPerByte:
    """Score a causal model in memory, in its own precision, on all shards of `corpus`; nothing is written.

    options   those of `Options`
    share     makes the forward passes (see `score_documents`), for processes that each make this call, as in training

    The model keeps its mode, and no random number is drawn.
    """
    model = lm.model
    plan = make_plan(model, tokenizer, corpus, Options(**options), dtype=model.dtype, device=model.device)
    nothing = Records.of([], plan.shards, corpus.manifest)
    was_training = model.training
    model.train(False)
    try:
        records, protocol = _score(plan, lambda: lm, alone(), nothing, share=share)
    finally:
        model.train(was_training)
    return tabulate(records, {**protocol, "records": None}, corpus.manifest)


class ScoringProgress:
    """Reports stored bytes as done once they are scored; reading is far ahead of scoring.

    A small shard is read whole before its first token is scored. So each rank counts a scored token as the stored bytes
    that a token usually takes, and counts bytes that were read long ago as scored.
    """

    def __init__(self, advance: Callable[[int], None], world_size: int = 1) -> None:
        self._advance, self._world_size = advance, world_size
        self._read = self._reported = self._tokens = 0

    def read(self, amount: int) -> None:
        """Count `amount` more stored bytes as read; the decoding thread calls this, so it reports nothing."""
        self._read += amount

    def scored(self, tokens: int) -> None:
        """Count `tokens` more as scored, and report."""
        self._tokens += tokens
        scored = int(self._tokens * BYTES_PER_TOKEN * self._world_size)
        self._report(min(self._read, max(scored, self._read - READ_AHEAD)))

    def all(self) -> None:
        """Report everything that was read."""
        self._report(self._read)

    def _report(self, done: int) -> None:
        if done > self._reported:
            self._advance(done - self._reported)
            self._reported = done


def _score(
    plan: Plan,
    load: Callable[[], CausalLM | MaskedLM],
    ranks: Ranks,
    earlier: Records,
    *,
    out: str | Path | None = None,
    share: Share | None = None,
    advance: Callable[[int], None] = ignore,
) -> tuple[Records, dict[str, Any]]:
    """Score the documents that `earlier` lacks; returns all ranks' records, and the protocol with what was read.

    load   loads the model; it is called only if there is a document to score
    out    where each record is written as soon as it is made; None: nowhere
    """
    manifest, rank = plan.corpus.manifest, ranks.rank
    recorded = Recorded(earlier)
    progress = ScoringProgress(advance, ranks.world_size)
    labels: dict[str, int] = {}
    skipped = SkippedLines()

    def score_own(check: Callable[[], None]) -> Records:
        def scored(tokens: int) -> None:
            progress.scored(tokens)
            check()

        def left(batches: Iterable[DocumentBatch]) -> Iterator[DocumentBatch]:
            for batch in batches:
                progress.scored(0)
                yield recorded.left_of(batch)

        with ExitStack() as opened:
            batches = opened.enter_context(closing(selected(plan, labels, skipped, progress.read)))
            own = tokenized(dealt(left(batches), rank, ranks.world_size), plan.tokenizer)
            documents = _scored(plan, load, own, scored, share)
            if out is not None:
                append = opened.enter_context(record_file(records_folder(out, plan.key) / f"records.{rank}.jsonl"))
                documents = map(append, documents)
            return Records.of(documents, plan.shards, manifest)

    parts = ranks.gather(apart(ranks, score_own))
    progress.all()

    def join() -> Records:
        every = [document for part in (recorded.all_met(), *parts) for document in part.documents()]
        records = Records.of(every, plan.shards, manifest)
        if not len(records):
            which = "" if plan.subsets is None else f" of {visible(', '.join(plan.subsets), 400)}"
            raise PilekitError(
                f"no documents{which} in the {counted(len(plan.shards), 'shard')} of {visible(plan.corpus.root)}, so "
                "there is nothing to score; `pilekit stats` shows what is in them"
            )
        return records

    records = ranks.on_all_ranks(join)
    for name in plan.subsets or () if ranks.is_first else ():
        if name not in records.subsets:
            logger.warning("no documents of %s in %s", visible(name, 80), visible(plan.corpus.root, 200))
    if skipped.count and ranks.is_first:
        lines, first = counted(skipped.count, "bad line"), visible(str(skipped.examples[0]), 500)
        logger.warning("skipped %s, the first: %s", lines, first)
    known = [subset.name for subset in manifest.subsets]
    others = [label for label in labels if label not in known][:MOST_OTHERS]
    listed = [name for name in known if name in labels] + others
    return records, {**plan.protocol, "skipped_lines": skipped.count, "labels": listed}


def _scored(
    plan: Plan,
    load: Callable[[], CausalLM | MaskedLM],
    documents: Iterator[TokenizedDocument],
    scored: Callable[[int], None],
    share: Share | None,
) -> Iterator[ScoredDocument]:
    """The scored documents; the model is loaded for the first of them."""
    for first in documents:
        lm, batch_tokens = load(), plan.options.batch_tokens
        score: Callable[[Iterable[TokenizedDocument]], Iterator[ScoredDocument]]
        if isinstance(lm, MaskedLM):
            assert plan.template is not None
            sample = plan.options.mlm_sample
            score = partial(pseudo_score_documents, lm, template=plan.template, sample=sample, seed=MLM_SEED)
        else:
            context_len = plan.options.context_len
            score = partial(score_documents, lm, prefix=plan.prefix_id, context_len=context_len, share=share)
        score = partial(score, max_length=plan.max_length, batch_tokens=batch_tokens, scored=scored)
        yield from score(chain([first], documents))
