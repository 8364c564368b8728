"""The removals chosen in batches are those that a plain function of the whole table chooses."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.output.removed_format import REMOVALS, SCHEMA, RemovalsHeader
from pilekit.dedup.show.removed_pairs import spread_pairs, subsets_of
from pilekit.report import dedup as report
from tests.refusing import refused

Rows = list[tuple[float, bool, str, int]]


def write(rows: Rows, path: Path, group: int) -> None:
    """similarity, exact, subset and kept number of each removed document, in row groups of `group` rows."""
    of = {"shard": "a", "kept_shard": "b", "kept_subset": "A", "kept_corpus": "this"}
    table = [
        {**of, "number": place, "subset": subset, "kept_number": kept, "similarity": similarity}
        | {"reason": "exact" if exact else "near"}
        for place, (similarity, exact, subset, kept) in enumerate(rows)
    ]
    seal(pa.Table.from_pylist(table, schema=SCHEMA), path, group)


def seal(table: pa.Table, path: Path, group: int) -> None:
    with REMOVALS.writing_table(path, table.schema, RemovalsHeader(parameters={}, inputs={})) as writer:
        writer.write_table(table, row_group_size=group)


def chosen(rows: Rows, count: int, subset: str | None, least: float) -> list[int]:
    """The places of the chosen rows: a target at a time."""
    wanted = [place for place, row in enumerate(rows) if row[0] >= least and subset in (None, row[2])]
    near = sorted((place for place in wanted if not rows[place][1]), key=lambda place: rows[place][0])
    exact = [place for place in wanted if rows[place][1]]
    number, found, last = min(count, len(near)), [], -1
    for turn in range(number):
        target = np.linspace(rows[near[0]][0], rows[near[-1]][0], number)[turn]
        upto = sum(rows[place][0] <= target for place in near) - 1
        last = min(max(upto, last + 1), len(near) - number + turn)
        found.append(near[last])
    copies = min(len(exact), count - number)
    return found + [exact[(2 * turn + 1) * len(exact) // (2 * copies)] for turn in range(copies)]


SIMILARITIES = st.sampled_from([0.5, 0.7, 0.71, 0.9, 1.0]) | st.floats(0.5, 1)
ROWS = st.lists(st.tuples(SIMILARITIES, st.booleans(), st.sampled_from("AB"), st.integers(0, 40)), max_size=60)


@given(ROWS, st.data())
def test_pairs_chosen_in_batches_are_those_of_the_whole_table(rows: Rows, data: st.DataObject) -> None:
    count, group = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 60))
    subset, least = data.draw(st.sampled_from([None, "A", "C"])), data.draw(st.sampled_from([0.0, 0.7]))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "removed.parquet"
        write(rows, path, group)
        pairs, total = spread_pairs(path, count, subset=subset, min_similarity=least)
    assert total == sum(row[0] >= least and subset in (None, row[2]) for row in rows)
    assert [pair.number for pair in pairs] == chosen(rows, count, subset, least)


def test_a_name_that_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "removed.parquet"
    write([(0.7, False, "naïve", 1)], path, 10)
    table = pq.read_table(path)
    names = pa.StringArray.from_buffers(1, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xb6\xb6"))
    place = table.schema.get_field_index("subset")
    seal(table.set_column(place, "subset", names), path, 10)
    refused("removed.parquet: is damaged .*; run `pilekit dedup` again", spread_pairs, path, 3)
    refused("removed.parquet: is damaged .*; run `pilekit dedup` again", subsets_of, path)


@given(ROWS)
def test_clusters_counted_in_parts_are_those_of_the_whole_table(rows: Rows) -> None:
    with TemporaryDirectory() as folder:
        write(rows, Path(folder) / "removed.parquet", 7)
        removed = pa.dataset.dataset(Path(folder) / "removed.parquet", format="parquet")
        clusters = report.largest_clusters(removed, rows_at_once=5)
        counts = report.removal_counts(removed).to_pylist()
    by_kept: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        by_kept.setdefault(row[3], []).append(place)
    largest = sorted((kept for kept in by_kept if len(by_kept[kept]) > 1), key=lambda kept: (-len(by_kept[kept]), kept))
    assert [(row["kept_number"], row["number"], row["count_all"], row["similarity"]) for row in clusters] == [
        (kept, by_kept[kept][0], len(by_kept[kept]), min(rows[place][0] for place in by_kept[kept]))
        for kept in largest[: report.CLUSTERS]
    ]
    bins = [(row[2], row[1], min(int(row[0] * report.BINS), report.BINS - 1)) for row in rows]
    assert {(row["subset"], row["reason"] == "exact", row["bin"]): row["count"] for row in counts} == {
        key: bins.count(key) for key in bins
    }
