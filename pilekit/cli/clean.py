"""`pilekit clean`: the documents that quality rules drop, and the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.display.output import print_fitted, report_skipped, say, sum_of
from pilekit.cli.options import Described, Similarity, corpus_and_only, folder_option, open_subsets, run_options
from pilekit.display.progress import byte_progress
from pilekit.errors import shortened, visible

if TYPE_CHECKING:
    from pilekit.pipeline.cleaner import CleanResult

ALL = "gopher,c4,fineweb"
SHOWN_CHARS = 600
"""Characters of a document that --show prints."""


@click.command()
@corpus_and_only
@click.option(
    "--rules",
    metavar="SETS",
    help="Sets separated by commas: gopher-quality, gopher-repetition (gopher: both), c4, c4-fineweb, fineweb, "
    "fineweb-datatrove.  [default with --report: gopher,c4,fineweb]",
)
@click.option(
    "--set", "limits", multiple=True, metavar="RULE=VALUE", help="Another limit: gopher-quality.words=20,500."
)
@click.option("--report", is_flag=True, help="Write nothing; print what each rule drops.")
@folder_option("--out", "New folder for the shards, dropped.parquet and summary.json.")
@click.option("--show", metavar="RULE", help="Print documents that this rule alone drops, and the value that failed.")
@click.option("-n", "count", type=click.IntRange(min=1), default=5, help="How many --show prints.")
@click.option("--c4-lines", is_flag=True, help="Cut the documents that stay to the lines that C4 keeps.")
@click.option(
    "--bad-words", type=click.Path(path_type=Path), metavar="FILE", help="Words, one a line, for c4.bad_word."
)
@click.option("--pii", metavar="KINDS", help="Replace addresses in the documents that stay: email, ip or email,ip.")
@click.option("--language", metavar="NAMES", help="Drop other languages than these labels of the model: en,de.")
@click.option("--language-model", type=click.Path(path_type=Path), metavar="FILE", help="A fastText model you have.")
@click.option("--language-score", type=Similarity(0, 1), default=0.65, help="The least score of the label.")
@run_options
def command(
    paths: tuple[str, ...],
    manifest: Described,
    subsets: str | None,
    rules: str | None,
    limits: Sequence[str],
    report: bool,
    out: Path | None,
    show: str | None,
    count: int,
    bad_words: Path | None,
    pii: str | None,
    language: str | None,
    language_model: Path | None,
    language_score: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Count the documents that published quality rules would drop, per subset, and write the others.

    A row of --report has the number of documents that fail a rule, and of those that fail no other rule. All rules
    judge the unchanged text. A word is a piece of `text.split()`. --out writes the kept documents, their lines byte for
    byte. Its dropped.parquet names the rules that each dropped document fails. A killed run resumes when run again.

    The rules were made for text from the web and drop most code: name the --subsets they suit. Documents of other
    subsets pass untouched.

    \b
    Example:
      pilekit clean data/ --report
      pilekit clean data/ --subsets Pile-CC --rules gopher --show gopher-quality.stop_words
      pilekit clean data/ --subsets Pile-CC,OpenWebText2 --rules gopher,c4-fineweb --out clean
      pilekit clean data/ --pii email,ip --out without-addresses
    """
    if report and out is not None:
        raise click.UsageError("--report writes nothing; leave out --report or --out")
    if not report and out is None and show is None:
        raise click.UsageError("say what to do: --report, --show RULE, or --out DIR")
    if (language is None) != (language_model is None):
        raise click.UsageError("--language and --language-model belong together: the labels, and the model's file")
    from pilekit.pipeline.cleaner import Cleaner
    from pilekit.pipeline.cleaning import clean_corpus, examples
    from pilekit.pipeline.language import Language
    from pilekit.pipeline.rules.sets import rule_sets, with_limits

    if rules is None and out is None and not (language or pii):
        rules = ALL
    options["rules"] = sets = with_limits(rule_sets(rules or (), bad_words), limits)
    if language is not None and language_model is not None:
        options["language"] = Language(language_model, language, language_score)
    corpus, judged = open_subsets(paths, manifest, subsets, only=options["only"])
    corpus = corpus.without_held_out()
    shown: list[dict[str, Any]] = []
    cleaned: CleanResult | None = None
    if show is not None:  # First, so that a wrong name is not reported after hours.
        cleaner = Cleaner(sets, judged, options.get("language"))
        with byte_progress("looking", corpus.size) as advance:
            shown = list(islice(examples(corpus, cleaner, show, on_error=options["on_error"], advance=advance), count))
    if report or out is not None:
        with byte_progress("judging" if report else "cleaning", corpus.size) as advance:
            cleaned = clean_corpus(corpus, out, subsets=judged, pii=pii or (), advance=advance, **options)
        report_skipped(cleaned.skipped)
    if as_json:
        figures = {} if cleaned is None else cleaned.to_dict()
        click.echo(json.dumps(figures if show is None else {**figures, "shown": shown}, indent=2))
        return
    if cleaned is not None:
        _print_cleaned(cleaned)
    for example in shown:
        _print_example(example, show)
    if show is not None and not shown:
        say(f"no document fails {shortened(show, 80)} alone")


def _print_cleaned(cleaned: CleanResult) -> None:
    """The table, if there are rules, and the sum of the parts."""
    counts = cleaned.summary
    if counts["rules"]:
        print_fitted(cleaned.table())
    say(sum_of(counts, "kept", "dropped"))
    if counts["edited"]:
        edited = {name: subset["edited"] for name, subset in counts["subsets"].items() if subset["edited"]}
        by_subset = ", ".join(f"{shortened(name, 40)} {number:,}" for name, number in edited.items())
        say(f"{counts['edited']:,} of the kept ones changed: {by_subset}")
    for label, documents in sorted(counts.get("languages", {}).items(), key=lambda item: -item[1])[:10]:
        say(f"language {shortened(label, 20) or '(none)'}: {documents:,}")
    if cleaned.folder is not None:
        say(f"shards and dropped.parquet in {cleaned.folder}")


def _print_example(example: dict[str, Any], rule: str | None) -> None:
    place = f"{visible(example['shard'])} {example['number']} | {visible(example['subset'], 60)}"
    value = example["value"]
    shown = (
        f"{value[0]} {value[1]:.2f}" if isinstance(value, list) else "undefined" if value is None else f"{value:.4g}"
    )
    click.echo(f"==> {place} | {rule} = {visible(shown)} <==")
    text = example["text"]
    click.echo("\n".join(map(visible, text[:SHOWN_CHARS].split("\n"))))
    if len(text) > SHOWN_CHARS:
        click.echo(f"… ({len(text):,} characters)")
