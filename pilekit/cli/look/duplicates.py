"""`pilekit duplicates`: removed documents beside the kept ones, or cut passages, so that a person can judge."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilekit.cli.display.output import print_fitted, printed, say, terminal
from pilekit.cli.options import Similarity, folder
from pilekit.display.progress import step_progress
from pilekit.errors import PilekitError, counted, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilekit.cutting.cut_folder import CutFolder
    from pilekit.cutting.cut_texts import Passage
    from pilekit.dedup.show.removed_pairs import RemovedPair
    from pilekit.dedup.show.word_diff import WordDiff

SHOWN_DOCUMENTS, SORTING = 10, 1 << 30
"""Documents shown of a passage that was cut, and the memory for counting passages."""


@click.command()
@click.argument("folder", type=folder, metavar="DIR")
@click.option("--subset", metavar="NAME", help="Only documents of this subset.")
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
    """Show documents that `pilekit dedup` removed, or text that was cut out, beside the text that stays.

    DIR is the folder that `pilekit dedup`, `decontaminate` or `substrings` wrote. Its shards are read again. Pairs are
    spread evenly over the similarities, the least similar first. Exact copies come last, and only if there are too few
    others.

    Words of the kept document alone are green, words of the removed document alone are red. Case, spaces and
    punctuation make no difference, as in the similarity. Only a part of a long text is compared.

    For a folder that `pilekit decontaminate` wrote, spans are shown beside the evaluation's record that holds them,
    evenly over their lengths, the shortest first. For a folder that `pilekit substrings` wrote, the passages that occur
    most often are shown: the earlier document, which stays, beside a document that was cut, and the others.

    \b
    Example:
      pilekit duplicates dedup
      pilekit duplicates dedup --subset ArXiv -n 3
      pilekit duplicates dedup --min-similarity 0.95
      pilekit duplicates decontaminated --subset Github
    """
    from pilekit.artifacts.header import finished_header, read_header
    from pilekit.cutting.cut_folder import KINDS, CutFolder
    from pilekit.dedup.previous_runs import COMMAND, KIND, finished_run
    from pilekit.dedup.result import REMOVED
    from pilekit.dedup.show.removed_pairs import pair_texts, spread_pairs, subsets_of

    if (kind := read_header(folder).kind) in KINDS:
        if min_similarity:
            raise click.UsageError("--min-similarity is for what `pilekit dedup` removed")
        cuts = CutFolder(folder)
        show = _show_spans if kind == "decontamination" else _show_passages
        show(cuts, _exact_name(subset, cuts.subsets()), count, as_json)
        return
    finished_header(folder, KIND, COMMAND)  # Refuse a bad folder now.
    name = _exact_name(subset, subsets_of(folder / REMOVED)) if subset is not None else None
    pairs, total = spread_pairs(folder / REMOVED, count, subset=name, min_similarity=min_similarity)
    if printed({"removed": total, "pairs": [asdict(pair) for pair in pairs]}, as_json):
        return
    if not pairs:
        is_restricted = subset is not None or min_similarity > 0
        say(f"no {'such ' * is_restricted}document was removed")
        return
    with step_progress() as advance:
        texts = pair_texts(pairs, finished_run(folder), advance)
    _print(pairs, texts)
    say(f"{len(pairs):,} of {counted(total, 'removed document')}")


def _show_spans(cuts: CutFolder, subset: str | None, count: int, as_json: bool) -> None:
    """Print spans that `pilekit decontaminate` cut, beside the records of evaluations that hold them."""
    from pilekit.cutting.cut_folder import evidence
    from pilekit.cutting.cut_texts import passages

    rows, total = cuts.spread(count, subset)
    if printed({"spans": total, "cuts": rows}, as_json):
        return
    for place, (row, pair) in enumerate(zip(rows, passages(cuts, rows), strict=True), 1):
        _print_cut(f"{place} of {len(rows)}: {evidence(row)}", pair)
    parameters = cuts.header.parameters
    window = f"{counted(parameters['window'], 'character')} on each side of a span went with it"
    removal = window if parameters["remove"] == "spans" else "their documents were dropped"
    say(f"{len(rows):,} of {counted(total, 'span')}; {removal}" if rows else "no span was cut")


def _show_passages(cuts: CutFolder, subset: str | None, count: int, as_json: bool) -> None:
    """Print the passages that `pilekit substrings` cut most often, and the documents that held them."""
    import tempfile

    from pilekit.artifacts.sort.scratch_files import Scratch
    from pilekit.corpus import Corpus, Shard
    from pilekit.cutting.cut_folder import evidence
    from pilekit.cutting.cut_texts import passages
    from pilekit.cutting.passages import frequent_passages

    corpus = Corpus.of_shards([Shard(name, path, None) for name, path in cuts.paths.items()], cuts.manifest)
    with tempfile.TemporaryDirectory() as scratch:
        sorting = Scratch(Path(scratch), SORTING)
        frequent = frequent_passages(
            cuts.table, corpus, most=count, rows=SHOWN_DOCUMENTS, scratch=sorting, subset=subset
        )
    if printed([{"count": passage.count, "documents": passage.rows} for passage in frequent], as_json):
        return
    pairs = passages(cuts, [passage.rows[0] for passage in frequent])
    for place, (passage, pair) in enumerate(zip(frequent, pairs, strict=True), 1):
        first, *later = passage.rows
        _print_cut(f"{place} of {len(frequent)}: {passage.count:,} times, {evidence(first)}", pair)
        for row in later:
            document = f"{shortened(row['shard'], 100)} {row['number']:,}, {shortened(row['subset'], 60)}"
            say(f"cut too: {document} from {row['start']:,} to {row['end']:,}")
        more = passage.count - 1 - len(passage.rows)
        click.echo(f"and {more:,} more\n" if more else "")
    if not frequent:
        click.echo("no passage was cut")


def _print_cut(title: str, pair: tuple[Passage, Passage]) -> None:
    from pilekit.dedup.show.word_diff import word_diff

    def before(passage: Passage) -> str:
        return f"…{passage.before[-60:].lstrip()}" if passage.before.strip() else ""

    def after(passage: Passage) -> str:
        return f"{passage.after[:60].rstrip()}…" if passage.after.strip() else ""

    stays, cut = pair
    around = [(before(stays), before(cut)), (after(stays), after(cut))]
    titles = (f"stays: {shortened(stays.place, 200)}", f"cut: {shortened(cut.place, 200)}")
    _print_beside(title, word_diff(stays.text, cut.text), titles, around)


def _exact_name(subset: str | None, labels: list[str]) -> str | None:
    """The label as the corpus has it, or the Pile's name for it; PilekitError if no removed document has it."""
    from pilekit.corpus import resolve_subsets
    from pilekit.shards.verify.findings import some_names

    if subset is None or subset in labels or not labels:
        return subset
    with suppress(PilekitError):
        (name,) = resolve_subsets(subset)
        if name in labels:
            return name
    raise PilekitError(
        f'no document of subset "{shortened(subset, 60)}" was removed; removed ones are of {some_names(labels)}'
    )


def _print(pairs: list[RemovedPair], texts: list[tuple[str, str]]) -> None:
    from pilekit.dedup.show.word_diff import word_diff

    for place, (pair, (kept_text, removed_text)) in enumerate(zip(pairs, texts, strict=True), 1):
        how = "exact copy" if pair.reason == "exact" else f"similarity {pair.similarity:.4f}"
        keeper = f"kept: {shortened(pair.kept_shard, 100)} {pair.kept_number:,}, {shortened(pair.kept_subset, 60)}"
        keeper += {"against": " (of an earlier run)", "held-out": " (held out)"}.get(pair.kept_corpus, "")
        removed = f"removed: {shortened(pair.shard, 100)} {pair.number:,}, {shortened(pair.subset, 60)}"
        _print_beside(f"{place} of {len(pairs)}: {how}", word_diff(kept_text, removed_text), (keeper, removed))


def _print_beside(title: str, diff: WordDiff, titles: tuple[str, str], around: Sequence[tuple[str, str]] = ()) -> None:
    from rich import text

    from pilekit.dedup.show.side_by_side import side_by_side

    console = terminal()
    colour = console.color_system is not None and not console.no_color
    console.print(text.Text(title, style="bold"))
    print_fitted(side_by_side(diff, titles, colour=colour, around=around))
    console.print()
