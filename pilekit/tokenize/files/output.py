"""The output of token files, from any source: while it grows, and its life until it is published.

Everything is made in `PREFIX.unfinished/`, the folder of a job. Each part of the work (a shard, a token file) is
appended once, in order, to the files in its folder `joined`. The note of the part then records where the output ended.
After a kill the output is cut to the end in the last note, and the next part is appended. When a file of ids is full,
the files beside it are made; a Parquet file replaces its ids. So the disk never holds more than the output and the
shards under way.

At the end the files are renamed to their final names, the indexes last, and then the header is written. So a file under
its final name is complete. If the same job is finished already, its results are read from the header. An output of
another job, or a file that is not ours, is an error.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from itertools import chain, islice, pairwise, takewhile
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.header import read_header, write_header
from pilekit.artifacts.job_folder import LOCK_FILE, Output, check_same_job, output_folder
from pilekit.artifacts.own_file import open_own, refuse_linked_folders
from pilekit.corpus import Shard
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.tokenize.files.documents import Cut, Rows, with_files, write_documents
from pilekit.tokenize.files.formats import TokenFiles, finish_file
from pilekit.tokenize.files.token_file import KIND

logger = logging.getLogger(__name__)

DONE = "/done"
"""The name of the note about the whole job; no shard's name begins with a slash."""

REMEDY = "name another prefix with --out, or remove these files"

_COPIED_BYTES = 1 << 20


def finished_output(
    files: TokenFiles,
    parameters: Mapping[str, Any],
    sources: Iterable[Shard],
    make: Callable[[Output, Inputs], dict[str, Any]],
    shared: bool = False,
) -> tuple[dict[str, Any], str]:
    """Make the output if it is not finished; returns the results in its header, and the header's path for messages.

    sources   the files that the job reads
    make      makes the files in the job's folder `joined`, and returns the results, whose `files` has the size of
              each file by its name
    shared    `make` does a part of the job, as in `output_folder`; its results are returned
    """
    folder, name = files.prefix.parent, f"{files.stem}.json"
    shown = visible(folder / name)
    unfinished = files.prefix.with_name(f"{files.prefix.name}.unfinished")
    refuse_linked_folders(unfinished)
    inputs = inputs_for(unfinished, sources)
    job: dict[str, Any] = {"kind": KIND, "parameters": parameters, "inputs": inputs.fingerprints}
    done_before = (folder / name).exists()
    if not done_before:
        with output_folder(unfinished, versions=inputs.versions, shared=shared, **job) as output:
            if (done := output.result(DONE)) is None:
                _refuse_others(files)
            if shared:
                return make(output, inputs), shown
            if done is None:
                done = make(output, inputs)
                output.note(DONE, done)
            _publish(files, output, done)
            write_header(folder, finished=True, results={**done, "versions": inputs.versions}, name=name, **job)
    header = read_header(folder, KIND, name)
    check_same_job(shown, header, parameters, inputs.fingerprints, REMEDY)
    for shard, version in header.results.get("versions", {}).items():
        if version != inputs.versions[shard]:  # The fingerprint shows no small change in place.
            raise PilekitError(f"{shown}: {visible(shard)} was changed after these files were made; {REMEDY}")
    for file, size in header.results.get("files", {}).items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != size:
            raise PilekitError(f"{shown}: {visible(file)} no longer exists with {size:,} bytes; {REMEDY}")
    _remove(unfinished)
    if done_before:
        logger.warning("already done: %s tells this; to make it again, remove these files first", shown)
    return header.results, shown


def _remove(folder: Path) -> None:
    """Remove the folder of a job whose output is published."""
    with suppress(PilekitError, OSError):  # It is missing, or not ours, or another process is removing it.
        if set(os.listdir(folder)) <= {LOCK_FILE} or read_header(folder, KIND):  # noqa: PTH208
            with locked(folder / LOCK_FILE, wait=False):
                for inner in filter(Path.is_dir, folder.iterdir()):
                    shutil.rmtree(inner)  # before the header, without which the folder is not known as ours
                shutil.rmtree(folder)


def _refuse_others(files: TokenFiles) -> None:
    """Raise PilekitError if a foreign file has a name of the output; `_publish` checks all files but the first."""
    for name in (*files.names(0), f"{files.stem}{DOCUMENTS_SUFFIX}", f"{files.stem}.json"):
        path = files.prefix.parent / name
        if path.exists() or path.is_symlink():
            raise PilekitError(
                f"{visible(path)}: exists, and this job did not write it; name another prefix with --out, or remove it"
            )


def _publish(files: TokenFiles, output: Output, done: dict[str, Any]) -> None:
    """Rename all files to their final names. A killed run may have renamed some."""
    for name, size in done["files"].items():
        made, path = output.folder / "joined" / name, files.prefix.parent / name
        if made.exists() and not path.exists():
            made.rename(path)
        elif not path.exists():
            unfinished = visible(output.folder)
            raise PilekitError(f"{visible(path)}: is gone; put it back, or remove {unfinished} and run again")
        elif made.exists() or path.stat().st_size != size:
            raise PilekitError(f"{visible(path)}: exists, and this job did not write it; remove it")


class Joined:
    """The output while it grows: `append` each of `parts`, in order, then `finish`.

    parts       by the names of all parts: gives the rows, in the table of documents, of a part that has been made.
                `done` parts are in the output; those that must be appended again have no note any more
    tokenizer   the tokenizer's name, for `.ds.metadata`
    """

    def __init__(
        self, files: TokenFiles, output: Output, parts: Mapping[str, Callable[[], Rows]], tokenizer: str
    ) -> None:
        self.folder, self.files, self.output, self.parts = output.folder / "joined", files, output, parts
        self.tokenizer = tokenizer
        self.table = self.folder / f"{files.stem}{DOCUMENTS_SUFFIX}"
        self.folder.mkdir(exist_ok=True)
        results = output.results()
        joined = [*takewhile(lambda part: "end" in results.get(part, {}), parts)]
        self.ends = [Cut(), *(Cut(*results[part]["end"]) for part in joined)]
        if not self._resume():
            output.forget()
            self.ends, results = [Cut()], {}
            self._resume()
        for part in islice(parts, self.done, None):
            if "end" in results.get(part, {}):
                output.forget_shard(part)

    @property
    def done(self) -> int:
        """The number of parts in the output."""
        return len(self.ends) - 1

    def append(
        self,
        part: str,
        result: Mapping[str, Any],
        ids: Sequence[Path],
        *kept: Path,
        advance: Advance = lambda size: None,
    ) -> None:
        """Append a part, unless it is in the output, and note where the output ends now.

        ids       files of its ids, one after another
        kept      other files that the job made of the part, which stay until the output is finished; its ids are
                  removed, or become those of an empty output
        """
        if part in islice(self.parts, self.done):
            return
        sizes: dict[Path, int] = {}
        cut = replace(self.ends[-1])
        for batch in self.parts[part]():
            for file, _, _, tokens in cut.place(batch["tokens"].to_numpy(), self.files.limit):
                path = self.folder / self.files.raw(file)
                sizes[path] = sizes.get(path, 0) + tokens * self.files.item
        if kept and len(sizes) == 1 and not self.files.head and not next(iter(sizes)).exists():
            ids[0].rename(next(iter(sizes)))
        elif not self._copy(ids, sizes, advance):
            raise PilekitError(f"{', '.join(map(visible, ids))}: was changed while it was read; run again")
        self.output.note(part, {**result, "end": astuple(cut)}, *kept)
        self.ends.append(cut)
        for full in range(self.ends[-2].file, cut.file):
            self._finish_file(full)

    def finish(self, *, with_table: bool = True) -> dict[str, Any]:
        """Write all files that are missing, `with_table` the table too; returns `dtype` and `files` for the header."""
        files, cut = self.files, self.ends[-1]
        if cut == Cut():
            for inner in filter(Path.is_dir, self.output.folder.iterdir()):
                shutil.rmtree(inner)
            raise PilekitError("nothing to write: no document that was read has a token; `pilekit stats` shows more")
        for file in range(cut.file + 1):
            self._finish_file(file)
        names = [name for file in range(cut.file + 1) for name in files.names(file)]
        if with_table:
            if not self.table.exists():
                rows = chain.from_iterable(of_part() for of_part in self.parts.values())
                write_documents(self.table, with_files(rows, Cut(), files.limit))
            names.append(self.table.name)
        names.sort(key=lambda name: name.endswith(".idx"))  # The index last: without it no reader finds the ids.
        return {"dtype": files.read_as, "files": {name: (self.folder / name).stat().st_size for name in names}}

    def _finish_file(self, file: int) -> None:
        """Make the files of this number, once its ids are complete."""
        if self.files.format == "llmc" or not all((self.folder / name).exists() for name in self.files.names(file)):
            finish_file(self.files, self.folder, file, lambda: self._rows_of(file), self.tokenizer)
        if self.files.format == "parquet":
            (self.folder / self.files.raw(file)).unlink(missing_ok=True)

    def _rows_of(self, file: int) -> Iterator[pa.RecordBatch]:
        """The rows of the documents in this file."""
        for of_part, (begin, end) in zip(self.parts.values(), pairwise(self.ends), strict=False):
            if begin.file <= file <= end.file:
                for batch in with_files(of_part(), replace(begin), self.files.limit):
                    if len(of_file := batch.filter(pc.equal(batch["file"], file))):
                        yield of_file

    def _resume(self) -> bool:
        """Cut the output to its end, and remove all files that are made later; False if it is shorter."""
        files, end, ended = self.files, self.ends[-1], self.done == len(self.parts)
        if end == Cut():
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            return True
        full = range(end.file + ended)
        kept = {name for file in full for name in (files.raw(file), *files.names(file))}
        last = self.table if ended else self.folder / files.raw(end.file)
        for path in [*self.folder.iterdir()]:
            if path.name not in kept and path != last:
                path.unlink()
        ids = ((self.folder / files.raw(file), self.folder / files.names(file)[0]) for file in full)
        if not all(raw.exists() or made.exists() for raw, made in ids):
            return False
        if ended:
            return True
        size = files.head + end.tokens * files.item
        if not last.exists() or last.stat().st_size < size:
            return False
        with os.fdopen(open_own(last), "rb+") as file_of_ids:
            file_of_ids.truncate(size)
        return True

    def _copy(self, sources: Sequence[Path], sizes: Mapping[Path, int], advance: Advance) -> bool:
        """Append the bytes of `sources` to files, so many to each; False if there are fewer."""
        pieces, rest = chain.from_iterable(map(_pieces, sources)), b""
        for path, size in sizes.items():
            with _appending(path, self.files.head) as out:
                while size:
                    rest = rest or next(pieces, b"")
                    if not rest:
                        return False
                    piece, rest = rest[:size], rest[size:]
                    advance(out.write(piece))
                    size -= len(piece)
        return True


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_COPIED_BYTES):
                yield piece
    except OSError as error:
        raise PilekitError(f"{visible(path)}: cannot be read: {error.strerror}") from error


@contextmanager
def _appending(path: Path, head: int) -> Iterator[BinaryIO]:
    """The file, open for appending, and synced to disk after the block. A new file begins with `head` zeros."""
    try:
        with os.fdopen(open_own(path), "rb+") as file:
            if not file.seek(0, os.SEEK_END):
                file.write(bytes(head))
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise PilekitError(f"{visible(path)}: cannot be written: {error.strerror}") from error
