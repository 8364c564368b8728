r"""Files of SHA-256 sums, as `sha256sum` writes and checks them.

A line is `<64 hex digits>  <name>`, or `*<name>` for binary; with a backslash in front, `\\`, `\n` and `\r` in the name
stand for those characters. The BSD form `SHA256 (<name>) = <digits>` is read too. Blank lines and lines that begin with
`#` are ignored. Names are paths of stored files below the corpus root: `train/00.jsonl.zst`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus.shard import Shard, is_url, without_query
from pilekit.corpus.sidecar_files import SUMS_FILES
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.open import exists, open_file
from pilekit.shards.read.read_errors import ShardDamage

MAX_SUMS_BYTES = 64 << 20

_LINE = re.compile(rb"(?P<escaped>\\)?[ \t]*(?P<digits>[0-9a-fA-F]{64}) [ *]?(?P<name>.+)", re.DOTALL)
_BSD_LINE = re.compile(rb"(?P<escaped>\\)?SHA256 ?\((?P<name>.+)\) ?= (?P<digits>[0-9a-fA-F]{64})", re.DOTALL)
_ESCAPE = re.compile(rb"\\[\\nr]")
_ESCAPED = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


def stored_name(shard: Shard) -> str:
    """A shard's name in a sums file: with the suffix of its compression."""
    last = shard.name.rpartition("/")[2]
    places = [without_query(part) for part in shard.path.split("::")]
    for suffix in (".zst", ".zstd", ".gz"):
        if any(place.endswith(last + suffix) for place in places):
            return shard.name + suffix
    return shard.name


def below(root: str, name: str) -> str:
    """The path or URL of the file `name` in the folder `root`."""
    if not is_url(root):
        return os.path.join(root, name)  # noqa: PTH118 (a Path would tidy what was given)
    parts = root.split("::")
    # Without a scheme it is a local folder behind a cache, which comes last.
    at = next((index for index, part in enumerate(parts) if "://" in part), -1)
    parts[at] += name if parts[at].endswith("/") else f"/{name}"
    return "::".join(parts)


def read_sums(path: str) -> dict[str, str]:
    """Name -> SHA-256, as 64 lower-case hex digits, of a sums file at a path or URL.

    `PilekitError`, with file and line, for any other kind of line, for names that are absolute or contain `..`, and for
    two sums of one name; also for a file that cannot be read.
    """
    sums: dict[str, str] = {}
    for number, line in enumerate(_content(path).split(b"\n"), 1):
        line = line.removesuffix(b"\r")
        if not line or line.startswith(b"#"):
            continue
        try:
            name, digits = _parse(line)
            if sums.setdefault(name, digits) != digits:
                raise ValueError(f"a second sum of {visible(name, 200)}")
        except ValueError as why:
            raise PilekitError(
                f"{path}, line {number:,}: {why}; a line is 64 hex digits, two spaces and a name, as "
                "sha256sum writes it"
            ) from None
    return sums


def find_sums(root: str) -> str | None:
    """The sums file in a corpus root; None if there is none."""
    for name in SUMS_FILES:
        path = below(root, name)
        if exists(path):
            return path
    return None


def write_sums(path: str | Path, sums: Mapping[str, str]) -> None:
    """Write a sums file, sorted by name, that `sha256sum -c` accepts; all of it or nothing."""
    with write_atomically(path) as file:
        for name, digits in sorted(sums.items()):
            stored = name.encode(errors="surrogateescape")
            escaped = stored
            for short, character in _ESCAPED.items():
                escaped = escaped.replace(character, short)
            file.write(b"%s%s  %s\n" % (b"\\" * (escaped != stored), digits.encode(), escaped))


def _parse(line: bytes) -> tuple[str, str]:
    match = _LINE.fullmatch(line) or _BSD_LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"no line of a sums file: {visible(line[:100].decode(errors='backslashreplace'))}")
    stored = match["name"]
    if match["escaped"]:
        if b"\\" in _ESCAPE.sub(b"", stored):
            raise ValueError("an unknown escape in the name")
        stored = _ESCAPE.sub(lambda match: _ESCAPED[match[0]], stored)
    listed = stored.decode(errors="surrogateescape")
    name = "/".join(part for part in listed.split("/") if part not in ("", "."))  # ./00.jsonl.zst
    if listed.startswith("/") or ".." in listed.split("/") or "\0" in listed or not name:
        raise ValueError(f'"{visible(listed, 200)}" is no path below the corpus root (absolute, or with ..)')
    return name, match["digits"].decode().lower()


def _content(path: str) -> bytes:
    try:
        with open_file(path) as file:
            content = file.read(MAX_SUMS_BYTES + 1)
    except ShardDamage as damage:
        raise PilekitError(f"{path}: {damage.reason}") from damage
    if len(content) > MAX_SUMS_BYTES:
        raise PilekitError(f"{path}: is longer than {MAX_SUMS_BYTES >> 20} MiB, which no sums file is")
    return content
