"""The life of an output of token files, from any source.

Everything is made in `PREFIX.unfinished/`, the folder of a job, where the output grows in `joined` (growing_output.py).
At the end the files are renamed to their final names, the indexes last, and then the header is written. So a file under
its final name is complete. If the same job is finished already, its results are read from the header. An output of
another job, or a file that is not ours, is an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.folders import refuse_linked_folders
from pilekit.artifacts.header import read_header, write_header
from pilekit.artifacts.job_folder import LOCK_FILE, Output, check_same_job, output_folder
from pilekit.corpus import Shard
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.errors import PilekitError, message_logger
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.tokenize.files.formats import TokenFiles
from pilekit.tokenize.files.token_file import KIND

logger = message_logger(__name__)

DONE = "/done"
"""The name of the note about the whole job; no shard's name begins with a slash."""

REMEDY = "name another prefix with --out, or remove these files"


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
    shared    whether `make` does only a part of the job, as in `output_folder`; then its results are returned
    """
    folder, name = files.prefix.parent, f"{files.stem}.json"
    header_path = str(folder / name)
    unfinished = files.prefix.with_name(f"{files.prefix.name}.unfinished")
    refuse_linked_folders(unfinished)
    inputs = inputs_for(unfinished, sources)
    job: dict[str, Any] = {"kind": KIND, "parameters": parameters, "inputs": inputs.fingerprints}
    done_before = (folder / name).exists()
    if not done_before:
        with output_folder(unfinished, versions=inputs.versions, shared=shared, **job) as output:
            if (results := output.result(DONE)) is None:
                _refuse_foreign_files(files)
            if shared:
                return make(output, inputs), header_path
            if results is None:
                results = make(output, inputs)
                output.note(DONE, results)
            _publish(files, output, results)
            write_header(folder, finished=True, results={**results, "versions": inputs.versions}, name=name, **job)
    header = read_header(folder, KIND, name)
    check_same_job(header_path, header, parameters, inputs.fingerprints, REMEDY)
    for shard, version in header.results.get("versions", {}).items():
        if version != inputs.versions[shard]:  # The fingerprint shows no small change in place.
            raise PilekitError(f"{header_path}: {shard} was changed after these files were made; {REMEDY}")
    for file, size in header.results.get("files", {}).items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != size:
            raise PilekitError(f"{header_path}: {file} no longer exists with {size:,} bytes; {REMEDY}")
    _remove(unfinished)
    if done_before:
        logger.warning(
            "already done: %s and its token files are complete; to make them again, remove them first", header_path
        )
    return header.results, header_path


def _remove(folder: Path) -> None:
    """Remove the folder of a job whose output is published."""
    with suppress(PilekitError, OSError):  # It is missing, or not ours, or another process is removing it.
        if set(os.listdir(folder)) <= {LOCK_FILE} or read_header(folder, KIND):  # noqa: PTH208
            with locked(folder / LOCK_FILE, wait=False):
                for inner in filter(Path.is_dir, folder.iterdir()):
                    shutil.rmtree(inner)  # before the header, without which the folder is not known as ours
                shutil.rmtree(folder)


def _refuse_foreign_files(files: TokenFiles) -> None:
    """Raise PilekitError if a foreign file has a name of the output; `_publish` checks all files but the first."""
    for name in (*files.names(0), f"{files.stem}{DOCUMENTS_SUFFIX}", f"{files.stem}.json"):
        path = files.prefix.parent / name
        if path.exists() or path.is_symlink():
            raise PilekitError(
                f"{path}: exists, and this job did not write it; name another prefix with --out, or remove it"
            )


def _publish(files: TokenFiles, output: Output, results: dict[str, Any]) -> None:
    """Rename all files to their final names. A killed run may have renamed some."""
    for name, size in results["files"].items():
        joined, path = output.folder / "joined" / name, files.prefix.parent / name
        if joined.exists() and not path.exists():
            joined.rename(path)
        elif not path.exists():
            raise PilekitError(f"{path}: is gone; put it back, or remove {output.folder} and run again")
        elif joined.exists() or path.stat().st_size != size:
            raise PilekitError(f"{path}: exists, and this job did not write it; remove it")
