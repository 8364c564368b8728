"""`scoring_run`: the documents that a plan selects, scored by all ranks, each recorded as soon as it is scored.

    with scoring_run(plan, ranks, out=out) as run:    # the folder of records is locked until the block ends
        with run.own_documents() as documents:        # this rank's unrecorded documents, tokenized
            if documents is not None:                 # else the weights of the model are not needed
                for document in run.score(documents, scoring):
                    run.keep(document.record(document.nll()))
        records, protocol = run.results()             # of all ranks and all runs

Ranks share nothing while they score, and meet at the end of `own_documents`. A record may be kept with numbers: the
losses of its tokens, or a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.display.progress import Scored
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, counted, message_logger, shortened
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result_folder import has_result, locked_records, read_numbers, record_file, records_folder
from pilekit.evaluate.score.batching import Scoring, TokenizedDocument, score_rows
from pilekit.evaluate.score_plan import Plan
from pilekit.evaluate.score_ranks import ending_together
from pilekit.evaluate.select_documents import (
    Recorded,
    assign_to_rank,
    selected_batches,
    text_bytes_selected,
    tokenized_documents,
)
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.change_check import check_version
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.workers.ranks import Ranks

logger = message_logger(__name__)

MOST_UNKNOWN_LABELS = 30
"""The protocol lists at most this many labels unknown to the manifest."""
STORED_BYTES_PER_TOKEN = 1.3
READ_AHEAD = 4 << 20


class ScoringProgress:
    """Reports the bytes that are scored, and the bits per byte so far; reading is far ahead of scoring.

    If the bytes of text of all documents are known, the bytes of scored documents are reported. The scored tokens of an
    unfinished document count too. Otherwise stored bytes are reported: each scored token counts as the stored bytes
    that a token usually takes, and bytes that were read long ago count as scored. Each rank assumes that all ranks have
    done as much as itself.

    total     bytes of text of all documents; None: unknown
    stored    the size of the shards; None: unknown
    earlier   the documents that earlier runs have scored
    """

    def __init__(self, report: Scored, total: int | None, stored: int | None, earlier: Records, world_size: int = 1):
        self._report, self._total, self._stored, self._world_size = report, total, stored, world_size
        self._earlier = self._bytes = int(earlier.bytes.sum())
        self._nll = float(earlier.nll.sum())
        self._read = self._reported = self._tokens = self._kept_tokens = 0
        self._begun_bytes = self._begun_tokens = 0
        self._report_done(self._earlier if total is not None else 0)

    def count_read(self, amount: int) -> None:
        """Count `amount` more stored bytes as read; the decoding thread calls this, so it reports nothing."""
        self._read += amount

    def count_begun(self, documents: Iterable[TokenizedDocument]) -> Iterator[TokenizedDocument]:
        """Pass on the documents, and count their bytes and tokens as begun."""
        for document in documents:
            self._begun_bytes += document.bytes
            self._begun_tokens += len(document.ids)
            yield document

    def count_kept(self, record: ScoredDocument) -> None:
        """Count a document whose tokens are all scored."""
        self._bytes += record.bytes
        self._nll += record.nll
        self._kept_tokens += record.tokens

    def count_scored(self, tokens: int) -> None:
        """Count `tokens` more as scored, and report."""
        self._tokens += tokens
        if self._total is None:
            stored = int(self._tokens * STORED_BYTES_PER_TOKEN * self._world_size)
            self._report_done(min(self._read, max(stored, self._read - READ_AHEAD)))
        else:
            begun = (self._tokens - self._kept_tokens) * self._begun_bytes // max(1, self._begun_tokens)
            own_bytes = self._bytes - self._earlier + begun
            self._report_done(min(self._total, self._earlier + own_bytes * self._world_size))

    def report_all(self) -> None:
        """Report all bytes as done."""
        self._report_done(self._read if self._total is None else self._total)

    def _report_done(self, finished_bytes: int) -> None:
        self._reported = max(self._reported, finished_bytes)
        bits = self._nll / math.log(2) / self._bytes if self._bytes else None
        self._report(self._reported, self._stored if self._total is None else self._total, bits)


@contextmanager
def scoring_run(
    plan: Plan,
    ranks: Ranks,
    *,
    out: str | Path | None = None,
    is_finished: Callable[[str | Path, str], bool] = has_result,
    report: Scored | None = None,
) -> Iterator[ScoringRun]:
    """The run of a plan on the ranks, all of which make this call.

    out           the folder for records, locked until the block ends; None: records are not written
    is_finished   whether that folder holds the result of the records of a key
    report        called with the progress
    """
    with ExitStack() as locks:
        earlier = ranks.on_rank0(lambda: _earlier_records(plan, out, is_finished, locks))
        total = None if report is None else text_bytes_selected(plan)
        progress = ScoringProgress(report or (lambda *_: None), total, plan.corpus.size, earlier, ranks.world_size)
        yield ScoringRun(plan, ranks, out, earlier, progress)


class ScoringRun:
    """A run on this rank: it reads, scores and records the documents that earlier runs have not recorded.

    earlier   the records of earlier runs
    """

    def __init__(
        self, plan: Plan, ranks: Ranks, out: str | Path | None, earlier: Records, progress: ScoringProgress
    ) -> None:
        self.earlier = earlier
        self._plan, self._ranks, self._out, self._progress = plan, ranks, out, progress
        self._recorded = Recorded(earlier)
        self._labels: dict[str, int] = {}
        self._skipped = SkippedLines()
        self._own: list[ScoredDocument] = []
        self._numbers: dict[tuple[str, int], bytes] = {}  # of own documents; with a folder they are there
        self._check_others: Callable[[], None]
        self._append: Callable[[ScoredDocument, bytes], None] | None = None

    @contextmanager
    def own_documents(self) -> Iterator[Iterator[TokenizedDocument] | None]:
        """The documents that this rank has to score, as they are read; None if there are none.

        The block ends on all ranks together, with an error if one of them fails.
        """
        plan, ranks = self._plan, self._ranks
        with ending_together(ranks) as self._check_others, ExitStack() as opened:
            batches = opened.enter_context(
                closing(selected_batches(plan, self._labels, self._skipped, self._progress.count_read))
            )
            unscored = assign_to_rank(self._without_recorded(batches), ranks.rank, ranks.world_size)
            documents = tokenized_documents(unscored, plan.tokenizer)
            if self._out is not None:
                file = records_folder(self._out, plan.key) / f"records.{ranks.rank}.jsonl"
                self._append = opened.enter_context(record_file(file))
            first = next(documents, None)
            yield None if first is None else self._progress.count_begun(chain([first], documents))

    def _without_recorded(self, batches: Iterable[DocumentBatch]) -> Iterator[DocumentBatch]:
        for batch in batches:
            self._progress.count_scored(0)
            yield self._recorded.without_recorded(batch)

    def score(self, documents: Iterable[TokenizedDocument], scoring: Scoring) -> Iterator[TokenizedDocument]:
        """Yield each document as soon as all its rows are scored. PilekitError if a file of the model has changed."""
        self._check_model()
        for batch in score_rows(documents, scoring):
            self._progress.count_scored(batch.tokens)
            self._check_others()
            yield from batch.documents
        self._check_model()

    def _check_model(self) -> None:
        # The weights are mapped, so they would change with their file.
        for path, version in self._plan.model_versions.items():
            check_version(path, version)

    def keep(self, record: ScoredDocument, numbers: bytes = b"") -> None:
        """Keep the record of a scored document and its numbers, in the folder of the run if it has one."""
        self._progress.count_kept(record)
        if self._append is not None:
            self._append(record, numbers)
        elif numbers:
            self._numbers[record.shard, record.number] = numbers
        self._own.append(record)

    def results(self) -> tuple[Records, dict[str, Any]]:
        """The records of all ranks and all runs, and the plan's protocol with labels and bad lines, on every rank."""
        plan, ranks, manifest = self._plan, self._ranks, self._plan.corpus.manifest
        parts = ranks.gather(self._own)
        self._progress.report_all()

        def joined() -> Records:
            documents = chain(self._recorded.require_all_found().documents(), *parts)
            records = Records.of(documents, plan.shards, manifest)
            if not len(records):
                check_label(plan.corpus, self._labels, plan.subsets)
                which = "" if plan.subsets is None else f" of {shortened(', '.join(plan.subsets), 400)}"
                which += "" if plan.sample is None else " of the sample"
                raise PilekitError(
                    f"no documents{which} in the {counted(len(plan.shards), 'shard')} of {plan.corpus.root}, "
                    "so there is nothing to score; `pilekit stats` shows what is in them"
                )
            return records

        records = ranks.on_all_ranks(joined)
        if ranks.is_first:
            self._warn(records)
        manifest_subsets = [subset.name for subset in manifest.subsets]
        unknown_labels = [label for label in self._labels if label not in manifest_subsets][:MOST_UNKNOWN_LABELS]
        labels = [name for name in manifest_subsets if name in self._labels] + unknown_labels
        return records, {**plan.protocol, "skipped_lines": self._skipped.count, "labels": labels}

    def numbers(
        self, records: Records, item: npt.DTypeLike
    ) -> Callable[[], Iterator[tuple[ScoredDocument, npt.NDArray[Any]]]]:
        """Makes an iterator over the documents of `records`, the `results`, each with its numbers of type `item`.

        All ranks make this call. Without a folder the numbers of all ranks are in memory.
        """
        if (out := self._out) is not None:
            return lambda: read_numbers(records_folder(out, self._plan.key), item, records)
        everyone = dict(chain.from_iterable(part.items() for part in self._ranks.gather(self._numbers)))
        return lambda: (
            (document, np.frombuffer(everyone.get((document.shard, document.number), b""), item))
            for document in records.documents()
        )

    def _warn(self, records: Records) -> None:
        """Warn of an unusual label, of requested subsets without documents, and of bad lines."""
        plan, skipped = self._plan, self._skipped
        if plan.subsets is None:
            check_label(plan.corpus, self._labels)
        for name in plan.subsets or ():
            if name not in records.subsets:
                logger.warning("no documents of %s in %s", shortened(name, 80), shortened(plan.corpus.root, 200))
        if skipped.count:
            lines, first = counted(skipped.count, "bad line"), shortened(skipped.examples[0], 500)
            logger.warning("skipped %s, the first: %s", lines, first)


def _earlier_records(
    plan: Plan, out: str | Path | None, is_finished: Callable[[str | Path, str], bool], locks: ExitStack
) -> Records:
    """The records of earlier runs; `locks` keeps their folder locked."""
    if out is None:
        return Records.of([], plan.shards, plan.corpus.manifest)
    records = locks.enter_context(locked_records(out, plan.key, plan.protocol, plan.corpus.manifest))
    if len(records):
        documents = counted(len(records), "document is", "documents are")
        state = "already done" if is_finished(out, plan.key) else "resuming"
        logger.warning("%s: %s scored already, recorded in %s", state, documents, out)
    return records
