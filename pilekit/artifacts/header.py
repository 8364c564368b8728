"""The header of what pilekit writes: `<folder>/pilekit.json`.

It says which pilekit made the folder, of what kind, from what and how; and it marks the folder as output, so that a
search for shards above it does not take output for input.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.own_file import read_own
from pilekit.errors import PilekitError, visible

HEADER_FILE = "pilekit.json"


FORMAT = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a header says; unknown fields, from a later pilekit of the same format, are passed over."""

    format: int
    """Version of the header's own layout."""
    pilekit: str
    """Version of pilekit that wrote the folder."""
    kind: str
    """What the folder holds, e.g. `index`."""
    parameters: dict[str, Any] = {}
    """What it was made with."""
    inputs: dict[str, Any] = {}
    """The fingerprint of what it was made from."""
    finished: bool | None = None
    """Whether all is there that belongs there; None for what is never finished."""
    results: dict[str, Any] = {}
    """What came of it, where that is not in the folder's other files."""


def write_header(
    folder: str | Path,
    *,
    kind: str,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any],
    finished: bool | None = None,
    results: Mapping[str, Any] | None = None,
) -> Header:
    """Write the header into `folder`, which is made if missing; all of it or nothing (a rename).

    Raises PilekitError where it cannot be written.
    """
    header = Header(
        format=FORMAT,
        pilekit=__version__,
        kind=kind,
        parameters=dict(parameters),
        inputs=dict(inputs),
        finished=finished,
        results=dict(results or {}),
    )
    with write_atomically(Path(folder) / HEADER_FILE) as file:
        file.write(msgspec.json.format(msgspec.json.encode(header), indent=2) + b"\n")
    return header


def read_header(folder: str | Path, kind: str | None = None) -> Header:
    """The header of `folder`; raises PilekitError if there is none, if it is damaged, newer, or of another kind."""
    path = Path(folder) / HEADER_FILE
    shown = visible(str(path))
    try:
        header = msgspec.json.decode(read_own(path), type=Header)
    except FileNotFoundError:
        raise PilekitError(f"{visible(str(folder))}: was not written by pilekit (it has no {HEADER_FILE})") from None
    except OSError as error:
        raise PilekitError(f"{shown}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PilekitError(f"{shown}: is not a header of pilekit: {visible(str(error), 200)}") from error
    if header.format != FORMAT:
        raise PilekitError(
            f"{shown}: has format {header.format}, this pilekit {__version__} reads format {FORMAT}; "
            f"it was written by pilekit {visible(header.pilekit, 40)}"
        )
    if kind is not None and header.kind != kind:
        raise PilekitError(f'{shown}: is the header of kind "{visible(header.kind, 60)}", not "{kind}"')
    return header
