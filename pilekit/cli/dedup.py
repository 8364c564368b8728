"""`pilekit dedup`: a corpus without copies and near-duplicates."""

from __future__ import annotations

from typing import Any

import click

from pilekit.cli.display.output import print_result, report_protected, say, sum_of
from pilekit.cli.options import (
    Described,
    Similarity,
    corpus_and_only,
    folder_option,
    held_out_option,
    open_subsets,
    sort_options,
)
from pilekit.display.progress import step_progress
from pilekit.errors import counted


def _no_parts(context: click.Context, option: click.Parameter, typed: str | None) -> None:
    if typed is not None:
        raise click.UsageError(
            "dedup has no --part: it compares all shards with each other, in several steps; run it on one machine "
            "or with --cluster"
        )


@click.command()
@corpus_and_only
@click.option(
    "--threshold", type=Similarity(0, 1, min_open=True), default=0.8, help="Least similarity of near-duplicates."
)
@click.option("--ngram", type=click.IntRange(1, 100), default=5, help="Words in an n-gram.")
@click.option("--num-perm", type=click.IntRange(1, 4096), default=128, help="MinHash permutations, about.")
@click.option(
    "--keep", type=click.Choice(["longest", "first"]), default="longest", help="Which of similar documents stays."
)
@held_out_option
@folder_option("--against", "An earlier run: remove documents that it holds too; its documents come first.")
@folder_option("--out", "New folder for the clean shards, the masks, the proofs and the summary.", default="dedup")
@click.option("--no-write", is_flag=True, help="No clean shards; masks and proofs only.")
@sort_options
@click.option("--part", hidden=True, callback=_no_parts, expose_value=False)
def command(paths: tuple[str, ...], manifest: Described, no_write: bool, as_json: bool, **options: Any) -> None:
    """Remove copies and near-duplicates, with a proof for each, and keep all labels.

    Two documents are near-duplicates if the sets of their word n-grams are similar (Jaccard) to the threshold or more.
    A document is removed only if a document that stays is so similar to it. The similarity is computed exactly;
    removed.parquet in DIR names both. DIR/clean holds the lines that stay, byte for byte. DIR/masks holds a bit for
    each document. Documents of other subsets pass through. Val and test shards among others are left out, or with
    --held-out protect they stay whole and the others lose what they have. Memory does not grow with the corpus. A
    killed run resumes when run again.

    \b
    Example:
      pilekit dedup data/
      pilekit dedup data/ --subsets ArXiv,GitHub --threshold 0.7 --out unique
      pilekit dedup data/ --held-out protect
      pilekit dedup more/ --against unique --out more-unique
      pilekit duplicates unique
    """
    from pilekit.dedup.run import dedup_corpus
    from pilekit.dedup.sketch.bands import choose_bands

    corpus, options["subsets"] = open_subsets(paths, manifest, options["subsets"], only=options["only"])
    click.echo(choose_bands(options["threshold"], options["num_perm"]).curve(), err=True)
    with step_progress() as advance:
        result = dedup_corpus(corpus, write=not no_write, advance=advance, **options)
    summary = result.summary
    if print_result(result, as_json):
        say(sum_of(summary, *(name for name in ("kept", "removed", "skipped", "left_out") if name in summary)))
        written = "" if no_write or not summary["kept"] else "clean shards, "
        say(f"{written}masks and removed.parquet in {result.folder}")
    if "held_out" in summary:
        report_protected(summary["held_out"], f"{summary['like_held_out']:,} of the removed documents are like these")
    if "hot" in summary:
        hot = counted(
            summary["hot"]["documents"],
            "document in a very large group of look-alikes was",
            "documents in very large groups of look-alikes were",
        )
        click.echo(f"{hot} compared with only a part of their group; pairs may be missed there", err=True)
    if "up_sampled" in summary:
        click.echo(
            f"warning: {counted(summary['up_sampled'], 'exact copy is', 'exact copies are')} in subsets that the "
            "corpus repeats on purpose. In a released train split, most of them are up-sampling; `repeats` restores "
            "it in training",
            err=True,
        )
