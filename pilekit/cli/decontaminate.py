"""`pilekit decontaminate`: a corpus without the text of evaluations."""

from __future__ import annotations

from typing import Any

import click

from pilekit.cli.display.output import print_fitted, print_result, say, sum_of
from pilekit.cli.options import Described, corpus_and_only, folder_option, open_subsets, run_options
from pilekit.display.progress import step_progress
from pilekit.errors import counted

_AGAINST = "Evaluations, up to the next option: JSON lines, Parquet or Pile shards."


class _ManyEvaluations(click.Command):
    """Lets `--against` take all files up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `--against` before each of its files, and parse as click does."""
        spelt: list[str] = []
        taking = False
        for argument in args:
            if argument.startswith("-"):
                taking = argument == "--against"
            elif taking and spelt[-1] != "--against":
                spelt.append("--against")
            spelt.append(argument)
        return super().parse_args(ctx, spelt)


@click.command(cls=_ManyEvaluations)
@corpus_and_only
@click.option("--against", multiple=True, required=True, metavar="EVAL...", help=_AGAINST)
@click.option(
    "--fields", metavar="NAMES", help="A record's texts, or with --question its passages.  [default: text or none]"
)
@click.option("--question", metavar="FIELD", help="The question, whose answer is a record's secret.")
@click.option("--answer", metavar="FIELD", help="The answer, or with --choices its label, number from 0 or letter.")
@click.option("--choices", metavar="FIELD", help="The possible answers.")
@click.option("--reach", type=click.IntRange(0), default=500, help="Most characters from question to a leaked answer.")
@click.option("--cut", metavar="VERDICTS", help="What to cut: leak,question,text.  [default: leak,question; see above]")
@click.option("--ngram", type=click.IntRange(1, 100), default=13, help="Words in an n-gram.")
@click.option("--common", type=click.IntRange(0), default=10, help="Ignore n-grams in more documents; 0: ignore none.")
@click.option("--window", type=click.IntRange(0), default=200, help="Characters to cut on each side of a span.")
@click.option(
    "--remove", type=click.Choice(["spans", "documents"]), default="spans", help="Cut spans, or drop their documents."
)
@folder_option("--out", "New folder for the results.", default="decontaminated")
@click.option("--no-write", is_flag=True, help="No clean shards; proofs and summary only.")
@run_options
def command(
    paths: tuple[str, ...], manifest: Described, against: tuple[str, ...], no_write: bool, as_json: bool, **options: Any
) -> None:
    """Cut the text of evaluations out of a corpus, with a proof for each cut.

    A word is lower-cased and has no punctuation. An n-gram of 13 words that an evaluation and a document share is a
    hit. The words are compared, so no hit is false. Hits beside each other are a span. The span is cut out, with 200
    characters on each side, and the pieces around it become documents. n-grams in more than 10 documents are ignored,
    because licences and phrases are no leak. hits.parquet in DIR names each span and its record, evaluations.parquet
    the dirty records. Other lines stay byte for byte. A killed run resumes when run again.

    With --question and --answer each span has a verdict. It is a leak if the answer's words stand near the question, a
    question without them, and text if it is of --fields only. By default leaks and questions are cut, and text of
    evaluations in which no record has an answer.

    \b
    Example:
      pilekit decontaminate data/ --against gsm8k.parquet svamp.jsonl --fields question,answer
      pilekit decontaminate data/ --against val.jsonl.zst --no-write
      pilekit decontaminate data/ --against trivia.jsonl --question question --answer answer --cut leak
      pilekit decontaminate data/ --against mmlu.parquet --question question --choices choices --answer answer
    """
    from pilekit.cutting.decontaminate import decontaminate_corpus
    from pilekit.cutting.result import has_answers

    corpus, options["subsets"] = open_subsets(paths, manifest, options["subsets"], only=options["only"])
    for name in ("fields", "cut"):
        given = options[name]
        options[name] = None if given is None else [word.strip() for word in given.split(",")]
    with step_progress() as advance:
        result = decontaminate_corpus(corpus, against=list(against), write=not no_write, advance=advance, **options)
    if not print_result(result, as_json, table=False):
        return
    summary = result.summary
    print_fitted(result.evaluations())
    click.echo()
    if has_answers(summary):
        print_fitted(result.verdicts())
        click.echo()
    print_fitted(result.table())
    if options["question"] is not None and not has_answers(summary):
        say(f"no record has an answer in {options['answer']}, so every span is text")
    say(f"{sum_of(summary, 'untouched', 'cut', 'dropped')}; {counted(summary['pieces'], 'piece')}")
    written = "" if no_write else "clean shards, "
    say(f"{written}hits.parquet and evaluations.parquet in {result.folder}")
