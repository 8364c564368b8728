"""Figures by a column: those of exactly the documents with each value, from Parquet or Arrow, also compared."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from pilekit.evaluate.results.by_column import grouped
from pilekit.evaluate.results.compare import compare
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.show.output import comparison_output
from tests.evaluate.folders import lines
from tests.refusing import refused

KEYS = {"shard": "shard", "number": "document"}
"""Columns of a table, and their names in a record."""


def write_facts(path: Path, rows: list[dict[str, Any]]) -> Path:
    names = pa.dictionary(pa.int32(), pa.string())
    kinds = {"shard": names, "number": pa.scalar(rows[0]["number"]).type, "year": pa.scalar(rows[0]["year"]).type}
    table = pa.Table.from_pylist(rows, pa.schema(kinds))
    if path.suffix == ".arrow":
        feather.write_feather(table, path, compression="uncompressed")
    else:
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("name", ["facts.parquet", "facts.arrow"])
def test_each_row_is_of_the_documents_with_its_value(
    whole: tuple[BitsPerByte, Path], tmp_path: Path, name: str
) -> None:
    result, out = whole
    records = lines(out)
    year = {(one["shard"], one["document"]): 2000 + one["document"] % 3 for one in records}
    rows = [{"shard": shard, "number": number, "year": of} for (shard, number), of in year.items()]
    lost = rows.pop()
    value = {identity: str(of) for identity, of in year.items()} | {(lost["shard"], lost["number"]): "(none)"}
    elsewhere = [{"shard": "other.jsonl", "number": 0, "year": 1}, {**rows[0], "number": 10**9}]
    path = write_facts(tmp_path / name, [*rows[::-1], {**lost, "year": None}, rows[0], *elsewhere])
    found = result.by(f"{path}:year")
    assert list(found.subsets) == ["2000", "2001", "2002", "(none)"]
    for group, score in found.subsets.items():
        of = [one for one in records if value[one["shard"], one["document"]] == group]
        assert score.documents == len(of) > 0
        nats, size = math.fsum(one["nll"] for one in of), sum(one["bytes"] for one in of)
        assert score.bpb == (pytest.approx(nats / math.log(2) / size) if size else None)
        assert (score.interval is None) == (sum(one["bytes"] > 0 for one in of) < 10)
    assert (found.overall, found.weighted) == (result.overall, result.weighted)
    assert found.protocol == {**result.protocol, "by": f"{path}:year"}
    assert "\nYear " in str(found.table())
    compared = compare([found, found])
    assert list(compared.against[0].subsets) == list(found.subsets)
    assert compared.to_dict()["by"] == f"{path}:year"
    assert comparison_output(compared) is not None


def test_by_length_every_document_is_in_the_bin_of_its_bytes(whole: tuple[BitsPerByte, Path]) -> None:
    result, out = whole
    found, records = result.by("length"), lines(out)
    bins = {"0 to 255 B": range(256), "256 to 1,023 B": range(256, 1024), "1 to 4 KiB": range(1024, 4096)}
    bins |= {"4 to 16 KiB": range(4096, 1 << 14), "16 to 64 KiB": range(1 << 14, 1 << 16)}
    counts = {name: sum(one["bytes"] in of for one in records) for name, of in bins.items()}
    assert {name: score.documents for name, score in found.subsets.items()} == {
        name: count for name, count in counts.items() if count
    }
    assert sum(score.nll for score in found.subsets.values()) == pytest.approx(result.overall.nll)


def test_a_table_that_does_not_fit_or_cannot_be_read_is_one_line(
    whole: tuple[BitsPerByte, Path], tmp_path: Path
) -> None:
    result, out = whole
    records = lines(out)
    columns: dict[str, Any] = {name: [record[key] for record in records] for name, key in KEYS.items()}
    columns["year"] = list(range(len(records)))

    def table(name: str, **changes: Any) -> str:
        pq.write_table(pa.table({**columns, **changes}), tmp_path / f"{name}.parquet")
        return f"{tmp_path / name}.parquet:year"

    (tmp_path / "text.parquet").write_text("no Parquet")
    plain, damaged = table("plain"), table("damaged")
    content = (tmp_path / "damaged.parquet").read_bytes()
    (tmp_path / "damaged.parquet").write_bytes(content[:4] + bytes(400) + content[404:])
    for by, message in (
        ("year", "by is length, or FILE:COLUMN"),
        (f"{tmp_path}/none.parquet:year", "there is no such file"),
        (f"{tmp_path}/text.parquet:year", "is no Parquet file, nor an Arrow file"),
        (plain.replace("year", "month"), "has no column month, which --by needs; it has shard, number, year"),
        (
            table("twice", shard=columns["shard"][:1] * 2, number=columns["number"][:1] * 2, year=[1, 2]),
            "has two values",
        ),
        (table("words", number=list(map(str, columns["number"]))), "its column number holds no integers"),
        (table("lists", year=[[year] for year in columns["year"]]), "each value of year holds several"),
        (table("shards", shard=[[name] for name in columns["shard"]]), "its column shard holds no strings"),
        (table("spans", year=pa.array(columns["year"], pa.duration("ns"))), "cannot be read: .*; write it again"),
        (damaged, "cannot be read: .*; write it again"),
    ):
        refused(message, result.by, by)
    refused("different values, and at most 20 are shown", grouped, result.records, plain, most_groups=20)


def test_all_nan_are_one_group(whole: tuple[BitsPerByte, Path], tmp_path: Path) -> None:
    result, out = whole
    rows = [{"shard": one["shard"], "number": one["document"], "year": math.nan} for one in lines(out)]
    rows[0]["year"] = 1.5
    facts = write_facts(tmp_path / "facts.parquet", [*rows, *rows])
    assert result.records is not None
    groups = grouped(result.records, f"{facts}:year", most_groups=2)
    counts = np.bincount(groups.subset, minlength=len(groups.subsets)).tolist()
    assert dict(zip(groups.subsets, counts, strict=True)) == {"1.5": 1, "nan": len(rows) - 1, "(none)": 0}


def test_a_damaged_arrow_file_is_one_line_and_no_signal(whole: tuple[BitsPerByte, Path], tmp_path: Path) -> None:
    """Arrow takes the numbers in a file of its own format as they are: a wrong offset ended the process (SIGSEGV)."""
    _, out = whole
    rows = [
        {"shard": one["shard"], "number": one["document"], "year": f"y{at % 3}"} for at, one in enumerate(lines(out))
    ]
    facts = write_facts(tmp_path / "facts.arrow", rows)
    program = """
import sys
from pathlib import Path

from pilekit.errors import PilekitError
from pilekit.evaluate.results.result_folder import read_result

result, facts = read_result(sys.argv[1]), Path(sys.argv[2])
content, refused = facts.read_bytes(), 0
for at in range(0, len(content), 12):
    facts.write_bytes(content[:at] + b"\\xff\\xff\\xff\\x7f" + content[at + 4 :])
    try:
        result.by(f"{facts}:year")
    except PilekitError as error:
        assert "\\n" not in str(error)
        refused += 1
assert refused > 20
"""
    done = subprocess.run([sys.executable, "-c", program, out, facts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_any_type_of_text_and_no_column_twice(whole: tuple[BitsPerByte, Path], tmp_path: Path, suffix: str) -> None:
    """Newer tools write views of strings, which Arrow cannot filter."""
    result, out = whole
    path, records = tmp_path / f"facts.{suffix}", lines(out)
    write = feather.write_feather if suffix == "arrow" else pq.write_table
    numbers, names = pa.array([one["document"] for one in records]), [one["shard"] for one in records]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        shards, years = (pa.array(values).cast(kind) for values in (names, YEARS[: len(records)]))
        write(pa.table({"shard": shards, "number": numbers, "year": years}), path)
        found = result.by(f"{path}:year")
        assert {name: score.documents for name, score in found.subsets.items()} == {
            name: YEARS[: len(records)].count(name) for name in ("new", "old")
        }
    twice = pa.table([shards, numbers, years, years], ["shard", "number", "year", "year"])
    with pa.OSFile(str(path), "wb") as file:
        if suffix == "arrow":
            with pa.ipc.new_file(file, twice.schema) as writer:
                writer.write_table(twice)
        else:
            pq.write_table(twice, file)
    refused("has several columns year, which --by needs; it has shard, number, year, year", result.by, f"{path}:year")


YEARS = ["new", "old", "old"] * 1000
