"""`deduplicate`: a corpus without copies, with a proof for every document removed.

    sketch (each shard) -> exact copies -> candidates -> their shingle sets (each shard) -> compare -> choose
        -> removed.parquet and masks -> clean shards (each) -> summary.json

Each step leaves files that are complete or not there, and takes those that it finds: a killed run goes on with the
first that is missing. `sketches/`, `masks/`, `removed.parquet`, `summary.json` and `clean/` stay; what lies in
`scratch/` goes at the end. The result depends on the shards and the parameters in the folder's header alone, not on the
number of processes, the memory, or the order in which shards are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import get_args

from pilekit.artifacts.job_folder import output_folder
from pilekit.corpus import Corpus, Manifest, resolve_subsets
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.dedup.deduplication import Deduplication
from pilekit.dedup.match.population import Keep
from pilekit.dedup.previous_runs import KIND, RECORDS, earlier_runs
from pilekit.dedup.sketch.bands import choose_bands
from pilekit.dedup.sketch.minhash import SEED
from pilekit.dedup.steps import Report, Steps
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.selecting import check_names
from pilekit.shards.fingerprint import inputs_for
from pilekit.shards.read.damage import BadLine
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.reader import OnError

SMALLEST_MEMORY = 64 * 10**6
MOST_WORDS = 100
MOST_PERMUTATIONS = 4096


def deduplicate(
    data: Corpus | str | Path | Sequence[str | Path] | None = None,
    *,
    subsets: str | Sequence[str] | None = None,
    only: bool = False,
    threshold: float = 0.8,
    ngram: int = 5,
    num_perm: int = 128,
    keep: Keep = "longest",
    against: str | Path | None = None,
    out: str | Path = "dedup",
    write: bool = True,
    memory: int = 4 << 30,
    jobs: int | None = None,
    on_error: OnError = "raise",
    manifest: Manifest | str | Path | None = None,
    advance: Report | None = None,
) -> Deduplication:
    """Remove exact copies and near-duplicates from a corpus; the result lies in the folder `out`.

    data        a `Corpus`, or what one is made of: a path, glob or URL, or several of them
    subsets     documents of these are compared with each other, in any spelling the manifest knows; None: of all
    only        leave out the documents of other subsets, rather than pass them through
    threshold   from which Jaccard similarity of their word n-grams on documents are near-duplicates
    ngram       words in an n-gram
    num_perm    MinHash permutations, about: as many as make bands for a recall of 0.99 at the threshold
    keep        which of similar documents stays: the "longest" (of equally long ones the first), or the "first"
    against     folder of an earlier run, whose documents come before all of these, and before those the documents of
                the run that it was made against itself
    write       write the clean shards; else only masks and records
    memory      bytes for sorting and comparing; besides, there are some bits for each document, and the processes
    jobs        how many shards at a time, each in a process of its own; None: one for every two CPUs
    on_error    "raise": a bad line is a `PilekitError`; "skip": it is counted and listed, and is in no clean shard
    advance     told of the progress of each step

    A folder that a killed run left is gone on with; one of the same run that is finished answers at once. Raises
    `PilekitError` if it was made from other shards or with other parameters, and names what differs.
    """
    _check_types(only=only, threshold=threshold, ngram=ngram, num_perm=num_perm, write=write, memory=memory, jobs=jobs)
    _check_values(subsets, only, ngram, num_perm, keep, memory, jobs, on_error)
    if "" in (out, against):
        raise PilekitError(f"{'out' if out == '' else 'against'} is empty; name a folder")
    corpus = data if isinstance(data, Corpus) else Corpus(data, manifest)
    if any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        raise PilekitError("standard input (-) cannot be deduplicated, as it is read twice; save it to a file first")
    if write:
        check_names(corpus.shards)
    if subsets is not None:
        subsets = resolve_subsets(*([subsets] if isinstance(subsets, str) else subsets), manifest=corpus.manifest)
    bands = choose_bands(threshold, num_perm)
    parameters = {
        "threshold": float(threshold),
        "ngram": int(ngram),
        "num_perm": bands.num_perm,
        "seed": SEED,
        "bands": bands.bands,
        "rows": bands.rows,
        "keep": keep,
        "subsets": None if subsets is None else sorted(subsets),
        "only": only,
        "write": write,
        "text_field": corpus.manifest.text_field,
        "label_path": corpus.manifest.label_path,
    }
    before = [] if against is None else earlier_runs(against, parameters)
    parameters["against"] = before[-1].identity if before else None
    inputs = inputs_for(out, corpus.shards)
    with output_folder(
        out, kind=KIND, parameters=parameters, inputs=inputs.fingerprints, versions=inputs.versions
    ) as output:
        records = output.result(RECORDS)
        if on_error == "raise" and records is not None and records["bad_lines"]:
            # An earlier run skipped what is to be an error now.
            place, line, reason = records["bad_lines"][0]
            raise bad_line_error(BadLine(corpus.shards[place].path, line, reason))
        if not output.finished:
            steps = Steps(corpus, output, bands, parameters, inputs, on_error, int(memory), jobs, advance)
            steps.check_free_disk()
            if records is None:
                sketches = steps.sketch()
                population, shards = steps.population(sketches, before)
                records = steps.record(population, *steps.decide(population, shards), sketches)
            steps.write_clean()
            steps.finish(records["summary"], before)
        return Deduplication.of(output, corpus)


def _check_types(**arguments: object) -> None:
    """Raise PilekitError for an argument that is no number, or no truth value, where it is to be one."""
    kinds: dict[str, tuple[type, str]] = {
        "threshold": (Real, "a number"),
        "only": (bool, "True or False"),
        "write": (bool, "True or False"),
    }
    for name, value in arguments.items():
        kind, what = kinds.get(name, (Integral, "a whole number"))
        if name == "jobs" and value is None:
            continue
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise PilekitError(f"{name} is {what}, not {visible(repr(value), 80)}")


def _check_values(
    subsets: str | Sequence[str] | None,
    only: bool,
    ngram: int,
    num_perm: int,
    keep: str,
    memory: int,
    jobs: int | None,
    on_error: str,
) -> None:
    """Raise PilekitError for what cannot be done, before anything is."""
    if subsets is not None and not subsets:
        raise PilekitError("subsets is empty, so no document is compared; name some, or give None for all")
    if only and subsets is None:
        raise PilekitError("`only` leaves out the documents of other subsets; name subsets too")
    if not 1 <= ngram <= MOST_WORDS:
        raise PilekitError(f"an n-gram has 1 to {MOST_WORDS} words, not {ngram}")
    if not 1 <= num_perm <= MOST_PERMUTATIONS:
        raise PilekitError(f"num_perm is from 1 to {MOST_PERMUTATIONS:,}, not {num_perm:,}")
    if keep not in get_args(Keep):
        raise PilekitError(f'keep is "longest" or "first", not {visible(repr(keep), 80)}')
    if memory < SMALLEST_MEMORY:
        raise PilekitError(f"memory must be at least {SMALLEST_MEMORY // 10**6} MB, not {memory:,} bytes")
    if jobs is not None and jobs < 1:
        raise PilekitError(f"jobs must be at least 1, not {jobs}")
    if on_error not in get_args(OnError):
        raise PilekitError(f'on_error is "raise" or "skip", not {visible(repr(on_error), 80)}')
