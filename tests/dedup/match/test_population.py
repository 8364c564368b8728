"""Ids and ranks: one total order, as documented, for every keeper rule and earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.match.population import MAX_DOCUMENTS, Population, ids_of, ranks_of
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.errors import PilekitError
from tests.dedup import reference
from tests.dedup.sketching import sketch
from tests.shards.making import record

Keep = Literal["longest", "first"]
COLUMNS = ["number", "hash_low", "subset"]


def sketched(folder: Path, shards: Sequence[Sequence[str | None]], subsets: list[str] | None = None) -> list[Any]:
    """A sketch of each shard: None is a blank line; every third document is of another subset."""
    sketches = []
    for place, texts in enumerate(shards):
        path = folder / f"{place:02d}.jsonl"
        labels = ["ArXiv" if number % 3 == 2 else "Github" for number in range(len(texts))]
        content = [b"" if text is None else record(text, label) for text, label in zip(texts, labels, strict=True)]
        path.write_bytes(b"\n".join([*content, b""]) or b"\n")
        sketches.append(sketch(path, folder, bands=Bands(2, 2), subsets=subsets, threads=1))
    return sketches


def all_of(population: Population, columns: Sequence[str]) -> tuple[list[int], dict[str, list[int]]]:
    ranks: list[int] = []
    values: dict[str, list[int]] = {name: [] for name in columns}
    for some, chunk in population.chunks(columns):
        assert some.dtype == np.uint64
        assert len(some) > 0
        assert list(chunk) == list(columns)
        ranks += some.tolist()
        for name in columns:
            assert len(chunk[name]) == len(some)
            values[name] += chunk[name].tolist()
    return ranks, values


texts_of_shards = st.lists(
    st.lists(st.one_of(st.none(), st.text("ab é", max_size=6)), max_size=8), min_size=1, max_size=4
)


@given(texts_of_shards, st.sampled_from(["longest", "first"]), st.sampled_from([None, ["Github"]]))
def test_ranks_sort_documents_in_keeper_order(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[list[str | None]],
    keep: Keep,
    subsets: list[str] | None,
) -> None:
    folder = tmp_path_factory.mktemp("sketches")
    sketches = sketched(folder, shards, subsets)
    population = Population(sketches, keep, folder)
    expected = [
        (place, number, text)
        for place, texts in enumerate(shards)
        for number, text in enumerate(texts)
        if text is not None and (subsets is None or number % 3 != 2)
    ]
    ranks, values = all_of(population, COLUMNS)
    assert population.documents == len(expected) == len(ranks)
    assert population.first_own == 0
    assert population.base.tolist() == np.cumsum([0, *(sketch.documents for sketch in sketches)]).tolist()
    assert values["number"] == [number for _, number, _ in expected]
    assert [rank & 0xFFFFFFFF for rank in ranks] == list(range(len(expected)))
    assert ids_of(np.array(ranks, dtype=np.uint64)).tolist() == list(range(len(expected)))
    order = reference.keeper_order([text for _, _, text in expected], keep)
    assert np.argsort(np.array(ranks, dtype=np.uint64)).tolist() == order
    labels = [population.labels[row["label"]] for row in population.table]
    assert labels == ["ArXiv" if number % 3 == 2 else "Github" for _, number, _ in expected]
    assert population.table["number"].tolist() == values["number"]
    assert population.table["text_bytes"].tolist() == [len(text.encode()) for _, _, text in expected]


@given(
    texts_of_shards,
    st.lists(st.tuples(st.lists(st.text("ab é", max_size=6), min_size=1, max_size=9), st.data()), max_size=3),
    st.sampled_from(["longest", "first"]),
)
def test_documents_of_an_earlier_run_come_first_and_only_those_it_kept(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[str | None]], earlier: list[Any], keep: Keep
) -> None:
    own = sketched(tmp_path_factory.mktemp("own"), shards)
    before = sketched(tmp_path_factory.mktemp("earlier"), [texts for texts, _ in earlier])
    masks: list[npt.NDArray[np.bool_]] = []
    for texts, data in earlier:
        kept = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts) + 9))
        masks.append(np.array(kept, dtype=np.bool_))
    population = Population(own, keep, tmp_path_factory.getbasetemp(), zip(before, masks, strict=True))
    sizes = [sketch.documents for sketch in [*before, *own]]
    assert population.base.tolist() == np.cumsum([0, *sizes]).tolist()
    assert population.documents == sum(sizes)
    assert population.first_own == sum(len(texts) for texts, _ in earlier)
    taking_part = [
        population.base[place] + number
        for place, (texts, _) in enumerate(earlier)
        for number in range(len(texts))
        if masks[place][number]
    ]
    taking_part += range(population.first_own, population.documents)
    ranks, values = all_of(population, ["text_bytes", "number"])
    assert [rank & 0xFFFFFFFF for rank in ranks] == taking_part
    texts = [text for some, _ in earlier for text in some]
    texts += [text for some in shards for text in some if text is not None]
    assert values["text_bytes"] == [len(texts[document].encode()) for document in taking_part]
    order = sorted(
        taking_part,
        key=lambda i: (i >= population.first_own, -len(texts[i].encode()) if keep == "longest" else 0, i),
    )
    assert [rank & 0xFFFFFFFF for rank in sorted(ranks)] == order


def test_the_bits_of_a_rank() -> None:
    ids, sizes = np.array([0, 5, 2**32 - 1]), np.array([0, 2**30, 2**31 - 1], dtype=np.uint32)
    assert ranks_of(ids, sizes, "first", against=True).tolist() == [0, 5, 2**32 - 1]
    ranks = ranks_of(ids, sizes, "longest", against=False)
    assert ranks.tolist() == [2**64 - 2**32, 2**63 | (2**30 - 1) << 32 | 5, 2**63 | 2**32 - 1]
    assert ids_of(ranks).tolist() == ids.tolist()


def test_more_documents_than_ids_are_an_error(tmp_path: Path) -> None:
    (made,) = sketched(tmp_path, [["one"]])
    header = msgspec.structs.replace(made.header, counts={"Github": (MAX_DOCUMENTS, 0)})
    with pytest.raises(PilekitError, match=r"4,294,967,297 documents are more than"):
        Population([ShardSketch(made.path, header), made], "longest", tmp_path)
