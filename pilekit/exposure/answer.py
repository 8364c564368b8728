"""`Question`: what `seen` is asked. `answer` looks at all pieces of all steps of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pilekit.corpus import Corpus, subsets_or_all
from pilekit.corpus.listed_documents import Place, listed_documents, traced_documents
from pilekit.dedup.find_copies import CopySearch
from pilekit.errors import PilekitError
from pilekit.exposure.asked_documents import Copy, copies_of, copies_of_given, documents_with
from pilekit.exposure.run_documents import RunDocuments
from pilekit.exposure.seen_documents import SEEN_ROWS, SeenDocuments
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.work import StepWork
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.stream.settings import PLANTED
from pilekit.train.config.check import manifest_of
from pilekit.train.log.document_log import SCHEMA, in_order

Int64 = npt.NDArray[np.int64]
ROWS_AT_A_TIME = 1 << 14
Wanted = tuple[Place, Copy | None]
"""A document to look for, and what it is a copy of."""

QUESTIONS = ("documents", "text", "trace", "subset", "against")


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `seen` is asked: one of the first five, and copies.

    documents   the path of a list, or the documents
    text        a text that documents hold
    trace       the path of a result of `pilekit trace`
    subset      the name of a subset
    against     the path of shards with documents of which copies are looked for
    copies      the folder of a finished dedup
    """

    documents: str | tuple[Place, ...] | None = None
    text: str | None = None
    trace: str | None = None
    subset: str | None = None
    against: str | None = None
    copies: str | None = None

    def __post_init__(self) -> None:
        asked = [name for name in QUESTIONS if getattr(self, name) is not None]
        if len(asked) != 1:
            kinds, given = f"{', '.join(QUESTIONS[:-1])} and {QUESTIONS[-1]}", " and ".join(asked) or "none"
            raise PilekitError(f"give one of {kinds}, not {given}")
        if self.copies is not None and asked[0] in ("subset", "against"):
            raise PilekitError(f"copies are those of documents, a text or a trace; leave out {asked[0]} or copies")
        if self.text == "":
            raise PilekitError("the text is empty, and every document holds that; name some text")
        try:
            (self.text or "").encode()
        except UnicodeEncodeError as error:
            raise PilekitError("the text is not UTF-8, and every document is; name it in UTF-8") from error


def answer(question: Question, run: RunDocuments, work: StepWork) -> SeenDocuments:
    """The steps of the run in which the documents of the question were."""
    wanted: Iterable[Wanted] | None = None
    more: dict[str, Any] = {}
    numbers: Mapping[str, Int64] | None = None
    if question.against is not None:
        search, more = copies_of_given(question.against, CorpusJob.of_steps(_texts_of(run), **work))
        wanted, numbers = _copies(search), search.numbers()
    elif question.subset is None:
        places, more = _asked(question, run, work)
        of_places = list[Wanted](dict.fromkeys((place, None) for place in places))
        if question.copies is not None:
            of_places += copies_of(places, question.copies).items()
        wanted, numbers = of_places, _numbers(of_places)
    names: Sequence[str] | None = [PLANTED]
    if question.subset != PLANTED:
        names = None if question.subset is None else subsets_or_all([question.subset], manifest_of(run.config.data))
    pieces = in_order(_chosen(table, numbers, names) for table in run.tables())
    seen = _seen_documents(pieces)
    trained = [row for row in seen.values() if row["steps"]]
    ignored = {"documents": len(seen) - len(trained), "attention": run.config.data.attention}
    summary = {
        "run": str(run.run.path),
        "steps": [run.steps.start, run.steps.stop - 1],
        "replayed": [[span.start, span.stop - 1] for span in run.replayed],
        "documents": len(seen) if numbers is None else sum(map(len, numbers.values())),
        "seen": len(trained),
        "tokens": sum(row["tokens"] for row in trained),
        **({"ignored": ignored} if any(row["ignored"] for row in seen.values()) else {}),
        **({"began_from": run.began_from} if run.steps.start > 1 else {}),
        **more,
    }
    rows = (
        _row(place, seen, copy) for place, copy in (((place, None) for place in seen) if wanted is None else wanted)
    )
    tables = [SEEN_ROWS.empty_table()]
    while some := list(islice(rows, ROWS_AT_A_TIME)):  # There may be millions of pairs of copies.
        tables.append(pa.Table.from_pylist(some, SEEN_ROWS))
    return SeenDocuments(pa.concat_tables(tables), summary)


def _copies(search: CopySearch) -> Iterator[Wanted]:
    return (((copy.shard, copy.number), Copy(copy.original, copy.similarity, copy.reason)) for copy in search)


def _numbers(wanted: Sequence[Wanted]) -> dict[str, Int64]:
    """The distinct documents: their numbers by shard, ascending."""
    by_shard: dict[str, list[int]] = {}
    for (shard, number), _ in wanted:
        by_shard.setdefault(shard, []).append(number)
    return {shard: np.unique(np.array(numbers, np.int64)) for shard, numbers in by_shard.items()}


def _asked(question: Question, run: RunDocuments, work: StepWork) -> tuple[list[Place], dict[str, Any]]:
    """The documents of a list, a trace or a text, and what was scanned for them."""
    if question.documents is not None:
        return listed_documents(question.documents, run.shard_names()), {}
    if question.trace is not None:
        return traced_documents(question.trace, run.shard_names()), {}
    places, scanned = documents_with(question.text or "", CorpusJob.of_steps(_texts_of(run), **work))
    return places, {"scanned": scanned}


def _texts_of(run: RunDocuments) -> Corpus:
    """The shards that the run reads. PilekitError for token files, which hold no text."""
    if isinstance(corpus := run.data(), TokenCorpus):
        raise PilekitError(f"{run.run.path}: was trained on token files, which hold no text; give documents")
    return corpus


def _chosen(table: pa.Table, chosen: Mapping[str, Int64] | None, subsets: Sequence[str] | None) -> pa.Table:
    """The pieces of the documents of these numbers by shard, or of these subsets."""
    if chosen is None:
        return table.filter(pc.is_in(table["subset"].cast(pa.string()), pa.array(subsets, pa.string())))
    shards = table["shard"].unify_dictionaries().combine_chunks()
    numbers = table["number"].to_numpy()
    codes = np.asarray(shards.indices)
    is_chosen = np.zeros(len(table), bool)
    for code, shard in enumerate(shards.dictionary.to_pylist()):
        if shard in chosen:
            is_chosen |= (codes == code) & np.isin(numbers, chosen[shard])
    return table.filter(pa.array(is_chosen))


def _seen_documents(pieces: pa.Table) -> dict[Place, dict[str, Any]]:
    """A row per document of the pieces, in the order of their first steps."""
    seen: dict[Place, dict[str, Any]] = {}
    columns = (pieces[name].to_pylist() for name in SCHEMA.names)
    for step, _, shard, number, subset, first, last, ignored in zip(*columns, strict=True):
        blank = dict(zip(SEEN_ROWS.names, (shard, number, subset, [], 0, 0, 0), strict=False))
        row = seen.setdefault((shard, number), blank)
        if ignored:
            row["ignored"] += last - first + 1
            continue
        if row["steps"][-1:] != [step]:
            row["steps"].append(step)
        row["times"] += first == 0
        row["tokens"] += last - first + 1
    return seen


def _row(place: Place, seen: Mapping[Place, dict[str, Any]], copy: Copy | None) -> dict[str, Any]:
    row = seen.get(place) or dict(zip(SEEN_ROWS.names, (*place, None, [], 0, 0, 0), strict=False))
    if copy is None:
        return row
    of = dict(zip(("shard", "number"), copy.of, strict=True))
    return {**row, "copy_of": of, "similarity": copy.similarity, "reason": copy.reason}
