"""`pilekit show`: one document of a shard or of a token file, by its number."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import click

from pilekit.cli.display.output import print_text
from pilekit.cli.options import Described, manifest_option
from pilekit.display.progress import byte_progress
from pilekit.errors import PilekitError, counted, visible


@click.command()
@click.argument("shard", metavar="SHARD")
@click.argument("number", metavar="NUMBER", type=click.IntRange(min=0))
@click.option("--meta", is_flag=True, help="First a line of JSON: shard, number, subset and meta.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON: shard, number, subset, meta and text.")
@click.option("--tokenizer", metavar="F", help="For a token file (.idx): the tokenizer that made it.")
@manifest_option
def command(shard: str, number: int, meta: bool, as_json: bool, tokenizer: str | None, manifest: Described) -> None:
    """Print one document's text.

    NUMBER counts from 0: it is the number of the document's line, minus one. A file or a pipe gets the text exactly,
    byte for byte. A terminal gets a newline at the end and control characters spelt out.

    An index that fits the shard (`pilekit index`) is used. No index is made: for one document, reading up to it is
    quicker. `-` reads standard input. For a token file, standard error names the document's shard, number and subset.

    \b
    Example:
      pilekit show 00.jsonl.zst 4711
      pilekit show 00.jsonl.zst 4711 --meta | head -1
      pilekit show tokens/pile_text_document.idx 17 --tokenizer 20B_tokenizer.json
    """
    if shard.endswith(".idx"):
        _show_tokens(shard, number, tokenizer, meta, as_json)
        return
    from pilekit.corpus import load_manifest, shard_of
    from pilekit.shards.index.format import find_index
    from pilekit.shards.random_access.document_reader import DocumentReader

    described = None if manifest is None else load_manifest(manifest)
    source = shard_of(shard)
    index = find_index(source, described)
    with (
        byte_progress(f"looking for document {number:,}", source.size) as advance,
        closing(DocumentReader(source, index, manifest=described, advance=advance)) as reader,
    ):
        document = reader.document(number)
    fields = {"shard": document.shard, "number": document.number, "subset": document.subset, "meta": document.meta}
    _print(fields, document.text, meta, as_json)


def _show_tokens(path: str, number: int, tokenizer: str | None, meta: bool, as_json: bool) -> None:
    """Print the decoded text of a document of a token file. The file's table has its shard, number and subset."""
    from pilekit.tokenize import load_tokenizer
    from pilekit.tokenize.files.token_file import TokenFile

    if tokenizer is None:
        raise click.UsageError("a token file has ids alone: name the tokenizer that made them with --tokenizer")
    file, decoder = TokenFile(path), load_tokenizer(tokenizer)
    if number >= len(file):
        raise PilekitError(f"{path}: has {counted(len(file))}, and no number {number:,}")
    if file.tokenizer not in (None, decoder.fingerprint):
        raise PilekitError(
            f"{path}: was made with another tokenizer: SHA-256 {file.tokenizer} there, {decoder.fingerprint} here"
        )
    row: dict[str, Any] = {}
    before = 0
    for rows in file.rows("") if file.table() else ():
        if number < before + len(rows):
            row = rows.slice(number - before, 1).to_pylist()[0]
            break
        before += len(rows)
    fields = {name: row.get(name) for name in ("shard", "number", "subset")} | {"tokens": len(file[number])}
    if row and not (meta or as_json):
        click.echo(visible("{shard}, document {number:,}, {subset}".format(**row)), err=True)
    _print(fields, decoder.decode(file[number]), meta, as_json)


def _print(fields: dict[str, Any], text: str, meta: bool, as_json: bool) -> None:
    if as_json:
        click.echo(_line({**fields, "text": text}))
        return
    if meta:
        click.echo(_line(fields))
    print_text(text, ending=False)


def _line(fields: dict[str, Any]) -> str:
    """The fields as JSON in ASCII, so that control characters are escaped."""
    import msgspec

    # Parquet has values that JSON lacks: msgspec writes NaN and infinity as null, and str() the rest.
    plain = msgspec.json.decode(msgspec.json.encode(fields, enc_hook=str))
    return json.dumps(plain)
