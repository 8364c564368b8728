"""`pilekit reframe`: shards in small frames with checksums, and an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilekit.cli.display.output import print_fitted, printed, say
from pilekit.cli.display.tables import reframe_table
from pilekit.cli.options import ByteSize, Described, open_corpus, out_option, paths_argument, shard_options
from pilekit.display.progress import byte_progress
from pilekit.errors import counted


@click.command()
@paths_argument
@out_option
@click.option(
    "--frame",
    "frame_bytes",
    type=ByteSize(4096),
    default="1MiB",
    metavar="SIZE",
    help="Text in a frame: smaller reads one document faster, larger compresses better.",
)
@click.option("--level", type=click.IntRange(1, 22), default=3, help="zstd compression level.")
@shard_options
def command(paths: tuple[str, ...], manifest: Described, out: Path, as_json: bool, **options: Any) -> None:
    """Write the same lines as .zst that can be read from anywhere, with checksums and an index.

    The text stays as it is, byte for byte. It is cut at line ends into frames, each with a checksum. Every zstd tool
    reads the files. Each file is read back from disk and compared before it gets its name. A killed run resumes when
    run again.

    \b
    Example:
      pilekit reframe 00.jsonl.zst --out seekable
      pilekit reframe data/ --out archive --frame 16MiB --level 19
      pilekit reframe data/ --out seekable --part "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
    """
    from pilekit.corpus import Shard
    from pilekit.shards.index.format import find_index
    from pilekit.shards.read.absent_label import check_label
    from pilekit.shards.write.reframe import reframe_corpus

    corpus, part = open_corpus(paths, manifest), options["part"]
    with byte_progress("reframing", corpus.part(part).size) as advance:
        reframed = reframe_corpus(corpus, out, advance=advance, **options)
    written = [Shard(result.shard, str(out / f"{result.shard}.zst"), result.stored_bytes) for result in reframed]
    indexes = [find_index(shard, corpus.manifest, warn=False) for shard in written]
    check_label(corpus, set().union(*(index.subsets for index in indexes if index is not None)))
    if printed({"shards": [shard.to_dict() for shard in reframed]}, as_json, corpus, part):
        return
    print_fitted(reframe_table(reframed))
    say(f"{counted(len(reframed), 'shard')} in {out}")
