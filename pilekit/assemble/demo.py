"""The demo's corpus, assembled like a user's own from sources that are written first.

The sources are a file of JSON lines for each subset, and the manifest that `pilekit assemble` makes a corpus of. A
record has a text and a group. Documents with overlapping text (a file, its docstrings, edited copies) have one group,
so a held-out document shares no text with train.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from itertools import chain
from pathlib import Path

import msgspec
import orjson
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import output_folder
from pilekit.assemble.assemble_corpus import assemble_corpus
from pilekit.assemble.demo_texts import arithmetic_documents, python_documents, reposts, standard_library
from pilekit.corpus import load_manifest
from pilekit.corpus.manifest_parts import Assemble
from pilekit.errors import PilekitError
from pilekit.shards.write.shard_writer import ShardWriter

KIND = "demo sources"
MANIFEST = "demo.toml"

REPOSTED = 20
"""One in this many longer documents gets an edited copy, because every real corpus has near-duplicates."""

ASSEMBLE = Assemble(shards=4, val=0.03, test=0.03)


def demo_corpus(
    folder: str | Path, *, arithmetic_bytes: int = 2_500_000, seed: int = 0, library: str | Path | None = None
) -> None:
    """Make the demo's corpus in `folder`, and its sources beside it; arguments as in `write_demo_sources`."""
    sources = Path(folder).with_name("sources")
    write_demo_sources(sources, arithmetic_bytes=arithmetic_bytes, seed=seed, library=library)
    assemble_corpus(sources / MANIFEST, folder)


def write_demo_sources(
    folder: str | Path, *, arithmetic_bytes: int = 2_500_000, seed: int = 0, library: str | Path | None = None
) -> bool:
    """Write the sources from this Python's standard library, and `demo.toml`. False if they were already there.

    The corpus has about 15 MB of text, the same for the same Python version, seed and `arithmetic_bytes`. `library` is
    another folder of Python files.

    Raises PilekitError if `folder` holds anything else, even the sources of another Python or seed, or if this Python
    has no source files.
    """
    folder = Path(folder)
    parameters = {"seed": seed, "arithmetic_bytes": arithmetic_bytes, "python": platform.python_version()}
    with output_folder(folder, kind=KIND, parameters={**parameters, "reposted": REPOSTED}, inputs={}) as output:
        if output.finished:
            return False
        library = standard_library() if library is None else Path(library)
        documents = dict.fromkeys(python_documents(library))
        if not any(document.subset == "Github" for document in documents):
            raise PilekitError(f"no Python files in {library}: this Python came without its library's source")
        arithmetic = arithmetic_documents(arithmetic_bytes, seed)
        lines: dict[str, list[bytes]] = defaultdict(list)
        for document in chain(documents, reposts(documents, REPOSTED), arithmetic):
            record = {"text": document.text, "group": xxhash.xxh3_64_hexdigest(document.group.encode())}
            lines[document.subset].append(orjson.dumps(record))
        demo = load_manifest("demo")
        for subset in demo.subsets:
            with ShardWriter(folder / f"{subset.name}.jsonl") as writer:
                writer.write_lines(lines[subset.name])
        subsets = (
            msgspec.structs.replace(subset, sources=(f"{subset.name}.jsonl",), group="group")
            for subset in demo.subsets
            if lines[subset.name]
        )
        manifest = msgspec.structs.replace(demo, subsets=tuple(subsets), assemble=ASSEMBLE)
        with write_atomically(folder / MANIFEST) as file:
            file.write(msgspec.toml.encode(manifest))
    return True
