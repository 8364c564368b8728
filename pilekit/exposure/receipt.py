"""The receipt of a question to `seen`: a JSON file with the answer and the sums of all that the answer depends on.

    question, answer   as `seen` took and gave them
    run                its config, and fingerprints of its data and of its model
    shards             the size and the SHA-256 of each file that the run reads
    inputs             the same of each file that the question names
    commands           how to ask and to check again

It is sealed (artifacts/sealed.py), so a changed value is refused. Before a receipt is written, the run's checkpoint is
compared with its sums, and the data with the checkpoint: else the answer would be of other data than was trained on.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.corpus import Corpus, Shard
from pilekit.dedup.result import REMOVED
from pilekit.errors import PilekitError
from pilekit.exposure.answer import Question
from pilekit.exposure.asked_documents import given_documents
from pilekit.exposure.run_documents import RunDocuments
from pilekit.exposure.seen_documents import SeenDocuments
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.verify.stored_sums import StoredSum, stored_sums
from pilekit.shards.work import StepWork
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.train.config.check import manifest_of
from pilekit.train.run_folder import AVERAGED

RECEIPT = SealedKind("a receipt of pilekit seen", 1, "take an unchanged copy, or ask again with --receipt")

_MODEL = (".json", ".safetensors")
"""The endings of a model's files."""


class ReceiptFile(msgspec.Struct, frozen=True):
    """A file, its size in bytes, and the SHA-256 of its bytes."""

    path: str
    bytes: int
    sha256: str


class ReceiptRun(msgspec.Struct, frozen=True):
    """The run that was asked.

    path             its folder
    config           all fields; infinite numbers as text, because JSON has none
    data             the fingerprint of the stream of its data
    configuration    the fingerprint of its model's configuration
    checkpoint       its newest step, and each of its files with size and xxh3
    model            the files of the trained model, if training is done
    """

    path: str
    config: dict[str, Any]
    data: dict[str, Any]
    configuration: str
    checkpoint: dict[str, Any]
    model: dict[str, ReceiptFile]


class Receipt(SealedHeader, frozen=True, kw_only=True):
    """The content of a receipt."""

    format: int = RECEIPT.format
    question: Question
    answer: dict[str, Any]
    run: ReceiptRun
    shards: dict[str, ReceiptFile]
    inputs: dict[str, ReceiptFile]
    commands: list[str]


def check_new(path: str | Path) -> None:
    """Raise PilekitError if no new file can be written at `path`."""
    check_target(path, follow_links=True)
    if os.path.lexists(path):
        raise PilekitError(f"{path}: exists already, and a receipt is not overwritten; name another file")


def write_receipt(
    path: str | Path, question: Question, run: RunDocuments, answer: SeenDocuments, work: StepWork
) -> None:
    """Write the receipt of an answer. PilekitError if the run has no checkpoint, or its data or checkpoint changed."""
    state = run.state(whole=True)
    run.stream()  # proves that the data is that of the run
    shards, inputs, model = data_files(run), input_files(question, run), model_files(run)
    sums: dict[str, StoredSum] = {}
    for name, value in sums_of(run, [*shards, *inputs, *model], work).items():
        if isinstance(value, str):
            raise PilekitError(value)
        sums[name] = value

    def summed(files: Sequence[Shard]) -> dict[str, ReceiptFile]:
        return {file.name: ReceiptFile(file.path, sums[file.path].bytes, sums[file.path].sha256) for file in files}

    receipt = Receipt(
        question=question,
        answer=answer.to_dict(),
        run=ReceiptRun(
            path=str(run.run.path),
            config=_json_types(msgspec.to_builtins(run.config)),
            data=state.progress.stream["fingerprint"],
            configuration=state.progress.model,
            checkpoint={"step": run.newest, "files": msgspec.to_builtins(state.files)},
            model=summed(model),
        ),
        shards=summed(shards),
        inputs=summed(inputs),
        commands=_commands(run, question, path),
    )
    try:
        content = msgspec.json.format(msgspec.json.encode(RECEIPT.sealed(receipt)), indent=2)
    except UnicodeEncodeError as error:
        raise PilekitError(
            f"{path}: a receipt names files by UTF-8 names, and one has another name; rename it"
        ) from error
    with write_atomically(path, follow_links=True) as file:
        file.write(content + b"\n")


def read_receipt(path: str | Path) -> Receipt:
    """The receipt at `path`. PilekitError if it is none, or if a value of it has changed."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise PilekitError(f"{path}: cannot be read: {why}; name a receipt that `seen` wrote") from error
    return RECEIPT.open_dict(path, RECEIPT.parsed(path, content), Receipt)


def sums_of(run: RunDocuments, files: Sequence[Shard], work: StepWork) -> dict[str, StoredSum | str]:
    """The sum of each file by its path, or why it has none."""
    return stored_sums(files, CorpusJob.of_steps(Corpus.of_shards((), manifest_of(run.config.data)), **work))


def data_files(run: RunDocuments) -> list[Shard]:
    """The files that a run reads, by the names of the shards, or of token files; files of planted texts too."""
    data, planted = run.data(), [_file(Path(shard.path), shard.name) for shard in run.planted()]
    if not isinstance(data, TokenCorpus):
        return [*data.shards, *planted]
    return [*(_file(path, os.path.relpath(path, data.root)) for path in data.stored), *planted]


def input_files(question: Question, run: RunDocuments) -> list[Shard]:
    """The files that a question names, by their paths. PilekitError if those of `against` are gone."""
    documents = question.documents if isinstance(question.documents, str) else None
    removed = None if question.copies is None else str(Path(question.copies, REMOVED))
    files = [_file(Path(path), path) for path in (documents, question.trace, removed) if path is not None]
    if question.against is not None:
        given = given_documents(question.against, manifest_of(run.config.data))
        files += [replace(shard, name=shard.path) for shard in given.shards]
    return files


def model_files(run: RunDocuments) -> list[Shard]:
    """The files of the trained models of a run, by their paths in its folder."""
    folders = [Path(f"{folder}{ending}") for folder in (run.run.model, run.run.adapter) for ending in ("", AVERAGED)]
    paths = sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())
    return [_file(path, str(path.relative_to(run.run.path))) for path in paths if path.suffix in _MODEL]


def _file(path: Path, name: str) -> Shard:
    try:
        return Shard(name, str(path), path.stat().st_size)
    except OSError:
        return Shard(name, str(path))


def _json_types(value: Any) -> Any:
    return json.loads(json.dumps(value), parse_constant=lambda number: str(float(number)))


def _commands(run: RunDocuments, question: Question, path: str | Path) -> list[str]:
    """How to train, ask and check again; documents that came from Python are no command."""
    ask = [f"--{name}={value}" for name, value in msgspec.structs.asdict(question).items() if isinstance(value, str)]
    commands = [["train", str(run.run.config_file), "--out", str(run.run.path)]]
    if not isinstance(question.documents, tuple):
        commands.append(["seen", str(run.run.path), *ask, f"--receipt={path}"])
    commands.append(["seen", f"--check={path}"])
    return [shlex.join(["pilekit", *command]) for command in commands]
