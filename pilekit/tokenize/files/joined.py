"""`Joined`: an output of token files while it grows.

Each part of the work (a shard, a token file) is appended once, in order, to the files in the job's folder `joined`. The
note of the part then records where the output ended. After a kill the output is cut to the end in the last note, and
the next part is appended. A Parquet file is made when its file of ids is full, which is then removed. So the disk never
holds more than the output and the shards under way.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any, BinaryIO

from pilekit.artifacts.job_folder import Output
from pilekit.artifacts.own_file import open_own
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.engine import Advance
from pilekit.errors import PilekitError, visible
from pilekit.tokenize.files.documents import Cut, Run, documents_of_file, read_documents, write_documents
from pilekit.tokenize.files.formats import TokenFiles, finish_file, write_parquet

_TABLE = "/documents"
_COPIED_BYTES = 1 << 20


class Joined:
    """The output while it grows: `append` each of `parts`, in order, then `finish`.

    parts   the names of all parts; `done` of them are in the output. Parts that must be appended again have no note
            any more
    runs    gives the documents of a part that has been made
    """

    def __init__(
        self, files: TokenFiles, output: Output, parts: Sequence[str], runs: Callable[[str], Iterable[Run]]
    ) -> None:
        self.folder, self.files, self.output, self.parts = output.folder / "joined", files, output, parts
        self.runs = runs
        self.folder.mkdir(exist_ok=True)
        results = output.results()
        joined = [*takewhile(lambda part: "end" in results.get(part, {}), parts)]
        self.is_whole = len(joined) == len(parts) and _TABLE in results
        if not self.is_whole and not self._resume(Cut(*results[joined[-1]]["end"]) if joined else Cut()):
            output.forget()
            joined, results = [], {}
            self._resume(Cut())
        for part in parts[len(joined) :]:
            if "end" in results.get(part, {}):
                output.forget_shard(part)
        self.done = len(joined)
        self.begins = [Cut(), *(Cut(*results[part]["end"]) for part in joined)]

    def append(
        self,
        part: str,
        result: Mapping[str, Any],
        ids: Sequence[Path],
        *kept: Path,
        own: bool = False,
        advance: Advance = lambda size: None,
    ) -> None:
        """Append a part, unless it is in the output, and note where the output ends now.

        ids       files of its ids, one after another
        kept      files of the part that stay until the output is finished
        own       `ids` is a file of the job, and is removed; an empty output takes it as it is
        """
        if part in self.parts[: self.done]:
            return
        sizes: dict[Path, int] = {}
        for run in self.runs(part):
            for file, _, _, tokens in self.cut.place(run.tokens, self.files.limit):
                path = self.folder / self.files.raw(file)
                sizes[path] = sizes.get(path, 0) + tokens * self.files.item
        if own and len(sizes) == 1 and not self.files.head and not next(iter(sizes)).exists():
            ids[0].rename(next(iter(sizes)))
        elif not self._copy(ids, sizes, advance):
            raise PilekitError(f"{visible(part)}: was changed while it was read; run again")
        self.output.note(part, {**result, "end": astuple(self.cut)}, *kept)
        if own:
            ids[0].unlink(missing_ok=True)
        self.begins.append(replace(self.cut))
        for full in range(self.begins[-2].file, self.cut.file) if self.files.format == "parquet" else ():
            self._make_parquet(full)

    def finish(self, tokenizer: str, *, keep_table: bool = True) -> dict[str, Any]:
        """Write the table of documents, and the indexes that are missing; returns `dtype` and `files` for the header.

        tokenizer    the tokenizer's name, for `.ds.metadata`
        keep_table   whether the table is a file of the output; otherwise it only serves to make the indexes
        """
        files, folder = self.files, self.folder
        if not self.is_whole and not self.cut.documents:
            self.output.forget()
            for inner in filter(Path.is_dir, self.output.folder.iterdir()):
                shutil.rmtree(inner)
            raise PilekitError("nothing to write: no document that was read has a token; `pilekit stats` shows more")
        table = folder / f"{files.stem}{DOCUMENTS_SUFFIX}"
        if not self.is_whole:
            runs = chain.from_iterable(map(self.runs, self.parts))
            self.output.note(_TABLE, {"files": write_documents(table, runs, files.limit)}, table)
        counts = self.output.results()[_TABLE]["files"]
        for file, (documents, tokens) in enumerate(counts):
            if files.format == "parquet":
                self._make_parquet(file)
            elif files.format == "llmc" or not all((folder / name).exists() for name in files.names(file)):
                rows = functools.partial(read_documents, table, file=file)
                finish_file(files, folder, file, rows, documents, tokens, tokenizer)
        names = [name for file in range(len(counts)) for name in files.names(file)]
        names += [table.name] if keep_table else []
        names.sort(key=lambda name: name.endswith(".idx"))  # The index last: without it no reader finds the ids.
        return {"dtype": files.read_as, "files": {name: (folder / name).stat().st_size for name in names}}

    def _make_parquet(self, file: int) -> None:
        """Make a Parquet file of a file of ids, which is removed."""
        raw, path = (self.folder / name for name in (self.files.raw(file), *self.files.names(file)))
        if not path.exists():
            parts = zip(self.parts, pairwise(self.begins), strict=False)
            held = [(begin, self.runs(part)) for part, (begin, end) in parts if begin.file <= file <= end.file]
            write_parquet(path, raw, self.files.dtype, documents_of_file(held, self.files.limit, file))
        raw.unlink(missing_ok=True)

    def _resume(self, cut: Cut) -> bool:
        """Cut the output to its end at `cut`, and remove all other files; False if it is shorter."""
        self.cut = cut
        whole = [self.folder / self.files.raw(file) for file in range(cut.file + bool(cut.documents))]
        made = [self.folder / self.files.names(file)[0] for file in range(cut.file)]
        whole = [*(path if path.exists() else raw for path, raw in zip(made, whole, strict=False)), *whole[cut.file :]]
        for path in set(self.folder.iterdir()).difference(whole):
            path.unlink()
        if not all(path.exists() for path in whole):
            return False
        for path in whole[cut.file :]:  # Full files stay as they are.
            end = self.files.head + cut.tokens * self.files.item
            with os.fdopen(open_own(path), "rb+") as file:
                if file.seek(0, os.SEEK_END) < end:
                    return False
                file.truncate(end)
        return True

    def _copy(self, sources: Sequence[Path], sizes: Mapping[Path, int], advance: Advance) -> bool:
        """Append the bytes of `sources` to files, so many to each; False if there are fewer."""
        pieces = (piece for source in sources for piece in _pieces(source))
        rest = memoryview(b"")
        for path, size in sizes.items():
            with _appending(path, self.files.head) as out:
                while size:
                    rest = rest or memoryview(next(pieces, b""))
                    if not rest:
                        return False
                    written = out.write(rest[:size])
                    advance(written)
                    rest, size = rest[written:], size - written
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
