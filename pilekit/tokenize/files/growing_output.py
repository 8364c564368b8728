"""`GrowingOutput`: token files while parts are appended to them.

Each part of the work (a shard, a token file) is appended once, in order, to the files in the job's folder `joined`. The
note of the part then records where the output ended. After a kill the output is cut to the end in the last note, and
the next part is appended. When a file of ids is full, the files beside it are made; a Parquet file replaces its ids. So
the disk never holds more than the output and the shards under way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from itertools import chain, islice, pairwise, takewhile
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from pilekit.artifacts.job_folder import Output
from pilekit.artifacts.own_file import open_own
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.errors import PilekitError, visible
from pilekit.tokenize.files.formats import TokenFiles, finish_file
from pilekit.tokenize.files.token_documents import Cut, Rows, with_files, write_documents
from pilekit.workers import Advance

_COPIED_BYTES = 1 << 20


class GrowingOutput:
    """The output while it grows: `append` each of `parts`, in order, then `finish`.

    parts       by name, in order: a function that gives the part's rows in the table of documents, once it is made
    tokenizer   the tokenizer's name, for `.ds.metadata`

    The first `appended_parts` parts are in the output. The others have no note, so a resumed job makes them again.
    """

    def __init__(
        self, files: TokenFiles, output: Output, parts: Mapping[str, Callable[[], Rows]], tokenizer: str
    ) -> None:
        self.folder, self.files, self.output, self.parts = output.folder / "joined", files, output, parts
        self.tokenizer = tokenizer
        self._places = {part: place for place, part in enumerate(parts)}
        self.table = self.folder / f"{files.stem}{DOCUMENTS_SUFFIX}"
        self.folder.mkdir(exist_ok=True)
        results = output.results()
        joined = [*takewhile(lambda part: "end" in results.get(part, {}), parts)]
        self.ends = [Cut(), *(Cut(*results[part]["end"]) for part in joined)]
        if not self._resume():
            output.forget()
            self.ends, results = [Cut()], {}
            self._resume()
        for part in islice(parts, self.appended_parts, None):
            if "end" in results.get(part, {}):
                output.forget_shard(part)

    @property
    def appended_parts(self) -> int:
        """The number of parts in the output."""
        return len(self.ends) - 1

    def append(
        self,
        part: str,
        result: Mapping[str, Any],
        ids: Sequence[Path],
        *kept_files: Path,
        advance: Advance = lambda size: None,
    ) -> None:
        """Append a part, unless it is in the output, and note where the output ends now.

        ids          files of the part's ids, one after another; with `kept_files`, they are removed or become the first
                     file of the output
        kept_files   other files that the job made of the part, which stay until the output is finished
        """
        if self._places[part] < self.appended_parts:
            return
        sizes: dict[Path, int] = {}
        cut = replace(self.ends[-1])
        for batch in self.parts[part]():
            for file, _, _, tokens in cut.place(batch["tokens"].to_numpy(), self.files.limit):
                path = self.folder / self.files.raw(file)
                sizes[path] = sizes.get(path, 0) + tokens * self.files.item
        if kept_files and len(sizes) == 1 and not self.files.head and not next(iter(sizes)).exists():
            ids[0].rename(next(iter(sizes)))
        elif not self._copy(ids, sizes, advance):
            raise PilekitError(f"{', '.join(map(visible, ids))}: was changed while it was read; run again")
        self.output.note(part, {**result, "end": astuple(cut)}, *kept_files)
        self.ends.append(cut)
        for full in range(self.ends[-2].file, cut.file):
            self._finish_file(full)

    def discard(self) -> None:
        """Remove all that was made."""
        for inner in filter(Path.is_dir, self.output.folder.iterdir()):
            shutil.rmtree(inner)

    def finish(self, *, with_table: bool = True) -> dict[str, Any]:
        """Write all missing files, among them the table if `with_table`; returns `dtype` and `files` for the header."""
        files, cut = self.files, self.ends[-1]
        if cut == Cut():
            self.discard()
            raise PilekitError("nothing to write: no document that was read has a token; `pilekit stats` shows more")
        for file in range(cut.file + 1):
            self._finish_file(file)
        names = [name for file in range(cut.file + 1) for name in files.names(file)]
        if with_table:
            if not self.table.exists():
                rows = chain.from_iterable(part_rows() for part_rows in self.parts.values())
                write_documents(self.table, with_files(rows, Cut(), files.limit))
            names.append(self.table.name)
        names.sort(key=lambda name: name.endswith(".idx"))  # The index last: without it no reader finds the ids.
        return {"dtype": files.reader_dtype, "files": {name: (self.folder / name).stat().st_size for name in names}}

    def _finish_file(self, file: int) -> None:
        """Make the files of this number, once its ids are complete."""
        if self.files.format == "llmc" or not all((self.folder / name).exists() for name in self.files.names(file)):
            finish_file(self.files, self.folder, file, lambda: self._rows_in(file), self.tokenizer)
        if self.files.format == "parquet":
            (self.folder / self.files.raw(file)).unlink(missing_ok=True)

    def _rows_in(self, file: int) -> Iterator[pa.RecordBatch]:
        """The rows of the documents in this file."""
        for part_rows, (begin, end) in zip(self.parts.values(), pairwise(self.ends), strict=False):
            if begin.file <= file <= end.file:
                for batch in with_files(part_rows(), replace(begin), self.files.limit):
                    if len(rows := batch.filter(pc.equal(batch["file"], file))):
                        yield rows

    def _resume(self) -> bool:
        """Cut the output to the end in its last note, and remove the files made after it; False if it is shorter."""
        files, end, ended = self.files, self.ends[-1], self.appended_parts == len(self.parts)
        if end == Cut():
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            return True
        full = range(end.file + ended)
        kept_names = {name for file in full for name in (files.raw(file), *files.names(file))}
        last = self.table if ended else self.folder / files.raw(end.file)
        for path in [*self.folder.iterdir()]:
            if path.name not in kept_names and path != last:
                path.unlink()
        ids = ((self.folder / files.raw(file), self.folder / files.names(file)[0]) for file in full)
        if not all(raw.exists() or final.exists() for raw, final in ids):
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
        """Append the bytes of `sources` to files, as many to each as `sizes` says; False if there are fewer."""
        pieces, unwritten = chain.from_iterable(map(_pieces, sources)), b""
        for path, size in sizes.items():
            with _appending(path, self.files.head) as out:
                while size:
                    unwritten = unwritten or next(pieces, b"")
                    if not unwritten:
                        return False
                    piece, unwritten = unwritten[:size], unwritten[size:]
                    advance(out.write(piece))
                    size -= len(piece)
        return True


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_COPIED_BYTES):
                yield piece
    except OSError as error:
        raise PilekitError(f"{path}: cannot be read: {error.strerror}") from error


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
        raise PilekitError(f"{path}: cannot be written: {error.strerror}") from error
