"""`clean_corpus`: writes a corpus without the documents that fail quality rules, or only counts them.

    read(shard) -> Cleaner.clean -> one shard of the same name, and a table of dropped documents     each shard
        -> dropped.parquet, summary.json

The shards' tables are stored in `.dropped/` until they are joined.
"""

from __future__ import annotations

import collections
import functools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from pilekit.artifacts.atomic_write import write_json
from pilekit.artifacts.job_folder import Output
from pilekit.artifacts.parquet_rows import join_tables, parquet_rows, required
from pilekit.corpus import Corpus, Described, Shard, Source, subsets_or_all
from pilekit.corpus.shard import check_stems, stem
from pilekit.corpus.sidecar_files import DROPPED
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, counted, shortened
from pilekit.pipeline.cleaner import Cleaner, CleanResult, summarize
from pilekit.pipeline.language import Language
from pilekit.pipeline.pipeline import described
from pilekit.pipeline.redact_pii import RedactPII
from pilekit.pipeline.rules.c4 import C4
from pilekit.pipeline.rules.rule_set import RuleSet
from pilekit.pipeline.rules.sets import named_near, rule_sets
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import corpus_folder
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import OnError, Reading, read, read_corpus
from pilekit.shards.work import Work, takes
from pilekit.shards.write.shard_writer import write_documents
from pilekit.workers import Advance

KIND, SUMMARY = "cleaning", "summary.json"
WHOLE = "/dropped"
"""The name of the note about the joined table; no shard's name begins with a slash."""

PARTS = ".dropped"
"""The folder of the shards' tables. Notes do not name these tables, which are removed when all are joined."""

DROPPED_ROWS = required(
    shard=pa.string(), number=pa.int64(), subset=pa.string(), bytes=pa.int64(), rules=pa.list_(pa.string())
)
"""The columns of `dropped.parquet`, whose rows are in the order of the corpus."""


@takes(Work)
def clean_corpus(
    corpus: Corpus | Source,
    out: str | Path | None = None,
    *,
    rules: Mapping[str, RuleSet] | str | Sequence[str] = (),
    subsets: Sequence[str] | None = None,
    only: bool = False,
    language: Language | None = None,
    c4_lines: bool = False,
    pii: str | Sequence[str] = (),
    manifest: Described = None,
    **work: Unpack[Work],
) -> CleanResult:
    """Count the documents that quality rules drop, per subset, and write the others into the folder `out`.

    corpus      a `Corpus`, a path, glob or URL, or a list of these; held-out shards among others are left out
    out         a new or empty folder, or that of an earlier run, which is resumed; None: count only
    rules       names of sets, such as `["gopher", "c4"]`, or sets by name, such as `{"mine": FineWeb(newlines=0.3)}`
    subsets     the subsets that are judged, in any spelling the manifest knows; all others pass untouched
    only        leave out the documents of all other subsets
    language    drop documents in other languages too
    c4_lines    cut the documents that stay to the lines that C4 keeps; needs a set of C4 among the rules
    pii         "email", "ip" or both: replace addresses in the documents that stay
    manifest    describes the corpus at a path, as for `Corpus`
    work        on_error, jobs, advance, cluster: see `Work`

    `out` holds shards of the same names, their lines byte for byte unless the text was changed, `dropped.parquet` with
    the rules that each dropped document fails, and `summary.json`. `PilekitError` if nothing is kept.
    """
    corpus = Corpus.of(corpus, manifest).without_held_out()
    judged = subsets_or_all(subsets, corpus.manifest)
    if only and judged is None:
        raise PilekitError("only (--only) needs subsets: it leaves out the documents of all other subsets")
    sets = dict(rules) if isinstance(rules, Mapping) else rule_sets(rules)
    redact = RedactPII(pii) if pii else None
    if not (sets or language or redact):
        raise PilekitError("nothing to do: give rules or a language to drop documents, or pii to replace addresses")
    edits = [rule_set.cut for rule_set in sets.values() if isinstance(rule_set, C4)][:1] if c4_lines else []
    if c4_lines and not edits:
        raise PilekitError("cutting documents to the lines that C4 keeps needs c4 or c4-fineweb among the rules")
    cleaner = Cleaner(sets, judged and sorted(judged), language, [*edits, *([redact.redact] if redact else [])], only)
    job = CorpusJob(corpus, **work)
    reading = functools.partial(read, on_error=job.on_error, manifest=corpus.manifest)
    clean = functools.partial(_clean_shard, cleaner=cleaner, reading=reading)
    if out is None:
        results = job.each(clean, corpus.shards)
        names = [shard.name for shard in corpus.shards]
        cleaned = _cleaned(None, dict(zip(names, results, strict=True)), corpus.shards)
        check_label(corpus, cleaned.summary["subsets"], judged)
        if not any(map(cleaner.judges, cleaned.summary["subsets"])):
            raise PilekitError(_why_nothing(cleaned, cleaner))
        return cleaned
    parameters = {
        **{f"{name}.{limit}": value for name, rule_set in sets.items() for limit, value in asdict(rule_set).items()},
        "subsets": cleaner.subsets,
        "only": only,
        "language": None if language is None else described(language),
        "c4_lines": c4_lines,
        "pii": sorted(redact.kinds) if redact else [],
    }
    check_stems(corpus.shards)
    with corpus_folder(job, out, kind=KIND, parameters=parameters) as folder_job:
        by_shard, output = folder_job.process_unfinished(clean, whole=WHOLE), folder_job.output
        cleaned = _cleaned(output.folder, by_shard, corpus.shards)
        if cleaned.summary["kept"] and WHOLE not in output.results():
            parts = (output.path(f"{PARTS}/{shard.name}", ".parquet") for shard in corpus.shards)
            dropped = join_tables(output.folder / DROPPED, DROPPED_ROWS, parts)
            output.note(WHOLE, {}, dropped, write_json(output.folder / SUMMARY, cleaned.summary))
        shutil.rmtree(output.folder / PARTS, ignore_errors=True)
        check_label(corpus, cleaned.summary["subsets"], judged, discard=output.discard)
        if not cleaned.summary["kept"]:
            output.forget()
            raise PilekitError(_why_nothing(cleaned, cleaner))
    return cleaned


def _clean_shard(
    shard: Shard,
    advance: Advance,
    *,
    cleaner: Cleaner,
    reading: Reading,
    share: Share,
    output: Output | None = None,
    inputs: Inputs | None = None,
) -> dict[str, Any]:
    """Count the kept and the dropped documents of one shard; with `output`, write both and note the counts."""
    counts: dict[str, dict[str, Any]] = {}
    with ExitStack() as opened:
        reader = opened.enter_context(reading(shard, advance=advance, ahead=share.ahead))
        cleanings = (cleaner.clean(batch, counts) for batch in reader)
        if output is None or inputs is None:
            collections.deque(cleanings, maxlen=0)
            return {"subsets": counts, **reader.skip_counts()}
        dropped = opened.enter_context(parquet_rows(output.path(f"{PARTS}/{shard.name}", ".parquet"), DROPPED_ROWS))

        def kept_documents() -> Iterator[DocumentBatch]:
            for batch, rows in cleanings:
                for row in rows:
                    dropped.add(row)
                yield batch

        path = output.path(stem(shard), ".jsonl.zst")
        files = write_documents(path, kept_documents(), lambda: inputs.check(shard))
    result = {"subsets": counts, **reader.skip_counts()}
    output.note(shard.name, result, *files)
    return result


def _cleaned(folder: Path | None, results: Mapping[str, Any], shards: Sequence[Shard]) -> CleanResult:
    """All shards' results together."""
    return CleanResult(folder, summarize(results.values()), SkippedLines.from_notes(results, shards))


def _why_nothing(cleaned: CleanResult, cleaner: Cleaner) -> str:
    """Why nothing is kept."""
    if dropped := cleaned.summary["dropped"]:
        return f"nothing is kept: each of {counted(dropped)} fails a rule"
    names = ", ".join(shortened(name, 60) for name in sorted(cleaner.subsets or ()))
    return f"there are no documents{names and f' of {names}'}; `pilekit stats` shows which subsets there are"


def examples(
    corpus: Corpus, cleaner: Cleaner, rule: str, *, on_error: OnError = "raise", advance: Advance | None = None
) -> Iterator[dict[str, Any]]:
    """The documents that only this rule drops, in the order of the corpus; PilekitError for an unknown rule.

    Each has `shard`, `number`, `subset`, `text`, and the `value` that the rule compares with its limit: a number, None
    if it is undefined, or [label, score] of `language`.
    """
    rules = cleaner.judge(DocumentBatch([], [], "", np.zeros(0, np.int64)))[0]
    if rule not in rules:
        raise PilekitError(f"{shortened(rule, 80)}: there is no such rule; {named_near(rule, rules)}")
    with read_corpus(corpus, cleaner.subsets, on_error, advance=advance) as batches:
        for batch in batches:
            fails, values = cleaner.judge(batch)
            alone = fails[rule] & (np.sum(list(fails.values()), axis=0) == 1)
            for index in np.flatnonzero(alone).tolist():
                value = values[rule][index]
                number = None if rule == "language" or np.isnan(value) else np.asarray(value).item()
                yield {
                    "shard": batch.shard,
                    "number": int(batch.numbers[index]),
                    "subset": batch.subsets[index],
                    "value": [value[0], float(value[1])] if rule == "language" else number,
                    "text": batch.texts[index],
                }
