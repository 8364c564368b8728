"""`pilekit show`: one document of a shard, by its number."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from typing import Any

import click

from pilekit.cli.options import Described, manifest_option
from pilekit.errors import visible
from pilekit.progress import byte_progress


@click.command()
@click.argument("shard", metavar="SHARD")
@click.argument("number", metavar="NUMBER", type=click.IntRange(min=0))
@click.option("--meta", is_flag=True, help="First a line of JSON: shard, number, subset and meta.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON: shard, number, subset, meta and text.")
@manifest_option
def command(shard: str, number: int, meta: bool, as_json: bool, manifest: Described) -> None:
    """Print one document's text.

    NUMBER counts from 0: it is the number of the document's line, minus one. A file or a pipe gets the text exactly,
    byte for byte. A terminal gets a newline at the end and control characters spelt out.

    An index that fits the shard (`pilekit index`) is used. No index is made: for one document, reading up to it is
    quicker. `-` reads standard input.

    \b
    Example:
      pilekit show 00.jsonl.zst 4711
      pilekit show 00.jsonl.zst 4711 --meta | head -1
    """
    from pilekit.corpus import load_manifest, shard_of
    from pilekit.shards.index.format import find_index
    from pilekit.shards.random_access.document_reader import DocumentReader

    known = None if manifest is None else load_manifest(manifest)
    source = shard_of(shard)
    index = find_index(source, known)
    with (
        byte_progress(f"looking for document {number:,}", source.size) as advance,
        closing(DocumentReader(source, index, manifest=known, advance=advance)) as reader,
    ):
        document = reader.document(number)
    fields = {"shard": document.shard, "number": document.number, "subset": document.subset, "meta": document.meta}
    if as_json:
        click.echo(_line({**fields, "text": document.text}))
        return
    if meta:
        click.echo(_line(fields))
    if sys.stdout.isatty():
        click.echo(re.sub(r"[^\n\t]+", lambda part: visible(part[0]), document.text), nl=document.text[-1:] != "\n")
    else:
        sys.stdout.buffer.write(document.text.encode())


def _line(fields: dict[str, Any]) -> str:
    """The fields as JSON. ASCII spells out control characters; msgspec writes NaN and infinity (of Parquet) as null."""
    import msgspec

    plain = msgspec.json.decode(msgspec.json.encode(fields, enc_hook=str))
    return json.dumps(plain)
