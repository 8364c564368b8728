"""`score_selected`: the documents that a plan selects, scored by all ranks, each recorded as soon as it is scored.

    selected -> this rank's documents that are not recorded yet -> tokens -> scored -> records -> finish

Scoring a document makes its record, and perhaps numbers to be kept in it: the losses of its tokens, or a vector.
Ranks share nothing while they score, and meet at the end. The folder of records is locked until the result is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from pilekit.display.progress import Scored
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, counted, message_logger, shortened, visible
from pilekit.evaluate.plan import Plan
from pilekit.evaluate.ranks import score_then_gather
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result_folder import held_folder, record_file, records_folder, scored_before
from pilekit.evaluate.score.batching import Fitting, Scoring, Share, TokenizedDocument, ignore, score_rows
from pilekit.evaluate.select_documents import Recorded, assign_to_rank, selected, text_bytes_selected, tokenized
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.change_check import check_version
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.workers.ranks import Ranks

T = TypeVar("T")

logger = message_logger(__name__)

MOST_OTHERS = 30
"""The protocol lists at most this many labels unknown to the manifest."""
STORED_BYTES_PER_TOKEN = 1.3
READ_AHEAD = 4 << 20


class ScoringProgress:
    """Reports bytes as done once they are scored, and the bits per byte so far; reading is far ahead of scoring.

    If the bytes of text of all documents are known, those of scored documents are done. A long document counts before
    its end too, by its tokens. Otherwise stored bytes are counted: a scored token as the stored bytes that a token
    usually takes, and bytes that were read long ago as scored. Each rank counts its work as that of every rank.

    total     bytes of text of all documents, None if unknown; `stored` is the size of the shards
    earlier   the documents that earlier runs have scored
    """

    def __init__(self, report: Scored, total: int | None, stored: int | None, earlier: Records, world_size: int = 1):
        self._report, self._total, self._stored, self._world_size = report, total, stored, world_size
        self._earlier = self._bytes = int(earlier.bytes.sum())
        self._nll = float(earlier.nll.sum())
        self._read = self._reported = self._tokens = self._kept_tokens = 0
        self._begun_bytes = self._begun_tokens = 0
        self._tell(self._earlier if total is not None else 0)

    def read(self, amount: int) -> None:
        """Count `amount` more stored bytes as read; the decoding thread calls this, so it reports nothing."""
        self._read += amount

    def begun(self, documents: Iterable[TokenizedDocument]) -> Iterator[TokenizedDocument]:
        """The documents as they come to be scored, of which the bytes of a token are known."""
        for document in documents:
            self._begun_bytes += document.bytes
            self._begun_tokens += len(document.ids)
            yield document

    def kept(self, record: ScoredDocument) -> None:
        """Count a document whose tokens are all scored."""
        self._bytes += record.bytes
        self._nll += record.nll
        self._kept_tokens += record.tokens

    def scored(self, tokens: int) -> None:
        """Count `tokens` more as scored, and report."""
        self._tokens += tokens
        if self._total is None:
            stored = int(self._tokens * STORED_BYTES_PER_TOKEN * self._world_size)
            self._tell(min(self._read, max(stored, self._read - READ_AHEAD)))
        else:
            begun = (self._tokens - self._kept_tokens) * self._begun_bytes // max(1, self._begun_tokens)
            own = self._bytes - self._earlier + begun
            self._tell(min(self._total, self._earlier + own * self._world_size))

    def all(self) -> None:
        """Report everything as done."""
        self._tell(self._read if self._total is None else self._total)

    def _tell(self, done: int) -> None:
        self._reported = max(self._reported, done)
        bits = self._nll / math.log(2) / self._bytes if self._bytes else None
        self._report(self._reported, self._stored if self._total is None else self._total, bits)


def score_selected(
    plan: Plan,
    load: Callable[[], Scoring],
    ranks: Ranks,
    finish: Callable[[Records, Records, dict[str, Any]], T],
    *,
    share: Share | None = None,
    out: str | Path | None = None,
    numbers: Callable[[TokenizedDocument], npt.NDArray[Any]] | None = None,
    report: Scored | None = None,
) -> T:
    """Score the documents that have no record yet; returns on all ranks what `finish` returns on rank 0.

    load       called for the first document that is left; if none is, the model is never loaded
    finish     of all ranks' records, those of earlier runs, and the protocol with labels and bad lines: the result
    share      makes the forward passes; None: this process makes all, and splits batches that do not fit into memory
    out        the folder for records, written as soon as they are made, or None
    numbers    of a document with all its losses: the numbers to write into its record; None: nothing
    """
    manifest, rank = plan.corpus.manifest, ranks.rank
    with ExitStack() as held:
        earlier = ranks.on_rank0(lambda: _earlier(plan, out, held))
        recorded = Recorded(earlier)
        total = None if report is None else text_bytes_selected(plan)
        progress = ScoringProgress(report or ignore, total, plan.corpus.size, earlier, ranks.world_size)
        labels: dict[str, int] = {}
        skipped = SkippedLines()

        def score_own(check: Callable[[], None]) -> list[ScoredDocument]:
            def scored(tokens: int) -> None:
                progress.scored(tokens)
                check()

            def left(batches: Iterable[DocumentBatch]) -> Iterator[DocumentBatch]:
                for batch in batches:
                    progress.scored(0)
                    yield recorded.without_recorded(batch)

            with ExitStack() as opened:
                batches = opened.enter_context(closing(selected(plan, labels, skipped, progress.read)))
                own = tokenized(assign_to_rank(left(batches), rank, ranks.world_size), plan.tokenizer)
                file = None if out is None else records_folder(out, plan.key) / f"records.{rank}.jsonl"
                append = None if file is None else opened.enter_context(record_file(file))

                def keep(record: ScoredDocument, document: TokenizedDocument) -> None:
                    progress.kept(record)
                    if append is not None:
                        append(record, b"" if numbers is None else numbers(document).tobytes())

                first = next(own, None)
                if first is None:
                    return []
                every, scoring = chain([first], own), load()
                _check_model(plan)
                made = list(score_rows(progress.begun(every), scoring, share or Fitting(), scored=scored, keep=keep))
                _check_model(plan)
                return made

        parts = ranks.gather(score_then_gather(ranks, score_own))
        progress.all()

        def join() -> Records:
            records = Records.of(chain(recorded.require_all_found().documents(), *parts), plan.shards, manifest)
            if not len(records):
                check_label(plan.corpus, labels, plan.subsets)
                which = "" if plan.subsets is None else f" of {visible(', '.join(plan.subsets), 400)}"
                raise PilekitError(
                    f"no documents{which} in the {counted(len(plan.shards), 'shard')} of {plan.corpus.root}, "
                    "so there is nothing to score; `pilekit stats` shows what is in them"
                )
            return records

        records = ranks.on_all_ranks(join)
        if plan.subsets is None and ranks.is_first:
            check_label(plan.corpus, labels)
        for name in plan.subsets or () if ranks.is_first else ():
            if name not in records.subsets:
                logger.warning("no documents of %s in %s", shortened(name, 80), shortened(plan.corpus.root, 200))
        if skipped.count and ranks.is_first:
            lines, first = counted(skipped.count, "bad line"), visible(str(skipped.examples[0]), 500)
            logger.warning("skipped %s, the first: %s", lines, first)
        known = [subset.name for subset in manifest.subsets]
        others = [label for label in labels if label not in known][:MOST_OTHERS]
        listed = [name for name in known if name in labels] + others
        protocol = {**plan.protocol, "skipped_lines": skipped.count, "labels": listed}
        return ranks.on_rank0(lambda: finish(records, earlier, protocol))


def _earlier(plan: Plan, out: str | Path | None, held: ExitStack) -> Records:
    """The records of earlier runs; `held` keeps their folder locked."""
    if out is None:
        return Records.of([], plan.shards, plan.corpus.manifest)
    records = held.enter_context(held_folder(out, plan.key, plan.protocol, plan.corpus.manifest))
    if len(records):
        documents = counted(len(records), "document is", "documents are")
        what = "already done" if scored_before(out, plan.key) else "resuming"
        logger.warning("%s: %s scored already, recorded in %s", what, documents, out)
    return records


def _check_model(plan: Plan) -> None:
    """Raise `ShardChanged` if a file of the model has changed. Its weights are mapped, so they would change with it."""
    for path, version in plan.model_versions.items():
        check_version(path, version)
