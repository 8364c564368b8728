"""`memorised`: sequences in, how many of them a model continues word for word out, without generating.

    scoring_run -> records, the sequences of a document in each -> counts by subset, sequences.parquet
    a finished dedup, a run's log -> copies and exposures of each document -> the same counts by these

One forward pass over a sequence says what greedy decoding would give (score/continuations.py). All else is as for
`bits_per_byte`: documents, ranks, records and resuming. A document's tokens are those of its whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from pilekit.artifacts.atomic_write import check_target
from pilekit.corpus import Corpus, Described
from pilekit.corpus.sidecar_files import SEQUENCES_FILE
from pilekit.display.progress import Scored
from pilekit.errors import PilekitError, counted, shortened
from pilekit.evaluate.results.memorised_result import Memorised, has_sequences, tallied, write_sequences
from pilekit.evaluate.results.result_folder import check_out
from pilekit.evaluate.score.continuations import SEQUENCE, continuation_scoring, scored_sequences
from pilekit.evaluate.score_plan import Plan, check_in_memory, prepare
from pilekit.evaluate.score_ranks import ranks_of_job
from pilekit.evaluate.scoring_run import scoring_run
from pilekit.evaluate.settings import Data, ScoreSettings
from pilekit.exposure.scored_documents import Joined
from pilekit.models.causal import as_causal_lm, load_causal_lm, predicting
from pilekit.models.device import device_of
from pilekit.models.load import CAUSAL, kind_in_memory, kind_of, positions_of, read_config
from pilekit.pipeline.stages import Sample
from pilekit.shards.read.reader import OnError


def memorised(
    model: str | Path | PreTrainedModel,
    data: Data = None,
    *,
    tokenizer: Any = None,
    prompt: int = 32,
    continuation: int = 32,
    every: str | int = "first",
    adapter: str | Path | None = None,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    limit_bytes: int | None = None,
    sample: float | None = None,
    seed: int = 0,
    dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    copies: str | Path | None = None,
    seen: str | Path | None = None,
    out: str | Path | None = None,
    manifest: Described = None,
    on_error: OnError = "raise",
    report: Scored | None = None,
) -> Memorised:
    """Count the sequences of a corpus that a causal model has memorised: greedy decoding continues them word for word.

    A sequence is `prompt` + `continuation` tokens of a document. Nothing stands before the prompt.

    model, data, tokenizer, adapter   as for `bits_per_byte`, but all shards of `data` count, training shards too
    prompt         tokens of a sequence that the model is given
    continuation   tokens of a sequence that it must give
    every          "first": one sequence of each document, at its start; or a number of tokens: a sequence begins at
                   each multiple of it, as long as it is whole
    sample, seed   only about this share of the documents (0 to 1), chosen as by `select_corpus`; `limit` counts these
    copies         the folder of a finished `pilekit dedup` of the data: also count by the number of exact and near
                   copies of the document
    seen           the folder of a training run: also count by how often it saw the document, and how many steps ago.
                   The model should be that of its newest checkpoint. Documents that it never saw are a control. With
                   both, a document is seen when one of its copies is
    out            a folder for the records and for sequences.parquet, a row per sequence. The same call resumes after
                   an interruption
    subsets, limit, limit_bytes, dtype, device, batch_tokens, manifest, on_error, report   as for `bits_per_byte`

    Several processes share the work, as for `bits_per_byte`. PilekitError for anything wrong with the arguments, the
    model or the corpus.
    """
    ranks = ranks_of_job()
    place = ranks.on_all_ranks(lambda: model.device if isinstance(model, PreTrainedModel) else device_of(device, ranks))
    length = prompt + continuation

    def check() -> tuple[Plan, int | None, Joined]:
        step = _step(every)
        if prompt < 1 or continuation < 1:
            raise PilekitError("prompt and continuation are numbers of tokens, 1 at least")
        chosen = None if sample is None else Sample(sample, seed)
        check_in_memory(model, adapter=adapter, out=out, dtype=dtype, device=device)
        if out is not None:
            check_out(out)
            check_target(Path(out) / SEQUENCES_FILE)
        if isinstance(model, str | Path | PreTrainedModel):  # `prepare` refuses anything else
            _check_model(model, prompt, length)
        options = ScoreSettings(
            subsets=subsets,
            limit=limit,
            limit_bytes=limit_bytes,
            max_length=length,
            prefix="none",
            batch_tokens=batch_tokens,
            on_error=on_error,
        )
        corpus, size = Corpus.of(data, manifest), ranks.world_size
        plan = prepare(
            model,
            corpus,
            options,
            tokenizer=tokenizer,
            adapter=adapter,
            dtype=dtype,
            device=place,
            world_size=size,
        )
        if chosen is not None:
            plan = replace(plan, sample=chosen)
            plan.protocol["sample"] = {"share": float(chosen.fraction), "seed": seed}
        plan.protocol["sequences"] = {"prompt": prompt, "continuation": continuation, "every": step or "first"}
        return plan, step, Joined.of(corpus, copies, seen)

    plan, step, joined = ranks.on_rank0(check)
    with scoring_run(plan, ranks, out=out, is_finished=has_sequences, report=report) as run:
        with run.own_documents() as documents:
            if documents is not None:
                if isinstance(model, PreTrainedModel):
                    lm = as_causal_lm(model)
                else:
                    lm = load_causal_lm(model, dtype=plan.dtype, device=place, adapter=adapter)
                with predicting(lm.model):
                    for document in run.score(
                        documents, continuation_scoring(lm, prompt, continuation, step, batch_tokens)
                    ):
                        sequences = scored_sequences(document, continuation, plan.dtype)
                        run.keep(document.record(nll=0.0), sequences.tobytes())
        records, protocol = run.results()
        of_documents = run.numbers(records, SEQUENCE)

        def finish() -> Memorised:
            facts = joined.facts(records)
            result = tallied(of_documents, records, {**protocol, **joined.protocol()}, facts)
            if out is not None:
                write_sequences(Path(out), of_documents, result, facts)
            return result

        return ranks.on_rank0(finish)


def _check_model(model: str | Path | PreTrainedModel, prompt: int, length: int) -> None:
    """PilekitError unless the model is causal and has positions for sequences of `length` tokens."""
    if isinstance(model, PreTrainedModel):
        kind, config, name = kind_in_memory(model), model.config, "the model"
    else:
        kind, name = kind_of(model), f"{model}:"
        config = read_config(model, kind)
    if kind is not CAUSAL:
        raise PilekitError(f"{name} is a masked model, which continues no text; give a causal one")
    positions = positions_of(config)
    if positions is not None and length > positions:
        raise PilekitError(
            f"a sequence has {length:,} tokens, {prompt:,} of them the prompt, but the model has "
            f"{counted(positions, 'position')}; give shorter ones"
        )


def _step(every: str | int) -> int | None:
    """Tokens from one sequence's begin to the next one's; None for "first"."""
    text = str(every)
    if text == "first":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise PilekitError(f"every is first or a number of tokens, 1 at least, not {shortened(text, 40)!r}")
    return int(text)
