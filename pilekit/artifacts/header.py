"""The header of pilekit's output: `<folder>/pilekit.json`, or a JSON file beside files that share a folder.

It names the pilekit version, the kind, the parameters and the inputs. `pilekit.json` also marks the folder as output,
so that a search for shards in a folder above does not take output for input.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pilekit.artifacts.atomic_write import write_json
from pilekit.artifacts.checked import reason_of_damage
from pilekit.artifacts.own_file import read_own
from pilekit.errors import PilekitError, shortened
from pilekit.version import __version__

HEADER_FILE = "pilekit.json"
FORMAT = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a header; unknown fields, from a later pilekit with the same format, are ignored."""

    format: int
    """Version of the header's layout."""
    pilekit: str
    """Version of pilekit that wrote the folder."""
    kind: str
    """What the folder holds, e.g. `index`."""
    parameters: dict[str, Any] = {}
    """The settings of the job."""
    inputs: dict[str, Any] = {}
    """Fingerprints of the files that the job read."""
    finished: bool | None = None
    """Whether the job is complete; None for a folder that is never finished."""
    results: dict[str, Any] = {}
    """The job's results, if the folder's other files do not hold them."""

    @property
    def identity(self) -> str:
        """A hash of parameters and inputs: of all that the results depend on."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode([self.parameters, self.inputs], order="sorted"))


def write_header(
    folder: str | Path,
    *,
    kind: str,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any],
    finished: bool | None = None,
    results: Mapping[str, Any] | None = None,
    name: str = HEADER_FILE,
) -> Header:
    """Write the header `name` into `folder` atomically; creates the folder. PilekitError if it cannot be written."""
    header = Header(
        format=FORMAT,
        pilekit=__version__,
        kind=kind,
        parameters=dict(parameters),
        inputs=dict(inputs),
        finished=finished,
        results=dict(results or {}),
    )
    write_json(Path(folder) / name, header)
    return header


def read_header(folder: str | Path, kind: str | None = None, name: str = HEADER_FILE) -> Header:
    """The header `name` in `folder`; raises PilekitError if it is missing, damaged, newer, or of another kind."""
    path = Path(folder) / name
    try:
        header = decode_header(read_own(path), path)
    except FileNotFoundError:
        why = f"was not written by pilekit (it has no {name})"
        why = why if Path(folder).is_dir() else "there is no such folder; check the path"
        raise PilekitError(f"{folder}: {why}") from None
    except OSError as error:
        raise PilekitError(f"{path}: cannot be read: {error.strerror}") from error
    if kind is not None and header.kind != kind:
        raise PilekitError(f'{path}: is the header of kind "{shortened(header.kind, 60)}", not "{kind}"')
    return header


def decode_header(encoded: bytes, shown: str | Path) -> Header:
    """The header of a file's bytes; raises PilekitError, which calls the file `shown`, if it is damaged or newer."""
    try:
        header = msgspec.json.decode(encoded, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PilekitError(f"{shown}: is not a header of pilekit: {reason_of_damage(error)}") from error
    if header.format != FORMAT:
        raise PilekitError(
            f"{shown}: has format {header.format}, this pilekit {__version__} reads format {FORMAT}; "
            f"it was written by pilekit {shortened(header.pilekit, 40)}"
        )
    return header


def finished_header(folder: str | Path, kind: str, command: str) -> Header:
    """The header of the finished run in `folder`; PilekitError names the `command` that resumes it."""
    header = read_header(folder)
    if header.kind != kind:
        raise PilekitError(
            f'{folder}: holds a "{shortened(header.kind, 60)}", not a "{kind}"; name a folder that `{command}` wrote'
        )
    if not header.finished:
        raise PilekitError(f"{folder}: is not finished; run the same `{command}` again to resume it")
    return header
