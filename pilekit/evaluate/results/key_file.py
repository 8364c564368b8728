"""records/KEY.json: what KEY stands for, which is the protocol and the manifest of an evaluation.

It carries a sum of its own, as each record does, so that a protocol that was changed by hand or by a disk is not taken
for the one that documents were scored by. Whoever reads it looks at the protocol's shape here, once: all that figures,
tables and comparisons take from it is there, and of its type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import Manifest
from pilekit.errors import PilekitError, visible

_Count = Annotated[int, msgspec.Meta(ge=1)]


class _Model(msgspec.Struct):
    path: str | None
    weights: str | None
    model_type: str
    parameters: int


class _Tokenizer(msgspec.Struct):
    fingerprint: str
    backend: str


class _Prefix(msgspec.Struct):
    given: str
    id: int | None
    token: str | None


class _Shard(msgspec.Struct):
    name: str


class _Template(msgspec.Struct):
    before: tuple[int, ...]
    behind: tuple[int, ...]


class _Protocol(msgspec.Struct):
    """What is read of a protocol; it may hold more."""

    kind: Literal["causal", "masked"]
    model: _Model
    tokenizer: _Tokenizer
    dtype: str
    max_length: _Count
    context_len: _Count
    windows: str
    prefix: _Prefix
    bytes: str
    data: tuple[_Shard, ...]
    manifest: str
    subsets: tuple[str, ...] | None
    limit: int | None
    group0: str | None
    paper: bool
    template: _Template | None = None
    mlm_sample: int | None = None

    def __post_init__(self) -> None:
        if (self.kind == "masked") != (self.template is not None):
            raise ValueError("a masked model, and no other, has a `template`")


class _KeyFile(msgspec.Struct):
    protocol: _Protocol
    manifest: Manifest
    check: str | None = None  # None: of a version that wrote none


def write_key_file(path: Path, protocol: dict[str, Any], manifest: Manifest) -> None:
    """Write it, whole or not at all; PilekitError where it cannot be written."""
    about = {"protocol": protocol, "manifest": msgspec.to_builtins(manifest)}
    with write_atomically(path) as file:
        file.write(msgspec.json.encode({**about, "check": _sum(about)}) + b"\n")


def read_key_file(path: Path) -> tuple[dict[str, Any], Manifest]:
    """The protocol, whose shape is sure, and the manifest. PilekitError where it is missing or damaged."""
    shown = visible(str(path))
    try:
        told = msgspec.json.decode(path.read_bytes())
        of = msgspec.convert(told, _KeyFile)
        if of.check not in (None, _sum({name: told[name] for name in ("protocol", "manifest")})):
            raise ValueError("it is not what was written")
        return told["protocol"], of.manifest
    except FileNotFoundError:
        raise PilekitError(f"{shown}: is missing; copy the whole folder") from None
    except OSError as error:
        raise PilekitError(f"{shown}: cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError, RecursionError) as error:  # what msgspec raises is a ValueError
        raise PilekitError(
            f"{shown}: is damaged ({visible(str(error), 200)}); copy it again, or score the model again with the same "
            "command, which writes it anew"
        ) from error


def _sum(about: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(about))
