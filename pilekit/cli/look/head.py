"""`pilekit head`: the first documents of a corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.display.output import report_skipped
from pilekit.cli.look.documents import chosen, document_options, print_documents, tell_if_none

if TYPE_CHECKING:
    from pilekit.shards.read.reader import OnError


@click.command()
@document_options
def command(paths: tuple[str, ...], count: int, on_error: OnError, as_json: bool, full: bool, **options: Any) -> None:
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

    corpus, names, stages = chosen(paths, options)
    left, labels = count, set[str]()
    with read_corpus(corpus, names, on_error) as reader:
        for batch in Pipeline(stages)(reader):
            printed = batch.take(range(min(left, len(batch))))
            print_documents(printed, as_json=as_json, full=full)
            labels.update(printed.subsets)
            left -= len(batch)
            if left <= 0:
                break
    tell_if_none(labels, corpus, names)
    report_skipped(reader.skipped)
