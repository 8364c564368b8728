"""Pack: every row equals the plain reference's, from the beginning and from every place where one can resume."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.kernels import compiled
from pilekit.pipeline import MinBytes, Pipeline
from pilekit.shards import read
from pilekit.stream import Pack
from pilekit.stream.concat import _signature, concat
from pilekit.stream.state import Place
from pilekit.tokenize import TokenBatch, Tokenize, load_tokenizer
from tests.stream.old_reference import Document, place_of, reference_rows, rows_of, token_batches
from tests.tokenize.making import byte_level_bpe

EOS, PAD = 7, 9
NAMES = ("Pile-CC", "Github")


@st.composite
def corpora(draw: st.DrawFn, most: int = 25) -> list[Document]:
    lengths = draw(st.lists(st.integers(0, 12) | st.sampled_from([0, 1, 15, 16, 17, 40]), min_size=1, max_size=most))
    shards = draw(st.integers(1, 3))
    borders = sorted(draw(st.integers(0, len(lengths))) for _ in range(shards - 1))
    documents, number, token = [], 0, 10
    for index, length in enumerate(lengths):
        if index in borders:
            number = 0
        number += draw(st.integers(0, 3))  # lines of other subsets leave gaps
        shard = f"{sum(border <= index for border in borders):02d}.jsonl"
        subset = draw(st.sampled_from([*NAMES, "(none)", "Recipes", "Letters"]))
        documents.append(Document(shard, number, subset, tuple(range(token, token + length))))
        token += length
        number += 1
    return documents


def documents_of_lengths(*lengths: int) -> list[Document]:
    return [Document("a", number, "Github", tuple(range(100, 100 + n))) for number, n in enumerate(lengths)]


sizes = st.lists(st.integers(1, 9), max_size=3)


@settings(deadline=None)
@given(corpora(), st.integers(1, 20), st.integers(1, 4), sizes)
@example(documents_of_lengths(0, 0, 0), 1, 1, [1])  # nothing but EODs
@example(documents_of_lengths(3, 3), 4, 2, [1])  # documents, rows, batches and token batches all end together
@example(documents_of_lengths(3, 4, 2), 4, 1, [1])  # a row holds only an EOD's continuation
@example(documents_of_lengths(100), 4, 2, [1])  # one document over many batches
def test_rows_are_those_of_the_reference(
    documents: list[Document], seq_len: int, batch_size: int, sizes: list[int]
) -> None:
    pack = Pack(seq_len, EOS, batch_size=batch_size, pad_id=PAD, subset_names=NAMES)
    batches = list(pack(token_batches(documents, sizes)))
    assert rows_of(batches) == reference_rows(documents, seq_len, EOS, PAD, NAMES)
    assert all(len(batch["input_ids"]) == batch_size for batch in batches[:-1])


@settings(deadline=None, max_examples=150)
@given(corpora(12), st.integers(1, 20), st.integers(1, 3), st.integers(1, 3), sizes, sizes)
@example(documents_of_lengths(3, 3), 4, 1, 1, [1], [1])
@example(documents_of_lengths(0, 100, 0), 4, 1, 3, [1], [2])
def test_every_batch_can_be_resumed_from(
    documents: list[Document],
    seq_len: int,
    batch_size: int,
    new_batch_size: int,
    sizes: list[int],
    new_sizes: list[int],
) -> None:
    pack = Pack(seq_len, EOS, batch_size=batch_size, pad_id=PAD, subset_names=NAMES)
    rows = reference_rows(documents, seq_len, EOS, PAD, NAMES)
    batches = list(pack(token_batches(documents, sizes)))
    done = 0
    for index, batch in enumerate(batches):
        done += len(batch["input_ids"])
        place = place_of(batch)
        assert json.loads(json.dumps(batch.stream_state)) == place.to_json()
        other = Pack(seq_len, EOS, batch_size=new_batch_size, pad_id=PAD, subset_names=NAMES)
        resumed = list(other(token_batches(documents, new_sizes, place), place))
        assert rows_of(resumed) == rows[done:]
        if new_batch_size == batch_size:  # a state says where the rows stand, not how the run came there
            assert [b.stream_state for b in resumed] == [b.stream_state for b in batches[index + 1 :]]


def test_new_labels_are_in_the_state_once_their_document_is_packed() -> None:
    documents = [
        Document("a", n, label, (1, 2, 3)) for n, label in enumerate(["Github", "Recipes", "Letters", "Recipes"])
    ]
    batches = list(Pack(4, EOS, batch_size=1, subset_names=NAMES)(token_batches(documents, [4])))
    assert [batch.stream_state["new_subsets"] for batch in batches] == [
        [],
        ["Recipes"],
        ["Recipes", "Letters"],
        ["Recipes", "Letters"],
    ]
    assert [batch["subset_ids"].unique().tolist() for batch in batches] == [[1], [2], [3], [2]]


def test_an_empty_document_is_its_eod_alone() -> None:
    (batch,) = Pack(4, EOS, batch_size=8)(token_batches(documents_of_lengths(1, 0, 0)))
    assert batch["input_ids"].tolist() == [[100, EOS, EOS, EOS]]
    assert batch["labels"].tolist() == [[-100, EOS, -100, -100]]
    assert batch["doc_ids"].tolist() == [[0, 0, 1, 2]]


def test_no_documents_give_no_batches() -> None:
    empty = TokenBatch(np.zeros(0, np.uint32), np.zeros(1, np.int64), "a", np.zeros(0, np.int64), [])
    assert list(Pack(4, EOS)(iter([]))) == []
    assert list(Pack(4, EOS)(iter([empty]))) == []


def test_batches_share_no_memory() -> None:
    batches = list(Pack(5, EOS, batch_size=2)(token_batches(documents_of_lengths(9, 9, 9, 4))))
    expected = [rows_of([copy.deepcopy(batch)]) for batch in batches]
    for index, batch in enumerate(batches):
        assert rows_of([batch]) == expected[index]
        for name, column in batch.items():
            column.fill_(-5)
            versions = [other._version for other in batch.values()]
            assert sum(versions) == 1 + list(batch).index(name), "autograd must see one changed column, not five"


def test_a_batch_keeps_its_documents_through_copying_and_pickling() -> None:
    (batch,) = Pack(4, EOS, batch_size=8)(token_batches(documents_of_lengths(2, 6, 1)))
    assert batch.documents() == [[("a", 0), ("a", 1)], [("a", 1)], [("a", 1), ("a", 2)]][: len(batch["doc_ids"])]
    for other in (copy.copy(batch), pickle.loads(pickle.dumps(batch))):
        assert other.documents() == batch.documents()
        assert other.stream_state == batch.stream_state


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8"])
def test_sizes_that_make_no_sense_are_refused(value: object) -> None:
    with pytest.raises(PilekitError, match="seq_len"):
        Pack(value, EOS)  # type: ignore[arg-type]
    with pytest.raises(PilekitError, match="batch_size"):
        Pack(4, EOS, batch_size=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, -1, 2.0, True, "8"])
def test_ids_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(PilekitError, match=r"eos_id is the id of a token.*`tokenizer\.eos_id`"):
        Pack(4, value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(PilekitError, match="pad_id is the id of a token"):
            Pack(4, EOS, pad_id=value)  # type: ignore[arg-type]


def test_labels_without_end_are_an_error_and_the_state_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilekit.stream.pack.MAX_SUBSETS", 3)
    documents = [Document("a", n, label, (1, 2, 3)) for n, label in enumerate(["Github", *"abcabc", "Pile-CC"])]
    batches = list(Pack(4, EOS, subset_names=NAMES, batch_size=1)(token_batches(documents, [1])))
    assert batches[-1].stream_state["new_subsets"] == ["a", "b", "c"]
    one_more = [*documents, Document("a", 99, "d", (1,))]
    with pytest.raises(PilekitError, match="more than 3 different subset labels; set label_path in a manifest"):
        list(Pack(4, EOS, subset_names=NAMES, batch_size=1)(token_batches(one_more, [1])))
    resumed = Pack(4, EOS, subset_names=NAMES, batch_size=1)(token_batches(one_more[-2:], [1]), place_of(batches[5]))
    with pytest.raises(PilekitError, match="more than 3 different subset labels"):
        list(resumed)


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [Document("a", 6, "Github", (1,) * 9)],  # that document is gone
        [Document("b", 5, "Github", (1,) * 9)],
        [Document("a", 5, "Github", (1,) * 3)],  # it was longer once
    ],
)
def test_a_cut_document_that_is_not_there_any_more_is_an_error(documents: list[Document]) -> None:
    with pytest.raises(PilekitError, match="document 5 of a"):
        list(Pack(4, EOS)(token_batches(documents), Place("a", 5, 4)))


def test_only_the_eod_of_a_cut_document_may_be_left() -> None:
    (batch,) = Pack(4, EOS, pad_id=PAD)(token_batches([Document("a", 5, "Github", (1,) * 4)]), Place("a", 5, 4))
    assert batch["input_ids"].tolist() == [[EOS, PAD, PAD, PAD]]
    assert batch["labels"].tolist() == [[EOS, -100, -100, -100]]


def test_a_chain_of_stages_from_shard_to_rows(tmp_path: Path) -> None:
    byte_level_bpe(500).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    texts = ["x", "The quick brown fox", "", "jumps over the lazy dog"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    chain = Pipeline([MinBytes(10), Tokenize(tokenizer), Pack(16, EOS, pad_id=PAD, batch_size=2)])
    kept = [
        Document("a.jsonl", number, "(none)", tuple(tokenizer.encode_batch([texts[number]])[0].tolist()))
        for number in (1, 3)
    ]
    assert rows_of(chain(read(tmp_path / "a.jsonl"))) == reference_rows(kept, 16, EOS, PAD)


def test_packing_works_where_no_cache_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def njit(*arguments: Any, **options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'concat': no locator available for file 'concat.py'")
        return real(*arguments, **options)

    expected = rows_of(Pack(5, EOS)(token_batches(documents_of_lengths(9, 0, 9))))
    monkeypatch.setattr(numba, "njit", njit)
    monkeypatch.setattr("pilekit.stream.batch.concat", compiled(_signature)(concat.py_func))
    assert rows_of(Pack(5, EOS)(token_batches(documents_of_lengths(9, 0, 9)))) == expected
