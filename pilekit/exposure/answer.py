"""`Question`: what `seen` is asked. `answer` looks at all pieces of all steps of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pilekit.corpus import Corpus, subsets_or_all
from pilekit.errors import PilekitError
from pilekit.exposure.asked_documents import Copy, Place, copies_of, documents_with, listed_documents, traced_documents
from pilekit.exposure.run_documents import RunDocuments
from pilekit.exposure.seen_documents import SEEN_ROWS, SeenDocuments
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.work import StepWork
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.train.config.check import manifest_of
from pilekit.train.log.document_log import SCHEMA, in_order


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `seen` is asked: one of the first four, and copies.

    documents   the path of a list, or the documents
    text        a text that documents hold
    trace       the path of a result of `pilekit trace`
    subset      the name of a subset
    copies      the folder of a finished dedup
    """

    documents: str | tuple[Place, ...] | None = None
    text: str | None = None
    trace: str | None = None
    subset: str | None = None
    copies: str | None = None

    def __post_init__(self) -> None:
        kinds = ("documents", "text", "trace", "subset")
        asked = [name for name in kinds if getattr(self, name) is not None]
        if len(asked) != 1:
            raise PilekitError(f"give one of documents, text, trace and subset, not {' and '.join(asked) or 'none'}")
        if self.subset is not None and self.copies is not None:
            raise PilekitError("copies are those of documents, a text or a trace; leave out subset or copies")
        if self.text == "":
            raise PilekitError("the text is empty, and every document holds that; name some text")
        try:
            (self.text or "").encode()
        except UnicodeEncodeError as error:
            raise PilekitError("the text is not UTF-8, and every document is; name it in UTF-8") from error


def answer(question: Question, run: RunDocuments, work: StepWork) -> SeenDocuments:
    """The steps of the run in which the documents of the question were."""
    places: list[Place] | None = None
    more: dict[str, Any] = {}
    if question.documents is not None:
        places = listed_documents(question.documents, run.shard_names())
    elif question.trace is not None:
        places = traced_documents(question.trace, run.shard_names())
    elif question.text is not None:
        places, more["scanned"] = documents_with(question.text, CorpusJob.of_steps(_texts_of(run), **work))
    copy_of = {} if question.copies is None or places is None else copies_of(places, question.copies)
    wanted = None if places is None else list(dict.fromkeys([*places, *copy_of]))
    names = None if question.subset is None else subsets_or_all([question.subset], manifest_of(run.config.data))
    pieces = in_order(_chosen(table, wanted, names) for table in run.tables())
    rows = _document_rows(pieces, wanted, copy_of)
    summary = {
        "run": str(run.run.path),
        "steps": [run.steps.start, run.steps.stop - 1],
        "replayed": [[span.start, span.stop - 1] for span in run.replayed],
        "documents": len(rows),
        "seen": len(rows) - rows["subset"].null_count,
        "tokens": pc.sum(rows["tokens"]).as_py() or 0,
        **({"began_from": run.began_from} if run.steps.start > 1 else {}),
        **more,
    }
    return SeenDocuments(rows, summary)


def _texts_of(run: RunDocuments) -> Corpus:
    """The shards that the run reads. PilekitError for token files, which hold no text."""
    if isinstance(corpus := run.data(), TokenCorpus):
        raise PilekitError(f"{run.run.path}: was trained on token files, which hold no text; give documents")
    return corpus


def _chosen(table: pa.Table, wanted: Collection[Place] | None, subsets: Sequence[str] | None) -> pa.Table:
    """The pieces of the documents that are wanted, or of these subsets."""
    if wanted is None:
        return table.filter(pc.is_in(table["subset"].cast(pa.string()), pa.array(subsets, pa.string())))
    by_shard: dict[str, list[int]] = {}
    for shard, number in wanted:
        by_shard.setdefault(shard, []).append(number)
    shards = table["shard"].unify_dictionaries().combine_chunks()
    numbers = table["number"].to_numpy()
    codes = np.asarray(shards.indices)
    is_chosen = np.zeros(len(table), bool)
    for code, shard in enumerate(shards.dictionary.to_pylist()):
        if shard in by_shard:
            is_chosen |= (codes == code) & np.isin(numbers, by_shard[shard])
    return table.filter(pa.array(is_chosen))


def _document_rows(pieces: pa.Table, wanted: Sequence[Place] | None, copy_of: Mapping[Place, Copy]) -> pa.Table:
    """A row per document: in the order in which they are wanted, else in that of their first steps."""
    found: dict[Place, dict[str, Any]] = {}
    columns = (pieces[name].to_pylist() for name in SCHEMA.names)
    for step, _, shard, number, subset, first, last in zip(*columns, strict=True):
        blank = {"shard": shard, "number": number, "subset": subset, "steps": [], "times": 0, "tokens": 0}
        row = found.setdefault((shard, number), blank)
        if row["steps"][-1:] != [step]:
            row["steps"].append(step)
        row["times"] += first == 0
        row["tokens"] += last - first + 1
    rows = []
    for place in found if wanted is None else wanted:
        row = found.get(place) or dict(zip(SEEN_ROWS.names, (*place, None, [], 0, 0), strict=False))
        if (copy := copy_of.get(place)) is not None:
            of = dict(zip(("shard", "number"), copy.of, strict=True))
            row |= {"copy_of": of, "similarity": copy.similarity, "reason": copy.reason}
        rows.append(row)
    return pa.Table.from_pylist(rows, SEEN_ROWS)
