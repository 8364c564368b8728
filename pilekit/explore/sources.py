"""The page's questions about a corpus, results made from it and a tokenizer, answered as JSON.

A document is reached through its shard's index, so the size of a shard does not matter. A search goes through the
documents in their order, for one second at a time. The page asks again from the place where it ended. Control
characters and invisible format characters of texts, labels and names are spelt out, as on a terminal.

Nothing is written but missing indexes. Threads must not share a `Sources`.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from pilekit.corpus import Corpus, Manifest, load_manifest
from pilekit.corpus.sidecar_files import TOKENS_FILE
from pilekit.dedup.show.removed_pairs import readable
from pilekit.documents import Document
from pilekit.errors import PilekitError, visible, visible_lines
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result_folder import read_result
from pilekit.explore.cuts import Cuts
from pilekit.explore.removals import Removals
from pilekit.explore.results import Results
from pilekit.explore.tokens import token_pieces, tokens_over
from pilekit.explore.traces import Traces
from pilekit.report.collect import Artefact
from pilekit.shards.random_access.pile_documents import PileDocuments
from pilekit.stats.summary import corpus_stats
from pilekit.tokenize import Tokenizer, load_tokenizer

PAGE = 50
"""Documents or pairs in a list."""
BEGINNING = 160
"""Characters of each text in a list, and around a word that was found."""
MOST_SHOWN = 200_000
"""Characters of a text that are shown."""
SEARCH_SECONDS, AT_ONCE = 1.0, 1024
"""A search answers after this time, and reads this many documents at a time."""


class Sources:
    """The corpus at `data`, and the other sources; without a corpus, the page shows these alone.

    dedup       a folder of `pilekit dedup`
    cuts        folders of `pilekit decontaminate` and `pilekit substrings`
    traces      files of `pilekit trace`
    bpb         a folder of `pilekit bpb --out DIR --per-token`
    tokenizer   makes the tokens that the page shows; None with `bpb`: the tokenizer of its model
    results     artefacts that the page shows as `pilekit report` does
    manifest    describes the corpora of saved counts; None: the manifest of `data`

    PilekitError for a source that is not there or does not fit.
    """

    def __init__(
        self,
        data: str | Path | Corpus | None,
        *,
        dedup: Path | None = None,
        cuts: Sequence[Path] = (),
        traces: Sequence[Path] = (),
        bpb: Path | None = None,
        tokenizer: str | None = None,
        results: Sequence[Artefact] = (),
        manifest: Manifest | None = None,
    ):
        self._browsed = None if data is None else PileDocuments(data)
        corpus = None if self._browsed is None else self._browsed.corpus
        self._removals = None if dedup is None else Removals(dedup, corpus)
        self._cuts = [Cuts(folder, corpus) for folder in cuts]
        self._traces = [Traces(path, self._browsed) for path in traces]
        self._results = Results(results, manifest or (corpus.manifest if corpus else load_manifest("pile")), corpus)
        self._result = None if bpb is None else read_result(bpb)
        self._tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
        if bpb is not None and self._result is not None:
            if not self._result.protocol.get("per_token"):  # then its tokens come from an earlier run
                raise PilekitError(f"{bpb}: its last run had no --per-token; run `pilekit bpb` with it")
            with readable(bpb / TOKENS_FILE, "the same `pilekit bpb` with --per-token") as bits:
                self._bits = bits
            self._tokenizer = _tokenizer_of(self._result.protocol, self._tokenizer)
        self._labelled = functools.lru_cache(maxsize=64)(lambda subset: self._documents.labelled(subset))

    @property
    def written(self) -> list[str]:
        """The indexes that were written for shards of the results."""
        removals = [] if self._removals is None else self._removals.written
        return [*removals, *(path for cuts in self._cuts for path in cuts.written)]

    def corpus(self) -> dict[str, Any]:
        """The subsets, the largest first, and the sources."""
        browsed = self._browsed
        subsets = () if browsed is None else corpus_stats(browsed.corpus, on_error="skip").subsets
        removed = None if self._removals is None else self._removals.subsets()
        labels = {subset.name for subset in subsets} | {*(removed or ())}
        labels |= {label for cuts in self._cuts for label in cuts.subsets}
        return {
            "shards": [] if browsed is None else [visible(shard.path) for shard in browsed.corpus.shards],
            "subsets": [{"label": row.name, "documents": row.documents, "bytes": row.bytes} for row in subsets],
            "documents": None if browsed is None else len(browsed),
            "shown": {label: visible(label, 80) for label in labels},
            "removed": removed,
            "cuts": [{"title": cuts.title, "subsets": cuts.subsets} for cuts in self._cuts],
            "traces": [traces.title for traces in self._traces],
            "bits": self._result is not None,
            "results": self._results.listed(),
            "tokens": None if self._tokenizer is None else visible(self._tokenizer.path),
        }

    def documents(self, start: int, subset: str | None = None) -> dict[str, Any]:
        """A page of the subset's documents from place `start` on; None: of all documents."""
        chosen = self._in_subset(subset)
        end = min(len(chosen), start + PAGE)
        return {"documents": list(map(_listed, chosen[start:end])), "start": start, "of": len(chosen)}

    def search(
        self, text: str, start: int, subset: str | None = None, *, seconds: float = SEARCH_SECONDS
    ) -> dict[str, Any]:
        """The documents that a search of a second finds from place `start` on; capital letters do not matter.

        `next` is the place to resume at, None at the end.
        """
        searched, end, place = self._in_subset(subset), time.monotonic() + seconds, start
        matches: list[dict[str, Any]] = []
        for batch in searched.batches(start, AT_ONCE):
            is_match = pc.match_substring(batch.text_column, text, ignore_case=True)
            for row in np.flatnonzero(is_match)[: PAGE - len(matches)].tolist():
                hay, place = batch.texts[row], start + row + 1
                at = max(0, hay.lower().find(text.lower()))
                document = Document(hay, {}, batch.subsets[row], int(batch.numbers[row]), batch.shard)
                matches.append(_listed(document, at))
            if len(matches) == PAGE:
                break
            start = place = start + len(batch)
            if time.monotonic() > end:
                break
        return {"documents": matches, "next": place if place < len(searched) else None, "of": len(searched)}

    def document(
        self,
        shard: str,
        number: int,
        start: int | None = None,
        end: int | None = None,
        *,
        most_shown: int = MOST_SHOWN,
    ) -> dict[str, Any]:
        """A document with its duplicates, its cuts, and its text or its tokens; `start` and `end` mark characters.

        from     the first character that is shown: not 0 if the marked ones are far behind the beginning
        text     of a document without tokens, and without a mark
        around   the texts before, in and after the mark of a document without tokens
        tokens   lists of text, id, bytes and bits, which are None where nothing was scored; only from the beginning on
        marked   the first token of the mark, and the one after it
        rate     the bits per byte of a scored document
        """
        document = self._documents.document(shard, number)
        mark = None if start is None or end is None else (start, end)
        begin = max(0, mark[0] - most_shown // 2) if mark and mark[1] > most_shown else 0
        text = document.text[begin : begin + most_shown]
        shown: dict[str, Any] = {**_listed(document), "characters": len(document.text), "shown": len(text)}
        shown["from"] = begin
        shown["meta"] = {visible(key, 80): visible(value, 500) for key, value in document.meta.items()}
        shown["duplicates"] = None if self._removals is None else self._removals.cluster_of(shard, number)
        shown["cuts"] = [{"title": cuts.title, **cuts.in_document(shard, number)} for cuts in self._cuts]
        if self._tokenizer is not None and not begin:
            return {**shown, **self._tokens(document, text, mark)}
        if mark is None:
            return {**shown, "text": visible_lines(text)}
        bounds = [0, mark[0] - begin, mark[1] - begin, len(text)]
        return {**shown, "text": "", "around": [visible_lines(text[at:after]) for at, after in pairwise(bounds)]}

    def _tokens(self, document: Document, text: str, mark: tuple[int, int] | None) -> dict[str, Any]:
        """The fields `tokens`, `text`, `rate` and `marked` of the beginning of a document."""
        assert self._tokenizer is not None
        ids, spans = self._tokenizer.encode_with_spans(text)
        bits = {} if self._result is None else self._bits_of(document, ids, whole=len(text) == len(document.text))
        tokens = token_pieces(text, ids, spans, bits)
        shown = {"tokens": tokens, "text": "" if tokens else visible_lines(text), "rate": self._rate(document)}
        return shown if mark is None else {**shown, "marked": tokens_over(text, spans, *mark)}

    def scored(self, start: int) -> dict[str, Any]:
        """A page of the scored documents, the most bits per byte first."""
        records = None if self._result is None else self._result.records
        if records is None:
            raise PilekitError("no folder of `pilekit bpb` was given with --bpb")
        rates = _rates(records)
        places = np.argsort(-rates, kind="stable")[start : start + PAGE].tolist()
        documents = []
        for place in places:
            shard, subset = records.shards[records.shard[place]], records.subsets[records.subset[place]]
            number, size = int(records.number[place]), int(records.bytes[place])
            documents.append({**_place(shard, number, subset, size), "rate": float(rates[place])})
        return {"documents": documents, "start": start, "of": len(records)}

    def pairs(self, subset: str | None = None) -> dict[str, Any]:
        """Removed documents, evenly over the similarities, the least similar first."""
        return self._removed.pairs(subset)

    def pair(self, shard: str, number: int) -> dict[str, Any]:
        """A removed document and the kept one, compared; `shard` is the name in the run."""
        return self._removed.pair(shard, number)

    def cuts(self, folder: int, start: int, subset: str | None = None) -> dict[str, Any]:
        """A page of the cuts of the folder at this place of `cuts`."""
        return self._cuts[folder].listed(start, subset)

    def cut(
        self,
        folder: int,
        place: int,
        subset: str | None = None,
        shard: str | None = None,
        number: int | None = None,
    ) -> dict[str, Any]:
        """A cut, by its place among the cuts of the subset or of the document, with the text that it repeats."""
        return self._cuts[folder].cut(place, subset=subset, shard=shard, number=number)

    def texts(self, folder: int, start: int) -> dict[str, Any]:
        """A page of the texts of the file at this place of `traces`."""
        return self._traces[folder].listed(start)

    def text(self, folder: int, number: int) -> dict[str, Any]:
        """A traced text with its passages."""
        return self._traces[folder].text(number)

    def passage(self, folder: int, number: int, place: int) -> dict[str, Any]:
        """A passage of a traced text, with the documents that have it."""
        return self._traces[folder].passage(number, place)

    def result(self, place: int) -> str:
        """The page of a result."""
        return self._results.page(place)

    def trained(self, place: int) -> dict[str, Any]:
        """The corpus that a run reads, and how many of its shards are browsed."""
        return self._results.browsed(place)

    @property
    def _documents(self) -> PileDocuments:
        if self._browsed is None:
            raise PilekitError("no corpus was given; give its shards in addition to the results")
        return self._browsed

    @property
    def _removed(self) -> Removals:
        if self._removals is None:
            raise PilekitError("no folder of `pilekit dedup` was given with --dedup")
        return self._removals

    def _in_subset(self, subset: str | None) -> PileDocuments:
        return self._documents if subset is None else self._labelled(subset)

    def _rate(self, document: Document) -> float | None:
        """The document's bits per byte in its record; None if it was not scored."""
        records = None if self._result is None else self._result.records
        if records is None or document.shard not in records.shards:
            return None
        is_record = (records.shard == records.shards.index(document.shard)) & (records.number == document.number)
        return next(iter(_rates(records)[is_record].tolist()), None)

    def _bits_of(self, document: Document, ids: list[int], *, whole: bool) -> dict[int, float]:
        """The bits of each token by its place; none if the document was not scored."""
        is_document = (pc.field("shard").cast("string") == document.shard) & (pc.field("number") == document.number)
        rows = self._bits.to_table(["index", "token", "bits"], filter=is_document).to_pydict()
        scored = [row for row in zip(*rows.values(), strict=True) if row[0] < len(ids)]
        if whole and any(ids[place] != token for place, token, _ in scored):
            raise PilekitError(f"{document.shard} {document.number}: has other tokens in the result of bpb")
        return {place: bits for place, token, bits in scored if ids[place] == token}


def _tokenizer_of(protocol: dict[str, Any], tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, or the model's for None. PilekitError if the result was made with another."""
    model = protocol["model"]["path"]
    if tokenizer is None and model is None:
        raise PilekitError("the result was made of a model in memory: give its tokenizer with --tokenizer")
    tokenizer = tokenizer or load_tokenizer(model)
    if f"sha256:{tokenizer.fingerprint}" != protocol["tokenizer"]["fingerprint"]:
        raise PilekitError(
            f"{tokenizer.path}: is not the tokenizer that the result was made with; name that one with --tokenizer"
        )
    return tokenizer


def _listed(document: Document, at: int = 0) -> dict[str, Any]:
    """A document in a list, with its text from shortly before the character `at`."""
    begin = max(0, at - BEGINNING // 4)
    beginning = ("…" if begin else "") + visible(re.sub(r"\s+", " ", document.text[begin : begin + BEGINNING]))
    size = len(document.text.encode())
    return {**_place(document.shard, document.number, document.subset, size), "beginning": beginning}


def _place(shard: str, number: int, subset: str, size: int) -> dict[str, Any]:
    name, label = visible(shard, 100), visible(subset, 60)
    return {"shard": shard, "name": name, "number": number, "subset": label, "bytes": size}


def _rates(records: Records) -> npt.NDArray[np.float64]:
    """Bits per byte of each document."""
    rates: npt.NDArray[np.float64] = records.nll / np.log(2) / np.maximum(records.bytes, 1)
    return rates
