"""A lane over documents in memory: its rows are the reference's, and from every place it resumes with the next row."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.stream.batch.batch import OUTPUTS, BatchWriter
from pilekit.stream.batch.build_batches import BatchBuilder
from pilekit.stream.pack import lane_windows
from pilekit.stream.pack.encode import Encoder
from pilekit.stream.pack.lane import Lane, rows_in
from pilekit.stream.pack.window import Layout, Place, Turns, Window, pieces_of
from pilekit.stream.read.lane_documents import SKIPPED, LaneDocuments, document_table
from pilekit.stream.settings import Packing
from pilekit.tokenize import Tokenizer, load_tokenizer
from tests.refusing import refused
from tests.stream.collecting import rows_of
from tests.stream.conftest import PACKINGS
from tests.stream.reference import Document, Line, Plan, Row, columns, lane_rows, windows
from tests.tiny.models import tiny_tokenizer

SEQ_LEN, PAD, SUBSETS = 8, 1, ("A", "B", "(other)")


Unit = list[tuple[int, str, str, int] | None]
"""A unit's documents: (number, text, subset, bad lines before it); None for a document that was dropped."""


@dataclass
class Memory:
    """Units at positions 2, 5, 8, ..., over and over, or once; in pieces of `size` places of a unit."""

    units: list[Unit]
    size: int
    endless: bool = False
    closed: int = 0

    def documents(self, lane: int, position: int, document: int) -> Generator[LaneDocuments, None, None]:
        try:
            turn = (position - 2) // 3
            while self.endless or turn < len(self.units):
                unit = self.units[turn % len(self.units)]
                for begin in range(document, len(unit), self.size):
                    part = list(enumerate(unit))[begin : begin + self.size]
                    kept = [(order, *found) for order, found in part if found is not None]
                    orders, numbers, texts, subsets, bad = zip(*kept, strict=True) if kept else [()] * 5
                    values = {"position": 2 + 3 * turn, "order": orders, "number": numbers, "skipped": bad}
                    values["subset"] = tuple(map(SUBSETS.index, subsets))
                    yield LaneDocuments(document_table(len(kept), **values), list(texts))
                turn, document = turn + 1, 0
        finally:
            self.closed += 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def builder(
    source: Memory, tokenizer: Tokenizer, packing: Packing, window: int = 4, append_eod: bool = True
) -> BatchBuilder:
    return BatchBuilder(source, 1, Layout(SEQ_LEN, packing, window, append_eod, 5), tokenizer, None, ("s",))


def lane_at(place: Place, how: BatchBuilder, before: int = 0) -> Lane:
    """Lane 7 of the source."""
    documents = Encoder(how.tokenizer).encoded(how.source.documents(7, place.position, place.document), how.layout)
    return Lane(lane_windows.windows(documents, 7, place, how.layout, Turns(before, 1)), place, how.layout)


def uses(how: BatchBuilder) -> Iterator[Document]:
    """The lane's documents in the reference's form; of an endless source, its first twenty rounds."""
    source = how.source
    assert isinstance(source, Memory)
    assert how.tokenizer is not None
    end = [how.tokenizer.eos_id] * how.layout.append_eod
    for turn in range(len(source.units) * (20 if source.endless else 1)):
        for order, document in enumerate(source.units[turn % len(source.units)]):
            if document is not None:
                number, text, subset, _ = document
                tokens = [*how.tokenizer.encode_batch([text])[0].tolist(), *end]
                yield Document(7, 2 + 3 * turn, order, Line("s", number, subset, text), tokens)


def expected(how: BatchBuilder) -> list[Row]:
    layout = how.layout
    options: Any = {"window": layout.window, "packing": layout.packing, "most_tokens": layout.most_tokens}
    plan = Plan(("s",), 1, 1, 1, SEQ_LEN, seed=5, **options)
    return [columns(row, SEQ_LEN, PAD) for row in lane_rows(uses(how), plan)]


def rows(parts: list[Window], how: BatchBuilder) -> list[Row]:
    """The rows that a lane gave, in the reference's form."""
    writer = BatchWriter(SEQ_LEN, OUTPUTS, PAD, how.tokenizer.eos_id)
    return rows_of(writer.batch(parts, pieces_of(parts), ["s"]), SUBSETS) if parts else []


def skipped_before(parts: list[Window]) -> int:
    pieces = pieces_of(parts)
    return int(pieces.table[:, SKIPPED][pieces.begin == 0].sum())


def numbered(unit: list[tuple[str, str, int] | None]) -> Unit:
    """The unit with its documents' numbers. They differ, as in a shard, but their order is not that of the unit."""
    return [one and (90 - 7 * order, *one) for order, one in enumerate(unit)]


documents = st.tuples(st.text("ab ", max_size=30), st.sampled_from(["A", "B"]), st.sampled_from([0, 0, 3]))
units = st.lists(st.none() | documents, max_size=6).map(numbered)
sources = st.builds(Memory, st.lists(units, min_size=1, max_size=4), st.integers(1, 4))


@given(sources, st.sampled_from(PACKINGS), st.integers(1, 5), st.booleans(), st.integers(1, 4))
def test_a_lane_gives_the_references_rows_and_resumes_from_every_place(
    tokenizer: Tokenizer, source: Memory, packing: Packing, window: int, append_eod: bool, step: int
) -> None:
    how = builder(source, tokenizer, packing, window, append_eod)
    wanted = expected(how)
    given, places = [], []
    with how.lane(7, Place(2, 0), 0) as lane:
        while part := lane.give(step):
            places.append(lane.place)
            given.append(part)
    end = lane.place
    assert source.closed == 1
    assert [row for part in given for row in rows(part, how)] == wanted
    assert [rows_in(part) for part in given[:-1]] == [step] * (len(given) - 1)
    every = [one for part in given for one in part]
    if append_eod and every:  # without EOD, documents without tokens are in no row
        bad = [one[3] for unit in source.units for one in unit if one is not None]
        plan = Plan(("s",), 1, 1, 1, SEQ_LEN, window=window)
        in_rows = (any(len(one.tokens) > 1 for one in some) for some in windows(uses(how), plan))
        if packing != "none" or all(in_rows):  # "none" leaves out documents of one token
            assert skipped_before(every) == sum(bad)
    for behind, place in enumerate(places, 1):
        again = lane_at(Place(*place), how, min(behind * step, len(wanted)))
        rest = again.give(len(wanted) + 1)
        assert rows(rest, how) == wanted[behind * step :]
        assert again.place == end
        if rest:  # counts before and after a place add up, though the window was built twice
            before = [one for part in given[:behind] for one in part]
            assert skipped_before(before) + skipped_before(rest) == skipped_before(every)


def test_a_window_is_full_at_its_number_of_tokens(tokenizer: Tokenizer) -> None:
    """The reference's rule, with a smaller number. Here a character is more than one token."""
    texts = ["日本語" * (number % 5) + "a" * (number % 7) for number in range(60)]
    source = Memory([[(number, text, "A", 0) for number, text in enumerate(texts)]], 60)
    for packing in PACKINGS:
        how = replace(builder(source, tokenizer, packing), layout=Layout(SEQ_LEN, packing, 20, True, 5, most_tokens=50))
        assert rows(lane_at(Place(2, 0), how).give(1000), how) == expected(how)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_place_of_other_documents_is_refused(tokenizer: Tokenizer, packing: Packing) -> None:
    source = Memory([[(number, "ab", "A", 0) for number in range(4)]], 2)
    for place in [Place(2, 0, 100), *[Place(5, 0, 1)] * (packing == "concat")]:
        refused("a lane cannot resume at position", lane_at(place, builder(source, tokenizer, packing)).give, 1)


@pytest.mark.parametrize("endless", [False, True])
def test_a_row_of_concat_may_take_many_windows(tokenizer: Tokenizer, endless: bool) -> None:
    """A full row takes 2,000 windows here: they are not taken for a corpus of empty texts."""
    texts = ["a", "", "b", ""] * 250
    source = Memory([[(number, text, "A", 0) for number, text in enumerate(texts)]], 7, endless)
    how = replace(builder(source, tokenizer, "concat"), layout=Layout(1000, "concat", 1, False, 5))
    given = lane_at(Place(2, 0), how).give(2)
    assert [pieces_of([row]).length.sum() for row in given] == ([1000, 1000] if endless else [500])


@pytest.mark.parametrize("endless", [False, True])
def test_many_empty_texts_may_come_before_a_row(tokenizer: Tokenizer, endless: bool) -> None:
    """Windows of one document, and one document many times, as with `repeats`, do not make a corpus empty."""
    for units in ([[(number, "", "A", 0) for number in range(2000)]], [[(0, "", "A", 0)]] * 200):
        source = Memory([*units, [(2000, "ab", "A", 0)]], 7, endless)
        how = builder(source, tokenizer, "best_fit", window=1, append_eod=False)
        assert rows_in(lane_at(Place(2, 0), how).give(1)) == 1


def test_texts_without_tokens(tokenizer: Tokenizer) -> None:
    source = Memory([[(3, "", "A", 0)]], 1, endless=True)
    for how in (builder(source, tokenizer, "best_fit", append_eod=False), builder(source, tokenizer, "none")):
        with pytest.raises(PilekitError, match=r"no row in 1 document, read 1,0\d\d times"):
            lane_at(Place(2, 0), how).give(1)
