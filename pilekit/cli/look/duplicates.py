"""`pilekit duplicates`: removed documents beside the kept ones, or cut passages, so that a person can judge."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.display.output import print_fitted, printed, terminal
from pilekit.cli.options import Similarity, folder
from pilekit.errors import PilekitError, counted, visible
from pilekit.progress import step_progress

if TYPE_CHECKING:
    from pilekit.dedup.show.removed_pairs import RemovedPair

SHOWN_CHARACTERS, SHOWN_DOCUMENTS, SORTING = 1000, 10, 1 << 30
"""Characters and documents shown of a passage that was cut, and the memory for counting passages."""


@click.command()
@click.argument("folder", type=folder, metavar="DIR")
@click.option("--subset", metavar="NAME", help="Only documents removed from this subset.")
@click.option(
    "--min-similarity",
    type=Similarity(0, 1),
    default=0.0,
    show_default=False,
    help="Only pairs at least so similar.  [default: all]",
)
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, help="Pairs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print which pairs they are as JSON, without the texts.")
def command(folder: Path, subset: str | None, min_similarity: float, count: int, as_json: bool) -> None:
    """Show documents that `pilekit dedup` removed beside the kept ones, with differing words marked.

    DIR is the folder that `pilekit dedup` wrote. Its shards are read again. Pairs are spread evenly over the
    similarities, the least similar first. Exact copies come last, and only if there are too few others.

    Words of the kept document alone are green, words of the removed document alone are red. Case, spaces and
    punctuation make no difference, as in the similarity. Only a part of a long text is compared.

    For a folder that `pilekit substrings` wrote, the passages that occur most often are shown, each with the documents
    that held it.

    \b
    Example:
      pilekit duplicates dedup
      pilekit duplicates dedup --subset ArXiv -n 3
      pilekit duplicates dedup --min-similarity 0.95
    """
    from pilekit.artifacts.header import read_header
    from pilekit.dedup.previous_runs import finished_header, finished_run
    from pilekit.dedup.result import REMOVED
    from pilekit.dedup.show.removed_pairs import pair_texts, spread_pairs

    header = read_header(folder)
    if header.kind == "substrings":
        if subset is not None or min_similarity:
            raise click.UsageError("--subset and --min-similarity are for what `pilekit dedup` removed")
        _show_passages(folder, count, as_json)
        return
    finished_header(folder)  # Refuse a bad folder now.
    name = None if subset is None else _exact_name(subset, folder / REMOVED)
    pairs, total = spread_pairs(folder / REMOVED, count, subset=name, min_similarity=min_similarity)
    if printed({"removed": total, "pairs": [asdict(pair) for pair in pairs]}, as_json):
        return
    if not pairs:
        asked = subset is not None or min_similarity > 0
        click.echo(f"no {'such ' * asked}document was removed")
        return
    with step_progress() as advance:
        texts = pair_texts(pairs, finished_run(folder), advance)
    _print(pairs, texts)
    click.echo(f"{len(pairs):,} of {counted(total, 'removed document')}")


def _show_passages(folder: Path, count: int, as_json: bool) -> None:
    """Print the passages that `pilekit substrings` cut most often, and the documents that held them."""
    import tempfile

    from pilekit.artifacts.header import finished_header
    from pilekit.cutting.cut_result import REPEATS
    from pilekit.cutting.passages import frequent_passages
    from pilekit.dedup.previous_runs import manifest_of

    header = finished_header(folder, "substrings", "pilekit substrings")
    manifest, paths = manifest_of(header.parameters), header.results["/found"]["result"]["paths"]
    with tempfile.TemporaryDirectory() as scratch:
        sizes: dict[str, Any] = {"most": count, "rows": SHOWN_DOCUMENTS, "scratch": Path(scratch), "memory": SORTING}
        passages = frequent_passages(folder / REPEATS, paths, manifest, **sizes)
    if printed([{"count": one.count, "documents": one.rows} for one in passages], as_json):
        return
    for place, one in enumerate(passages, 1):
        first = one.rows[0]
        click.echo(f"{place} of {len(passages)}: {one.count:,} times")
        for line in one.text[:SHOWN_CHARACTERS].splitlines():
            click.echo(f"    {visible(line)}".rstrip())
        click.echo(
            f"stays: {visible(first['first_shard'], 100)} {first['first_number']:,} from {first['first_start']:,}"
        )
        for row in one.rows:
            of = f"{visible(row['shard'], 100)} {row['number']:,}, {visible(row['subset'], 60)}"
            click.echo(f"cut:   {of} from {row['start']:,} to {row['end']:,}")
        more = one.count - 1 - len(one.rows)
        click.echo(f"and {more:,} more\n" if more else "")
    if not passages:
        click.echo("no passage was cut")


def _exact_name(subset: str, removed: Path) -> str:
    """The label as the corpus has it, or the Pile's name for it; PilekitError if no removed document has it."""
    from pilekit.corpus import resolve_subsets
    from pilekit.dedup.show.removed_pairs import subsets_of
    from pilekit.shards.verify.findings import some_names

    labels = subsets_of(removed)
    if subset in labels or not labels:
        return subset
    with suppress(PilekitError):
        (name,) = resolve_subsets(subset)
        if name in labels:
            return name
    raise PilekitError(
        f'no document of subset "{visible(subset, 60)}" was removed; removed ones are of {some_names(labels)}'
    )


def _print(pairs: list[RemovedPair], texts: list[tuple[str, str]]) -> None:
    from rich import text

    from pilekit.dedup.show.side_by_side import side_by_side
    from pilekit.dedup.show.word_diff import word_diff

    console = terminal()
    colour = console.color_system is not None and not console.no_color
    for place, (pair, both) in enumerate(zip(pairs, texts, strict=True), 1):
        how = "exact copy" if pair.reason == "exact" else f"similarity {pair.similarity:.4f}"
        console.print(text.Text(f"{place} of {len(pairs)}: {how}", style="bold"))
        kept = f"kept: {visible(pair.kept_shard, 100)} {pair.kept_number:,}, {visible(pair.kept_subset, 60)}"
        kept += {"against": " (of an earlier run)", "held-out": " (held out)"}.get(pair.kept_corpus, "")
        removed = f"removed: {visible(pair.shard, 100)} {pair.number:,}, {visible(pair.subset, 60)}"
        print_fitted(side_by_side(word_diff(*both), (kept, removed), colour=colour))
        console.print()
