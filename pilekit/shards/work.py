"""The options that say how the work on shards runs, each with its type and its sentence.

    @takes(Work)
    def corpus_stats(corpus: Corpus, *, copies: bool = False, **work: Unpack[Work]) -> CorpusStats:
        job = CorpusJob(corpus, **work)

`Work` and its relatives name the options that a function takes. `takes` completes the docstring and the signature, so
`help(corpus_stats)` shows each option, its default and its sentence, and a wrong keyword is answered as any other.
"""

# Without `from __future__ import annotations`: `takes` reads the types and the sentences.

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar

from pilekit.corpus import Part
from pilekit.display.progress import Report
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.read.reader import OnError
from pilekit.workers import Advance, Ray

F = TypeVar("F", bound=Callable[..., Any])

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
    """The options of such a command that an array of jobs may divide."""

    part: _Part


class StoredWork(TypedDict, total=False):
    """The options of such a command that judges no line."""

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
    """The options of such a command that compares documents with all others."""

    memory: Annotated[
        int | None,
        "bytes for sorting, at least 64 MB; the processes' own memory is extra. None: 4 GB, or half of what this "
        "process may use if that is less",
    ]


def takes(options: type) -> Callable[[F], F]:
    """The decorator of a function whose last parameter is `**work: Unpack[options]`.

    In the docstring, the sentences of the options replace the row of `work`. An option with a row of its own keeps it.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        *explicit, _ = signature.parameters.values()
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(CorpusJob, name, None),
                annotation=re.sub(r"\w+\.", "", inspect.formatannotation(kind.__origin__)),
            )
            for name, kind in options.__annotations__.items()
        ]
        function.__doc__ = _explained(function.__doc__ or "", options)
        function.__signature__ = signature.replace(parameters=[*explicit, *shared])  # type: ignore[attr-defined]
        return function

    return decorate


def _explained(text: str, options: type) -> str:
    """The docstring with a row for each option in place of the row of `work`."""
    row = re.search(r"^( *)work( +).*\n", text, re.MULTILINE)
    if row is None:  # Python -OO
        return text
    column = len(f"{row[1]}work{row[2]}")
    rows = (
        textwrap.fill(
            kind.__metadata__[0],
            120,
            initial_indent=f"{row[1]}{name}".ljust(column),
            subsequent_indent=" " * column,
        )
        for name, kind in options.__annotations__.items()
        if not re.search(rf"^ *{name} ", text, re.MULTILINE)
    )
    return text[: row.start()] + "".join(f"{row}\n" for row in rows) + text[row.end() :]
