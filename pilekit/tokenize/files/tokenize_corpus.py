"""`tokenize_corpus`: the ids of a corpus as files for another trainer.

    read(shard) -> stages -> encode (threads) -> ids and records of the shard      each shard, several at a time
        -> appended to the output, in the order of the shards                      see growing_output.py
        -> table of documents -> indexes -> renamed to their names -> header

A killed run resumes and ends with the same bytes: they depend on the shards and the options, not on processes, threads
and restarts. The table of documents is made from the records, and from the table all files but the ids.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import MAX_SUBSETS, Corpus, Described, Shard, Source, resolve_subsets
from pilekit.display.table_result import TableResult
from pilekit.documents import DocumentBatch, add_counts, check_labels
from pilekit.errors import PilekitError, message_logger, shortened, visible
from pilekit.pipeline.pipeline import Pipeline, Stage, described
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import FolderJob
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import Reading, read
from pilekit.shards.work import PartWork, takes
from pilekit.tokenize.files.formats import ENDED_BY_EOD, Format, TokenFiles, token_files
from pilekit.tokenize.files.growing_output import GrowingOutput
from pilekit.tokenize.files.publish import finished_output
from pilekit.tokenize.files.repeated_documents import Weights, repeat_documents, uses_of
from pilekit.tokenize.files.token_documents import RECORD, Rows, rows_of_records
from pilekit.tokenize.stage import Tokenize
from pilekit.tokenize.tokenizer import Tokenizer
from pilekit.workers import Advance
from pilekit.workers.in_threads import map_in_threads

logger = message_logger(__name__)

TOKENS_PER_STORED_BYTE = 0.5
"""Fewer than any compressed text has, so that no run that might fit is refused."""

COUNTS = ("documents", "tokens", "bytes")

_Encoded = tuple[npt.NDArray[Any], npt.NDArray[np.intp], npt.NDArray[Any], npt.NDArray[np.int64]]

FLUSHED_BYTES = 64 << 20
"""Ids that a thread flushes to disk at a time while the shard is encoded, so that little is left at the end."""


@dataclass(frozen=True, repr=False)
class TokenizedCorpus(TableResult):
    """The result of `tokenize_corpus`.

    summary   `documents` with tokens, their `tokens` (EOD counted) and UTF-8 `bytes`, of all and of each of `subsets`,
              the largest first; the number of `empty` documents, which are in no file, and of `skipped` lines; `dtype`
              of the ids; `files`, all that were written but the header
    skipped   the bad lines skipped
    """

    summary: dict[str, Any]
    skipped: SkippedLines


@takes(PartWork)
def tokenize_corpus(
    corpus: Corpus | Source,
    out: str | Path,
    tokenizer: Tokenizer | str | Path,
    *,
    subsets: Sequence[str] | None = None,
    stages: Sequence[Stage] = (),
    weights: Weights | None = None,
    format: Format = "megatron",
    append_eod: bool | None = None,
    eod: str | None = None,
    tokens_per_file: int | None = None,
    manifest: Described = None,
    **work: Unpack[PartWork],
) -> TokenizedCorpus:
    """Write the ids of all documents, in the order of the corpus, into files whose names begin with `out`.

    corpus            a `Corpus`, a path, glob or URL, or a list of these; held-out shards among others are left out
    out               a prefix such as `tokens/pile`; a killed run of the same job is resumed
    subsets           documents of these subsets, in any spelling the manifest knows
    stages            document stages, such as `[DropDuplicates("unique")]`; none may be stateful
    weights           how often documents count, such as `ClusterWeights(DropDuplicates("unique"), copies=0.5)`: see
                      repeated_documents.py
    format            "megatron" (.bin and .idx), "npy", "ds", "llmc" or "parquet"
    append_eod        an EOD token after each document (llmc: before it); None: not for megatron and parquet
    eod               a token to use instead of the tokenizer's EOD
    tokens_per_file   the most tokens in a file, unless one document is longer; None: the format's default
    manifest          describes the corpus at a path, as for `Corpus`
    work              on_error, jobs, advance, part: see `PartWork`
    cluster           a cluster instead of local processes makes the ids of the shards; this process appends them

    A document without tokens gets no sequence, row or EOD. Raises `PilekitError` if no document has tokens, for a
    finished output of another job, and for a file of that name that is not ours.
    """
    corpus = Corpus.of(corpus, manifest).without_held_out()
    if subsets is not None:
        subsets = resolve_subsets(*([subsets] if isinstance(subsets, str) else subsets), manifest=corpus.manifest)
    if Pipeline(stages).stateful:
        raise PilekitError("a stage depends on earlier documents, but shards are read one by one; run `pilekit dedup`")
    tokenize = Tokenize(tokenizer)
    used = tokenize.tokenizer
    files = token_files(out, format, tokens_per_file, "uint16" if used.vocab_size < 65_500 else "int32")
    eod_id = _eod_id(used, format, append_eod, eod)
    parameters = {
        "tokenizer": used.fingerprint,
        "special_tokens": used.special_tokens,
        "format": format,
        "eod": eod_id,
        "tokens_per_file": files.limit,
        "subsets": None if subsets is None else sorted(subsets),
        "stages": [described(stage) for stage in stages],
        **({} if weights is None else {"weights": weights.described()}),
        **corpus.manifest.record,
    }
    job = CorpusJob(corpus, **work)
    tokenize_shard = functools.partial(
        _tokenize_shard,
        encode=functools.partial(_encode, tokenize=tokenize, eod=eod_id, files=files),
        reading=functools.partial(read, subsets=subsets, on_error=job.on_error, manifest=corpus.manifest),
        stages=stages,
        weights=weights,
        places={shard.name: place for place, shard in enumerate(corpus.shards)},
        item=files.item,
    )
    room = ("tokenizing", TOKENS_PER_STORED_BYTE * files.item) if subsets is None and not stages else None
    own_shards, shared = job.shards, job.part is not None

    def make(output: Output, inputs: Inputs) -> dict[str, Any]:
        folder_job = FolderJob(**vars(job), output=output, inputs=inputs)
        if shared:
            results = folder_job.process_unfinished(tokenize_shard, own_shards, room=room)
            return {**_totals(results.values()), "dtype": files.reader_dtype, "files": {}}

        def rows(name: str) -> Rows:
            result = output.result(name)
            assert result is not None
            return rows_of_records(_shard_files(output, name)[1], name, result["subsets"])

        parts = {shard.name: functools.partial(rows, shard.name) for shard in corpus.shards}
        growing_output = GrowingOutput(files, output, parts, visible(used.path))

        def join(name: str, result: dict[str, Any]) -> None:
            ids, records = _shard_files(output, name)
            growing_output.append(name, result, [ids], records)

        results = folder_job.process_unfinished(tokenize_shard, own_shards, room=room, then=join)
        totals = _totals(results.values())
        if not (totals["documents"] and stages):  # a stage may drop the documents that have a label
            check_label(corpus, totals["subsets"], subsets, discard=growing_output.discard)
        tokenizer_facts = {"sha256": used.fingerprint, "backend": used.backend, "vocabulary": used.vocab_size}
        tokenizer_facts["eod"] = used.eos_id if eod_id is None else eod_id
        return {**totals, **growing_output.finish(), "tokenizer": tokenizer_facts}

    results, header_path = finished_output(files, parameters, corpus.shards, make, shared)
    skipped = SkippedLines.from_note(results)
    if job.on_error == "raise" and skipped.count:
        raise PilekitError(
            f"{skipped.examples[0]}; {header_path} leaves this line out; to accept that, give --on-error skip"
        )
    written = [str(files.prefix.parent / name) for name in results["files"]]
    totals = {name: results[name] for name in (*COUNTS, "empty", "skipped", "dtype")}
    return TokenizedCorpus({**totals, "files": written, "subsets": results["subsets"]}, skipped)


def _totals(shards: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over the results of shards, as a header keeps them."""
    sums: dict[str, Any] = {"subsets": {}, "empty": 0}
    skipped = SkippedLines()
    for shard in shards:
        sums = add_counts(sums, {name: shard[name] for name in sums})
        skipped.merge(SkippedLines.from_note(shard))
    subsets = dict(
        sorted(sums["subsets"].items(), key=lambda item: (-item[1]["bytes"], -item[1]["documents"], item[0]))
    )
    total = {count: sum(counts[count] for counts in subsets.values()) for count in COUNTS}
    listed = skipped.listed()
    return {**total, "empty": sums["empty"], "skipped": skipped.count, "bad_lines": listed, "subsets": subsets}


def _eod_id(tokenizer: Tokenizer, format: Format, append: bool | None, token: str | None) -> int | None:
    """The id that ends each document, None for none."""
    usual = format in ENDED_BY_EOD
    if not (usual if append is None else append):
        if token is not None:
            raise PilekitError(
                f"eod={shortened(repr(token), 80)} is not used without append_eod; give --append-eod too"
            )
        if usual:
            logger.warning("without EOD, readers of %s files cannot tell documents apart", format)
        return None
    eod_id = tokenizer.eos_id if token is None else tokenizer.token_id(token)
    if eod_id is None:
        name = "EOD token" if token is None else f"token {shortened(repr(token), 80)}"
        remedy = "or leave EOD out (--no-append-eod)"
        raise PilekitError(f"{tokenizer.path}: has no {name}; name one of its tokens with --eod, {remedy}")
    return eod_id


def _shard_files(output: Output, shard: str) -> tuple[Path, Path]:
    """The shard's file of ids and its file of records."""
    return output.path(f"shards/{shard}", ".ids"), output.path(f"shards/{shard}", ".records")


def _tokenize_shard(
    shard: Shard,
    advance: Advance,
    *,
    output: Output,
    inputs: Inputs,
    encode: Callable[[DocumentBatch], _Encoded],
    reading: Reading,
    stages: Sequence[Stage],
    weights: Weights | None,
    places: Mapping[str, int],
    item: int,
    share: Share,
) -> None:
    """Write the ids and the records of one shard, and note the counts.

    places   the place of each shard in the corpus
    item     bytes of an id
    """
    of_lines = None if weights is None else weights.of_shard(shard.name)
    uses = [np.zeros(0, np.int64)]
    threads = share.threads
    codes: dict[str, int] = {}
    counts = np.zeros((MAX_SUBSETS, 3), np.int64)
    empty = 0
    flushes: list[Future[None]] = []
    shard_files = _shard_files(output, shard.name)
    with (
        write_atomically(shard_files[0]) as ids_file,
        write_atomically(shard_files[1]) as records_file,
        reading(shard, advance=advance, ahead=threads > 1) as reader,
        ThreadPoolExecutor(1) as disk,
    ):
        batches = (batch for batch in Pipeline(stages)(reader) if len(batch))
        for batch, (ids, nonempty, records, sizes) in map_in_threads(
            encode, batches, threads if threads > 1 else 0, size_of=lambda batch: sum(map(len, batch.texts))
        ):
            empty += len(batch) - len(nonempty)
            records["subset"] = [codes.setdefault(batch.subsets[index], len(codes)) for index in nonempty.tolist()]
            check_labels(codes)
            times = np.ones_like(sizes)
            if of_lines is not None:
                times = uses_of(of_lines, places[shard.name], records["number"])
                uses.append(times)
            rows = np.stack([np.ones_like(sizes), records["tokens"], sizes], axis=1) * times[:, None]
            np.add.at(counts, records["subset"], rows)
            ids_file.write(ids.data)
            records_file.write(records.tobytes())
            if ids_file.tell() >= FLUSHED_BYTES * (len(flushes) + 1):
                flushes.append(disk.submit(os.fsync, ids_file.fileno()))
        for flush in flushes:
            flush.result()  # The file's last flush does not repeat an error of the disk.
        inputs.check(shard)
    if of_lines is not None:
        repeat_documents(*shard_files, item, np.concatenate(uses))
    result = {
        "subsets": {
            name: dict(zip(COUNTS, row, strict=True))
            for name, row in zip(codes, counts[: len(codes)].tolist(), strict=True)
        },
        "empty": empty,
        "skipped": reader.skipped.count,
        "bad_lines": reader.skipped.listed(),
    }
    output.note(shard.name, result, *shard_files)


def _encode(batch: DocumentBatch, *, tokenize: Tokenize, eod: int | None, files: TokenFiles) -> _Encoded:
    """(ids with EOD; indices, records and UTF-8 bytes of the documents that have tokens)."""
    tokens = tokenize.encode(batch)
    lengths = np.diff(tokens.offsets)
    indices = np.flatnonzero(lengths)
    ids = tokens.ids.astype(np.dtype(files.dtype).newbyteorder("<"))
    if eod is not None:
        ends = tokens.offsets[:-1] if files.format == "llmc" else tokens.offsets[1:]
        ids = np.insert(ids, ends[indices], eod)
    records = np.zeros(len(indices), RECORD)
    records["number"] = batch.numbers[indices]
    records["tokens"] = lengths[indices] + (eod is not None)
    return ids, indices, records, batch.text_bytes()[indices]
