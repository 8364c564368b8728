"""DocumentBatch: columns stay parallel, and raw lines keep their bytes."""

from __future__ import annotations

import json
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.documents import Document, DocumentBatch, RecordFormat
from pilekit.errors import PilekitError, visible, visible_lines
from pilekit.shards.read.json_records import LineParser
from tests.shards.editing import hard_lines, hard_texts, slow_edit

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8)


def batch(some: list[str], **columns: object) -> DocumentBatch:
    return DocumentBatch(some, [f"s{i}" for i in range(len(some))], "a.jsonl", np.arange(len(some)), **columns)  # type: ignore[arg-type]


@given(texts)
def test_utf8_is_the_texts_end_to_end(some: list[str]) -> None:
    values, offsets = batch(some).utf8()
    encoded = [text.encode() for text in some]
    assert values.tobytes() == b"".join(encoded)
    assert np.diff(offsets).tolist() == [len(text) for text in encoded]
    assert batch(some).text_bytes().tolist() == [len(text) for text in encoded]


@given(texts, st.data())
def test_a_batch_is_a_sequence_of_documents(some: list[str], data: st.DataObject) -> None:
    """With the record's meta object, or all its fields but the text; an edited text counts, its line does not."""
    metas = data.draw(st.lists(st.sampled_from([{}, {"a": [1, None]}]), min_size=len(some), max_size=len(some)))
    has_meta = data.draw(st.booleans())
    records = [{"text": t, "meta": m} if has_meta else {**m, "text": t} for t, m in zip(some, metas, strict=True)]
    lines = [json.dumps(record).encode() for record in records]
    edited = [text + "!" if data.draw(st.booleans()) else text for text in some]
    whole = batch(some, lines=lines).with_texts(edited)
    expected = [Document(edited[i], metas[i], f"s{i}", i, "a.jsonl") for i in range(len(some))]
    assert list(whole) == [whole[i] for i in range(len(some))] == whole[:] == expected
    assert whole[-2:] == expected[-2:]
    assert all(type(document.number) is int for document in whole)
    with pytest.raises(IndexError):
        whole[len(some)]


def test_documents_of_columns_alone_have_their_label_as_meta() -> None:
    assert batch(["one"])[0] == Document("one", {"pile_set_name": "s0"}, "s0", 0, "a.jsonl")


@given(texts, st.data())
def test_filters_keep_all_columns_and_edits_together(some: list[str], data: st.DataObject) -> None:
    lines = [json.dumps({"n": i, "text": text}).encode() for i, text in enumerate(some)]
    edited = [text + "!" if data.draw(st.booleans()) else text for text in some]
    keep = data.draw(st.lists(st.booleans(), min_size=len(some), max_size=len(some)))
    kept = batch(some, lines=lines).with_texts(edited).where(keep)
    chosen = [i for i, wanted in enumerate(keep) if wanted]
    assert kept.texts == [edited[i] for i in chosen]
    assert kept.subsets == [f"s{i}" for i in chosen]
    assert kept.numbers.tolist() == chosen
    assert [json.loads(bytes(line)) for line in kept.raw_lines()] == [{"n": i, "text": edited[i]} for i in chosen]
    for line, i in zip(kept.raw_lines(), chosen, strict=True):
        if edited[i] == some[i]:
            assert line == lines[i]


def test_columns_of_different_lengths_are_refused_and_records_have_other_formats() -> None:
    with pytest.raises(PilekitError, match="different lengths"):
        DocumentBatch(["a"], [], "a.jsonl", np.arange(1))
    assert RecordFormat("content", ("source",)).record("a", "web") == {"content": "a", "source": "web"}
    assert RecordFormat().record("a", "(none)") == {"text": "a"}
    assert batch(["a"]).raw_lines() == [b'{"text":"a","meta":{"pile_set_name":"s0"}}']


def test_control_characters_become_visible() -> None:
    assert visible("a\x1b[31m\n\x9b\u202e\u200b") == r"a\x1b[31m\x0a\x9b\u202e\u200b"
    assert visible("[bold]naïve “label”[/bold]") == "[bold]naïve “label”[/bold]"
    assert visible_lines("a\tb\r\n\x1b[31m") == "a\tb\\x0d\n\\x1b[31m"
    assert visible("abcdef", 3) == "abc…"
    assert visible("\udcff") == r"\udcff"


def test_an_edited_document_keeps_the_rest_of_its_record() -> None:
    lines = [b'{"id": 7, "text": "old", "meta": {"pile_set_name": "ArXiv", "x": 1}}', b'{"text":  "same"}']
    edited = batch(["old", "same"], lines=lines).with_texts(["new", "same"])
    assert edited.raw_lines() == [b'{"id": 7, "text": "new", "meta": {"pile_set_name": "ArXiv", "x": 1}}', lines[1]]
    assert edited.take([0]).raw_lines() == edited.raw_lines()[:1]


FORMATS = [
    RecordFormat(),
    RecordFormat("a.b", ("a", "b")),
    RecordFormat('q"uo\\te/é', ("the label",)),
    RecordFormat("meta", ("text", "meta", "te")),
    RecordFormat("text", ("text",)),
]


@given(st.data(), st.sampled_from(FORMATS))
def test_every_byte_beside_an_edited_text_stays(data: st.DataObject, format: RecordFormat) -> None:
    lines = data.draw(st.lists(hard_lines(format.text_field, format.label_path), min_size=1, max_size=4))
    shard = b"\n".join(lines)
    ends = np.cumsum([len(line) + 1 for line in lines]).tolist()
    views = [memoryview(shard)[end - len(line) - 1 : end - 1] for line, end in zip(lines, ends, strict=True)]
    found = LineParser("a", "a", format, None, None).parse(views, np.arange(len(lines)))
    texts = [data.draw(st.one_of(st.just(text), hard_texts)) for text in found.texts]
    expected = [
        line if text == old else slow_edit(line, text, format.text_field)
        for line, text, old in zip(lines, texts, found.texts, strict=True)
    ]
    edited = found.with_texts(texts)
    assert edited.raw_lines() == expected
    assert LineParser("a", "a", format, None, None).parse(expected, np.arange(len(lines))).texts == texts
    assert pickle.loads(pickle.dumps(edited)).raw_lines() == expected
    pieces = data.draw(st.dictionaries(st.integers(0, len(lines) - 1), st.lists(hard_texts, max_size=3)))
    assert edited.with_pieces(pieces).raw_lines() == [
        line
        for index, whole in enumerate(expected)
        for line in (
            [slow_edit(whole, piece, format.text_field) for piece in pieces[index]] if index in pieces else [whole]
        )
    ]


def test_a_line_of_a_thousand_lists_in_each_other_is_one_error() -> None:
    def edited(depth: int) -> list[bytes | memoryview]:
        lines = [b'{"text": "old"}', b'{"x": %s, "text": "old"}' % (b"[" * depth + b"]" * depth)]
        return batch(["old", "old"], lines=lines).with_texts(["old", "new"]).raw_lines()

    assert edited(500)[1] == b'{"x": %s, "text": "new"}' % (b"[" * 500 + b"]" * 500)
    if sys.version_info < (3, 12):
        with pytest.raises(PilekitError, match=r"^a\.jsonl, line 2: has too many .* in each other; remove the line$"):
            edited(1020)


def test_it_prints_as_one_line() -> None:
    assert (
        repr(batch(["é" * 1000, "b"])) == "DocumentBatch(2 documents, 0-1 of 'a.jsonl', 2 subsets, 2,001 bytes of text)"
    )
    assert repr(batch([])) == "DocumentBatch(0 documents, 'a.jsonl', 0 subsets, 0 bytes of text)"


def test_a_batch_of_a_shard_goes_to_another_process() -> None:
    line = b'{"text": "old", "id": 7}'
    edited = batch(["old"], lines=[memoryview(line)]).with_texts(["new"])
    copy = pickle.loads(pickle.dumps(edited))
    assert copy.raw_lines() == edited.raw_lines() == [b'{"text": "new", "id": 7}']
    assert (copy.texts, copy.subsets, copy.numbers.tolist(), copy.edited) == (["new"], ["s0"], [0], {0})
    assert pickle.loads(pickle.dumps(batch(["a"]))).lines is None
