"""`pilekit trace`: the passages of texts that also stand in a corpus, and the documents that have them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.display.output import print_fitted, print_result, say
from pilekit.cli.options import Described, corpus_argument, on_error_option, open_subsets, shard_options
from pilekit.display.fitted_table import percentage
from pilekit.display.progress import byte_progress
from pilekit.errors import counted, visible_lines

if TYPE_CHECKING:
    from rich.text import Text

SHOWN_TEXTS, SHOWN_CHARACTERS, SHOWN_PASSAGES = 5, 4000, 20
"""Texts on the terminal, the characters of all of them, and rows of the table."""
AROUND = 300
"""Characters that are shown before the first passage of a text."""


@click.command()
@click.argument("texts", metavar="TEXTS")
@corpus_argument
@click.option("--field", metavar="NAME", help="The text's field in records of TEXTS.  [default: text]")
@click.option("--words", type=click.IntRange(1, 100), default=8, help="The fewest words of a passage.")
@click.option("--documents", type=click.IntRange(1), default=10, help="List so many documents of a passage.")
@click.option(
    "--common", type=click.IntRange(0), default=1000, help="List no document of a passage that more have; 0: of each."
)
@click.option("--out", type=Path, metavar="FILE", help="Write all passages and documents into this .parquet file.")
@on_error_option()
@shard_options
def command(
    texts: str, paths: tuple[str, ...], manifest: Described, out: Path | None, as_json: bool, **options: Any
) -> None:
    """Find the passages of texts that also stand in a corpus, word for word, and the documents that have them.

    TEXTS is a text file, which is one text, a .jsonl or .parquet file with a text in a field of each record, or - for
    standard input. A passage has 8 words or more, and no document has a longer one around it. Words are lower-cased
    and have no punctuation. All documents are counted, and the first 10 are listed with the exact text. With --out, a
    killed run resumes when run again.

    \b
    Example:
      pilekit trace generations.jsonl data/
      pilekit trace essay.txt data/ --words 12 --json
      pilekit trace generations.jsonl data/ --out traces.parquet
    """
    if options["part"] is not None and out is None:
        raise click.UsageError("--part needs --out, where the traces of all parts are kept")
    from pilekit.trace.trace_texts import trace_texts

    corpus, options["subsets"] = open_subsets(paths, manifest, options["subsets"])
    part = options["part"]
    with byte_progress("tracing", corpus.part(part).size) as advance:
        traces = trace_texts(corpus, texts, out, advance=advance, **options)
    if not print_result(traces, as_json, corpus, part, table=False):
        return
    rows = traces.most_copied(SHOWN_TEXTS)
    for row in rows:
        print_fitted(_coloured(row, SHOWN_CHARACTERS // len(rows)))
        click.echo()
    print_fitted(replace(traces.table(), most_rows=SHOWN_PASSAGES))
    if out is not None:
        corpora = paths if len(paths) == 1 and "-" not in paths else ()
        view = shlex.join(["pilekit", "explore", *corpora, str(out)])
        say(f"all passages and documents in {out}; to look at them: {view}")


def _coloured(row: dict[str, Any], characters: int) -> Text:
    """So many characters of a text from its first passage on, the passages in colour, below a line about the text."""
    from rich.text import Text

    passages = sorted(row["passages"], key=lambda passage: passage["start"])
    at = max(0, passages[0]["start"] - AROUND)
    text, stop = row["text"], min(len(row["text"]), at + characters)
    share = f"{percentage(row['coverage'])} % of {counted(row['words'], 'word')}"
    head = f"text {row['number']:,}: {share} in {counted(len(passages), 'passage')}\n"
    shown = Text(head, style="dim").append("…" if at else "", style="not dim")
    for passage in passages:
        start, end = (min(max(at, bound), stop) for bound in (passage["start"], passage["end"]))
        shown.append(visible_lines(text[at:start]), style="not dim")
        style = "yellow not dim" if passage["common"] else "bold red not dim"
        shown.append(visible_lines(text[start:end]), style=style)
        at = end
    return shown.append(visible_lines(text[at:stop]) + ("…" if stop < len(text) else ""), style="not dim")
