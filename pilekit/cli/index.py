"""`pilekit index`: an index beside every shard, for random access and for counting without reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.display.output import print_fitted, printed, report_skipped, say
from pilekit.cli.display.tables import index_table
from pilekit.cli.options import Described, on_error_option, open_corpus, paths_argument, shard_options
from pilekit.display.progress import byte_progress
from pilekit.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@paths_argument
@on_error_option("leave it out and count it")
@shard_options
def command(paths: tuple[str, ...], manifest: Described, as_json: bool, **options: Any) -> None:
    """Make an index of every shard: its documents, and where to begin reading.

    An index is a Parquet file, SHARD.index.parquet beside the shard (beside a Parquet shard .SHARD.index, hidden). It
    holds number, subset, text bytes and text hash of each document. If the folder is read-only or the shard is a URL,
    the index goes to $PILEKIT_CACHE (~/.cache/pilekit). An existing index is kept if it is complete, fits its shard and
    is newer than the shard. A killed run resumes when run again.

    \b
    Example:
      pilekit index 00.jsonl.zst
      pilekit index data/ --on-error skip
    """
    from pilekit.shards.index.build import index_corpus
    from pilekit.shards.index.format import bad_lines, index_places
    from pilekit.shards.read.absent_label import check_label
    from pilekit.shards.read.read_errors import SkippedLines

    corpus, part = open_corpus(paths, manifest), options["part"]
    with byte_progress("indexing", corpus.part(part).size) as advance:
        indexes = index_corpus(corpus, advance=advance, **options)
    rows = list(zip(corpus.part(part), indexes, strict=True))
    skipped = SkippedLines()
    for shard, index in rows:
        if index.built:
            skipped.merge(bad_lines(shard, index))
    report_skipped(skipped)
    check_label(corpus, set().union(*(index.subsets for index in indexes)))
    if printed({"shards": [{"shard": shard.name, **index.to_dict()} for shard, index in rows]}, as_json, corpus, part):
        return
    print_fitted(index_table(rows))
    cached = {index.path for shard, index in rows if index.path == index_places(shard)[-1]}
    print_places("Beside the shard", [index.path for _, index in rows if index.path not in cached])
    print_places("In the cache, not beside the shard", sorted(cached))


def print_places(title: str, paths: Sequence[str], *, err: bool = False) -> None:
    """Print where indexes are: the first of these paths, and the number of the others."""
    if paths:
        more = f" and {counted(len(paths) - 1, 'other')}" if len(paths) > 1 else ""
        say(f"{title}: {paths[0]}{more}", err=err)
