"""The folder a job writes shards into: whose it is, and how a killed job goes on.

    inputs = inputs_for(corpus.shards, out)
    with output_folder(out, kind="selection", parameters={"sample": 0.01}, inputs=inputs) as output:
        waiting = [shard for shard in corpus.shards if output.result(shard.name) is None]
        map_shards(partial(work, output=output), waiting)    # calls output.note(shard.name, {...}, file) for each
        results = output.results()

    OUT/pilekit.json      kind, parameters, fingerprints of the inputs; whether it is finished and, if so, the results
        train/00.jsonl.zst, ...
        .unfinished/      a note for each shard that is done; gone when the header has taken them up
        .lock             held while a process writes here; gone when none does

The header is written first, so that a folder of ours is told from somebody else's at any moment. A shard's files are
renamed into place when they are complete, and noted, with their sizes, after that: whatever moment a job is killed at,
what a note speaks of is there. The next run with the same parameters and inputs does the shards that have no note.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pilekit.artifacts.atomic_write import PARTIAL, write_atomically
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.header import HEADER_FILE, Header, read_header, write_header
from pilekit.artifacts.own_file import read_own
from pilekit.errors import PilekitError, visible

LOCK_FILE = ".lock"
NOTES = ".unfinished"

_REMEDY = "name another folder with --out, or remove this one"


class _Note(msgspec.Struct, frozen=True):
    """That a shard is done: its name, its files (path in the folder -> bytes) and what the job has to say of it."""

    name: str
    files: dict[str, int]
    result: dict[str, Any]
    made_of: str = ""
    """Hash of the input's fingerprint and version; of those of all inputs, if `name` is none of them."""

    def is_true(self, folder: Path, made_of: str) -> bool:
        """Whether it was made of this, and the files are there, as long as they were."""
        try:
            return self.made_of == made_of and all(
                (folder / file).stat().st_size == size for file, size in self.files.items()
            )
        except (OSError, ValueError):  # the latter: a null character
            return False


@dataclass(frozen=True)
class Output:
    """The folder as the job sees it; goes to worker processes.

    finished   it is complete already: `results()` are all there is to do
    made_of    hash of what each shard's files are made of, by the shard's name; "" stands for all shards together
    """

    folder: Path
    finished: bool
    made_of: Mapping[str, str] = field(default_factory=dict)

    def path(self, name: str, suffix: str) -> Path:
        """Where the file of the shard `name` belongs: names with `/` make folders."""
        return self.folder / f"{name}{suffix}"

    def note(self, name: str, result: Mapping[str, Any], *files: Path) -> None:
        """Remember that the shard `name` is done; `files`, all that were written for it, are in their places."""
        sizes = {file.relative_to(self.folder).as_posix(): file.stat().st_size for file in files}
        with write_atomically(_note_file(self.folder, name)) as file:
            file.write(msgspec.json.encode(_Note(name, sizes, dict(result), self._made_of(name))))

    def result(self, name: str) -> dict[str, Any] | None:
        """What was noted of the shard `name`; None if it is not done."""
        if self.finished:
            return self.results().get(name)
        note = self._read_note(_note_file(self.folder, name))
        return None if note is None else note.result

    def results(self) -> dict[str, dict[str, Any]]:
        """What was noted, by shard, in the order of the names."""
        notes = _header_notes(read_header(self.folder)) if self.finished else self.notes()
        return {note.name: note.result for note in notes}

    def notes(self) -> list[_Note]:
        """All notes that are true, in the order of the names."""
        notes = map(self._read_note, (self.folder / NOTES).glob("*.json"))
        return sorted((note for note in notes if note is not None), key=lambda note: note.name)

    def is_true(self, note: _Note) -> bool:
        """Whether a note speaks of today's inputs and of files that are there."""
        return note.is_true(self.folder, self._made_of(note.name))

    def _made_of(self, name: str) -> str:
        return self.made_of.get(name) or self.made_of.get("", "")

    def _read_note(self, file: Path) -> _Note | None:
        """The note in `file`, if there is one and it is true."""
        try:
            note = msgspec.json.decode(read_own(file), type=_Note)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return note if self.is_true(note) else None

    def forget(self) -> None:
        """Drop all notes: what was done is of no use. Nothing is left of a job that fails then and wrote no file."""
        _remove_notes(self.folder)


@contextmanager
def output_folder(
    folder: str | Path,
    *,
    kind: str,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any],
    versions: Mapping[str, str] | None = None,
) -> Iterator[Output]:
    """Make `folder`, or take the one that an earlier run of the same job left, and hold it until the block ends.

    kind         what the job makes, e.g. "selection"
    parameters   all that its output depends on but the inputs
    inputs       what it reads, by name: fingerprints, by which a copy is known too
    versions     more about what it reads: a shard of another version is done again

    When the block ends well the folder is finished. When it fails, what is noted is kept for the next run; if nothing
    was written at all, nothing is left. Raises PilekitError if another process holds the folder, if it holds something
    else, or the same kind of thing made with other parameters or from other inputs: what differs is named.
    """
    folder = Path(folder)
    wanted = msgspec.json.decode(msgspec.json.encode([parameters, inputs]))
    output = Output(folder, False, _made_of(wanted[1], versions or {}))
    if _is_finished(output, _header(folder, kind, *wanted)):
        # It may lie on a disk that cannot be written to, where a kill in its last moment left nothing to clear up.
        with suppress(OSError, PilekitError), locked(folder / LOCK_FILE, wait=False):
            _remove_notes(folder)
        yield replace(output, finished=True)
        return
    new = not folder.exists()
    try:
        with locked(folder / LOCK_FILE, wait=False):
            # Once more: another process may have been at it before the lock was ours.
            header = _header(folder, kind, *wanted)
            if _is_finished(output, header):
                yield replace(output, finished=True)
                return
            _refuse_links(folder)
            _remove_partials(folder)
            if header is None or header.finished:
                for note in _header_notes(header) if header else []:  # some files are gone; the others need no redoing
                    if output.is_true(note):
                        output.note(note.name, note.result, *(folder / file for file in note.files))
                write_header(folder, kind=kind, parameters=parameters, inputs=inputs, finished=False)
            try:
                yield output
            except BaseException:
                _withdraw(folder)
                raise
            results = {note.name: msgspec.to_builtins(note) for note in output.notes()}
            write_header(folder, kind=kind, parameters=parameters, inputs=inputs, finished=True, results=results)
            _remove_notes(folder)
    finally:
        if new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _header(folder: Path, kind: str, parameters: dict[str, Any], inputs: dict[str, Any]) -> Header | None:
    """The header that an earlier run of this very job left; None if there is nothing yet."""
    shown = visible(str(folder))
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise PilekitError(f"{shown} is a file, or below one, and no folder; name another with --out") from None
    except (OSError, ValueError) as error:  # the latter: a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise PilekitError(f"{shown}: cannot be read: {why}; name another folder with --out") from error
    if all(name == LOCK_FILE or (name.startswith(HEADER_FILE) and name.endswith(PARTIAL)) for name in names):
        return None
    try:
        header = read_header(folder, kind)
    except PilekitError as error:
        raise PilekitError(f"{shown} is not empty and not ours: {error}; name another folder with --out") from error
    for name in {**header.parameters, **parameters}:
        there, here = (_shown(found, name) for found in (header.parameters, parameters))
        if there != here:
            raise PilekitError(
                f"{shown}: was made with other settings: {name} is {there} there, {here} here; {_REMEDY}"
            )
    for name in {**header.inputs, **inputs}:
        if header.inputs.get(name) != inputs.get(name):
            how = "is not the same any more" if name in header.inputs and name in inputs else "is not among them now"
            how = how if name in header.inputs else "was not among them"
            raise PilekitError(f"{shown}: was made from other shards: {visible(name)} {how}; {_REMEDY}")
    return header


def _refuse_links(folder: Path) -> None:
    """Raise PilekitError for a link to a folder below the job's: what is written through it lands elsewhere."""
    for inner, names, _ in os.walk(folder):
        for path in (Path(inner, name) for name in names):
            if path.is_symlink():
                raise PilekitError(f"{visible(str(path))}: is a link, and nothing is written through it; remove it")


def _shown(parameters: Mapping[str, Any], name: str) -> str:
    return visible(msgspec.json.encode(parameters[name]).decode(), 200) if name in parameters else "not set"


def _is_finished(output: Output, header: Header | None) -> bool:
    """Whether the header says so, and nothing has been taken away and no shard has changed since."""
    return header is not None and bool(header.finished) and all(map(output.is_true, _header_notes(header)))


def _made_of(inputs: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, str]:
    """`Output.made_of` of these inputs."""
    parts = {name: [given, versions.get(name)] for name, given in sorted(inputs.items())}
    parts[""] = list(parts.items())
    return {name: xxhash.xxh3_128_hexdigest(msgspec.json.encode(part)) for name, part in parts.items()}


def _header_notes(header: Header) -> list[_Note]:
    try:
        return [msgspec.convert(note, _Note) for note in header.results.values()]
    except msgspec.ValidationError as error:
        raise PilekitError(f"the results in {HEADER_FILE} are not ours: {visible(str(error), 200)}") from error


def _note_file(folder: Path, name: str) -> Path:
    # A hash: a shard's name may hold anything, and be longer than a file's name.
    return folder / NOTES / f"{xxhash.xxh3_128_hexdigest(name.encode())}.json"


def _remove_notes(folder: Path) -> None:
    for file in (folder / NOTES).glob("*.json*"):  # those half written by a killed process too
        file.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / NOTES).rmdir()


def _remove_partials(folder: Path) -> None:
    """Remove what processes left half written that were stopped and could not clear up after themselves."""
    for partial in folder.rglob(f"*{PARTIAL}"):
        with suppress(OSError):
            partial.unlink()


def _withdraw(folder: Path) -> None:
    """Clear up after a job that failed; if nothing was done at all, the folder is nobody's again."""
    _remove_partials(folder)
    with suppress(OSError):
        for inner, _, _ in os.walk(folder, topdown=False):
            if Path(inner) != folder:
                with suppress(OSError):  # it is not empty
                    Path(inner).rmdir()
        if set(os.listdir(folder)) <= {LOCK_FILE, HEADER_FILE}:  # noqa: PTH208
            (folder / HEADER_FILE).unlink()
