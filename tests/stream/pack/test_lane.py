"""A lane over documents in memory: its rows are the reference's, and every place goes on with the very next row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.stream.pack.lane import Lane, Place, counts
from pilekit.stream.pack.tokenized_lane import Encoding, TokenizedLane
from pilekit.stream.pack.window import PACKINGS, Packing, RowRange
from pilekit.stream.read.lane_documents import LaneDocuments
from pilekit.tokenize import Tokenizer, load_tokenizer
from tests.stream.reference import Document, Line, Piece, Plan, Row, columns, lane_rows
from tests.tiny import tiny_tokenizer

SEQ_LEN, SUBSETS = 8, ("A", "B", "(other)")


@dataclass
class Unit:
    """A unit's documents: (number, text, subset), None for one that was dropped; `bad` lines before some of them."""

    documents: list[tuple[int, str, str] | None]
    bad: dict[int, int]


@dataclass
class Memory:
    """Units at positions 2, 5, 8, ..., over and over, or once; pieces of `size` documents of a unit."""

    units: list[Unit]
    size: int
    endless: bool = False
    closed: int = 0

    def first(self, lane: int) -> int:
        return 2

    def documents(self, lane: int, position: int, document: int) -> Iterator[LaneDocuments]:
        try:
            turn = (position - 2) // 3
            while self.endless or turn < len(self.units):
                unit = self.units[turn % len(self.units)]
                for begin in range(document, max(len(unit.documents), document + 1), self.size):
                    part = list(enumerate(unit.documents))[begin : begin + self.size]
                    yield from self._pieces(2 + 3 * turn, part, unit.bad)
                turn, document = turn + 1, 0
        finally:
            self.closed += 1

    def _pieces(self, position: int, part: list[Any], bad: dict[int, int]) -> Iterator[LaneDocuments]:
        """Cut where bad lines are, as the sequential plan does."""
        kept: list[tuple[int, tuple[int, str, str]]] = []
        skipped = 0
        for order, document in part:
            if order in bad:
                yield self._piece(position, kept, skipped)
                kept, skipped = [], bad[order]
            if document is not None:
                kept.append((order, document))
        yield self._piece(position, kept, skipped)

    def _piece(self, position: int, kept: list[tuple[int, tuple[int, str, str]]], skipped: int) -> LaneDocuments:
        return LaneDocuments(
            position,
            np.array([order for order, _ in kept], np.int64),
            [text for _, (_, text, _) in kept],
            [subset for _, (_, _, subset) in kept],
            np.zeros(len(kept), np.int64),
            np.array([number for _, (number, _, _) in kept], np.int64),
            skipped,
        )


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def layout(tokenizer: Tokenizer, packing: Packing, window: int = 4, append_eod: bool = True) -> Encoding:
    ids = {name: number for number, name in enumerate(SUBSETS)}
    return Encoding(SEQ_LEN, packing, window, append_eod, tokenizer, 5, ids, 2, ("s",))


def lane_at(source: Memory, place: Place, how: Encoding) -> Lane:
    """Lane 7 of the source."""
    return Lane(TokenizedLane(source, 7, place.position, place.document, how), place, how)


def uses(source: Memory, how: Encoding, lane: int = 7) -> Iterator[Document]:
    """The lane's documents in the reference's form; of an endless source, of its first twenty rounds."""
    tokenizer = how.tokenizer
    end = [tokenizer.eos_id] if how.append_eod and tokenizer.eos_id is not None else []
    for turn in range(len(source.units) * (20 if source.endless else 1)):
        for order, document in enumerate(source.units[turn % len(source.units)].documents):
            if document is not None:
                number, text, subset = document
                tokens = [*tokenizer.encode_batch([text])[0].tolist(), *end]
                yield Document(lane, 2 + 3 * turn, order, Line("s", number, subset, text), tokens)


def expected(source: Memory, how: Encoding) -> list[Row]:
    plan = Plan(("s",), 1, 1, 1, SEQ_LEN, seed=5, window=how.window, packing=how.packing)
    return [columns(row, SEQ_LEN, 1) for row in lane_rows(uses(source, how), plan)]


def rows_of(parts: list[RowRange], how: Encoding) -> list[Row]:
    """What a lane gave, read off its windows in the reference's form."""
    found = []
    for part in parts:
        window, rows = part.window, part.window.rows
        for row in range(part.first_row, part.first_row + part.count):
            pieces = []
            for piece in range(int(rows.start[row]), int(rows.start[row + 1])):
                document, begin, length = (int(a[piece]) for a in (rows.document, rows.begin, rows.length))
                ids = window.ids[window.offsets[document] : window.offsets[document + 1]].tolist()
                tokens = [*ids, *([how.tokenizer.eos_id] if how.append_eod else [])]
                subset = SUBSETS[window.subset_ids[document]]
                line = Line("s", int(window.numbers[document]), subset, "")
                pieces.append(Piece(Document(7, 0, 0, line, tokens), begin, length))
            found.append(columns(pieces, SEQ_LEN, 1))
    return found


units = st.lists(
    st.builds(
        Unit,
        st.lists(
            st.none() | st.tuples(st.integers(0, 99), st.text("ab ", max_size=30), st.sampled_from(["A", "B"])),
            max_size=6,
        ),
        st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=2),
    ),
    min_size=1,
    max_size=4,
)
sources = st.builds(Memory, units, st.integers(1, 4))


@given(sources, st.sampled_from(PACKINGS), st.integers(1, 5), st.booleans(), st.integers(1, 4))
def test_a_lane_gives_the_references_rows_and_goes_on_from_every_place(
    tokenizer: Tokenizer, source: Memory, packing: Packing, window: int, append_eod: bool, step: int
) -> None:
    how = layout(tokenizer, packing, window, append_eod)
    wanted = expected(source, how)
    lane = lane_at(source, Place(2, 0), how)
    given, places = [], []
    while part := lane.give(step):
        places.append(lane.place)
        given.append(part)
    end = lane.place  # behind documents without tokens too, which the last row did not know of
    lane.close()
    assert source.closed == 1
    assert [row for part in given for row in rows_of(part, how)] == wanted
    assert [sum(one.count for one in part) for part in given[:-1]] == [step] * (len(given) - 1)
    total = counts([one for part in given for one in part], 3)
    for behind, place in enumerate(places, 1):
        again = lane_at(source, Place(*place), how)
        rest = again.give(len(wanted) + 1)
        assert rows_of(rest, how) == wanted[behind * step :]
        assert again.place == end
        # Counts before and behind a place add up, whatever the window was built twice for.
        before = counts([one for part in given[:behind] for one in part], 3)
        after = counts(rest, 3)
        assert before[0] + after[0] == total[0]
        assert _by_subset(before) + _by_subset(after) == _by_subset(total)
        again.close()


def _by_subset(counted: tuple[Any, ...]) -> Counter[tuple[int, str]]:
    _, subsets, documents, tokens = counted
    found: Counter[tuple[int, str]] = Counter()
    for subset, more_documents, more_tokens in zip(subsets.tolist(), documents.tolist(), tokens.tolist(), strict=True):
        found[subset, "documents"] += more_documents
        found[subset, "tokens"] += more_tokens
    return found


@given(sources, st.sampled_from(PACKINGS))
def test_counts_are_those_of_the_documents(tokenizer: Tokenizer, source: Memory, packing: Packing) -> None:
    how = layout(tokenizer, packing)
    skipped, subsets, documents, tokens = counts(lane_at(source, Place(2, 0), how).give(10_000), 3)
    used = list(uses(source, how))
    for index, name in enumerate(SUBSETS):
        here = [len(document.tokens) for document in used if document.line.subset == name]
        at = np.flatnonzero(subsets == index)
        assert (int(documents[at].sum()), int(tokens[at].sum())) == (len(here), sum(here))
    # Bad lines behind a lane's last document are in no batch.
    places = [(turn, order) for turn, unit in enumerate(source.units) for order, d in enumerate(unit.documents) if d]
    last = max(places, default=(-1, -1))
    bad = [(turn, order) for turn, unit in enumerate(source.units) for order in unit.bad if order < len(unit.documents)]
    assert skipped == sum(source.units[turn].bad[order] for turn, order in bad if (turn, order) <= last)


@pytest.mark.parametrize("packing", PACKINGS)
def test_an_endless_lane_goes_on(tokenizer: Tokenizer, packing: Packing) -> None:
    documents = [(number, "ab" * number, "A") for number in range(9)]
    source = Memory([Unit([*documents[:5], None], {}), Unit([None, *documents[5:]], {})], 2, endless=True)
    how = layout(tokenizer, packing)
    lane = lane_at(source, Place(2, 0), how)
    found = rows_of(lane.give(60), how)
    assert found == expected(source, how)[:60]


def test_restoring_tokenizes_one_window(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    told = 0
    encode = Tokenizer.encode_batch

    def counting(self: Tokenizer, texts: Any) -> Any:
        nonlocal told
        told += len(texts)
        return encode(self, texts)

    source = Memory([Unit([(number, "the quick brown fox", "A") for number in range(100)], {})], 50, endless=True)
    how = layout(tokenizer, "best_fit", window=10)
    lane = lane_at(source, Place(2, 0), how)
    lane.give(200)
    monkeypatch.setattr(Tokenizer, "encode_batch", counting)
    again = lane_at(source, lane.place, how)
    again.give(1)
    assert told == 10


def test_a_window_is_full_at_its_number_of_tokens(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same rule as the reference's, with a smaller number; characters here are more tokens than one."""
    for module in ("pilekit.stream.pack.lane", "pilekit.stream.pack.window", "tests.stream.reference"):
        monkeypatch.setattr(f"{module}.MOST_TOKENS", 50)
    texts = ["日本語" * (number % 5) + "a" * (number % 7) for number in range(60)]
    source = Memory([Unit([(number, text, "A") for number, text in enumerate(texts)], {})], 60)
    for packing in PACKINGS:
        how = layout(tokenizer, packing, window=20)
        assert rows_of(lane_at(source, Place(2, 0), how).give(1000), how) == expected(source, how)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_place_of_other_documents_is_refused(tokenizer: Tokenizer, packing: Packing) -> None:
    source = Memory([Unit([(number, "ab", "A") for number in range(4)], {})], 2)
    for place in (Place(2, 0, 100), Place(5, 0, 1)):
        lane = lane_at(source, place, layout(tokenizer, packing))
        if packing != "concat" and place.position == 5:
            assert lane.give(1) == []  # nothing is there, and the lane ends
            continue
        with pytest.raises(PilekitError, match="a lane cannot resume at position") as raised:
            lane.give(1)
        assert "\n" not in str(raised.value)


def test_texts_that_no_token_says(tokenizer: Tokenizer) -> None:
    source = Memory([Unit([(3, "", "A")], {})], 1, endless=True)
    with pytest.raises(PilekitError, match="no tokens in 1,000 windows of 4 documents"):
        lane_at(source, Place(2, 0), layout(tokenizer, "best_fit", append_eod=False)).give(1)
    surrogate = Memory([Unit([(1, "a", "A"), (3, "\ud800", "A")], {})], 2)
    with pytest.raises(PilekitError, match="s: document 3 holds a lone surrogate"):
        lane_at(surrogate, Place(2, 0), layout(tokenizer, "concat")).give(1)


def test_other_labels_share_an_id(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = Memory([Unit([(1, "a", "unheard of")], {})], 2)
    (part,) = lane_at(source, Place(2, 0), layout(tokenizer, "best_fit")).give(1)
    assert part.window.subset_ids.tolist() == [2]
