"""Every sealed artefact is read as it was written or refused in one line, whatever happened to its bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pilekit import dedup_corpus, index_corpus
from pilekit.dedup.output.removed_format import REMOVALS, RemovalsHeader
from pilekit.dedup.result import REMOVED
from pilekit.dedup.sketch.sketch_format import load_sketch
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.index.format import load_index
from pilekit.shards.keep_mask import read_mask, write_mask
from tests.dedup.given import sketch
from tests.shards.making import flipped


@dataclass(frozen=True)
class Case:
    """name of the artefact, how it is made and read whole, and the remedy of its refusals.

    all_bytes   whether the sum is that of all bytes, so that no other byte is read at all
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    remedy: str
    parquet: bool = True
    all_bytes: bool = False


def shard_in(folder: Path) -> Path:
    path = folder / "00.jsonl"
    lines = ({"text": f"text {n} " * 9, "meta": {"pile_set_name": f"set {n % 3}"}} for n in range(50))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def mask_in(folder: Path) -> Path:
    path = folder / "00.jsonl.mask"
    write_mask(path, "00.jsonl", Fingerprint(123, "ab" * 16), np.arange(45) % 3 == 0)
    return path


def mask_content(path: Path) -> object:
    mask = read_mask(path)
    return mask.header, mask.bits.tobytes()


def sketch_in(folder: Path) -> Path:
    return Path(sketch(shard_in(folder), folder).path)


def sketch_content(path: Path) -> object:
    found = load_sketch(path)
    columns = ["number", "text_bytes", "subset", "hash_high", "hash_low", "key_000"]
    return found.header, [{name: column.tobytes() for name, column in rows.items()} for rows in found.chunks(columns)]


def removals_in(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir()
    texts = [f"text {n} of some words that are not in another text, {n}" * 3 for n in range(9)] * 3
    for shard in range(2):
        lines = ({"text": text, "meta": {"pile_set_name": f"set {n % 4}"}} for n, text in enumerate(texts))
        (data / f"0{shard}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    dedup_corpus(data, out=folder / "out", write=False, jobs=1)
    return folder / "out" / REMOVED


def removals_content(path: Path) -> object:
    with REMOVALS.open_table(path, RemovalsHeader) as (header, rows):
        return header, rows.schema_arrow, rows.read().to_pydict()


def index_in(folder: Path) -> Path:
    index_corpus(shard_in(folder))
    return folder / "00.jsonl.index.parquet"


def index_content(path: Path) -> object:
    index = load_index(path)
    return index.header, index.frames.offset.tobytes(), [table.to_pydict() for table in index.row_groups()]


CASES = [
    Case("a keep mask", mask_in, mask_content, "run `pilekit dedup` again, into another folder", False, True),
    Case("a sketch", sketch_in, sketch_content, "remove it, and run dedup again"),
    Case(
        "a table of removed documents",
        removals_in,
        removals_content,
        "run `pilekit dedup` again, into another folder",
        all_bytes=True,
    ),
    Case("an index", index_in, index_content, "remove it, and make it again with `pilekit index`"),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def refusal(case: Case, path: Path) -> str | None:
    """The refusal without the file's name; None if the artefact is read."""
    try:
        case.read(path)
    except PilekitError as error:
        found = re.fullmatch(rf"{re.escape(str(path))}: ([^\n]*)", str(error))
        assert found
        assert found[1].endswith(case.remedy)
        return found[1]
    return None


@every_case
@pytest.mark.parametrize("step", [181, pytest.param(7, marks=pytest.mark.slow)])
def test_flipped_bits_and_cuts_are_refused_or_change_nothing(case: Case, step: int, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    whole, content, found = path.read_bytes(), case.read(path), 0
    step = step if case.parquet else 1
    places = range(0, 8 * len(whole), step)
    for place in places:
        path.write_bytes(flipped(whole, place // 8, 1 << place % 8))
        if refusal(case, path) is None:  # Parquet has bytes that say nothing.
            assert not case.all_bytes, f"bit {place}"
            assert case.read(path) == content, f"bit {place}"
        else:
            found += 1
    assert found > len(places) // 2
    for size in range(0, len(whole), step):
        path.write_bytes(whole[:size])
        assert refusal(case, path) is not None, size
    path.write_bytes(whole + b"\0")
    assert refusal(case, path) is not None


def with_header(case: Case, path: Path, **changed: Any) -> None:
    """Write other fields into the header, as another version of pilekit would; the sum stays."""
    if not case.parquet:
        line, _, rest = path.read_bytes().partition(b"\n")
        path.write_bytes(json.dumps({**json.loads(line), **changed}).encode() + b"\n" + rest)
        return
    table = pq.read_table(path)
    metadata = dict(pq.read_metadata(path).metadata)
    metadata[b"pilekit"] = json.dumps({**json.loads(metadata[b"pilekit"]), **changed}).encode()
    pq.write_table(table.replace_schema_metadata(metadata), path)


@every_case
def test_another_version_another_kind_and_other_files_are_told_apart(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    whole = path.read_bytes()
    with_header(case, path, format=99)
    assert (refusal(case, path) or "").startswith(f"is {case.name} of format 99 from pilekit ")
    others = [b"", b"no artefact", b"PAR1 and PAR1", b"\xff" * 100, b"[" * 100_000]
    for content in others:
        path.write_bytes(content)
        assert (refusal(case, path) or "").startswith(f"is not {case.name} ("), content[:20]
    path.write_bytes(whole)
    with_header(case, path, kind="something else")
    assert (refusal(case, path) or "").startswith(f"is not {case.name} (it is of another kind)")
