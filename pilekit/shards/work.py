"""The options that say how the work on shards runs, each with its type and its sentence.

    @takes(Work)
    def corpus_stats(corpus: Corpus, *, copies: bool = False, **work: Unpack[Work]) -> CorpusStats:
        job = CorpusJob(corpus, **work)

`Work` and its relatives name the options that a function takes. `takes` completes the docstring and the signature, so
`help(corpus_stats)` shows each option, its default and its sentence, and a wrong keyword is answered as any other.
"""

# Without `from __future__ import annotations`: `takes` reads the types and the sentences.

from collections.abc import Callable
from typing import Annotated, TypedDict

from pilekit.artifacts.settings import F, Setting, described, written
from pilekit.corpus import Part
from pilekit.display.progress import Report
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.read.reader import OnError
from pilekit.workers import Advance, Ray

_OnError = Annotated[OnError, '"raise": a bad line is a `PilekitError`; "skip": it is counted and listed in the result']
_Jobs = Annotated[
    int | None, "shards at a time, each in its own process; None: the usable CPUs, or fewer for a small corpus"
]
_Advance = Annotated[Advance | None, "called with the number of stored bytes done since the last call"]
_Cluster = Annotated[Ray | None, "a cluster instead of local processes"]
_Part = Annotated[
    Part | None, "(I, N): only the shards of `corpus.part(part)`; a call without it does the rest and finishes"
]


class Work(TypedDict, total=False):
    """The options of a command that reads each shard once."""

    on_error: _OnError
    jobs: _Jobs
    advance: _Advance
    cluster: _Cluster


class PartWork(Work, total=False):
    """The options of a command that reads each shard once, and that an array of jobs may divide."""

    part: _Part


class StoredWork(TypedDict, total=False):
    """The options of a command that keeps bad lines, and an array of jobs may divide."""

    jobs: _Jobs
    advance: _Advance
    cluster: _Cluster
    part: _Part


class StepWork(TypedDict, total=False):
    """The options of a command of several steps."""

    on_error: _OnError
    jobs: _Jobs
    advance: Annotated[Report | None, "receives the progress of each step"]
    cluster: _Cluster


class SortWork(StepWork, total=False):
    """The options of a command of several steps that sorts more than memory holds."""

    memory: Annotated[
        int | None,
        "bytes for sorting, at least 64 MB; the processes' own memory is extra. None: 4 GB, or half of what this "
        "process may use if that is less",
    ]


def takes(options: type) -> Callable[[F], F]:
    """The decorator of a function whose last parameter is `**work: Unpack[options]`.

    In the docstring, the sentences of the options replace the row of `work`. An option with a row of its own keeps it.
    """

    settings = [
        Setting(name, written(kind.__origin__), getattr(CorpusJob, name, None), kind.__metadata__[0])
        for name, kind in options.__annotations__.items()
    ]
    return lambda function: described(function, "work", settings)
