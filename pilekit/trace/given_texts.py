"""The texts to trace: a text file, which is one text, a field of records, or a list."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import xxhash

from pilekit.errors import PilekitError, shortened
from pilekit.trace.phrases import MOST_BYTES, file_bytes, has_records, record_texts


def given_texts(source: str | Path | Iterable[str], field: str | None = None) -> list[str]:
    """The texts of a file at a path or URL, or of a list.

    field   the field of the text in the records of a .jsonl or .parquet file; None: text

    PilekitError for a source without texts, a text that is not UTF-8, and more than 2 GiB.
    """
    if not isinstance(source, str | Path):
        if field is not None:
            raise PilekitError("field is for a file of records; leave it out")
        texts, shown = [_checked(text, f"text {number:,}") for number, text in enumerate(source)], "texts"
    elif has_records(shown := str(source)):
        records = record_texts(shown, field or "text", "text")
        texts = [_checked(text, f"{shown}, line {line:,}") for line, text in records]
    elif field is not None:
        raise PilekitError(f"{shown}: is one text without fields; leave out --field, or name a .jsonl or .parquet file")
    else:
        texts = [_decoded(file_bytes(shown), shown)]
    if not texts:
        raise PilekitError(f"{shown}: holds no text; name at least one")
    if sum(map(len, texts)) >= MOST_BYTES:
        raise PilekitError(f"{shown}: holds more than 2 GiB of text; take some of it at a time")
    return texts


def _checked(text: object, place: str) -> str:
    if not isinstance(text, str):
        raise PilekitError(f"{place}: is no text but {shortened(text, 60)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PilekitError(f"{place}: holds half of a surrogate pair; remove it") from None
    return text


def _decoded(text: bytes, path: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise PilekitError(f"{path}, line {line:,}: is not UTF-8 ({error.reason}); convert the file") from error


def hash_of(texts: Iterable[str]) -> str:
    """The hash of texts in their order."""
    hash = xxhash.xxh3_128()
    for text in texts:
        encoded = text.encode()
        hash.update(len(encoded).to_bytes(8, "little") + encoded)
    return hash.hexdigest()
