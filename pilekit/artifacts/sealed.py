"""Sealed artefacts: files that say what they are and in which format, and prove that no byte has changed.

A sealed artefact has a kind, the version of its format, a sum and a body. It is written atomically. Opening checks the
kind, then the format, then the sum, and refuses with one wording per cause and the remedy of the kind:

    FILE: is not a keep mask (why); REMEDY
    FILE: is a keep mask of format 1, this pilekit 0.9 reads format 2; REMEDY
    FILE: is damaged (why); REMEDY

The format comes before the sum, because another format may have another sum. There are two layouts:

    a file     a line of JSON that begins `{"sum":"` and 16 hexadecimal digits, then the body. The sum is the xxh3_64 of
               all bytes after its own digits, so it covers the rest of the line too
    Parquet    the header is JSON in the metadata, under `pilekit`. `pilekit.sum` is the xxh3_64 of the header and of
               the kind's further values, joined by newlines. Pages of rows have checksums of their own

A sum detects damage and not forgery. So fields are decoded by type, nothing is unpickled, and the line is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.checked import reason_of_damage
from pilekit.errors import PilekitError, visible

HEADER_KEY, SUM_KEY = b"pilekit", b"pilekit.sum"

_LONGEST_LINE = 1 << 20
_START, _DIGITS = b'{"sum":"', 16


class SealedHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields with which every header begins; unknown fields, from a later pilekit, are ignored."""

    format: int
    """Version of the artefact's layout."""
    pilekit: str = __version__
    """Version of pilekit that wrote it."""


class _Format(msgspec.Struct, frozen=True):
    format: int
    kind: str | None = None


_Header = TypeVar("_Header", bound=SealedHeader)


@dataclass(frozen=True)
class Kind:
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

    def another(self, path: str | Path, why: str) -> PilekitError:
        """The refusal of a file of another kind."""
        return self.error(f"{visible(path)}: is not {self.name} ({why}); {self.remedy}")

    def damaged(self, path: str | Path, error: Exception | str) -> PilekitError:
        """The refusal of a damaged file."""
        why = error if isinstance(error, str) else reason_of_damage(error)
        return self.error(f"{visible(path)}: is damaged ({why}); {self.remedy}")

    def metadata(self, header: SealedHeader, values: Mapping[bytes, bytes] | None = None) -> dict[bytes, bytes]:
        """The metadata of a Parquet file with this header and further values."""
        sealed = {HEADER_KEY: msgspec.json.encode(header), **(values or {})}
        return {**sealed, SUM_KEY: _sum(b"\n".join(sealed.values()))}

    def open_metadata(
        self, path: str | Path, metadata: Mapping[bytes, bytes] | None, header: type[_Header], *names: bytes
    ) -> _Header:
        """The header in the metadata of the Parquet file at `path`, which must have further values of these names."""
        values = metadata or {}
        for key in (HEADER_KEY, *names, SUM_KEY):
            if key not in values:
                raise self.another(path, f'it has no "{key.decode()}" in its metadata')
        self._check_format(path, values[HEADER_KEY])
        if values[SUM_KEY] != _sum(b"\n".join(values[key] for key in (HEADER_KEY, *names))):
            raise self.damaged(path, "its metadata does not match its sum")
        return self._decode(path, values[HEADER_KEY], header)

    def write(self, path: Path, header: SealedHeader, body: npt.NDArray[np.uint8]) -> None:
        """Write a sealed file."""
        rest = b'","kind":"%s",%s\n' % (self._kind, msgspec.json.encode(header)[1:])
        with write_atomically(path) as file:
            file.write(_START + _sum(rest, body) + rest)
            file.write(body.data)

    def read(self, path: str | Path, header: type[_Header]) -> tuple[_Header, npt.NDArray[np.uint8]]:
        """Header and body of the sealed file at `path`."""
        try:
            with Path(path).open("rb") as file:
                line = file.readline(_LONGEST_LINE)
                body = np.frombuffer(file.read(), dtype=np.uint8)
        except (OSError, ValueError) as error:  # ValueError: a null character
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise self.error(f"{visible(path)}: is {self.name} that cannot be read: {why}") from error
        self._check_format(path, line, self._kind.decode())
        digits = len(_START) + _DIGITS
        if not line.endswith(b"\n") or line[:digits] != _START + _sum(line[digits:], body):
            raise self.damaged(path, "it does not match its sum")
        return self._decode(path, line, header), body

    @property
    def _kind(self) -> bytes:
        return self.name.partition(" ")[2].encode()

    def _check_format(self, path: str | Path, header: bytes, kind: str | None = None) -> None:
        try:
            found = msgspec.json.decode(header, type=_Format)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.another(path, reason_of_damage(error)) from error
        if found.kind != kind:
            raise self.another(path, "it is of another kind")
        if found.format != self.format:
            raise self.error(
                f"{visible(path)}: is {self.name} of format {found.format}, this pilekit {__version__} reads format "
                f"{self.format}; {self.remedy}"
            )

    def _decode(self, path: str | Path, text: bytes, header: type[_Header]) -> _Header:
        try:
            return msgspec.json.decode(text, type=header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.damaged(path, error) from error


def _sum(*parts: bytes | npt.NDArray[np.uint8]) -> bytes:
    total = xxhash.xxh3_64()
    for part in parts:
        total.update(part if isinstance(part, bytes) else part.data)
    return total.hexdigest().encode()
