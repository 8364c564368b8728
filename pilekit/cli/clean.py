"""`pilekit clean`: what quality rules drop of a corpus, and the corpus without it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.display.output import print_fitted, report_skipped
from pilekit.cli.options import (
    Described,
    Folder,
    Similarity,
    corpus_argument,
    exact_subsets,
    jobs_option,
    json_option,
    on_error_option,
    open_corpus,
)
from pilekit.errors import PilekitError, visible
from pilekit.progress import byte_progress

if TYPE_CHECKING:
    from pilekit.pipeline.cleaned import Cleaned
    from pilekit.pipeline.cleaning import Example
    from pilekit.pipeline.language import Language
    from pilekit.pipeline.rules.rule_set import RuleSet

ALL = "gopher,c4,fineweb"
SHOWN_CHARS = 600
"""Characters of a document that --show prints."""


@click.command()
@corpus_argument
@click.option("--only", is_flag=True, help="Leave out the documents of all subsets that --subsets does not name.")
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
@click.option(
    "--out", type=Folder(), metavar="DIR", help="New folder for the shards, dropped.parquet and summary.json."
)
@click.option("--show", metavar="RULE", help="Print documents that this rule alone drops, and the value that failed.")
@click.option("-n", "count", type=click.IntRange(min=1), default=5, show_default=True, help="How many --show prints.")
@click.option("--c4-lines", is_flag=True, help="Cut the documents that stay to the lines that C4 keeps.")
@click.option(
    "--bad-words", type=click.Path(path_type=Path), metavar="FILE", help="Words, one a line, for c4.bad_word."
)
@click.option("--pii", metavar="KINDS", help="Replace addresses in the documents that stay: email, ip or email,ip.")
@click.option("--language", metavar="NAMES", help="Drop other languages than these labels of the model: en,de.")
@click.option("--language-model", type=click.Path(path_type=Path), metavar="FILE", help="A fastText model you have.")
@click.option(
    "--language-score", type=Similarity(0, 1), default=0.65, show_default=True, help="The least score of the label."
)
@on_error_option()
@jobs_option
@json_option
def command(
    paths: tuple[str, ...], manifest: Described, report: bool, out: Path | None, as_json: bool, **options: Any
) -> None:
    """See what published quality rules would drop, per subset, and write what they keep.

    A row of --report tells how many documents fail a rule, and how many fail it alone. All rules judge the unchanged
    text. A word is what `text.split()` gives. --out keeps the other documents, their lines byte for byte; its
    dropped.parquet names the rules that each dropped document fails. A killed run resumes when run again.

    The rules were made for text from the web and drop most code: name the --subsets they suit. Documents of other
    subsets pass untouched.

    \b
    Example:
      pilekit clean data/ --report
      pilekit clean data/ --subsets Pile-CC --rules gopher --show gopher-quality.stop_words
      pilekit clean data/ --subsets Pile-CC,OpenWebText2 --rules gopher,c4-fineweb --out clean
      pilekit clean data/ --pii email,ip --out without-addresses
    """
    names, show, count = options.pop("rules"), options.pop("show"), options.pop("count")
    if report and out is not None:
        raise click.UsageError("--report writes nothing; leave out --report or --out.")
    if not report and out is None and show is None:
        raise click.UsageError("say what to do: --report, --show RULE, or --out DIR")
    if options["only"] and options["subsets"] is None:
        raise click.UsageError("--only needs --subsets: it leaves out the documents of all other subsets")
    language = _language(options.pop("language"), options.pop("language_model"), options.pop("language_score"))
    options["pii"] = [] if options["pii"] is None else [kind.strip() for kind in options["pii"].split(",")]
    if names is None and not (language or options["pii"]):
        if out is not None:
            raise click.UsageError("say what is dropped: --rules, --language, or --pii for what is replaced")
        names = ALL
    from pilekit.pipeline.cleaning import clean_corpus, cleaner_for, examples

    options["rules"] = _rules(
        () if names is None else names.split(","), options.pop("limits"), options.pop("bad_words")
    )
    options["language"] = language
    corpus = open_corpus(paths, manifest)
    options["subsets"] = exact_subsets(options["subsets"], corpus)
    on_error, jobs = options.pop("on_error"), options.pop("jobs")
    shown: list[Example] = []
    cleaned: Cleaned | None = None
    if show is not None:  # First, because a wrong name should not be told after hours.
        cleaner = cleaner_for(corpus, **options)
        with byte_progress("looking", corpus.size) as advance:
            shown = list(itertools.islice(examples(corpus, cleaner, show, on_error=on_error, advance=advance), count))
    if report or out is not None:
        with byte_progress("judging" if report else "cleaning", corpus.size) as advance:
            cleaned = clean_corpus(corpus, out, on_error=on_error, jobs=jobs, advance=advance, **options)
        report_skipped(cleaned.skipped)
    if as_json:
        found = {} if cleaned is None else cleaned.to_dict()
        click.echo(json.dumps(found | ({} if show is None else {"shown": [one._asdict() for one in shown]}), indent=2))
        return
    if cleaned is not None:
        _print_tables(cleaned)
    for example in shown:
        _print_example(example, show)
    if show is not None and not shown:
        click.echo(f"no document fails {visible(show, 80)} alone")


def _rules(names: Sequence[str], limits: Sequence[str], bad_words: Path | None) -> dict[str, RuleSet]:
    """The chosen sets with their limits and bad words."""
    from pilekit.pipeline.rules import C4
    from pilekit.pipeline.rules.sets import rule_sets, with_limits

    sets = with_limits(rule_sets(name.strip() for name in names), limits)
    if bad_words is None:
        return sets
    if not any(isinstance(rules, C4) for rules in sets.values()):
        raise click.UsageError("--bad-words is a rule of C4: choose c4 or c4-fineweb with --rules")
    try:
        words = tuple(filter(None, map(str.strip, bad_words.read_text("utf-8").splitlines())))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise PilekitError(f"{visible(str(bad_words))}: cannot be read: {why}") from error
    if not words:
        raise PilekitError(f"{visible(str(bad_words))}: holds no words; write one a line")
    return {name: replace(rules, bad_words=words) if isinstance(rules, C4) else rules for name, rules in sets.items()}


def _language(names: str | None, model: Path | None, score: float) -> Language | None:
    if (names is None) != (model is None):
        raise click.UsageError("--language and --language-model belong together: the labels, and the model's file")
    if names is None or model is None:
        return None
    from pilekit.pipeline.language import Language

    return Language(str(model), [name.strip() for name in names.split(",")], score)


def _print_tables(cleaned: Cleaned) -> None:
    """A table for each subset of which something is dropped, one for all, and the sum of the parts."""
    counts = cleaned.summary
    if len(cleaned.judged) > 1:
        for name in cleaned.judged:
            if counts["subsets"][name]["dropped"]:
                print_fitted(cleaned.table(name))
                click.echo()
    if counts["rules"]:
        print_fitted(cleaned.table())
    parts = [f"{counts['kept']:,} kept", f"{counts['dropped']:,} dropped"]
    parts += [f"{counts[name]:,} {name.replace('_', ' ')}" for name in ("skipped", "left_out") if counts[name]]
    click.echo(f"{counts['read']:,} read = {' + '.join(parts)}")
    if counts["edited"]:
        edited = {name: one["edited"] for name, one in counts["subsets"].items() if one["edited"]}
        of_subsets = ", ".join(f"{visible(name, 40)} {number:,}" for name, number in edited.items())
        click.echo(f"{counts['edited']:,} of the kept ones changed: {of_subsets}")
    for label, documents in sorted(counts.get("languages", {}).items(), key=lambda item: -item[1])[:10]:
        click.echo(f"language {visible(label, 20) or '(none)'}: {documents:,}")
    if cleaned.folder is not None:
        click.echo(f"shards and dropped.parquet in {visible(str(cleaned.folder))}")


def _print_example(example: Example, rule: str) -> None:
    place = f"{visible(example.shard)} {example.number} | {visible(example.subset, 60)}"
    click.echo(f"==> {place} | {rule} = {visible(example.value)} <==")
    for line in example.text[:SHOWN_CHARS].split("\n"):
        click.echo(visible(line))
    if len(example.text) > SHOWN_CHARS:
        click.echo(f"… ({len(example.text):,} characters)")
