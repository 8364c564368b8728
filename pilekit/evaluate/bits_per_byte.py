"""`bits_per_byte`: documents in, figures per subset out.

    scoring_run -> records -> tabulate

The figures are a function of the records alone: a document may be scored now or in an earlier run, alone or on one rank
of many. So an interrupted run can be resumed on any number of ranks.

A document's bytes are its raw text in UTF-8, before the tokenizer normalises it. Its text is encoded unchanged: no
token is added, and special tokens in it count as plain text. Errors are found before the weights are read, which may
take minutes. If all documents are recorded, the weights are never read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from pilekit.corpus import Corpus, Described
from pilekit.display.progress import Scored
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.evaluate.plan import MLM_SEED, Data, Options, Plan, prepare
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import check_out, write_result
from pilekit.evaluate.results.scores import Cost
from pilekit.evaluate.results.write_items import token_losses, write_tokens
from pilekit.evaluate.score.batching import Passes, Scoring
from pilekit.evaluate.score.causal_nll import causal_scoring
from pilekit.evaluate.score.pseudo_nll import masked_scoring
from pilekit.evaluate.score_ranks import ranks_of_job, single_rank
from pilekit.evaluate.scoring_run import scoring_run
from pilekit.evaluate.training_copies import count_training_copies
from pilekit.models.causal import CausalLM, as_causal_lm, load_causal_lm, predicting
from pilekit.models.device import device_of
from pilekit.models.masked import MaskedLM, as_masked_lm, load_masked_lm
from pilekit.models.quantize import QUANTIZED, quantize, torchao_version, weight_bytes
from pilekit.shards.read.reader import OnError
from pilekit.tokenize import Tokenizer

logger = message_logger(__name__)


def bits_per_byte(
    model: str | Path | PreTrainedModel,
    data: Data = None,
    *,
    tokenizer: Any = None,
    adapter: str | Path | None = None,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    limit_bytes: int | None = None,
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
    per_token: bool = False,
    manifest: Described = None,
    on_error: OnError = "raise",
    report: Scored | None = None,
) -> BitsPerByte:
    """Score a model in Hugging Face's format, or in memory, on a corpus.

    Returns a `BitsPerByte`: a `Score` for each subset that has documents, in `.subsets`, and one over all in `.overall`
    (`.bpb` is the figure, `.interval` its 95 % interval); `.protocol` says what the figures depend on. A masked model
    (of BERT's or RoBERTa's kind) is recognised by its config.json; its figures are pseudo-bits per byte.

    model          a folder with config.json, safetensors and tokenizer.json, or a model of `transformers`, which is
                   scored as it is, on its device and in its precision, and not changed
    data           a path, glob or URL, several of them, a `Corpus`, or None for the default places. If there are val or
                   test shards among others, only these are scored, and a warning names them
    tokenizer      an argument of `load_tokenizer`; None: the folder's
    adapter        a folder whose adapter, as peft saves it, is added to the weights; None: the model alone, also if an
                   adapter lies beside its weights
    subsets        only documents of these subsets, in any spelling the manifest knows; None: all
    limit          only this many documents of each subset, from the first; None: all. Reading ends when all subsets
                   requested are full, or without `subsets`, all of the manifest and all others found so far
    limit_bytes    only so many bytes of text of each subset: whole documents, from the first to the one that reaches it
    max_length     tokens in a window; None: the model's positions, or 2048 if it declares no limit
    context_len    the least number of inputs before each predicted token, in windows after the first. Published
                   figures are made with 1, disjoint windows; more context gives lower figures at a higher cost
    prefix         the token before a document's first token: "bos", "eos", a token's id, "auto" (BOS, else EOS), or
                   "none": then the first token is context only and is not predicted, while its bytes count
    paper          figures as in the Pile's paper, by its fixed constants of tokens per byte
    train          training shards: documents whose text occurs in them are counted, in `.training_copies`
    mlm_sample     for a masked model: score only this many tokens of each window, drawn at random; None: all
    dtype          "fp32", "bf16", "fp16", or "auto": fp32 on a CPU, the precision of the stored weights on a GPU.
                   "int8" and "int4" compute as "auto" with the weights of the blocks quantised by torchao
    device         "cpu", "cuda", "cuda:N", or "auto": a GPU if there is one
    batch_tokens   tokens in a forward pass, for speed and memory; figures do not depend on it. None: the device's
                   default. If memory does not suffice, batches become smaller, and a warning says so
    out            a folder for result.json and the record of every document, written as soon as it is scored: the same
                   call resumes after an interruption, and answers at once when all is recorded
    per_token      also write the bits of every token into tokens.parquet in `out` (docs/bpb.md lists its columns)
    manifest       describes the data at a path, as for `Corpus`; `train` has the same
    on_error       "raise": a bad line is a `PilekitError`; "skip": bad lines are passed over, and counted in a warning
                   and in "skipped_lines" of the protocol
    report         called with the bytes done, their total, and the bits per byte so far: of the documents that this
                   process or an earlier run has scored, over their raw text. The bytes are of text if a limit is given
                   or every shard has an index, and else stored bytes. None is for what is not known (yet)

    With several processes (torchrun, or an initialised process group) all must make the same call: each scores its
    share of the documents, all get the same result, and rank 0 writes it. Anything wrong with the model, its tokenizer,
    the corpus or the folder is a PilekitError on all of them, and so is a selection without documents.
    """
    ranks = ranks_of_job()
    options = Options(
        subsets=subsets,
        limit=limit,
        limit_bytes=limit_bytes,
        max_length=max_length,
        context_len=context_len,
        prefix=prefix,
        paper=paper,
        mlm_sample=mlm_sample,
        per_token=per_token,
        batch_tokens=batch_tokens,
        on_error=on_error,
    )
    place = ranks.on_all_ranks(lambda: model.device if isinstance(model, PreTrainedModel) else device_of(device, ranks))

    def training(plan: Plan) -> Corpus:
        return train if isinstance(train, Corpus) else Corpus(train, plan.corpus.manifest)

    def check() -> Plan:
        if isinstance(model, PreTrainedModel) and (adapter, out, dtype, device) != (None, None, "auto", "auto"):
            raise PilekitError(
                "adapter, out, dtype and device are for a model in a folder; save this one, or leave them out"
            )
        if out is not None:
            check_out(out)
        elif per_token:
            raise PilekitError("per_token writes tokens.parquet beside the result; name a folder as out")
        corpus, given = Corpus.of(data, manifest).only_held_out(), "auto" if dtype in QUANTIZED else dtype
        size = ranks.world_size
        plan = prepare(
            model, corpus, options, tokenizer=tokenizer, adapter=adapter, dtype=given, device=place, world_size=size
        )
        if dtype in QUANTIZED:
            plan.protocol.update(dtype=dtype, torchao=torchao_version())
        if train is not None:
            training(plan)  # must exist; it is read at the end
        return plan

    plan = ranks.on_rank0(check)

    weights, begin = None, 0.0
    with scoring_run(plan, ranks, out=out, report=report) as run:
        with run.own_documents() as documents:
            if documents is not None:
                if isinstance(model, PreTrainedModel):
                    lm = as_causal_lm(model) if plan.template is None else as_masked_lm(model)
                else:
                    load = load_causal_lm if plan.template is None else load_masked_lm
                    lm = load(model, dtype=plan.dtype, device=place, adapter=adapter)
                    if dtype in QUANTIZED:
                        quantize(lm.model, dtype)
                    weights, begin = weight_bytes(lm.model), time.perf_counter()
                with predicting(lm.model):
                    for document in run.score(documents, _scoring(plan, lm)):
                        run.keep(document.record(document.nll()), token_losses(document) if per_token else b"")
        records, protocol = run.results()

        def finish() -> BitsPerByte:
            key = None if out is None else plan.key
            result = BitsPerByte.of(records, {**protocol, "records": key}, plan.corpus.manifest)
            for warning in result.warnings:
                logger.warning("%s", shortened(warning, 1000))
            if weights is not None:
                tokens = int(records.tokens.sum()) - int(run.earlier.tokens.sum())
                result = replace(result, cost=Cost(weights, tokens, time.perf_counter() - begin))
            if train is not None:
                copies = count_training_copies(records, training(plan), on_error=on_error)
                result = replace(result, training_copies=copies)
            if out is not None:
                if per_token:
                    write_tokens(out, plan, records)
                write_result(out, result, plan.corpus.manifest)
            return result

        return ranks.on_rank0(finish)


def score_corpus(
    lm: CausalLM, tokenizer: Tokenizer, corpus: Corpus, *, passes: Passes | None = None, **options: Any
) -> BitsPerByte:
    """Score a causal model in memory, in its own precision, on all shards of `corpus`; nothing is written.

    options   fields of `Options`
    passes    makes the forward passes, for processes that each make this call, as in training; None: this process
              makes all of them

    The model keeps its mode, and no random number is drawn.
    """
    plan = prepare(lm.model, corpus, Options(**options), tokenizer=tokenizer, device=lm.model.device)
    scoring = _scoring(plan, lm)
    with scoring_run(plan, single_rank()) as run, predicting(lm.model):
        with run.own_documents() as documents:
            for document in run.score(documents or (), scoring if passes is None else replace(scoring, passes=passes)):
                run.keep(document.record(document.nll()))
        records, protocol = run.results()
    return BitsPerByte.of(records, {**protocol, "records": None}, corpus.manifest)


def _scoring(plan: Plan, lm: CausalLM | MaskedLM) -> Scoring:
    """How `lm` scores documents by the plan."""
    options, lengths = plan.options, (plan.max_length, plan.options.batch_tokens)
    if isinstance(lm, MaskedLM):
        assert plan.template is not None
        return masked_scoring(lm, *lengths, template=plan.template, sample=options.mlm_sample, seed=MLM_SEED)
    return causal_scoring(lm, *lengths, prefix=plan.prefix_id, context_len=options.context_len)
