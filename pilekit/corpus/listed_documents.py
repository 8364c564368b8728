"""Lists of documents: in a file, as a Python list, or as the result of `pilekit trace`.

A shard is called by its name, or by that of its file (`00.jsonl.zst`). A shard that the data does not have is an error,
because an answer about a misspelt name would be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pilekit.artifacts.checked import reason_of_damage
from pilekit.corpus.shard import COMPRESSION
from pilekit.errors import PilekitError, shortened

Place = tuple[str, int]
"""A document: shard and number."""


class _Line(msgspec.Struct):
    shard: str
    number: int


def documents_of_file(path: str, shards: Collection[str]) -> list[Place]:
    """The documents that a file names: a list, or a result of `pilekit trace`. PilekitError as for either."""
    try:
        is_trace = path.endswith(".parquet") and "passages" in pq.read_schema(path).names
    except (OSError, pa.ArrowException):
        is_trace = False  # the list says what is wrong
    return traced_documents(path, shards) if is_trace else listed_documents(path, shards)


def listed_documents(source: str | Iterable[Place], shards: Collection[str]) -> list[Place]:
    """The documents of a list, or of a file: Parquet or JSON lines with `shard` and `number`, or lines of `grep`.

    PilekitError names the line that has no document, or a document of none of these `shards`.
    """
    if not isinstance(source, str):
        places = [(str(shard), int(number)) for shard, number in source]
        return _in_shards(places, shards, lambda place: f"document {place + 1:,} of the list")
    try:
        if source.endswith(".parquet"):
            columns = pq.read_table(source, columns=["shard", "number"])
            places = list(zip(columns["shard"].to_pylist(), columns["number"].to_pylist(), strict=True))
            return _in_shards(places, shards, lambda place: f"{source}, row {place + 1:,}")
        lines = Path(source).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, pa.ArrowException, LookupError) as error:
        raise PilekitError(f"{source}: is no list of documents ({reason_of_damage(error)})") from error
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    places = [_place(lines[number - 1], f"{source}, line {number:,}") for number in numbers]
    return _in_shards(places, shards, lambda place: f"{source}, line {numbers[place]:,}")


def _in_shards(places: Sequence[Place], shards: Collection[str], where: Callable[[int], str]) -> list[Place]:
    """The places, with the names of these shards; PilekitError for one of another, which stands `where` says."""
    by_file = {shard + suffix: shard for suffix in ("", *COMPRESSION) for shard in sorted(shards)}
    for place, (shard, _) in enumerate(places):
        if shard not in by_file:
            raise PilekitError(
                f"{where(place)}: names the shard {shortened(shard, 100)}, but the data has "
                f"{shortened(', '.join(sorted(shards)), 200)}"
            )
    return [(by_file[shard], number) for shard, number in places]


def _place(line: str, where: str) -> Place:
    try:
        if line.startswith("{"):
            document = msgspec.json.decode(line, type=_Line)
            return document.shard, document.number
    except msgspec.DecodeError:
        pass
    else:
        if match := re.match(r"(.+?)\s+([0-9]{1,18})(?:\s|$)", line):
            return match[1], int(match[2])
    raise PilekitError(
        f'{where}: names no document: {shortened(line, 60)}; write SHARD NUMBER, or {{"shard": "00.jsonl", '
        '"number": 17}'
    )


def traced_documents(path: str, shards: Collection[str]) -> list[Place]:
    """The documents that a file of `pilekit trace` names. PilekitError if it is none, or of other `shards`."""
    try:
        passages = pq.read_table(path, columns=["passages"])["passages"]
        places = pc.list_flatten(pc.struct_field(pc.list_flatten(passages), "places"))
        names, numbers = pc.struct_field(places, "shard").to_pylist(), pc.struct_field(places, "number").to_pylist()
    except (OSError, ValueError, TypeError, pa.ArrowException, LookupError) as error:
        raise PilekitError(f"{path}: is no result of pilekit trace ({reason_of_damage(error)})") from error
    distinct = list(dict.fromkeys(zip(names, numbers, strict=True)))
    return _in_shards(distinct, shards, lambda place: f"{path}, document {' '.join(map(str, distinct[place]))}")
