"""`pilekit verify`: check shards, and show the findings as a table or as JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.display.output import print_fitted, printed, say
from pilekit.cli.options import Described, open_corpus, paths_argument, shard_options
from pilekit.display.progress import byte_progress
from pilekit.errors import counted

if TYPE_CHECKING:
    from pilekit.corpus import Part


@click.command()
@paths_argument
@click.option(
    "--sums", metavar="FILE", help="SHA-256 sums to compare with (path or URL); SHA256SUMS in the corpus if not given."
)
@click.option("--write-sums", is_flag=True, help="Write SHA256SUMS into the corpus, if nothing is wrong.")
@shard_options
@click.pass_context
def command(
    context: click.Context,
    /,
    paths: tuple[str, ...],
    manifest: Described,
    part: Part | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Check that shards are whole and right.

    Frames must be complete and match their checksums, every line must be a document, and its label one of the
    manifest's. Shards must agree with their indexes, and with the SHA-256 sums of a sums file or of the manifest. Exit
    code 1 if anything is wrong.

    For token files, give the .idx: it must agree with itself and its .bin, and every id must be in the vocabulary.

    \b
    Example:
      pilekit verify data/
      pilekit verify data/ --sums SHA256SUMS
      pilekit verify data/ --write-sums
      pilekit verify tokens/pile_text_document.idx
    """
    token_files = [path.endswith(".idx") for path in paths]
    if any(token_files):
        if part or any(options[name] for name in ("sums", "write_sums", "cluster")) or not all(token_files):
            raise click.UsageError("token files (.idx) are verified alone: without shards, sums, --part and --cluster")
        _verify_token_files(paths, as_json)
        return
    from pilekit.display.fitted_table import rounded_bytes
    from pilekit.shards.verify.findings import findings_table
    from pilekit.shards.verify.verify import is_whole, verify_corpus

    corpus = open_corpus(paths, manifest)
    options |= {"use_manifest_sums": manifest is not None, "whole": is_whole(paths, corpus), "part": part}
    with byte_progress("verifying", corpus.part(part).size) as advance:
        result = verify_corpus(corpus, advance=advance, **options)
    for note in result.notes:
        click.echo(f"note: {note}", err=True)
    verdict, place = "all right", "" if part is None else f"part {part[0]:,} of {part[1]:,}: "
    if not result.ok:
        bad = {finding.shard for finding in result.findings}
        verdict = f"{counted(len(result.findings), 'finding')} in {len(bad):,} of them"
    with suppress(SystemExit):  # A reader that has gone does not make damage right.
        if not (as_json and printed(result.to_dict(), as_json, corpus, part)):
            if not result.ok:
                print_fitted(findings_table(result.findings))
            say(f"{place}{counted(result.shards, 'shard')}, {rounded_bytes(result.stored_bytes)}: {verdict}")
    if not result.ok:
        context.exit(1)


def _verify_token_files(paths: tuple[str, ...], as_json: bool) -> None:
    """Check each `.idx`, its `.bin`, its table, and the ids against the vocabulary in the header."""
    from pilekit.tokenize.files.token_file import TokenFile

    for path in paths:
        file = TokenFile(path)
        header = file.header
        for _ in file.rows(""):
            pass  # Each row is compared with the index.
        try:
            vocabulary = None if header is None else int(header.results["tokenizer"]["vocabulary"])
        except (KeyError, TypeError, ValueError):  # a damaged header
            vocabulary = None
        if vocabulary is not None:
            with byte_progress("verifying", file.tokens * file.dtype.itemsize) as advance:
                file.check_ids(vocabulary, advance)
        if as_json:
            figures = {"file": path, "documents": len(file), "tokens": file.tokens, "vocabulary": vocabulary}
            click.echo(json.dumps(figures))
            continue
        ids = "no header tells the vocabulary, so ids were not compared with it" if vocabulary is None else "all right"
        say(f"{path}: {counted(len(file))}, {counted(file.tokens, 'token')}: {ids}")
