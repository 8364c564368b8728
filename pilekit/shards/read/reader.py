"""`read`: the documents of shards, in batches.

    shard_blocks -> LineParser -> DocumentBatch

Each arrow is a generator, so memory is a few pieces of 2 MiB, whatever the shard's size.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from pilekit.corpus import Corpus as Corpus
from pilekit.corpus import Described, Shard, Source, load_manifest, shard_of, subsets_or_all
from pilekit.corpus.find import names_many
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.read.blocks import shard_blocks
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.json_records import OnError as OnError
from pilekit.shards.read.lines import numbered_parts
from pilekit.shards.read.open import MAX_DOCUMENT_BYTES, ReadOptions
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.zstd_frames import MAX_WINDOW


class ShardReader(Iterator[DocumentBatch], AbstractContextManager["ShardReader"]):
    """The batches of one or several shards, in order; `skipped` counts the bad lines that were skipped so far.

    `parser` is the parser of a single shard's lines.
    """

    def __init__(
        self, batches: Generator[DocumentBatch, None, None], skipped: SkippedLines, parser: LineParser | None = None
    ):
        self._batches = batches
        self.parser = parser
        self.skipped = skipped

    def __iter__(self) -> Generator[DocumentBatch, None, None]:
        return self._batches

    def __next__(self) -> DocumentBatch:
        return next(self._batches)

    def skip_counts(self) -> dict[str, Any]:
        """For the note about a single shard: its bad lines and the number of documents of other subsets so far."""
        return {
            "skipped": self.skipped.count,
            "others": self.parser.other_documents if self.parser else 0,
            "bad_lines": [[bad.line, bad.reason] for bad in self.skipped.examples],
        }

    def close(self) -> None:
        """Stop reading: the decoding thread ends and the file is closed."""
        self._batches.close()

    def __exit__(self, *error: object) -> None:
        self.close()


Reading = Callable[..., ShardReader]
"""`read` with the options of a job: a `functools.partial`, which can be sent to other processes."""


def read(
    source: Source | Shard | Corpus,
    subsets: Sequence[str] | None = None,
    on_error: OnError = "raise",
    *,
    manifest: Described = None,
    start: int = 0,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    max_window: int = MAX_WINDOW,
    advance: Callable[[int], None] | None = None,
    ahead: bool = True,
) -> ShardReader:
    """Read one shard, or all shards of a corpus in their order.

    source               a shard: its path or URL, `-` for standard input, or a `Shard`; or a corpus: a folder, a glob,
                         a list of paths, or a `Corpus`
    subsets              only documents of these subsets, in any spelling the manifest knows; None: all
    on_error             "raise": a bad line is a `PilekitError`; "skip": it is counted and listed in `.skipped`
    manifest             where records keep text and label; the Pile's by default
    start                is the first document number in a single shard; earlier lines are not parsed
    max_document_bytes   a longer line is an error (1 GiB)
    max_window           a zstd frame that needs a larger window is an error (128 MiB)
    advance              is called, from the decoding thread, with the number of stored bytes of each read
    ahead                decompresses in a thread; False is a few percent faster where every CPU has a process already

    Yields `DocumentBatch`es of about 1-4 MB of text. A truncated or damaged file, or a line that is too long, is a
    `PilekitError` with either `on_error`, because the rest of the shard is lost.
    """
    if on_error not in ("raise", "skip"):
        raise PilekitError(f'on_error is "raise" or "skip", not {on_error!r}')
    if names_many(source):
        assert not isinstance(source, Shard)
        if start:
            raise PilekitError("start= is a document number of one shard; name one shard")
        corpus = Corpus.of(source, manifest)
        read_shard = partial(read, subsets=subsets, on_error=on_error, manifest=corpus.manifest, advance=advance)
        limits = {"max_document_bytes": max_document_bytes, "max_window": max_window}
        return _read_all(corpus, partial(read_shard, **limits, ahead=ahead))
    shard = source if isinstance(source, Shard) else shard_of(str(source))
    manifest = load_manifest(manifest)
    skipped = SkippedLines()
    parser = LineParser.for_shard(shard, manifest, subsets_or_all(subsets, manifest), on_error, skipped)
    options = ReadOptions(advance, ahead, max_document_bytes=max_document_bytes, max_window=max_window)
    return ShardReader(_batches(shard, parser, start, options), skipped, parser)


def read_corpus(
    corpus: Corpus | Source,
    subsets: Sequence[str] | None = None,
    on_error: OnError = "raise",
    *,
    manifest: Described = None,
    advance: Callable[[int], None] | None = None,
) -> ShardReader:
    """Read all shards of a corpus in order; the arguments are those of `read`."""
    return read(Corpus.of(corpus, manifest), subsets, on_error, advance=advance)


Corpus._read = staticmethod(read)


def _read_all(corpus: Corpus, read_shard: Reading) -> ShardReader:
    skipped = SkippedLines()

    def batches() -> Generator[DocumentBatch, None, None]:
        for shard in corpus.shards:
            with read_shard(shard) as reader:
                try:
                    yield from reader
                finally:
                    skipped.merge(reader.skipped)

    return ShardReader(batches(), skipped)


def _batches(
    shard: Shard, parser: LineParser, start: int, options: ReadOptions
) -> Generator[DocumentBatch, None, None]:
    with shard_blocks(shard.path, options, shown=parser.path, columns=parser.format, start=start) as blocks:
        yield from parser.batches(numbered_parts(blocks), start)
