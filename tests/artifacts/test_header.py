"""The header of a folder that pilekit wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilekit import __version__
from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.errors import PilekitError


def test_a_header_is_read_as_written_and_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "index"
    written = write_header(folder, kind="index", parameters={"rows": 3}, inputs={"train/00.jsonl": [1, "a"]})
    assert read_header(folder) == read_header(folder, "index") == written
    assert json.loads((folder / HEADER_FILE).read_text()) == {
        "format": 1,
        "pilekit": __version__,
        "kind": "index",
        "parameters": {"rows": 3},
        "inputs": {"train/00.jsonl": [1, "a"]},
    }
    finished = write_header(folder, kind="b", parameters={}, inputs={}, finished=True, results={"00": {"documents": 3}})
    assert read_header(folder) == finished
    assert (finished.finished, finished.results, written.finished) == (True, {"00": {"documents": 3}}, None)
    assert [path.name for path in folder.iterdir()] == [HEADER_FILE]


def test_a_missing_damaged_newer_or_other_header_is_refused(tmp_path: Path) -> None:
    for stored, message in [
        (None, r"was not written by pilekit \(it has no pilekit\.json\)"),
        (b"{", "is not a header of pilekit"),
        (b'{"kind": "\xff"}', "is not a header of pilekit"),
        (b'{"parameters":' + b"[" * 100_000, "is not a header of pilekit"),
        (b'{"format": 1}', 'is not a header of pilekit: it has no "pilekit"'),
        (b'{"format": 2, "pilekit": "9.1", "kind": "a"}', r"has format 2, .* written by pilekit 9\.1"),
        (b'{"format": 1, "pilekit": "0", "kind": "\\u001b[31m"}', r'header of kind "\\x1b\[31m", not "index"'),
    ]:
        if stored is not None:
            (tmp_path / HEADER_FILE).write_bytes(stored)
        with pytest.raises(PilekitError, match=message):
            read_header(tmp_path, "index")
