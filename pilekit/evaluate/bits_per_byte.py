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
from dataclasses import replace

from transformers import PreTrainedModel

from pilekit.artifacts.settings import takes_settings
from pilekit.corpus import Corpus
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import check_out, write_result
from pilekit.evaluate.results.scores import Cost
from pilekit.evaluate.results.write_items import token_losses, write_tokens
from pilekit.evaluate.score.batching import Passes, Scoring
from pilekit.evaluate.score.causal_nll import causal_scoring
from pilekit.evaluate.score.pseudo_nll import masked_scoring
from pilekit.evaluate.score_plan import MLM_SEED, Plan, check_in_memory, prepare
from pilekit.evaluate.score_ranks import ranks_of_job, single_rank
from pilekit.evaluate.scoring_run import scoring_run
from pilekit.evaluate.settings import BitsPerByteSettings, ScoreSettings
from pilekit.evaluate.training_copies import count_training_copies
from pilekit.models.causal import CausalLM, as_causal_lm, load_causal_lm, predicting
from pilekit.models.device import device_of
from pilekit.models.masked import MaskedLM, as_masked_lm, load_masked_lm
from pilekit.models.quantize import QUANTIZED, quantize, torchao_version, weight_bytes
from pilekit.tokenize import Tokenizer

logger = message_logger(__name__)


@takes_settings(BitsPerByteSettings)
def bits_per_byte(settings: BitsPerByteSettings) -> BitsPerByte:
    """Score a model in Hugging Face's format, or in memory, on a corpus.

    Returns a `BitsPerByte`. Its `.subsets` hold a `Score` for each subset that has documents, and `.overall` the score
    of all: `.bpb` is the figure, `.interval` its 95 % interval. `.protocol` lists everything that the figures depend
    on. A masked model (of BERT's or RoBERTa's kind) is recognised by its config.json. Its figures are pseudo-bits per
    byte.

    settings  the fields of `BitsPerByteSettings`

    With several processes (torchrun, or an initialised process group) all must make the same call: each scores its
    share of the documents, all get the same result, and rank 0 writes it. PilekitError on all of them for anything
    wrong with the model, its tokenizer, the corpus or the folder, and for a selection without documents.
    """
    ranks = ranks_of_job()
    model, adapter, train, out = settings.model, settings.adapter, settings.train, settings.out
    dtype, device, per_token = settings.dtype, settings.device, settings.per_token
    place = ranks.on_all_ranks(lambda: model.device if isinstance(model, PreTrainedModel) else device_of(device, ranks))

    def training(plan: Plan) -> Corpus:
        return train if isinstance(train, Corpus) else Corpus(train, plan.corpus.manifest)

    def check() -> Plan:
        check_in_memory(model, adapter=adapter, out=out, dtype=dtype, device=device)
        if out is not None:
            check_out(out)
        elif per_token:
            raise PilekitError("per_token writes tokens.parquet beside the result; name a folder as out")
        plan = prepare(
            model,
            Corpus.of(settings.data, settings.manifest).only_held_out(),
            settings,
            tokenizer=settings.tokenizer,
            adapter=adapter,
            dtype="auto" if dtype in QUANTIZED else dtype,
            device=place,
            world_size=ranks.world_size,
        )
        if dtype in QUANTIZED:
            plan.protocol.update(dtype=dtype, torchao=torchao_version())
        if train is not None:
            training(plan)  # finds a missing folder now; the shards are read at the end
        return plan

    plan = ranks.on_rank0(check)

    weights, begin = None, 0.0
    with scoring_run(plan, ranks, out=out, report=settings.report) as run:
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
                copies = count_training_copies(records, training(plan), on_error=settings.on_error)
                result = replace(result, training_copies=copies)
            if out is not None:
                if per_token:
                    write_tokens(out, plan, records)
                write_result(out, result, plan.corpus.manifest)
            return result

        return ranks.on_rank0(finish)


def score_corpus(
    lm: CausalLM,
    tokenizer: Tokenizer,
    corpus: Corpus,
    settings: ScoreSettings | None = None,
    *,
    passes: Passes | None = None,
) -> BitsPerByte:
    """Score a causal model in memory, in its own precision, on all shards of `corpus`; nothing is written.

    settings  None: the defaults
    passes    makes the forward passes, for processes that each make this call, as in training; None: this process
              makes all of them

    The model keeps its mode, and no random number is drawn.
    """
    plan = prepare(lm.model, corpus, settings or ScoreSettings(), tokenizer=tokenizer, device=lm.model.device)
    scoring = _scoring(plan, lm)
    with scoring_run(plan, single_rank()) as run, predicting(lm.model):
        with run.own_documents() as documents:
            for document in run.score(documents or (), scoring if passes is None else replace(scoring, passes=passes)):
                run.keep(document.record(document.nll()))
        records, protocol = run.results()
    return BitsPerByte.of(records, {**protocol, "records": None}, corpus.manifest)


def _scoring(plan: Plan, lm: CausalLM | MaskedLM) -> Scoring:
    """The scoring of documents by `lm`, as the plan describes it."""
    options, lengths = plan.options, (plan.max_length, plan.options.batch_tokens)
    if isinstance(lm, MaskedLM):
        assert plan.template is not None
        return masked_scoring(lm, *lengths, template=plan.template, sample=options.mlm_sample, seed=MLM_SEED)
    return causal_scoring(lm, *lengths, prefix=plan.prefix_id, context_len=options.context_len)
