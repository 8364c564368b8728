"""Pack: one lane of the plain reference, from token batches of any sizes, for every packing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.corpus import MAX_SUBSETS
from pilekit.stream.batch.batch import OUTPUTS, Batch
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.pack.pack_stage import Pack
from pilekit.stream.settings import Packing
from pilekit.tokenize import TokenBatch
from tests.refusing import refused
from tests.stream import reference
from tests.stream.collecting import rows_of
from tests.stream.pack.packing_reference import EOS, NAMES, PAD, documents_of, lengths, masked, plan, token_batches
from tests.stream.reference import Document, Line, Row

PACKINGS = ["best_fit", "concat", "none"]


def pack(seq_len: int, packing: str = "best_fit", **options: Any) -> Pack:
    chosen = {"pad_id": PAD, "outputs": OUTPUTS, "subset_names": NAMES, **options}
    return Pack(seq_len, EOS, packing=cast(Packing, packing), **chosen)


def all_rows(batches: Sequence[Batch]) -> list[Row]:
    return [row for batch in batches for row in rows_of(batch, NAMES)]


@given(
    lengths,
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 40),
    st.sampled_from(PACKINGS),
    st.integers(1, 12),
    st.integers(1, 4),
    st.booleans(),
)
@example([0, 0, 0], [1], 1, "best_fit", 1, 1, True)  # only EODs
@example([0, 0, 0], [1], 1, "concat", 1, 1, False)  # nothing at all
@example([3, 3], [1], 4, "concat", 2, 2, True)  # documents, rows, batches and token batches all end together
@example([3, 4, 2], [1], 4, "concat", 2, 1, True)  # a row holds only an EOD's continuation
@example([100], [1], 4, "concat", 2, 2, True)  # one document over many batches
@example([0] * 30 + [1], [1], 40, "concat", 2, 2, True)  # one row from many token batches
def test_rows_are_those_of_the_reference(
    lengths: list[int], sizes: list[int], seq_len: int, packing: str, window: int, batch_size: int, append_eod: bool
) -> None:
    documents = documents_of(lengths, sizes, append_eod)
    stage = pack(seq_len, packing, window=window, batch_size=batch_size, append_eod=append_eod, seed=3)
    batches = list(stage(token_batches(documents, append_eod)))
    rows = reference.lane_rows(iter(documents), plan(seq_len, packing, window, 3, batch_size))
    expected = [reference.columns(row, seq_len, PAD) for row in rows]
    assert all_rows(batches) == expected
    assert all(len(batch["input_ids"]) == batch_size for batch in batches[:-1])


@given(
    lengths,
    st.sampled_from(PACKINGS),
    st.integers(0, 5),
    st.sampled_from([40, 2000]),  # 40: many ids are past the vocabulary, and are tokens too
    st.integers(0, 30),
    st.sets(st.integers(0, 40), max_size=8),
)
@example([40] * 40, "concat", 1, 40, 4, {0, 1, 30, 39, 40})  # special tokens at both ends, and past the vocabulary
def test_masks_are_those_of_the_reference(
    lengths: list[int], packing: str, seed: int, vocabulary: int, mask_id: int, special: set[int]
) -> None:
    documents = documents_of(lengths)
    masking = Masking(mask_id, vocabulary, tuple(special))
    batches = list(pack(16, packing, seed=seed, masking=masking)(token_batches(documents)))
    one = plan(16, packing, seed=seed)
    expected = []
    for pieces in reference.lane_rows(iter(documents), one):
        row = reference.columns(pieces, 16, PAD)
        input_ids, labels = masked(row, reference.row_key(one, pieces), masking)
        expected.append(row._replace(input_ids=tuple(input_ids), labels=tuple(labels)))
    assert all_rows(batches) == expected


def test_labels_unknown_to_the_names_get_the_next_ids() -> None:
    documents = documents_of([3, 3, 3, 3], sizes=(2,))
    for names, expected in [((), [0, 1, 2, 0]), (("x", "Github"), [2, 1, 3, 2])]:
        (batch,) = pack(4, "concat", subset_names=names)(token_batches(documents))
        assert batch["subset_ids"][:, 0].tolist() == expected


def test_a_vocabulary_of_special_tokens_alone_is_refused() -> None:
    Masking(0, 3, (1, 7))
    refused(r"a vocabulary of 3 tokens, all of them special.*objective=\"mlm\"", Masking, 0, 3, (1, 2, 7))


def test_wrong_arguments_are_refused() -> None:
    outputs = [[], ["input_ids", "label"], ["labels", "labels"], "lables", ["\x1b[2J"]]
    for wrong, words in (
        ({"seq_len": 0}, "seq_len = 0: must be a whole number from 1 to "),
        ({"batch_size": True}, "batch_size = true: must be a whole number from 1 to "),
        ({"window": 2.0}, "window = 2.0: must be a whole number from 1 to "),
        ({"eos_id": None}, r"eos_id = \(not given\): must be a whole number from 0 to "),
        ({"packing": "first_fit"}, 'packing = "first_fit": must be "best_fit" or "concat" or "none"'),
        *(({"outputs": one}, "outputs names what a batch holds, some of input_ids, labels,") for one in outputs),
    ):
        refused(words, Pack, **{"seq_len": 4, "eos_id": EOS, **wrong})


def test_too_many_labels_are_an_error() -> None:
    documents = [
        Document(0, 0, number, Line("00.jsonl", number, f"label {number}", ""), [10, EOS])
        for number in range(MAX_SUBSETS + 1)
    ]
    few, many = (pack(4, subset_names=NAMES[:1])(token_batches(some)) for some in (documents[:-1], documents))
    assert len(list(few)) > 0
    refused("more than 4,096 different subset labels; set label_path in a manifest", list, many)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_batch_is_given_once_it_is_full(packing: str) -> None:
    asked = []

    def source() -> Iterator[TokenBatch]:
        for position, tokens in enumerate(token_batches(documents_of([15] * 30, sizes=(1,)))):
            asked.append(position)
            yield tokens

    # Four rows need two windows of three documents; running rows need four documents.
    next(pack(16, packing, batch_size=4, window=3)(source()))
    assert len(asked) == (4 if packing == "concat" else 6)
