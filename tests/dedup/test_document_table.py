"""Ids and ranks: one total order, as documented, for every keeper rule and earlier run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.artifacts.sort import MAX_DOCUMENTS
from pilekit.dedup.document_table import DocumentTable, ids_of, ranks_of
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.keep_mask import read_mask, write_mask
from tests.dedup.given import sketch
from tests.shards.making import record

Texts = list[str | None]
"""The documents of a shard; None is a blank line. Every third one is of another subset."""


def sketched(folder: Path, shards: list[Texts], subsets: list[str] | None = None) -> list[ShardSketch]:
    sketches = []
    for place, texts in enumerate(shards):
        path = folder / f"{place:02d}.jsonl"
        content = [b"" if text is None else record(text, label_of(number)) for number, text in enumerate(texts)]
        path.write_bytes(b"\n".join([*content, b""]) or b"\n")
        sketches.append(sketch(path, folder, bands=Bands(2, 2), subsets=subsets, threads=1))
    return sketches


def label_of(number: int) -> str:
    return "ArXiv" if number % 3 == 2 else "Github"


short = st.text("ab é", max_size=6)


@given(st.lists(st.lists(st.none() | short, max_size=8), min_size=1, max_size=4), st.data())
def test_ranks_sort_documents_in_keeper_order(
    tmp_path_factory: pytest.TempPathFactory, shards: list[Texts], data: st.DataObject
) -> None:
    """Documents of earlier runs come first, and only those that the run kept."""
    earlier = data.draw(st.lists(st.tuples(short, st.booleans()), max_size=9))
    keep, subsets = data.draw(st.sampled_from(["longest", "first"])), data.draw(st.sampled_from([None, ["Github"]]))
    own = sketched(tmp_path_factory.mktemp("own"), shards, subsets)
    before = sketched(tmp_path_factory.mktemp("earlier"), [[text for text, _ in earlier]]) if earlier else []
    path = tmp_path_factory.getbasetemp() / "earlier.mask"
    write_mask(path, "00.jsonl", Fingerprint(0, ""), np.array([kept for _, kept in earlier], dtype=np.bool_))
    mask = read_mask(path)
    document_table = DocumentTable(own, keep, tmp_path_factory.getbasetemp(), [(one, mask) for one in before])

    documents = [(number, text) for number, (text, _) in enumerate(earlier)]
    for texts in shards:
        numbered = [(number, text) for number, text in enumerate(texts) if text is not None]
        documents += [(n, text) for n, text in numbered if subsets is None or label_of(n) in subsets]
    assert document_table.documents == len(documents)
    assert document_table.first_of_run == len(earlier)
    assert document_table.base.tolist() == np.cumsum([0, *(one.documents for one in [*before, *own])]).tolist()
    assert document_table.rows["number"].tolist() == [number for number, _ in documents]
    assert document_table.rows["text_bytes"].tolist() == [len(text.encode()) for _, text in documents]
    assert [document_table.labels[row["label"]] for row in document_table.rows] == [label_of(n) for n, _ in documents]

    expected = [i for i in range(len(documents)) if i >= len(earlier) or earlier[i][1]]
    found = [
        (rank, number)
        for ranks, chunk in document_table.chunks(["number"])
        for rank, number in zip(ranks.tolist(), chunk["number"].tolist(), strict=True)
    ]
    assert [(rank & 0xFFFFFFFF, number) for rank, number in found] == [(i, documents[i][0]) for i in expected]

    def place(i: int) -> tuple[bool, int, int]:
        return i >= len(earlier), -len(documents[i][1].encode()) if keep == "longest" else 0, i

    assert [rank & 0xFFFFFFFF for rank, _ in sorted(found)] == sorted(expected, key=place)


def test_the_limits_of_ids_and_ranks(tmp_path: Path) -> None:
    ids, sizes = np.array([0, 5, 2**32 - 1]), np.array([0, 2**30, 2**31 - 1], dtype=np.uint32)
    assert ranks_of(ids, sizes, "first", fixed=True).tolist() == [0, 5, 2**32 - 1]
    ranks = ranks_of(ids, sizes, "longest", fixed=False)
    assert ranks.tolist() == [2**64 - 2**32, 2**63 | (2**30 - 1) << 32 | 5, 2**63 | 2**32 - 1]
    assert ids_of(ranks).tolist() == ids.tolist()
    (made,) = sketched(tmp_path, [["one"]])
    header = msgspec.structs.replace(made.header, counts={"Github": (MAX_DOCUMENTS, 0)})
    with pytest.raises(PilekitError, match=r"4,294,967,297 documents are more than"):
        DocumentTable([ShardSketch(made.path, header), made], "longest", tmp_path)
