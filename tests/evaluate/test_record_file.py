"""A record is a line: it comes back to the last bit, and of a torn or damaged file nothing wrong is read."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.corpus import load_manifest
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result_folder import RecordFile, read_line, read_records, record_line, record_path
from pilekit.evaluate.score.causal_nll import ScoredDocument
from tests.evaluate.folders import rows

KEY = "0123456789abcdef" * 2


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


SCORED = st.builds(
    ScoredDocument,
    TEXT,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    TEXT,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.floats(0, allow_nan=False, allow_infinity=False),
)


@given(SCORED)
@example(ScoredDocument("a", 0, 0, "", 0, 0, 0.1 + 0.2))
@example(ScoredDocument("a", 0, 2**64 - 1, "\x00\n", 0, 0, 5e-324))
def test_a_line_gives_back_what_was_written(document: ScoredDocument) -> None:
    line = record_line(document)
    assert line.count(b"\n") == 1
    told = json.loads(line)
    assert told.pop("check")
    assert list(told) == ["shard", "document", "text", "subset", "bytes", "tokens", "nll"]
    assert told["nll"] == document.nll
    assert read_line(line[:-1]) == document


@given(st.lists(SCORED, max_size=8, unique_by=lambda one: (one.shard, one.number)), st.data())
def test_of_a_torn_file_all_whole_lines_are_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[ScoredDocument], data: st.DataObject
) -> None:
    """And what is appended to it stands behind the last whole one, however it was torn."""
    out = tmp_path_factory.mktemp("torn")
    shards = sorted({one.shard for one in documents} | {"new"})
    manifest = load_manifest()
    with RecordFile(record_path(out, KEY, 3)) as file:
        for document in documents:
            file.append(document)
    content = file.path.read_bytes()
    assert content == b"".join(map(record_line, documents))
    cut = data.draw(st.integers(0, len(content)))
    file.path.write_bytes(content[:cut])
    left = documents[: content[:cut].count(b"\n")]
    expected = Records.of(left, shards, manifest)
    assert rows(read_records(out, KEY, shards, manifest)) == rows(expected)
    new = ScoredDocument("new", 2**63 - 1, 1, "s", 1, 1, 1.0)
    if ("new", new.number) in {(one.shard, one.number) for one in left}:
        return
    with RecordFile(record_path(out, KEY, 3)) as file:
        file.append(new)
    assert file.path.read_bytes() == b"".join(map(record_line, [*left, new]))
    shutil.rmtree(out)


@given(st.lists(SCORED, min_size=1, max_size=5, unique_by=lambda one: (one.shard, one.number)), st.data())
def test_of_a_damaged_file_nothing_wrong_is_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[ScoredDocument], data: st.DataObject
) -> None:
    out = tmp_path_factory.mktemp("damaged")
    shards = sorted({one.shard for one in documents})
    manifest = load_manifest()
    with RecordFile(record_path(out, KEY, 0)) as file:
        for document in documents:
            file.append(document)
    content = bytearray(file.path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(content)))
        end = min(len(content), begin + data.draw(st.integers(0, 5)))
        content[begin:end] = data.draw(st.binary(max_size=5) | st.sampled_from([b"\n", b"0", b'"', b"}"]))
    file.path.write_bytes(content)
    found = rows(read_records(out, KEY, shards, manifest))
    assert set(found) <= set(rows(Records.of(documents, shards, manifest)))
    shutil.rmtree(out)
