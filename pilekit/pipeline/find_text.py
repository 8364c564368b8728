"""`find_text`: the documents of a corpus whose text matches a pattern, each with a line of context.

    read(shard, subsets) -> pattern.search(text) -> one line of JSON per document -> in the order of the corpus

Each shard is a job of its own. A job writes its matches to a file, because one shard may hold millions, and the parent
yields them when it reaches the shard. So memory is one line per job. A single job yields each match at once.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import BinaryIO, Unpack

import msgspec

from pilekit.corpus import Corpus, Shard
from pilekit.documents import check_labels
from pilekit.pipeline.stages import Match, MinBytes
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import Reading, read
from pilekit.shards.work import Work, takes
from pilekit.workers import Advance

Search = Callable[[Shard, "Counts", Reading], Iterator["FoundText"]]

CONTEXT = 200
"""The most characters kept of a match, and of its line on either side."""

_IGNORED_CASE = re.compile(r"\(\?i\)([\w ]+)", re.ASCII)


class FoundText(msgspec.Struct, frozen=True):
    """The first match in a document: its place in the text, in characters, and the line around it.

    The line is `before + match + after`; each part holds at most `CONTEXT` characters.
    """

    shard: str
    number: int
    subset: str
    start: int
    before: str
    match: str
    after: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Documents per subset, read and with a match, and the bad lines that were skipped."""

    read: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    skipped: SkippedLines = field(default_factory=SkippedLines)

    def merge(self, shard_counts: Counts) -> None:
        """Add the counts of another shard."""
        self.read.update(shard_counts.read)
        self.matched.update(shard_counts.matched)
        self.skipped.merge(shard_counts.skipped)


@takes(Work)
def find_text(
    corpus: Corpus,
    pattern: str,
    counts: Counts,
    *,
    subsets: Sequence[str] | None = None,
    min_bytes: int | None = None,
    **work: Unpack[Work],
) -> Generator[FoundText, None, None]:
    """Yield the documents whose text holds a match of the regular expression `pattern`, in the order of the corpus.

    counts    receives the counts of each shard when it has been read; it is complete at the end
    subsets   exact names; None: all are searched
    min_bytes documents with less text are left out
    work      on_error, jobs, advance, cluster: see `Work`

    Raises PilekitError for a pattern that is no regular expression, and for every error of `read`.
    """
    job = CorpusJob(corpus, **work)
    reading = functools.partial(read, subsets=subsets, on_error=job.on_error, manifest=corpus.manifest)
    search = functools.partial(_search, pattern=Match(pattern).pattern, min_bytes=min_bytes)
    if job.cluster is None and job.processes(job.shards) == 1:
        reading = functools.partial(reading, advance=job.advance, ahead=job.share(job.shards).ahead)
        for shard in job.shards:
            yield from search(shard, counts, reading)
        return
    decoder = msgspec.json.Decoder(FoundText)
    search_to_file = functools.partial(_search_to_file, search=search, reading=reading)
    with closing(job.each_file(search_to_file, job.shards, "grep")) as searched:
        for file, shard_counts in searched:
            counts.merge(shard_counts)
            with file.open("rb") as lines:
                yield from map(decoder.decode, lines)


def _search_to_file(
    shard: Shard, file: BinaryIO, advance: Advance, *, search: Search, reading: Reading, share: Share
) -> Counts:
    """Search one shard, and write its matches to `file`."""
    counts = Counts()
    encoder = msgspec.json.Encoder()
    for match in search(shard, counts, functools.partial(reading, advance=advance, ahead=share.ahead)):
        file.write(encoder.encode(match) + b"\n")
    return counts


def _search(
    shard: Shard, counts: Counts, reading: Reading, *, pattern: re.Pattern[str], min_bytes: int | None
) -> Iterator[FoundText]:
    """The matches in one shard.

    Python's re is slow when it ignores case. If the pattern is only letters, digits and spaces, an ASCII text without
    them (both in lower case) is skipped: three times as fast.
    """
    search = pattern.search
    plain = _IGNORED_CASE.fullmatch(pattern.pattern)
    word = plain[1].lower() if plain else ""
    with reading(shard) as reader:
        for batch in reader if min_bytes is None else MinBytes(min_bytes)(reader):
            counts.read.update(batch.subsets)
            check_labels(counts.read)
            for index, text in enumerate(batch.texts):
                if word and text.isascii() and word not in text.lower():
                    continue
                if (match := search(text)) is not None:
                    subset = batch.subsets[index]
                    counts.matched[subset] += 1
                    yield _found_text(match, batch.shard, int(batch.numbers[index]), subset)
        counts.skipped.merge(reader.skipped)


def _found_text(match: re.Match[str], shard: str, number: int, subset: str) -> FoundText:
    text, start, end = match.string, *match.span()
    before = text[max(0, start - CONTEXT) : start].rpartition("\n")[2]
    after = text[end : end + CONTEXT].partition("\n")[0]
    return FoundText(shard, number, subset, start, before, text[start : min(end, start + CONTEXT)], after)
