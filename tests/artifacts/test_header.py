"""The header of what pilekit writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilekit import __version__
from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.errors import PilekitError


def test_what_is_written_is_read_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "index"
    written = write_header(folder, kind="index", parameters={"rows": 3}, inputs={"train/00.jsonl": [1, "a"]})
    assert read_header(folder) == read_header(folder, "index") == written
    assert [path.name for path in folder.iterdir()] == [HEADER_FILE]
    assert json.loads((folder / HEADER_FILE).read_text()) == {
        "format": 1,
        "pilekit": __version__,
        "kind": "index",
        "parameters": {"rows": 3},
        "inputs": {"train/00.jsonl": [1, "a"]},
    }


def test_a_header_is_replaced_whole(tmp_path: Path) -> None:
    write_header(tmp_path, kind="a", parameters={"long": "x" * 1000}, inputs={})
    write_header(tmp_path, kind="b", parameters={}, inputs={})
    assert read_header(tmp_path).kind == "b"


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PilekitError, match=r"file/pilekit\.json: cannot be written"):
        write_header(tmp_path / "file", kind="a", parameters={}, inputs={})
    (tmp_path / "folder" / HEADER_FILE).mkdir(parents=True)
    with pytest.raises(PilekitError, match="is a folder"):
        write_header(tmp_path / "folder", kind="a", parameters={}, inputs={})
    assert [path.name for path in (tmp_path / "folder").iterdir()] == [HEADER_FILE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"was not written by pilekit \(it has no pilekit\.json\)"),
        ("{", "is not a header of pilekit"),
        ('{"format": 1}', "is not a header of pilekit: Object missing required field `pilekit`"),
        ('{"format": "1", "pilekit": "0", "kind": "a"}', r"Expected `int`, got `str` - at `\$\.format`"),
        ('{"format": 2, "pilekit": "9.1", "kind": "a"}', r"has format 2, .* written by pilekit 9\.1"),
        ('{"format": 1, "pilekit": "0", "kind": "\\u001b[31m"}', r'header of kind "\\x1b\[31m", not "index"'),
    ],
)
def test_what_is_no_header_of_this_kind_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / HEADER_FILE).write_text(text)
    with pytest.raises(PilekitError, match=message):
        read_header(tmp_path, "index")


@pytest.mark.parametrize("stored", [b'{"kind": "\xff"}', b'{"parameters":' + b"[" * 100_000])
def test_what_no_decoder_likes_is_refused_in_a_line(tmp_path: Path, stored: bytes) -> None:
    (tmp_path / HEADER_FILE).write_bytes(stored)
    with pytest.raises(PilekitError, match="is not a header of pilekit"):
        read_header(tmp_path)


def test_what_came_of_a_job_is_kept(tmp_path: Path) -> None:
    written = write_header(
        tmp_path, kind="selection", parameters={}, inputs={}, finished=True, results={"00.jsonl": {"documents": 3}}
    )
    assert read_header(tmp_path) == written
    assert (written.finished, written.results) == (True, {"00.jsonl": {"documents": 3}})
    assert write_header(tmp_path, kind="run", parameters={}, inputs={}).finished is None
