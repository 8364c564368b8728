"""`tokenize_corpus`: the ids of a corpus as files for another trainer.

    read(shard) -> stages -> encode (threads) -> ids and records of the shard      each shard, several at a time
        -> appended to the output, in the order of the shards                      see joined.py
        -> table of documents -> indexes -> renamed to their names -> header

All of it happens in `PREFIX.unfinished/`, the folder of a job. A killed run resumes there, and ends with the same
bytes: they depend on the shards and the options, not on processes, threads and restarts. The table of documents
replaces the records, and everything beside the ids is made from it. Indexes and the header get their names last, so a
name that is there is complete.
"""

from __future__ import annotations

import functools
import itertools
import logging
import shutil
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.free_disk import check_free_disk
from pilekit.artifacts.header import read_header, write_header
from pilekit.artifacts.job_folder import LOCK_FILE, Output, check_same_job, output_folder
from pilekit.corpus import Corpus, Manifest, Shard, resolve_subsets
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.documents import MAX_SUBSETS, DocumentBatch, too_many_subsets
from pilekit.engine import Advance, imap_shards
from pilekit.engine.in_threads import map_in_threads
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.pipeline import Pipeline, Stage, described
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.shards.processes import decompress_ahead, processes_for, threads_of
from pilekit.shards.read.reader import OnError, read
from pilekit.tokenize.files.documents import RECORD, Cut, read_documents, write_documents
from pilekit.tokenize.files.formats import Format, TokenFiles, finish_file, token_files
from pilekit.tokenize.files.joined import IDS, RECORDS, Joined
from pilekit.tokenize.files.token_file import KIND
from pilekit.tokenize.files.tokenized import TokenizedCorpus, summed
from pilekit.tokenize.stage import Tokenize
from pilekit.tokenize.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


DOCUMENTS, DONE = "/documents", "/done"
"""Names of the notes about the whole job; no shard's name begins with a slash."""

TOKENS_PER_STORED_BYTE = 0.5
"""Fewer than any compressed text has, so that no run is refused that might fit."""

PLAIN = (".jsonl", ".json", ".ndjson")


def tokenize_corpus(
    corpus: Corpus | str | Path | Sequence[str | Path],
    out: str | Path,
    tokenizer: Tokenizer | str | Path,
    *,
    subsets: Sequence[str] | None = None,
    stages: Sequence[Stage] = (),
    format: Format = "megatron",
    append_eod: bool | None = None,
    eod: str | None = None,
    tokens_per_file: int | None = None,
    on_error: OnError = "raise",
    jobs: int | None = None,
    advance: Advance | None = None,
) -> TokenizedCorpus:
    """Write the ids of all documents, in the order of the corpus, into files whose names begin with `out`.

    corpus            a `Corpus`, a path, glob or URL, or a list of these; held-out shards among others are left out
    out               a prefix such as `tokens/pile`; a killed run of the same job is resumed
    subsets           documents of these subsets, in any spelling the manifest knows
    stages            document stages, such as `[Deduplicated("unique")]`; none may be stateful
    format            "megatron" (.bin and .idx), "npy", "ds", "llmc" or "parquet"
    append_eod        the EOD token behind each document (llmc: in front); None: not for megatron and parquet
    eod               another token than the tokenizer's EOD
    tokens_per_file   files hold at most so many tokens, or one longer document; None: as usual for the format
    on_error          "raise": a bad line is a `PilekitError`; "skip": it is counted and listed in `.skipped`
    jobs              shards at a time, each in its own process; None: the usable CPUs, or fewer for a small corpus
    advance           called with each further number of stored bytes done

    A document without tokens gets no sequence, row or EOD. Raises `PilekitError` if no document has tokens, for a
    finished output of another job, and for a file of that name that is not ours.
    """
    corpus = (corpus if isinstance(corpus, Corpus) else Corpus(corpus)).without_held_out()
    if subsets is not None:
        subsets = resolve_subsets(*([subsets] if isinstance(subsets, str) else subsets), manifest=corpus.manifest)
    if Pipeline(stages).stateful:
        raise PilekitError("a stage depends on what it saw before, but shards are read one by one; run `pilekit dedup`")
    tokenize = Tokenize(tokenizer)
    files = token_files(out, format, tokens_per_file, tokenize.tokenizer.vocab_size)
    eod_id = _eod_id(tokenize.tokenizer, format, append_eod, eod)
    parameters = {
        "tokenizer": tokenize.tokenizer.fingerprint,
        "special_tokens": tokenize.tokenizer.special_tokens,
        "format": format,
        "eod": eod_id,
        "tokens_per_file": files.limit,
        "subsets": None if subsets is None else sorted(subsets),
        "stages": [described(stage) for stage in stages],
        "text_field": corpus.manifest.text_field,
        "label_path": corpus.manifest.label_path,
    }
    unfinished = files.prefix.with_name(f"{files.prefix.name}.unfinished")
    _remove(unfinished, finished=True)  # A kill may have left it.
    inputs = inputs_for(unfinished, corpus.shards)
    job: dict[str, Any] = {"kind": KIND, "parameters": parameters, "inputs": inputs.fingerprints}
    known = files.prefix.parent / f"{files.stem}.json"
    done_before = known.exists()
    if not done_before:
        work = functools.partial(
            _tokenize_shard,
            inputs=inputs,
            tokenize=tokenize,
            eod=eod_id,
            files=files,
            subsets=subsets,
            stages=stages,
            manifest=corpus.manifest,
            on_error=on_error,
        )
        with output_folder(unfinished, versions=inputs.versions, **job) as output:
            done = output.result(DONE)
            if done is None:
                _refuse_others(files)
                _join(files, output, corpus.shards, work, on_error, jobs, advance)
                done = _finish(files, output, corpus.shards, tokenize.tokenizer, eod_id)
            _publish(files, output, done)
            write_header(files.prefix.parent, finished=True, results=done, name=f"{files.stem}.json", **job)
    result = _finished(files, parameters, inputs, on_error)
    _remove(unfinished)
    if done_before:
        logger.warning("already done: %s tells this; to make it again, remove these files first", visible(str(known)))
    return result


def _eod_id(tokenizer: Tokenizer, format: Format, append: bool | None, token: str | None) -> int | None:
    """The id that ends each document, None for none."""
    usual = format in ("npy", "ds", "llmc")
    if not (usual if append is None else append):
        if token is not None:
            raise PilekitError(f"eod={visible(repr(token), 80)} is not used without append_eod; give --append-eod too")
        if usual:
            logger.warning("without EOD, readers of %s files cannot tell documents apart", format)
        return None
    found = tokenizer.eos_id if token is None else tokenizer.token_id(token)
    if found is None:
        name = "EOD token" if token is None else f"token {visible(repr(token), 80)}"
        remedy = "or leave EOD out (--no-append-eod)"
        raise PilekitError(
            f"{visible(str(tokenizer.path))}: has no {name}; name one of its tokens with --eod, {remedy}"
        )
    return found


def _finished(files: TokenFiles, parameters: dict[str, Any], inputs: Inputs, on_error: OnError) -> TokenizedCorpus:
    """What the header tells; PilekitError if it is of another job, or if a file is gone."""
    folder, name = files.prefix.parent, f"{files.stem}.json"
    header, shown = read_header(folder, KIND, name), visible(str(folder / name))
    remedy = "name another prefix with --out, or remove these files"
    check_same_job(shown, header, parameters, inputs.fingerprints, remedy)
    try:
        result = TokenizedCorpus.of(folder, header.results)
    except (KeyError, TypeError, ValueError) as error:
        raise PilekitError(f"{shown}: its results are damaged ({visible(str(error), 80)}); {remedy}") from error
    for file, size in header.results["files"].items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != size:
            raise PilekitError(f"{shown}: {visible(file)} is not there any more with {size:,} bytes; {remedy}")
    if on_error == "raise" and result.skipped.count:
        raise PilekitError(f"{result.skipped.examples[0]}; {shown} was made without it: give --on-error skip for that")
    return result


def _remove(folder: Path, *, finished: bool = False) -> None:
    """Remove the folder of a job whose output is published; with `finished`, only if its header says so."""
    with suppress(PilekitError, OSError):  # None there, or not ours, or another process is about to remove it.
        if read_header(folder, KIND).finished or not finished:
            with locked(folder / LOCK_FILE, wait=False):
                shutil.rmtree(folder)


def _refuse_others(files: TokenFiles) -> None:
    """Raise PilekitError if something has the name of the first file; `_publish` looks for the others."""
    for name in (*files.names(0), f"{files.stem}{DOCUMENTS_SUFFIX}", f"{files.stem}.json"):
        path = files.prefix.parent / name
        if path.exists() or path.is_symlink():
            raise PilekitError(
                f"{visible(str(path))}: is there, and this job has not made it; name another prefix with --out, or "
                "remove it"
            )


def _join(
    files: TokenFiles,
    output: Output,
    shards: Sequence[Shard],
    work: functools.partial[None],
    on_error: OnError,
    jobs: int | None,
    advance: Advance | None,
) -> None:
    """Tokenize what is not done, and append all shards to the output."""
    results = output.results()
    if on_error == "raise":  # An earlier run may have skipped lines that are errors now.
        results = {name: result for name, result in results.items() if not result.get("skipped")}
    ends = [results[shard.name]["end"] for shard in itertools.takewhile(lambda s: _is_joined(results, s), shards)]
    if len(ends) == len(shards) and DOCUMENTS in results:
        return
    joined = Joined(output.folder / "joined", files, Cut(*ends[-1]) if ends else Cut())
    if not joined.resume():
        output.forget()
        joined, ends, results = Joined(joined.folder, files, Cut()), [], {}
        joined.resume()
    rest = shards[len(ends) :]
    ready = {shard.name for shard in rest if shard.name in results and not _is_joined(results, shard)}
    waiting = [shard for shard in rest if shard.name not in ready]
    if advance is not None:
        advance(sum(shard.size or 0 for shard in shards) - sum(shard.size or 0 for shard in waiting))
    options = work.keywords
    if options["subsets"] is None and not options["stages"]:
        stored = sum(shard.size or 0 for shard in waiting if not shard.path.endswith(PLAIN))
        check_free_disk(output.folder, int(stored * TOKENS_PER_STORED_BYTE) * files.item, "tokenizing")
    processes = processes_for(waiting, jobs)
    ahead, threads = decompress_ahead(processes), threads_of(processes)
    work = functools.partial(work, output=output, ahead=ahead, threads=threads if threads > 1 else 0)
    with closing(imap_shards(work, waiting, jobs=processes, on_progress=advance)) as tokenized:
        for shard in rest:
            if shard.name not in ready:
                next(tokenized)
            result = output.result(shard.name)
            assert result is not None
            joined.append(output, shard.name, result)
    if not joined.cut.documents:
        output.forget()
        shutil.rmtree(joined.folder, ignore_errors=True)
        raise PilekitError("nothing to write: no document that was read has a token; `pilekit stats` shows the corpus")


def _is_joined(results: dict[str, dict[str, Any]], shard: Shard) -> bool:
    return "end" in results.get(shard.name, {})


def _tokenize_shard(
    shard: Shard,
    advance: Advance,
    *,
    output: Output,
    inputs: Inputs,
    tokenize: Tokenize,
    eod: int | None,
    files: TokenFiles,
    subsets: Sequence[str] | None,
    stages: Sequence[Stage],
    manifest: Manifest,
    on_error: OnError,
    ahead: bool,
    threads: int,
) -> None:
    """Write the ids and the records of one shard, and note the counts."""
    codes: dict[str, int] = {}
    counts = np.zeros((MAX_SUBSETS, 3), np.int64)
    empty = 0
    parts = [output.path(f"shards/{shard.name}", suffix) for suffix in (IDS, RECORDS)]
    encode = functools.partial(_encode, tokenize=tokenize, eod=eod, files=files)
    with (
        write_atomically(parts[0]) as ids_file,
        write_atomically(parts[1]) as records_file,
        read(shard, subsets, on_error, manifest=manifest, advance=advance, ahead=ahead) as reader,
    ):
        batches = (batch for batch in Pipeline(stages)(reader) if len(batch))
        for batch, (ids, kept, records, sizes) in map_in_threads(encode, batches, threads, size_of=_text_size):
            empty += len(batch) - len(kept)
            records["subset"] = [codes.setdefault(batch.subsets[index], len(codes)) for index in kept.tolist()]
            if len(codes) > MAX_SUBSETS:
                raise too_many_subsets(MAX_SUBSETS)
            np.add.at(counts, records["subset"], np.stack([np.ones_like(sizes), records["tokens"], sizes], axis=1))
            ids_file.write(ids.data)
            records_file.write(records.tobytes())
        inputs.check(shard)
    result = {
        "subsets": dict(zip(codes, counts[: len(codes)].tolist(), strict=True)),
        "empty": empty,
        "skipped": reader.skipped.count,
        "bad_lines": [[bad.path, bad.line, bad.reason] for bad in reader.skipped.examples],
    }
    output.note(shard.name, result, *parts)


def _encode(
    batch: DocumentBatch, *, tokenize: Tokenize, eod: int | None, files: TokenFiles
) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp], npt.NDArray[Any], npt.NDArray[np.int64]]:
    """(ids of the documents with EOD, indices of those that have tokens, their records, their UTF-8 bytes)."""
    tokens = tokenize.encode(batch)
    lengths = np.diff(tokens.offsets)
    kept = np.flatnonzero(lengths)
    ids = tokens.ids.astype(np.dtype(files.dtype).newbyteorder("<"))
    if eod is not None:
        ends = tokens.offsets[:-1] if files.format == "llmc" else tokens.offsets[1:]
        ids = np.insert(ids, ends[kept], eod)
    records = np.zeros(len(kept), RECORD)
    records["number"] = batch.numbers[kept]
    records["tokens"] = lengths[kept] + (eod is not None)
    return ids, kept, records, batch.text_bytes()[kept]


def _text_size(batch: DocumentBatch) -> int:
    return sum(map(len, batch.texts))


def _finish(
    files: TokenFiles, output: Output, shards: Sequence[Shard], tokenizer: Tokenizer, eod: int | None
) -> dict[str, Any]:
    """Write the table of documents and the indexes; the results for the header."""
    joined = Joined(output.folder / "joined", files, Cut())
    results = output.results()
    table = joined.folder / f"{files.stem}{DOCUMENTS_SUFFIX}"
    if DOCUMENTS not in results:
        of_shards = [(shard.name, list(results[shard.name]["subsets"]), _documents(results, shard)) for shard in shards]
        counts = write_documents(table, joined.records, of_shards, files.limit)
        output.note(DOCUMENTS, {"files": counts}, table)
    counts = output.results()[DOCUMENTS]["files"]
    joined.records.unlink(missing_ok=True)
    first = 0
    for file, (documents, tokens) in enumerate(counts):
        rows = functools.partial(read_documents, table, first=first, last=first + documents)
        if files.format == "llmc" or not all((joined.folder / name).exists() for name in files.names(file)):
            finish_file(files, joined.folder, file, rows, documents, tokens, str(tokenizer.path))
        if files.raw(file) not in files.names(file):
            (joined.folder / files.raw(file)).unlink(missing_ok=True)
        first += documents
    names = [*(name for file in range(len(counts)) for name in files.names(file)), table.name]
    names.sort(key=lambda name: name.endswith(".idx"))  # The index last: without it nothing reads the ids.
    done = summed([results[shard.name] for shard in shards])
    done["dtype"] = files.dtype if files.dtype == "uint16" or files.format in ("megatron", "parquet") else "uint32"
    done["files"] = {name: (joined.folder / name).stat().st_size for name in names}
    done["tokenizer"] = {
        "sha256": tokenizer.fingerprint,
        "backend": tokenizer.backend,
        "vocabulary": tokenizer.vocab_size,
        "eod": tokenizer.eos_id if eod is None else eod,
    }
    output.note(DONE, done)
    return done


def _documents(results: dict[str, dict[str, Any]], shard: Shard) -> int:
    return sum(documents for documents, *_ in results[shard.name]["subsets"].values())


def _publish(files: TokenFiles, output: Output, done: dict[str, Any]) -> None:
    """Rename all files to their names. A killed run may have renamed some."""
    for name, size in done["files"].items():
        made, path = output.folder / "joined" / name, files.prefix.parent / name
        if made.exists() and not path.exists():
            made.rename(path)
        elif made.exists() or path.stat().st_size != size:
            raise PilekitError(f"{visible(str(path))}: is there, and this job has not made it; remove it")
