"""From documents to a corpus folder laid out as The Pile: `train/00.jsonl.zst`, ..., `val.jsonl.zst`, `test.jsonl.zst`.

A document's split is a hash of (seed, its group), its place in the split a hash of (seed, its text): no random state,
so the same documents give the same files whatever order they come in, and nothing that shares text with a training
document is held out. Subsets can be repeated in train, as The Pile repeats its better ones; what is held out occurs
once.
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
"""One in so many of the longer documents has an edited copy, for the near-duplicates that every real corpus has."""


def split(
    documents: Iterable[SourceDocument],
    *,
    train_shards: int = 4,
    held_out: float = 0.03,
    repeats: Mapping[str, int] | None = None,
    seed: int = 0,
) -> dict[str, list[SourceDocument]]:
    """The documents of each shard, in their order, by the shard's path without suffix (`train/00`, ..., `val`, `test`).

    held_out   share of the groups that goes to val, and again to test
    repeats    how often each subset stands in train, 1 where nothing is said
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
    """Make the demo's corpus in `folder` from this Python's standard library; False if it was already there.

    The subsets, and how often each stands in train, are those of the bundled manifest `demo`; one in `REPOSTED` of the
    longer documents has an edited copy. About 15 MB of text, the same for the same Python version, seed and
    `arithmetic_bytes`. `library` takes another folder of Python files.

    Raises PilekitError if `folder` holds something else, be it such a corpus made by another Python or of another seed,
    or if this Python has no source files.
    """
    repeats = {subset.name: round(subset.epochs or 1) for subset in load_manifest("demo").subsets}
    python = platform.python_version()
    parameters = {"seed": seed, "arithmetic_bytes": arithmetic_bytes, "repeats": repeats, "python": python}
    parameters["reposted"] = REPOSTED
    with output_folder(folder, kind=DEMO_CORPUS, parameters=parameters, inputs={}) as output:
        if output.finished:
            return False
        library = library or standard_library()
        documents = dict.fromkeys(python_documents(library))  # each text once: copies are what the manifest says
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
