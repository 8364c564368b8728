"""`check_receipt`: compute the answer of a receipt again, and compare it and all that it depends on.

A run that was trained on is asked about the steps of the receipt. Each difference is a sentence that names the file,
the field or the document, what is now and what the receipt says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import msgspec

from pilekit.artifacts.checked import shown
from pilekit.corpus import Shard
from pilekit.display.table_result import Result
from pilekit.errors import PilekitError, counted
from pilekit.exposure.answer import answer
from pilekit.exposure.receipt import (
    Receipt,
    ReceiptFile,
    data_files,
    input_files,
    model_files,
    read_receipt,
    sums_of,
)
from pilekit.exposure.run_documents import RunDocuments
from pilekit.shards.verify.stored_sums import StoredSum
from pilekit.shards.work import StepWork, takes
from pilekit.train.config.sections import TrainConfig
from pilekit.train.config.sections import differences as config_differences

MOST_DOCUMENTS = 20
"""The most documents that are named, of those whose answer differs."""


@dataclass(frozen=True, repr=False)
class ReceiptCheck(Result):
    """Whether a receipt holds.

    receipt       its path
    holds         whether nothing differs
    differences   a sentence for each difference
    run           the folder of the run
    steps         the first and last step of the answer
    documents     documents of the answer
    files         files that were read and summed: the run's data, the question's and the model's
    bytes         their bytes
    """

    receipt: str
    holds: bool
    differences: tuple[str, ...]
    run: str
    steps: tuple[int, int]
    documents: int
    files: int
    bytes: int

    def __str__(self) -> str:
        if self.holds:
            first, last = self.steps
            return (
                f"{self.receipt}: holds: the answer about {counted(self.documents)} in steps {first:,} to {last:,} of "
                f"{self.run} is the same, and so are {counted(self.files, 'file')} ({counted(self.bytes, 'byte')})"
            )
        differences = counted(len(self.differences), "difference")
        return "\n".join([f"{self.receipt}: does not hold: {differences}", *self.differences])

    __repr__ = __str__


@takes(StepWork)
def check_receipt(receipt: str | Path, **work: Unpack[StepWork]) -> ReceiptCheck:
    """Compute the answer of a receipt of `seen` again, and say whether the receipt holds.

    receipt   the file that `seen(..., receipt=...)` or `pilekit seen --receipt` wrote
    work      on_error, jobs, advance, cluster: see `StepWork`

    It compares the files of the run's data, of the question and of the model with their sums, the config, the data and
    the model with their fingerprints, and each document of the answer. Paths are as in the receipt, so call it where
    `seen` was called. PilekitError if the receipt was changed, or if the run is gone.
    """
    old = read_receipt(receipt)
    first, last = old.answer["steps"]
    run = RunDocuments.of(old.run.path, last)
    work.setdefault("on_error", run.config.data.on_error)
    files, expected, differences = list[Shard](), old.inputs, list(_run_differences(old, run))
    try:
        files = input_files(old.question, run)
    except PilekitError as error:
        differences.append(str(error))
        expected = {}
    if run.newest == last:
        files, expected = [*files, *model_files(run)], expected | old.run.model
    try:
        files, expected = [*data_files(run), *files], old.shards | expected
    except PilekitError as error:
        differences.append(str(error))
    else:
        differences += _data_differences(old, run)
    sums = sums_of(run, files, work)
    differences += _file_differences(expected, files, sums)
    try:
        differences += _answer_differences(old.answer, answer(old.question, run, work).to_dict())
    except PilekitError as error:
        differences.append(f"the answer cannot be computed again: {error}")
    return ReceiptCheck(
        receipt=str(receipt),
        holds=not differences,
        differences=tuple(dict.fromkeys(differences)),
        run=old.run.path,
        steps=(first, last),
        documents=old.answer["documents"],
        files=len(sums),
        bytes=sum(value.bytes for value in sums.values() if isinstance(value, StoredSum)),
    )


def _run_differences(old: Receipt, run: RunDocuments) -> Iterator[str]:
    """What is different in the run: its steps, its config and its model."""
    path, last = run.run.path, old.answer["steps"][1]
    if run.newest is not None and run.newest > last:
        yield f"{path}: was trained on since: it has {run.newest:,} steps now, in the receipt {last:,}"
    elif run.newest is None or run.newest < last:
        yield f"{path}: has {counted(run.newest or 0, 'step')} in its checkpoints now, in the receipt {last:,}"
    before = msgspec.convert(old.run.config, TrainConfig, strict=False)  # "inf" becomes a number
    for field, value, now in config_differences(before, run.config):
        yield _changed(f"{run.run.config_file}: {field}", now, value)
    if run.newest == last:
        try:
            state = run.state(whole=True)
        except PilekitError as error:
            yield str(error)
        else:
            if state.progress.model != old.run.configuration:
                yield _changed(f"{path}: the model's configuration", state.progress.model, old.run.configuration)
            if msgspec.to_builtins(state.files) != old.run.checkpoint["files"]:
                yield f"{run.run.checkpoints / f'step-{last}'}: is another checkpoint than in the receipt"


def _data_differences(old: Receipt, run: RunDocuments) -> Iterator[str]:
    """What is different in the fingerprint of the data, as far as a checkpoint tells it."""
    if run.newest is None:
        return
    try:
        run.stream()
        data = run.state().progress.stream["fingerprint"]
    except PilekitError as error:
        yield str(error)
        return
    for field in {**old.run.data, **data}:
        if data.get(field) != old.run.data.get(field):
            yield _changed(f"{run.run.path}: {field} of its data", data.get(field), old.run.data.get(field))


def _file_differences(
    old: Mapping[str, ReceiptFile], files: Sequence[Shard], sums: Mapping[str, StoredSum | str]
) -> Iterator[str]:
    """The files that are gone, new or changed."""
    now = {file.name: file for file in files}
    for name in old.keys() - now.keys():
        yield f"{old[name].path}: is not there any more"
    for name, file in now.items():
        total = sums[file.path]
        if isinstance(total, str):
            yield total
        elif name not in old:
            yield f"{file.path}: is new, and not in the receipt"
        elif (total.bytes, total.sha256) != (old[name].bytes, old[name].sha256):
            yield (
                f"{file.path}: has changed: {counted(total.bytes, 'byte')} of SHA-256 {total.sha256}, in the receipt "
                f"{counted(old[name].bytes, 'byte')} of SHA-256 {old[name].sha256}"
            )


def _answer_differences(old: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What is different in the answer: what was scanned, and the documents."""
    before, after = old.get("scanned", {}), now.get("scanned", {})
    for field, value in before.items():
        if field != "stored_bytes" and after.get(field) != value:  # those of a recompressed shard
            yield _changed(f"the answer: the number of {field} that were scanned", after.get(field), value)
    documents = _document_differences(_by_document(old["rows"]), _by_document(now["rows"]))
    yield from islice(documents, MOST_DOCUMENTS)
    if more := sum(1 for _ in documents):
        yield f"the answer: {counted(more, 'more document')} differ"


def _document_differences(old: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in {**old, **now}:
        if name not in now:
            yield f"the answer: {name} is not in it any more"
        elif name not in old:
            yield f"the answer: {name} is new, and not in the receipt"
        elif changed := [field for field in old[name] if old[name][field] != now[name].get(field)]:
            field = "steps" if "steps" in changed else changed[0]
            yield _changed(f"the answer: {field} of {name}", now[name].get(field), old[name][field])


def _changed(what: str, now: object, old: object) -> str:
    return f"{what} is {shown(now)}, in the receipt {shown(old)}"


def _by_document(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    def name(row: Mapping[str, Any]) -> str:
        of = row["copy_of"]
        return f"{row['shard']} {row['number']}" + (f" as a copy of {of['shard']} {of['number']}" if of else "")

    return {name(row): row for row in rows}
