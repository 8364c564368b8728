"""`pilekit duplicates`: removed documents beside the kept ones, so that a person can judge."""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilekit.cli.progress import byte_progress
from pilekit.errors import PilekitError, visible

if TYPE_CHECKING:
    from pilekit.dedup.earlier_run import EarlierRun
    from pilekit.dedup.removed_pairs import RemovedPair

MOST_HELD = 100_000_000
"""Characters of all texts together that are held, the same of each: shards are gone through once, for all pairs."""

Identity = tuple[str, str, int]
"""Corpus (`this` or `against`), shard's name and document's number."""


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--subset", metavar="NAME", help="Only documents removed from this subset.")
@click.option(
    "--min-similarity",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Only pairs at least so similar.  [default: all]",
)
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="Pairs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print which pairs they are as JSON, without the texts.")
def command(folder: str, subset: str | None, min_similarity: float, count: int, as_json: bool) -> None:
    """Show what `pilekit dedup` removed beside what it kept, the differing words marked.

    DIR is the folder that `pilekit dedup` wrote; the shards that it read are read again. Pairs are spread evenly over
    the similarities, the least similar first: they are what the threshold let through. Exact copies come last, and only
    where there are too few others.

    Green is what only the kept document has, red what only the removed one had.

    \b
    Example:
      pilekit duplicates dedup
      pilekit duplicates dedup --subset ArXiv -n 3
      pilekit duplicates dedup --min-similarity 0.95
    """
    from pilekit.corpus import read_header
    from pilekit.dedup.deduplication import REMOVED
    from pilekit.dedup.earlier_run import KIND, earlier_run
    from pilekit.dedup.removed_pairs import spread_pairs

    parameters = read_header(folder, KIND).parameters
    name = None if subset is None else _exact_name(subset, Path(folder))
    pairs, total = spread_pairs(Path(folder) / REMOVED, count, subset=name, min_similarity=min_similarity)
    if as_json:
        click.echo(json.dumps({"removed": total, "pairs": [asdict(pair) for pair in pairs]}, indent=2))
        return
    if not pairs:
        asked = subset is not None or min_similarity > 0
        click.echo(f"no {'such ' * asked}document was removed")
        return
    _print(pairs, _texts(pairs, earlier_run(folder, parameters)))
    click.echo(f"{len(pairs):,} of {total:,} removed document{'s' * (total != 1)}")


def _exact_name(subset: str, folder: Path) -> str:
    """The label as the corpus has it, or what it means in the Pile."""
    from pilekit.corpus import resolve_subsets

    try:
        labels = json.loads((folder / "summary.json").read_bytes())["subsets"]
    except (OSError, ValueError, LookupError) as error:
        raise PilekitError(f"{visible(str(folder / 'summary.json'))}: cannot be read: {error}") from error
    return subset if subset in labels else resolve_subsets(subset)[0]


def _texts(pairs: list[RemovedPair], run: EarlierRun) -> dict[Identity, tuple[str, int]]:
    """The texts of all documents, as much as is held, and how many more characters each has."""
    import msgspec

    from pilekit.corpus import load_manifest, read_header
    from pilekit.dedup.deduplication import DONE
    from pilekit.dedup.earlier_run import KIND, earlier_run
    from pilekit.shards.index import find_index
    from pilekit.shards.opening import is_parquet
    from pilekit.shards.random_access import DocumentReader

    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for pair in pairs:
        numbers["this", pair.shard].add(pair.number)
        numbers[pair.kept_corpus, pair.kept_shard].add(pair.kept_number)
    header = read_header(run.folder, KIND)
    runs = {"this": run}
    if any(pair.kept_corpus == "against" for pair in pairs):
        runs["against"] = earlier_run(header.results[DONE]["result"]["against"], header.parameters)
    shards = {(corpus, shard.name): shard for corpus, one in runs.items() for shard in one.shards}
    manifest = msgspec.structs.replace(
        load_manifest(), text_field=header.parameters["text_field"], label_path=header.parameters["label_path"]
    )
    indexes = {key: find_index(shards[key], manifest) for key in sorted(numbers)}
    without = [shards[key] for key, index in indexes.items() if index is None and not is_parquet(shards[key].path)]
    texts: dict[Identity, tuple[str, int]] = {}
    most = MOST_HELD // sum(map(len, numbers.values()))
    with byte_progress("reading", sum(shard.size or 0 for shard in without)) as advance:
        for key, index in indexes.items():
            with closing(DocumentReader(shards[key], index, manifest=manifest, advance=advance)) as reader:
                for document in reader.read(sorted(numbers[key])):
                    texts[*key, document.number] = document.text[:most], max(0, len(document.text) - most)
    return texts


def _print(pairs: list[RemovedPair], texts: dict[Identity, tuple[str, int]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from pilekit.dedup.side_by_side import side_by_side
    from pilekit.dedup.word_diff import word_diff

    console = Console(file=sys.stdout, width=shutil.get_terminal_size().columns, highlight=False)
    colour = console.color_system is not None and not console.no_color
    for place, pair in enumerate(pairs, 1):
        how = "exact copy" if pair.reason == "exact" else f"similarity {pair.similarity:.4f}"
        console.print(Text(f"{place} of {len(pairs)}: {how}", style="bold"))
        kept = f"kept: {visible(pair.kept_shard, 100)} {pair.kept_number:,}, {visible(pair.kept_subset, 60)}"
        if pair.kept_corpus == "against":
            kept += " (of the earlier run)"
        removed = f"removed: {visible(pair.shard, 100)} {pair.number:,}, {visible(pair.subset, 60)}"
        one, more = texts[pair.kept_corpus, pair.kept_shard, pair.kept_number]
        other, more_of_other = texts["this", pair.shard, pair.number]
        diff = word_diff(one, other, unseen=(more, more_of_other))
        console.print(side_by_side(diff, (kept, removed), colour=colour))
        console.print()
