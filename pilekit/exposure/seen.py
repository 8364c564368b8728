"""`seen`: in which steps of a run some documents were, and how often.

The answer is complete: all pieces of all steps of the run are looked at. For a text, or copies of other documents, all
documents of the run's data are read. The result says so, with the steps, and with what was scanned.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

from pilekit.corpus.listed_documents import Place
from pilekit.exposure.answer import Question, answer
from pilekit.exposure.receipt import check_new, write_receipt
from pilekit.exposure.run_documents import RunDocuments
from pilekit.exposure.seen_documents import SeenDocuments
from pilekit.shards.work import StepWork, takes


@takes(StepWork)
def seen(
    run: str | Path,
    documents: str | Path | Iterable[Place] | None = None,
    *,
    text: str | None = None,
    trace: str | Path | None = None,
    subset: str | None = None,
    against: str | Path | None = None,
    copies: str | Path | None = None,
    receipt: str | Path | None = None,
    **work: Unpack[StepWork],
) -> SeenDocuments:
    """Tell in which steps a training run has seen documents, how often, and how many of their tokens.

    run        the run's folder
    documents  (shard, number) of each; or a file of them: .parquet or .jsonl with `shard` and `number`, or lines of
               `pilekit grep`
    text       the documents that hold this text, character for character; all shards of the run's data are read
    trace      the documents that a file of `pilekit trace` names
    subset     the documents of this subset, in any spelling, that were in a step
    against    shards of other documents, such as a benchmark or an opt-out list: the exact and near copies of these in
               the run's data, with the default threshold of `dedup_corpus`; all shards of the run's data are read
    copies     the folder of a finished `pilekit dedup` of the run's data: also exact and near copies of the documents
    receipt    a new file for the question, the answer, and the sums of all that it depends on; see `check_receipt`
    work       on_error, jobs, advance, cluster: see `StepWork`; they are for reading shards

    Give one of documents, text, trace, subset and against. Steps are counted from 1, as in metrics.jsonl. Those that
    the run's log lacks are replayed from its data, with a warning. PilekitError if that is not where the run found it,
    and for a document of a shard that the run does not read.
    """
    question = Question(
        documents=_as_asked(documents),
        text=text,
        trace=None if trace is None else str(trace),
        subset=subset,
        against=None if against is None else str(against),
        copies=None if copies is None else str(copies),
    )
    if receipt is not None:
        check_new(receipt)
    of_run = RunDocuments.of(run)
    work.setdefault("on_error", of_run.config.data.on_error)
    result = answer(question, of_run, work)
    if receipt is not None:
        write_receipt(receipt, question, of_run, result, work)
    return result


def _as_asked(documents: str | Path | Iterable[Place] | None) -> str | tuple[Place, ...] | None:
    if documents is None or isinstance(documents, str | Path):
        return None if documents is None else str(documents)
    return tuple((str(shard), int(number)) for shard, number in documents)
