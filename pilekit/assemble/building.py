"""From documents to a corpus folder laid out as The Pile: `train/00.jsonl.zst`, ..., `val.jsonl.zst`, `test.jsonl.zst`.

A hash of (seed, group) chooses a document's split, and a hash of (seed, text) its place in the split. There is no
random state. So the same documents in any order give the same files, and no held-out document shares text with a
training document. Subsets can be repeated in train, as The Pile repeats its better ones. Held-out documents occur once.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import orjson
import xxhash

from pilekit.artifacts.job_folder import output_folder
from pilekit.assemble.arithmetic import arithmetic_documents
from pilekit.assemble.reposts import reposts
from pilekit.assemble.sources import SourceDocument, python_documents, standard_library
from pilekit.corpus import load_manifest
from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError, visible
from pilekit.shards.write.shard_writer import ShardWriter

DEMO_CORPUS = "demo corpus"
"""The kind in the header of the folder that `demo_corpus` makes."""

REPOSTED = 20
"""One in this many longer documents gets an edited copy, because every real corpus has near-duplicates."""


def split(
    documents: Iterable[SourceDocument],
    *,
    train_shards: int = 4,
    held_out: float = 0.03,
    repeats: Mapping[str, int] | None = None,
    seed: int = 0,
) -> dict[str, list[SourceDocument]]:
    """The documents of each shard, in order, by the shard's path without suffix (`train/00`, ..., `val`, `test`).

    held_out   share of the groups that goes to val; the same share goes to test
    repeats    number of copies of each subset in train, 1 by default
    """
    repeats = repeats or {}
    placed: dict[str, list[tuple[int, SourceDocument]]] = {"train": [], "val": [], "test": []}
    for document in documents:
        fraction = xxhash.xxh3_64_intdigest(document.group.encode(), seed) / 2**64
        name = "val" if fraction < held_out else "test" if fraction < 2 * held_out else "train"
        for copy in range(repeats.get(document.subset, 1) if name == "train" else 1):
            place = xxhash.xxh3_64_intdigest(f"{copy} {document.text}".encode(), seed)
            placed[name].append((place, document))
    ordered = {
        name: [document for _, document in sorted(members, key=lambda member: (member[0], member[1].text))]
        for name, members in placed.items()
    }
    train = ordered.pop("train")
    return {f"train/{shard:02}": train[shard::train_shards] for shard in range(train_shards)} | ordered


def write_shards(shards: Mapping[str, Iterable[SourceDocument]], folder: Path) -> None:
    """Write each shard as `<folder>/<name>.jsonl.zst` in Pile format."""
    record = RecordFormat().record
    for name, documents in shards.items():
        with ShardWriter(folder / f"{name}.jsonl.zst") as writer:
            writer.write_lines(orjson.dumps(record(document.text, document.subset)) for document in documents)


def demo_corpus(folder: Path, *, arithmetic_bytes: int = 2_500_000, seed: int = 0, library: Path | None = None) -> bool:
    """Make the demo's corpus in `folder` from this Python's standard library. Returns False if it was already there.

    The bundled manifest `demo` lists the subsets and their repeats in train. One in `REPOSTED` longer documents gets an
    edited copy. The corpus has about 15 MB of text, the same for the same Python version, seed and `arithmetic_bytes`.
    `library` is another folder of Python files.

    Raises PilekitError if `folder` holds anything else, even such a corpus from another Python or seed, or if this
    Python has no source files.
    """
    repeats = {subset.name: round(subset.epochs or 1) for subset in load_manifest("demo").subsets}
    python = platform.python_version()
    parameters = {"seed": seed, "arithmetic_bytes": arithmetic_bytes, "repeats": repeats, "python": python}
    parameters["reposted"] = REPOSTED
    with output_folder(folder, kind=DEMO_CORPUS, parameters=parameters, inputs={}) as output:
        if output.finished:
            return False
        library = library or standard_library()
        documents = dict.fromkeys(python_documents(library))  # each text once; the manifest adds copies
        if not any(document.subset == "Github" for document in documents):
            raise PilekitError(
                f"no Python files in {visible(str(library))}: this Python came without its library's source"
            )
        numbers = arithmetic_documents(arithmetic_bytes, seed)
        arithmetic = (SourceDocument(text, "DM Mathematics", text) for text in numbers)
        write_shards(
            split(chain(documents, reposts(documents, REPOSTED), arithmetic), repeats=repeats, seed=seed), folder
        )
    return True
