"""Sealed artefacts: files that say what they are and in which format, and prove that no byte has changed.

A sealed artefact has a kind, the version of its format, a sum and a body. It is written atomically. Opening checks the
kind, then the format, then the sum, and refuses with one wording per cause and the remedy of the kind:

    FILE: is not a keep mask (why); REMEDY
    FILE: is a keep mask of format 1 from pilekit 0.8, this pilekit 0.9 reads format 2; REMEDY
    FILE: is damaged (why); REMEDY

The format comes before the sum, because another format may have another sum. There are four layouts:

    a file     a line of JSON that begins `{"sum":"` and 16 hexadecimal digits, then the body. The sum is the xxh3_64 of
               all bytes after its own digits, so it covers the rest of the line too
    Parquet    the header is JSON in the metadata, under `pilekit`. `pilekit.sum` is the xxh3_64 of the header and of
               the kind's further values, joined by newlines. Pages of rows have checksums of their own, so a part of
               the file can be read alone
    a table    Parquet too, for people and other tools, read from its beginning to its end. `pilekit.sum` is the
               xxh3_64 of all bytes of the file but its own digits, which are written last, into a file that is complete
               otherwise. So the sum covers what checksums of pages do not: the places, types and names of columns
    a dict     the header's fields, `kind` and `sum`: a JSON file for people, or a part of another artefact. The sum is
               the xxh3_64 of the JSON of all other fields, sorted by name, so spaces and the order of fields are free.
               It comes before the format, and is the same in each: for a checkpoint with a flipped bit in its format
               there is an earlier checkpoint

A sum detects damage and not forgery. So fields are decoded by type, nothing is unpickled, and the line is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.checked import reason_of_damage
from pilekit.errors import PilekitError, shortened
from pilekit.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

HEADER_KEY, SUM_KEY = b"pilekit", b"pilekit.sum"

_LONGEST_LINE, _PIECE = 1 << 20, 1 << 20
_START, _DIGITS = b'{"sum":"', 16
_SUM_IN_FOOTER = b"\x18%c%s\x18%c" % (len(SUM_KEY), SUM_KEY, _DIGITS)
"""What Parquet writes before the digits: the field, the length and the text of the key; the field and the length of the
value. A header's JSON has no such control characters, and only the writer's name follows the metadata."""


class SealedHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields with which every header begins; unknown fields, from a later pilekit, are ignored."""

    format: int
    """Version of the artefact's layout."""
    pilekit: str = __version__
    """Version of pilekit that wrote it."""


class _Format(msgspec.Struct, frozen=True):
    format: int
    kind: str | None = None
    pilekit: str = "of another version"


_Header = TypeVar("_Header", bound=SealedHeader)

_OTHER_KIND = "it is of another kind"
_UNMARKED = "another version of pilekit wrote it, or another program"
"""The reason for a file without a part that each sealed one has; artefacts of early versions had none of it."""


@dataclass(frozen=True)
class SealedKind:
    """A kind of sealed artefact.

    name      with its article: "a keep mask"
    format    the version that this pilekit writes and reads
    remedy    what the user does about a file that is refused
    error     the class of the refusals
    """

    name: str
    format: int
    remedy: str
    error: type[PilekitError] = PilekitError

    def wrong_kind(self, path: str | Path, why: str) -> PilekitError:
        """The refusal of a file of another kind."""
        return self.error(f"{path}: is not {self.name} ({why}); {self.remedy}")

    def damaged(self, path: str | Path, error: Exception | str) -> PilekitError:
        """The refusal of a damaged file."""
        why = error if isinstance(error, str) else reason_of_damage(error)
        return self.error(f"{path}: is damaged ({why}); {self.remedy}")

    def metadata(self, header: SealedHeader, values: Mapping[bytes, bytes] | None = None) -> dict[bytes, bytes]:
        """The metadata of a Parquet file with this header and further values."""
        sealed = {HEADER_KEY: msgspec.json.encode(header), **(values or {})}
        return {**sealed, SUM_KEY: _sum(b"\n".join(sealed.values()))}

    def open_metadata(
        self, path: str | Path, metadata: Mapping[bytes, bytes] | None, header: type[_Header], *names: bytes
    ) -> _Header:
        """The header in the metadata of the Parquet file at `path`, which must have further values of these names."""
        values = metadata or {}
        names = (HEADER_KEY, *names)
        self._check_keys(path, values, *names, SUM_KEY)
        fields = self.parsed(path, values[HEADER_KEY])
        self._check_format(path, fields, None)
        if values[SUM_KEY] != _sum(b"\n".join(values[key] for key in names)):
            raise self.damaged(path, "its metadata does not match its sum")
        return self._header(path, fields, header)

    @contextmanager
    def opened(self, path: str | Path) -> Iterator[pq.ParquetFile]:
        """The Parquet file at `path`; an error in the block is the refusal of a damaged file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
        except FileNotFoundError as error:
            again = self.remedy.removeprefix("remove it, and ")
            raise self.error(f"{path}: is not there; {again}") from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self.wrong_kind(path, reason_of_damage(error)) from error
        try:
            with file:
                yield file
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
            raise self.damaged(path, error) from error

    @contextmanager
    def writing_table(self, path: Path, schema: pa.Schema, header: SealedHeader) -> Iterator[pq.ParquetWriter]:
        """Yield the writer of a sealed table, which appears at `path` when the block succeeds."""
        import pyarrow.parquet as pq

        with write_atomically(path) as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                yield writer
                writer.add_key_value_metadata({HEADER_KEY: self._with_kind(header), SUM_KEY: b"0" * _DIGITS})
            file.flush()
            digits, total = _sum_of_table(file.name)
            file.seek(digits)
            file.write(total)

    @contextmanager
    def open_table(self, path: str | Path, header: type[_Header]) -> Iterator[tuple[_Header, pq.ParquetFile]]:
        """Header and rows of the sealed table at `path`; an error in the block is the refusal of a damaged file."""
        with self.opened(path) as file:
            fields, total = self._table_fields(path, file)
            if total != _sum_of_table(path)[1]:
                raise self.damaged(path, "it does not match its sum")
            yield self._header(path, fields, header), file

    def check_table(self, path: str | Path) -> None:
        """Refuse a file that is no sealed table of this kind and format; its rows are not read."""
        with self.opened(path) as file:
            self._table_fields(path, file)

    def sealed(self, header: SealedHeader) -> dict[str, Any]:
        """A sealed dict of JSON types."""
        fields = orjson.loads(self._with_kind(header))
        return {"sum": _sum_of_fields(fields), **fields}

    def open_dict(self, path: str | Path, value: object, header: type[_Header]) -> _Header:
        """The header of the sealed dict `value`, which messages call `path`."""
        if isinstance(value, Mapping) and "kind" not in value:
            raise self.wrong_kind(path, f'it has no "kind": {_UNMARKED}')
        if not isinstance(value, Mapping) or not _is(value["kind"], self._kind):
            raise self.wrong_kind(path, _OTHER_KIND)
        try:
            total = _sum_of_fields(value)
        except TypeError as error:  # it holds what JSON does not have
            raise self.damaged(path, "it is not JSON") from error
        if not _is(value.get("sum"), total):
            raise self.damaged(path, "it does not match its sum")
        self._check_format(path, dict(value), self._kind)
        return self._header(path, dict(value), header)

    def write(self, path: Path, header: SealedHeader, body: npt.NDArray[np.uint8]) -> None:
        """Write a sealed file."""
        line_end = b'",%s\n' % self._with_kind(header)[1:]
        with write_atomically(path) as file:
            file.write(_START + _sum(line_end, body) + line_end)
            file.write(body.data)

    def read(self, path: str | Path, header: type[_Header]) -> tuple[_Header, npt.NDArray[np.uint8]]:
        """Header and body of the sealed file at `path`."""
        try:
            with Path(path).open("rb") as file:
                line = file.readline(_LONGEST_LINE)
                body = np.frombuffer(file.read(), dtype=np.uint8)
        except (OSError, ValueError) as error:  # ValueError: a null character
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise self.error(f"{path}: is {self.name} that cannot be read: {why}") from error
        fields = self.parsed(path, line)
        self._check_format(path, fields, self._kind)
        digits = len(_START) + _DIGITS
        if not line.endswith(b"\n") or line[:digits] != _START + _sum(line[digits:], body):
            raise self.damaged(path, "it does not match its sum")
        return self._header(path, fields, header), body

    def another_format(self, path: str | Path, format: int, pilekit: str) -> PilekitError:
        """The refusal of a file in another format, which this version of pilekit wrote."""
        return self.error(
            f"{path}: is {self.name} of format {format} from pilekit {shortened(pilekit, 40)}, this pilekit "
            f"{__version__} reads format {self.format}; {self.remedy}"
        )

    @property
    def _kind(self) -> str:
        return self.name.partition(" ")[2]

    def _with_kind(self, header: SealedHeader) -> bytes:
        return b'{"kind":"%s",%s' % (self._kind.encode(), msgspec.json.encode(header)[1:])

    def _table_fields(self, path: str | Path, file: pq.ParquetFile) -> tuple[object, bytes]:
        """The header's fields and the sum of an opened table."""
        values = file.metadata.metadata or {}
        self._check_keys(path, values, HEADER_KEY, SUM_KEY)
        fields = self.parsed(path, values[HEADER_KEY])
        self._check_format(path, fields, self._kind)
        return fields, values[SUM_KEY]

    def _check_keys(self, path: str | Path, values: Mapping[bytes, bytes], *keys: bytes) -> None:
        for key in keys:
            if key not in values:
                raise self.wrong_kind(path, f'it has no "{key.decode()}" in its metadata: {_UNMARKED}')

    def parsed(self, path: str | Path, text: bytes) -> object:
        """The value of the JSON in the file at `path`."""
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.wrong_kind(path, reason_of_damage(error)) from error

    def _check_format(self, path: str | Path, value: object, kind: str | None) -> None:
        try:
            version = msgspec.convert(value, _Format)
        except msgspec.ValidationError as error:
            raise self.wrong_kind(path, reason_of_damage(error)) from error
        if version.kind != kind:
            raise self.wrong_kind(path, _OTHER_KIND)
        if version.format != self.format:
            raise self.another_format(path, version.format, version.pilekit)

    def _header(self, path: str | Path, value: object, header: type[_Header]) -> _Header:
        try:
            return msgspec.convert(value, header)
        except (msgspec.ValidationError, RecursionError) as error:
            raise self.damaged(path, error) from error


def _sum(*parts: bytes | npt.NDArray[np.uint8]) -> bytes:
    total = xxhash.xxh3_64()
    for part in parts:
        total.update(part if isinstance(part, bytes) else part.data)
    return total.hexdigest().encode()


def _is(value: object, expected: str) -> bool:
    return isinstance(value, str) and value == expected  # An array would compare its items.


def _sum_of_fields(value: Mapping[Any, Any]) -> str:
    """The sum of all fields but `sum`; TypeError if they are not JSON."""
    fields = {name: field for name, field in value.items() if name != "sum"}
    return xxhash.xxh3_64_hexdigest(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS))


def _sum_of_table(path: str | Path) -> tuple[int, bytes]:
    """Where the digits of the sum begin in a complete Parquet file, and the sum of all other bytes."""
    with Path(path).open("rb") as file:
        size = file.seek(-8, os.SEEK_END) + 8
        footer = min(int.from_bytes(file.read(4), "little") + 8, size)
        file.seek(size - footer)
        place = file.read().rfind(_SUM_IN_FOOTER)
        if place < 0:
            raise ValueError("its sum is not where Parquet writes it")
        digits = size - footer + place + len(_SUM_IN_FOOTER)
        total = xxhash.xxh3_64()
        for begin, end in ((0, digits), (digits + _DIGITS, size)):
            file.seek(begin)
            while begin < end:
                piece = file.read(min(_PIECE, end - begin))
                if not piece:
                    raise ValueError("it changes while it is read")
                total.update(piece)
                begin += len(piece)
    return digits, total.hexdigest().encode()
