"""`pilekit head` and `pilekit sample`: the first documents of a corpus, or random ones, as text or as lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click
import orjson

from pilekit.cli.display.output import print_text, report_skipped
from pilekit.cli.options import cluster_option, corpus_argument, jobs_option, on_error_option, open_subsets, together
from pilekit.display.progress import byte_progress
from pilekit.errors import counted, visible

if TYPE_CHECKING:
    from pilekit.corpus import Corpus
    from pilekit.documents import DocumentBatch
    from pilekit.pipeline.pipeline import Stage
    from pilekit.shards.read.reader import OnError

LONGEST = 2000
"""Characters of a text that a terminal shows without --full."""

min_bytes_option = click.option(
    "--min-bytes", type=click.IntRange(0, 2**30), metavar="N", help="N bytes of text or more."
)

document_options = together(
    corpus_argument,
    click.option("-n", "count", type=click.IntRange(min=1), default=10, help="How many."),
    click.option("--match", metavar="REGEX", help="Only documents in whose text this is found (Python's re)."),
    min_bytes_option,
    on_error_option(),
    click.option("--full", is_flag=True, help=f"On a terminal too, print texts of over {LONGEST:,} characters whole."),
    click.option("--json", "as_json", is_flag=True, help="A line of JSON each: shard, number, subset, the record."),
)
"""Adds `paths`, `subsets`, `manifest`, `count`, `match`, `min_bytes`, `on_error`, `full` and `as_json` to a command."""


@click.command()
@document_options
def head(paths: tuple[str, ...], count: int, on_error: OnError, as_json: bool, full: bool, **options: Any) -> None:
    """Print the first documents that pass all conditions.

    Reading stops there. A file or a pipe gets each text byte for byte below its heading. A terminal gets its first
    2,000 characters, unless --full is given, with control characters spelt out. `-` reads standard input.

    \b
    Example:
      pilekit head 00.jsonl.zst
      pilekit head data/ --subsets ArXiv -n 3
      pilekit head data/ --match '(?i)theorem' --json > theorems.jsonl
    """
    from pilekit.pipeline.pipeline import Pipeline
    from pilekit.shards.read.reader import read_corpus

    corpus, names, stages = _selection(paths, options)
    remaining, labels = count, set[str]()
    with read_corpus(corpus, names, on_error) as reader:
        for batch in Pipeline(stages)(reader):
            first = batch.take(range(min(remaining, len(batch))))
            _print_documents(first, as_json=as_json, full=full)
            labels.update(first.subsets)
            remaining -= len(first)
            if not remaining:
                break
    _report_nothing_found(labels, corpus, names)
    report_skipped(reader.skipped)


@click.command()
@document_options
@click.option("--seed", type=int, default=0, help="Another seed draws other documents.")
@jobs_option
@cluster_option
def sample(paths: tuple[str, ...], as_json: bool, full: bool, **options: Any) -> None:
    """Print documents drawn at random from the whole corpus, in its order.

    Every document that passes all conditions is equally likely. The same seed draws the same documents, and a larger
    sample holds a smaller one. All shards are read. To write a share of a corpus as shards, use `select --sample`. A
    terminal gets the first 2,000 characters of each text, unless --full is given.

    \b
    Example:
      pilekit sample 00.jsonl.zst -n 3
      pilekit sample data/ --subsets GitHub --min-bytes 1000 --seed 7
      pilekit sample data/ -n 1000 --json > sample.jsonl
    """
    from pilekit.pipeline.sample_documents import sample_documents

    corpus, names, stages = _selection(paths, options)
    with byte_progress("drawing", corpus.size) as advance:
        documents, skipped = sample_documents(corpus, subsets=names, stages=stages, advance=advance, **options)
    for document in documents:
        _print_documents(document, as_json=as_json, full=full)
    _report_nothing_found({name for document in documents for name in document.subsets}, corpus, names)
    report_skipped(skipped)


def _selection(paths: Sequence[str], options: dict[str, Any]) -> tuple[Corpus, tuple[str, ...] | None, list[Stage]]:
    """Take the options of the selection out, and return the corpus, the exact subsets and the stages for them."""
    from pilekit.pipeline.stages import Match, MinBytes

    match, min_bytes = options.pop("match"), options.pop("min_bytes")
    corpus, names = open_subsets(paths, options.pop("manifest"), options.pop("subsets"))
    stages: list[Stage] = [] if min_bytes is None else [MinBytes(min_bytes)]
    return corpus, names, stages + ([] if match is None else [Match(match)])


def _report_nothing_found(labels: Collection[str], corpus: Corpus, subsets: Collection[str] | None) -> None:
    """Warn if no document has a label, and say so if no document was printed, which looks like a failure.

    labels   the subsets of the documents that were printed
    """
    from pilekit.shards.read.absent_label import check_label

    check_label(corpus, labels, subsets, stopped=True)
    if not labels:
        click.echo("no document passes all conditions", err=True)


def _print_documents(batch: DocumentBatch, *, as_json: bool, full: bool) -> None:
    """Print all documents of `batch`. JSON lines keep the record byte for byte, so pilekit reads them as a shard.

    full   whether a terminal, too, gets texts of over `LONGEST` characters whole
    """
    longest = None if full or not sys.stdout.isatty() else LONGEST
    sizes: Sequence[int] = batch.text_bytes().tolist()
    for line, text, subset, number, size in zip(
        batch.raw_lines(), batch.texts, batch.subsets, batch.numbers.tolist(), sizes, strict=True
    ):
        place = {"shard": batch.shard, "number": number, "subset": subset}
        if as_json:
            fields = orjson.loads(line)
            more = {name: value for name, value in place.items() if name not in fields}
            opening = orjson.dumps(more)[:-1] + (b"," if more else b"")
            sys.stdout.buffer.write(b"%s%s\n" % (opening, bytes(line).partition(b"{")[2]))
            continue
        click.echo(f"==> {visible(batch.shard)} {number} | {visible(subset, 60)} | {counted(size, 'byte')} <==")
        print_text(text[:longest], ending=True)
        if longest is not None and len(text) > longest:
            click.echo(f"[{counted(len(text) - longest, 'character')} more; --full prints them]")
