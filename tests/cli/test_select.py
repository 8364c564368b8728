from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from pilekit import PilekitError
from pilekit.cli.select import command
from tests.shards import making


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "train").mkdir(parents=True)
    one = [making.record("abc"), making.record("é€", "ArXiv"), making.record("abc", "ArXiv"), making.record("abcdef")]
    two = [making.record("x" * 90, "Enron Emails")]
    for name, lines in (("train/00", one), ("train/01", two)):
        (folder / f"{name}.jsonl.zst").write_bytes(making.zstd_frame(b"\n".join(lines) + b"\n"))
    return folder


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def cells(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_the_table_tells_what_was_selected_and_the_rest_where_it_is(data: Path, tmp_path: Path) -> None:
    result = run(data, "--subsets", "github,arxiv", "--min-bytes", "4", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert result.stderr == ""
    rows = cells(result.stdout)
    assert rows[0] == ["Subset", "Documents", "Bytes", "Of", "read", "%"]
    assert rows[2:4] == [["Github", "1", "6", "B", "66.67"], ["ArXiv", "1", "5", "B", "62.50"]]
    assert rows[5] == ["Total", "2", "11", "B", "64.71"]
    assert result.stdout.splitlines()[-2:] == [f"1 shard in {tmp_path / 'out'}", "nothing in train/01.jsonl"]
    kept = making.unzstd(tmp_path / "out/train/00.jsonl.zst")
    assert kept == making.record("é€", "ArXiv") + b"\n" + making.record("abcdef") + b"\n"


def test_json_is_exactly_what_is_promised(data: Path, tmp_path: Path) -> None:
    result = run(data, "--match", "b", "--out", tmp_path / "out", "--json", "--jobs", "1")
    assert json.loads(result.stdout) == {
        "documents": 3,
        "bytes": 12,
        "read": {"documents": 5, "bytes": 107},
        "skipped": 0,
        "empty": ["train/01.jsonl"],
        "subsets": {
            "Github": {"documents": 2, "bytes": 9, "read": {"documents": 2, "bytes": 9}},
            "ArXiv": {"documents": 1, "bytes": 3, "read": {"documents": 2, "bytes": 8}},
            "Enron Emails": {"documents": 0, "bytes": 0, "read": {"documents": 1, "bytes": 90}},
        },
    }


@pytest.mark.parametrize(("format", "suffix"), [("zst", ".jsonl.zst"), ("jsonl", ".jsonl"), ("parquet", ".parquet")])
def test_a_format_alone_takes_everything(data: Path, tmp_path: Path, format: str, suffix: str) -> None:
    run(data, "--format", format, "--out", tmp_path / "out")
    path = tmp_path / f"out/train/00{suffix}"
    if format == "parquet":
        assert pq.read_table(path)["text"].to_pylist() == ["abc", "é€", "abc", "abcdef"]
    else:
        stored = making.unzstd(path) if format == "zst" else path.read_bytes()
        assert stored == making.unzstd(data / "train/00.jsonl.zst")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to select: --subsets, --sample, --match, --min-bytes"),
        (["--on-error", "skip", "--seed", "3"], "say what to select"),
        (["--sample", "much"], "'much' is not a valid float"),
        (["--min-bytes", "-1"], "not in the range"),
        (["--format", "csv"], "'csv' is not one of"),
        (["--sample", "1", "--jobs", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage_is_exit_code_2(data: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(data, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_for_the_output_must_be_named(data: Path) -> None:
    assert run(data, "--sample", "1").exit_code == 2
    result = run(data, "--sample", "1", "--out", "")
    assert result.exit_code == 2
    assert "'--out': it is empty; name a folder" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--subsets", "Arxif"], 'unknown subset "Arxif".*did you mean ArXiv'),
        (["--subsets", ","], "no subset is named"),
        (["--sample", "nan"], "between 0 and 1"),
        (["--match", "(\x1b"], r"\(\\x1b.* is no regular expression"),
        (["--sample", "0"], "nothing is selected"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(data: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(PilekitError, match=message) as error:
        run(data, "--out", tmp_path / "out", *arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_skipped_lines_are_listed_on_stderr(data: Path, tmp_path: Path) -> None:
    lines = [making.record("good"), *[b"bad\x1b"] * 12]
    (data / "train/02.jsonl").write_bytes(b"\n".join(lines))
    result = run(data, "--sample", "1", "--out", tmp_path / "out", "--on-error", "skip")
    told = result.stderr.splitlines()
    assert len(told) == 11
    assert told[0].startswith(f"skipped: {data / 'train/02.jsonl'}, line 2: is not JSON")
    assert told[-1] == "skipped: 2 lines more"
    assert (
        json.loads(run(data, "--sample", "1", "--out", tmp_path / "out", "--on-error", "skip", "--json").stdout)[
            "skipped"
        ]
        == 12
    )


def test_a_hostile_label_reaches_no_terminal_and_no_file_name(tmp_path: Path) -> None:
    label = "[red]../../x\x1b[31m" + "y" * 50
    (tmp_path / "00.jsonl").write_bytes(making.record("text", label) + b"\n")
    out = tmp_path / "out"
    stdout = run(tmp_path / "00.jsonl", "--sample", "1", "--out", out).stdout
    assert "\x1b" not in stdout
    assert "[red]../../x\\x1b[31m" in stdout
    assert sorted(path.name for path in out.iterdir()) == ["00.jsonl.zst", "pilekit.json"]


def test_in_a_narrow_terminal_names_give_way_and_numbers_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = [making.record("x" * 1234, "a rather long name of a subset")] * 1111
    (tmp_path / "00.jsonl").write_bytes(b"\n".join(lines))
    stdout = run(tmp_path / "00.jsonl", "--sample", "1", "--out", tmp_path / "out").stdout
    table = stdout.splitlines()[:5]
    assert max(map(len, table)) == 40
    assert table[0].split() == ["Subset", "Documents", "Bytes", "Of", "read", "%"]
    for row in (table[2], table[4]):
        assert row.split()[-4:] == ["1,111", "1.31", "MiB", "100.00"]


def test_thousands_of_labels_make_no_table_of_thousands_of_rows(tmp_path: Path) -> None:
    lines = [making.record("x" * (1 + number), f"label {number}") for number in range(300)]
    (tmp_path / "00.jsonl").write_bytes(b"\n".join(lines))
    stdout = run(tmp_path / "00.jsonl", "--sample", "1", "--out", tmp_path / "out").stdout
    assert "label 299" in stdout
    assert "label 99 " not in stdout
    assert "(100 more)" in stdout
    assert ["Total", "300", "44.1", "KiB", "100.00"] in cells(stdout)


def test_standard_input_is_selected_from_as_well(data: Path, tmp_path: Path) -> None:
    script = "from pilekit.cli.select import command; command()"
    arguments: list[Any] = [sys.executable, "-c", script, "-", "--subsets", "arxiv", "--out", tmp_path / "out"]
    stored = (data / "train/00.jsonl.zst").read_bytes()
    subprocess.run(arguments, input=stored, check=True, capture_output=True)
    kept = making.unzstd(tmp_path / "out/stdin.jsonl.zst")
    assert kept == making.record("é€", "ArXiv") + b"\n" + making.record("abc", "ArXiv") + b"\n"
    again = subprocess.run([*arguments], input=stored, check=False, capture_output=True, text=False)
    assert again.returncode == 1  # nobody can know whether it is the same
    assert b"is not the same any more" in again.stderr
