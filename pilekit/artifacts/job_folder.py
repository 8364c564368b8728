"""The output folder of a job that works shard by shard: which job owns it, and how a killed job resumes.

    inputs = inputs_for(out, corpus.shards).fingerprints
    with output_folder(out, kind="selection", parameters={"sample": 0.01}, inputs=inputs) as output:
        ...                                 # output.note(shard.name, {...}, file) for each shard (folder_job.py)
        results = output.results()

    OUT/pilekit.json      kind, parameters, fingerprints of the inputs; whether the job is finished, then its results
        train/00.jsonl.zst, ...
        .unfinished/      a note for each finished shard; removed when the header holds the results
        .lock             locked while a process writes here, removed at the end; parts of a job share it

The header is written first, so the folder is recognised as ours at any moment. The files of a shard are renamed into
place when they are complete. The note with their sizes is written after that, so it never names a file that was not
finished. The next run with the same parameters and inputs processes the shards that have no valid note.
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
from pilekit.artifacts.checked import reason_of_damage
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.folders import refuse_linked_folders
from pilekit.artifacts.header import HEADER_FILE, Header, read_header, write_header
from pilekit.artifacts.own_file import read_own
from pilekit.artifacts.sealed import SealedKind
from pilekit.errors import PilekitError, message_logger, shortened

logger = message_logger(__name__)

LOCK_FILE = ".lock"
NOTES = ".unfinished"

_OTHER_FOLDER = "name another folder with --out"
_REMEDY = f"{_OTHER_FOLDER}, or remove this one"


class _Note(msgspec.Struct, frozen=True):
    """A finished shard: its name, its files (path in the folder -> bytes), and the job's result for it."""

    name: str
    files: dict[str, int]
    result: dict[str, Any]
    made_of: str = ""
    """Hash of the input's fingerprint and version; of all inputs, if `name` is not an input."""


@dataclass(frozen=True)
class Output:
    """The folder as the job sees it; can be sent to worker processes.

    finished   the job is complete: nothing is left to do but read `results()`
    made_of    hash of each input's fingerprint and version, by the input's name; "" stands for all inputs together
    """

    folder: Path
    finished: bool
    made_of: Mapping[str, str] = field(default_factory=dict)

    def path(self, name: str, suffix: str) -> Path:
        """The path for a file of the shard `name`; a `/` in the name makes a folder."""
        return self.folder / f"{name}{suffix}"

    def note(self, name: str, result: Mapping[str, Any], *files: Path) -> None:
        """Record that the shard `name` is done; `files` are all files written for it, complete and in place.

        Other files of an earlier note of the shard are removed: the shard may have changed, and make no file now.
        """
        sizes = {file.relative_to(self.folder).as_posix(): file.stat().st_size for file in files}
        earlier = _note_in(self._note_path(name))
        for old in earlier.files if earlier is not None else ():
            if old not in sizes and not os.path.isabs(old) and ".." not in Path(old).parts:  # noqa: PTH117
                (self.folder / old).unlink(missing_ok=True)
        self.write_note(_Note(name, sizes, dict(result), self._hash_for(name)))

    def write_note(self, note: _Note) -> None:
        """Write a note, valid or not."""
        try:
            encoded = msgspec.json.encode(note)
        except UnicodeEncodeError as error:
            raise PilekitError(
                f"{error.object}: is not valid UTF-8, so it cannot be recorded; rename that folder"
            ) from error
        # A power cut may take the last notes of shards: those shards are done again. A slash precedes other notes.
        with write_atomically(self._note_path(note.name), flushed=note.name.startswith("/")) as file:
            file.write(encoded)

    def result(self, name: str) -> dict[str, Any] | None:
        """The recorded result of the shard `name`; None if it is not done."""
        if self.finished:
            return self.results().get(name)
        note = _note_in(self._note_path(name))
        return None if note is None or not self.is_valid(note) else note.result

    def results(self) -> dict[str, dict[str, Any]]:
        """The recorded results by shard, in the order of the names."""
        notes = _notes_of(read_header(self.folder)) if self.finished else self.notes()
        return {note.name: note.result for note in notes}

    def notes(self) -> list[_Note]:
        """All valid notes, in the order of the names."""
        notes = map(_note_in, (self.folder / NOTES).glob("*.json"))
        valid = (note for note in notes if note is not None and self.is_valid(note))
        return sorted(valid, key=lambda note: note.name)

    def is_valid(self, note: _Note) -> bool:
        """Whether the note's input is unchanged and its files exist with the recorded sizes."""
        try:
            return note.made_of == self._hash_for(note.name) and all(
                (self.folder / file).stat().st_size == size for file, size in note.files.items()
            )
        except (OSError, ValueError):  # ValueError: a null character
            return False

    def forget_shard(self, name: str) -> None:
        """Remove the note of the shard `name`."""
        self._note_path(name).unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove all notes. If the job then fails without having written a file, its folder is removed too."""
        for file in (self.folder / NOTES).glob("*.json*"):  # partial notes of a killed process too
            file.unlink(missing_ok=True)
        with suppress(OSError):
            (self.folder / NOTES).rmdir()

    def discard(self) -> None:
        """Remove all notes and the files that they name."""
        for file in (file for note in self.notes() for file in note.files):
            (self.folder / file).unlink(missing_ok=True)
        self.forget()

    def _hash_for(self, name: str) -> str:
        return self.made_of.get(name) or self.made_of.get("", "")

    def _note_path(self, name: str) -> Path:
        # A hash: a shard's name may hold any character and be longer than a file name.
        return self.folder / NOTES / f"{xxhash.xxh3_128_hexdigest(name.encode())}.json"


@contextmanager
def output_folder(
    folder: str | Path,
    *,
    kind: str,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any],
    versions: Mapping[str, str] | None = None,
    shared: bool = False,
    tables: Mapping[str, SealedKind] | None = None,
) -> Iterator[Output]:
    """Create `folder`, or take over the folder of an earlier run of the same job, and lock it until the block ends.

    kind         what the job makes, e.g. "selection"
    parameters   every setting that the output depends on
    inputs       fingerprints of the files that the job reads, by name; a copy has the same fingerprint
    versions     size and time of each input: a shard with another version is processed again
    shared       this process does a part of the job while others do theirs: it shares the lock, removes nothing, and
                 does not mark the job as finished; a run that is not shared does
    tables       kinds of the sealed tables that a finished job has, by name; one of another pilekit is refused

    When the block succeeds, the job is marked as finished. When it fails, the notes stay for the next run; if no shard
    was finished, nothing stays. Raises PilekitError if another process holds the folder, if the folder holds something
    else, or if it was made with other parameters or from other inputs; the message names the difference.
    """
    folder = Path(folder)
    output = Output(folder, False, _input_hashes(inputs, versions or {}))
    header = _earlier_header(folder, kind, parameters, inputs)
    if header is not None and header.finished and all(map(output.is_valid, _notes_of(header))):
        # A kill in the last moment may have left notes. They may stay: the disk may be read-only.
        with suppress(OSError, PilekitError), locked(folder / LOCK_FILE, wait=False):
            output.forget()
        for name, table in (tables or {}).items():
            table.check_table(folder / name)
        logger.warning("already done: %s holds this result; to make it again, remove it first", folder)
        yield replace(output, finished=True)
        return
    new = not folder.exists() and not shared
    try:
        with locked(folder / LOCK_FILE, wait=False, shared=shared):
            header = _earlier_header(folder, kind, parameters, inputs)  # again: another process may have been here
            refuse_linked_folders(*(Path(inner, name) for inner, names, _ in os.walk(folder) for name in names))
            if not shared:
                _remove_partials(folder)
            if header is None or header.finished or header.inputs != _as_json(inputs):
                # If the job was finished, shards or files of shards have changed. The other shards stay finished.
                for note in _notes_of(header) if header is not None and header.finished else []:
                    output.write_note(note)
                if header is not None and not header.finished:
                    changed_inputs = [
                        name for name, fingerprint in _as_json(inputs).items() if header.inputs[name] != fingerprint
                    ]
                    first_names = ", ".join(changed_inputs[:5]) + ", ..." * (len(changed_inputs) > 5)
                    logger.warning("%s: read again, because they have changed since: %s", folder, first_names)
                write_header(folder, kind=kind, parameters=parameters, inputs=inputs, finished=False)
            try:
                yield output
            except BaseException:
                if not shared:
                    _remove_if_empty(folder)
                raise
            if shared:
                return
            results = {note.name: msgspec.to_builtins(note) for note in output.notes()}
            write_header(folder, kind=kind, parameters=parameters, inputs=inputs, finished=True, results=results)
            output.forget()
    finally:
        if new:
            with suppress(OSError):  # not empty
                folder.rmdir()


_OPTIONS = {"eod": "append_eod"}
"""Settings that are recorded under other names than users give them."""


def check_same_job(
    shown: str | Path, header: Header, parameters: Mapping[str, Any], inputs: Mapping[str, Any], remedy: str
) -> None:
    """Raise PilekitError if `header` is of a job with other parameters or inputs; messages call its folder `shown`."""
    parameters, inputs = _as_json(parameters), _as_json(inputs)
    for name in {**header.parameters, **parameters}:
        there, here = (_shown(name, settings.get(name)) for settings in (header.parameters, parameters))
        if there != here:
            difference = f"{_OPTIONS.get(name, name)} is {shortened(there, 200)} there, {shortened(here, 200)} here"
            raise PilekitError(f"{shown}: was made with other settings: {difference}; {remedy}")
    for name in {**header.inputs, **inputs}:
        if header.inputs.get(name) != inputs.get(name):
            if name not in header.inputs:
                how = "was not among them"
            else:
                how = "is not the same any more" if name in inputs else "is not among them now"
            raise PilekitError(f"{shown}: was made from other shards: {name} {how}; {remedy}")


def _shown(name: str, value: Any) -> str:
    """A setting's value in a message."""
    if value is None:
        return "not given"
    return f"id {value}" if name == "eod" else msgspec.json.encode(value).decode()


def _earlier_header(folder: Path, kind: str, parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> Header | None:
    """The header that an earlier run of the same job left; None if the folder is new or empty."""
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise PilekitError(f"{folder}: cannot be used as a folder: {why}; {_OTHER_FOLDER}") from error
    if all(name == LOCK_FILE or (name.startswith(HEADER_FILE) and name.endswith(PARTIAL)) for name in names):
        return None
    try:
        header = read_header(folder, kind)
    except PilekitError as error:
        raise PilekitError(f"{folder}: is not empty, and not of this command ({error}); {_OTHER_FOLDER}") from error
    # Notes are valid for one version of a shard, so an unfinished job resumes with other versions of the same shards.
    is_same = not header.finished and header.inputs.keys() == inputs.keys()
    check_same_job(folder, header, parameters, header.inputs if is_same else inputs, _REMEDY)
    return header


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a header returns them (a tuple becomes a list), so that they compare equal."""
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(values))
    return decoded


def _input_hashes(inputs: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, str]:
    """`Output.made_of` for these inputs."""
    parts = {name: [fingerprint, versions.get(name)] for name, fingerprint in sorted(inputs.items())}
    parts[""] = list(parts.items())  # all inputs together
    return {name: xxhash.xxh3_128_hexdigest(msgspec.json.encode(part)) for name, part in parts.items()}


def _note_in(file: Path) -> _Note | None:
    try:
        return msgspec.json.decode(read_own(file), type=_Note)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _notes_of(header: Header) -> list[_Note]:
    try:
        return [msgspec.convert(note, _Note) for note in header.results.values()]
    except msgspec.ValidationError as error:
        raise PilekitError(f"{HEADER_FILE} holds results of another kind: {reason_of_damage(error)}") from error


def _remove_partials(folder: Path) -> None:
    """Remove the partial files of killed processes."""
    # Workers of a killed process may remove folders meanwhile. `os.walk` passes over them, `rglob` raises an error.
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(PARTIAL):
                with suppress(OSError):
                    Path(place, name).unlink()


def _remove_if_empty(folder: Path) -> None:
    """Clean up after a failed job: remove partial files and empty folders, and the header if nothing else is left."""
    _remove_partials(folder)
    for inner, _, _ in os.walk(folder, topdown=False):
        if Path(inner) != folder:
            with suppress(OSError):  # not empty
                Path(inner).rmdir()
    with suppress(OSError):
        if set(os.listdir(folder)) <= {LOCK_FILE, HEADER_FILE}:  # noqa: PTH208
            (folder / HEADER_FILE).unlink()
