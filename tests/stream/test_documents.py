"""A stream without a tokenizer gives the reference's documents: under both plans, from any place, in any storage."""

from __future__ import annotations

import gzip
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from pilekit.corpus import Corpus
from pilekit.documents import Document, DocumentBatch
from pilekit.errors import PilekitError
from pilekit.pipeline.functions import document_filter, document_map
from pilekit.stream.batch.build_batches import RawBatch
from pilekit.stream.pile_stream import PileStream
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.lane_documents import SUBSET
from pilekit.stream.read.random_access import RandomAccess
from pilekit.stream.read.read_plan import choose_plan
from tests.refusing import refused
from tests.stream.collecting import read_in_turn
from tests.stream.conftest import Corpora
from tests.stream.corpora import SUBSETS, Made, made, record, text, write_shard
from tests.stream.reference import Line, Plan, lane_documents, selected
from tests.web_server import serving

Found = tuple[str, int, str, str]
"""(shard, number, subset, text) of a document."""


def raw(data: Any, in_turn: bool = False, **settings: Any) -> PileStream:
    with read_in_turn(in_turn):
        stream = PileStream(data, tokenizer=None, **settings)
    assert stream.grid.plan == ("sequential" if in_turn else "random")
    return stream


def found_of(item: Any) -> list[Found]:
    documents = item if isinstance(item, RawBatch) else [item]
    return [(document.shard, document.number, document.subset, document.text) for document in documents]


def steps(corpus: Made, plan: Plan, count: int) -> list[list[Found]]:
    """The documents of the first optimizer steps, by the reference."""
    lanes = [lane_documents(corpus.lines, plan, lambda text: [], lane) for lane in range(plan.lanes)]
    each = plan.global_batch_size // plan.rows
    found = [
        [use.line for row in range(plan.rows) for use in islice(lanes[row * plan.columns + step % plan.columns], each)]
        for step in range(count)
    ]
    return [[(line.shard, line.number, line.subset, line.text) for line in lines] for lines in found]


@given(data=st.data())
def test_steps_are_the_references_from_any_place_on(corpora: Corpora, data: st.DataObject) -> None:
    corpus = corpora[data.draw(st.sampled_from(sorted(corpora)), "corpus")]
    in_turn = data.draw(st.booleans(), "in turn")
    rows, columns = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 3)), "lanes")
    if in_turn:
        rows, columns = min(rows, 2), min(columns, len(corpus.shards) // 2)
    shuffle = data.draw(st.booleans(), "shuffle")
    subsets = data.draw(st.none() | st.lists(st.sampled_from(SUBSETS), min_size=1, unique=True).map(tuple), "subsets")
    # Unshuffled lanes may read only second copies, which can have no documents: tested below.
    factors = [0.0, 0.3, 0.5, *[1.5, 2.0, 2.75, 4.0] * shuffle]
    repeats = data.draw(st.dictionaries(st.sampled_from(subsets or SUBSETS), st.sampled_from(factors)), "repeats")
    plan = Plan(
        *(corpus.shards, rows, columns, rows * data.draw(st.integers(1, 3), "q"), 8),
        seed=data.draw(st.integers(0, 2**63 - 1), "seed"),
        subsets=subsets,
        repeats=repeats,
        shuffle=shuffle,
        in_turn=in_turn,
        shuffle_block=data.draw(st.sampled_from([1, 3, 16, 4096]), "block"),
    )
    shards = {line.shard for line in selected(corpus.lines, plan)}
    if not shards or (
        in_turn and not all(shards.intersection(corpus.shards[i :: plan.lanes]) for i in range(plan.lanes))
    ):
        return
    expected = steps(corpus, plan, 40)
    settings: Any = {"lanes": (rows, columns), "subsets": subsets, "repeats": repeats, "on_error": "skip"}
    settings |= {"batch_size": plan.global_batch_size, "seed": plan.seed, "shuffle": shuffle}
    settings |= {"shuffle_block": plan.shuffle_block}
    stream = raw(corpus.folder, in_turn, **settings)
    stop = data.draw(st.integers(0, 40), "stop")
    assert [found_of(batch) for batch in islice(stream, stop)] == expected[:stop]
    again = raw(corpus.folder, in_turn, **settings)
    again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert [found_of(batch) for batch in islice(again, 40 - stop)] == expected[stop:]


def test_documents_are_those_of_the_shards(tmp_path: Path) -> None:
    lines = [
        {"text": "one", "meta": {"pile_set_name": "ArXiv", "page": 3}},
        {"text": "two", "meta": {}},
        {"text": "three", "title": "no meta"},
    ]
    write_shard(tmp_path / "00", [json.dumps(line).encode() for line in lines], "frames")
    found: list[Any] = list(raw(tmp_path, epochs=1, shuffle=False))
    assert found == [
        Document("one", {"pile_set_name": "ArXiv", "page": 3}, "ArXiv", 0, "00.jsonl"),
        Document("two", {}, "(none)", 1, "00.jsonl"),
        Document("three", {"title": "no meta"}, "(none)", 2, "00.jsonl"),
    ]


def store(folder: Path, form: str, lines: Sequence[Line]) -> None:
    folder.mkdir()
    data = [record(line.text, line.subset) for line in lines]
    if form == "parquet":
        metas = [{"pile_set_name": line.subset} for line in lines]
        table = pa.table({"text": [line.text for line in lines], "meta": metas})
        pq.write_table(table, folder / "a.parquet", row_group_size=30)
    elif form == "gz":
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(data)))
    else:
        write_shard(folder / "a", data, form)  # type: ignore[arg-type]


def test_every_storage_gives_the_same_documents(tmp_path: Path) -> None:
    rng = random.Random(5)
    lines = [Line("a", number, rng.choice(SUBSETS), text(rng, rng.randrange(40))) for number in range(200)]
    repeats = {"ArXiv": 2.0, "Github": 0.5}
    for form in ("frames", "single", "plain", "gz", "parquet"):
        store(tmp_path / form, form, lines)
    with serving(tmp_path / "frames") as server:
        for in_turn in (False, True):
            plan = Plan(("a",), 1, 1, 8, 64, repeats=repeats, in_turn=in_turn)
            expected = steps(Made(tmp_path, ("a",), tuple(lines)), plan, 40)
            settings: Any = {"lanes": (1, 1), "batch_size": 8, "repeats": repeats}
            state = None
            for data in (f"{server.url}a.jsonl.zst", *sorted(tmp_path.iterdir())):
                stream = raw(data, in_turn, **settings)
                batches = list(islice(stream, 20))
                if not in_turn and not str(data).endswith(("gz", "parquet")):  # the same bytes have the same states
                    state = state or stream.state_dict()
                    assert stream.state_dict() == state
                    stream.load_state_dict(state)
                batches += islice(stream, 20)
                found = [[("a", *one[1:]) for one in found_of(batch)] for batch in batches]
                assert found == expected, (data, in_turn)


# Filters


@document_filter
def short(document: Document) -> bool:
    return len(document.text) < 40


@document_map
def loud(document: Document) -> str:
    return document.text.upper() + document.subset


def in_two_parts(batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    for batch in batches:
        half = len(batch) // 2
        yield batch.take(range(half))
        yield batch.take(range(half, len(batch)))


def twice(batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    for batch in batches:
        yield batch
        yield batch.take([len(batch) - 1])


def renumbered(batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    for batch in batches:
        yield replace(batch, numbers=batch.numbers + 1_000_000)


@pytest.mark.parametrize("in_turn", [False, True])
def test_filters_drop_documents_or_change_texts_and_no_more(corpora: Corpora, in_turn: bool) -> None:
    corpus = corpora["mixed"]
    given: Any = {"lanes": (1, 2), "batch_size": 4}
    plan = Plan(corpus.shards, 1, 2, 4, 64, keep=lambda line: len(line.text) < 40, in_turn=in_turn)
    expected = [[(*one[:3], one[3].upper() + one[2]) for one in step] for step in steps(corpus, plan, 150)]
    stream = raw(corpus.folder, in_turn, **given, filters=[short, in_two_parts, loud])
    assert [found_of(batch) for batch in islice(stream, 70)] == expected[:70]
    again = raw(corpus.folder, in_turn, **given, filters=[short, in_two_parts, loud])
    again.load_state_dict(stream.state_dict())
    assert [found_of(batch) for batch in islice(again, 80)] == expected[70:]
    for stage in (twice, *[renumbered] * (not in_turn)):
        with pytest.raises(PilekitError, match=r"that they were not given, or one twice|in another order, or twice"):
            list(islice(raw(corpus.folder, in_turn, **given, filters=[stage]), 400))


@document_filter
def none(document: Document) -> bool:
    return False


def test_a_lane_without_documents_is_an_error_and_a_pass_without_them_too(tmp_path: Path, corpora: Corpora) -> None:
    corpus = made(tmp_path / "eight", [8], blank=0)
    label = corpus.lines[3].subset
    barren = [n for n in range(8) if corpus.lines[n].subset != label]
    assert barren
    # Eight documents on sixteen unshuffled lanes, twice each: half of the lanes read second copies, of one subset.
    settings: Any = {"lanes": (16, 1), "batch_size": 16, "repeats": {label: 2.0}}
    with pytest.raises(PilekitError, match=rf"no document stays in lane {8 + barren[0]}: .*; loosen them, or shuffle"):
        next(iter(raw(corpus.folder, **settings, shuffle=False)))
    next(iter(raw(corpus.folder, **settings)))
    for number, lines in enumerate([[b"", b" "], [record("x", "ArXiv")], [b""], [b""]]):
        write_shard(tmp_path / "blank" / f"{number:02d}", lines, "single")
    for folder, in_turn, changes, words in (
        (corpora["few"].folder, False, {"filters": [none]}, r"no document stays in lane 0: .* drop all of [\d,]+ in a"),
        (corpora["few"].folder, True, {"filters": [none]}, "no documents at all are left in 00.jsonl, 01.jsonl, all"),
        (tmp_path / "blank", True, {"lanes": (1, 2)}, r"at all are left in 00\.jsonl, 02\.jsonl, .* lane 0 of 2"),
        (corpora["uneven"].folder, True, {"subsets": ["Books3"]}, r"no documents of Books3 are left in 00\.jsonl, "),
        (
            corpora["few"].folder,
            True,
            {"filters": [none], "epochs": 1},
            "no document of the corpus is left in the pass",
        ),
    ):
        with pytest.raises(PilekitError, match=words) as raised:
            next(iter(raw(folder, in_turn, **{"lanes": (1, 1), **changes} if "epochs" not in changes else changes)))
        assert "\n" not in str(raised.value)
    # The rest of an epoch can be empty without an error.
    assert len(list(islice(raw(tmp_path / "blank", True, lanes=(1, 1), shuffle=False), 5))) == 5


def test_a_rare_subset_may_be_repeated_often(tmp_path: Path) -> None:
    """All units but one are empty in most of their copies, so a lane drops far more documents than the corpus has."""
    for number, labels in enumerate([["ArXiv"] * 63 + ["Github"], ["ArXiv"] * 36]):
        write_shard(tmp_path / f"{number:02d}", [record("x", label) for label in labels], "plain")
    corpus = Corpus(tmp_path)
    selected = StreamDocuments(corpus, choose_plan(corpus), repeats={"Github": 200.0})
    source = RandomAccess(selected, selected.sequence(unit=6, lanes=1), most_dropped=10)
    tables = [unit.table for unit in islice(source.documents(0, 0, 0), 17 * 200)]  # an epoch
    subsets = Counter(np.concatenate(tables)[:, SUBSET].tolist())
    assert subsets == dict(zip(source.selected.ids_of(["ArXiv", "Github"]).tolist(), (99, 200), strict=True))


def test_skipped_lines_are_counted_once_wherever_reading_resumed(tmp_path: Path) -> None:
    corpus = made(tmp_path / "bad", [70, 1, 60], form="single", seed=3, bad=0.1)
    settings: Any = {"epochs": 1, "on_error": "skip", "seed": 7}
    stream = raw(corpus.folder, True, **settings)
    found, states = [], [stream.state_dict()]
    for document in stream:
        found += found_of(document)
        states.append(stream.state_dict())
    assert Counter(found) == Counter((line.shard, line.number, line.subset, line.text) for line in corpus.lines)
    last = [number for shard, number in corpus.bad if shard == found[-1][0] and number > found[-1][1]]
    count = len(corpus.bad) - len(last)  # no document follows the last ones
    for state in states[:-2:10]:
        again = raw(corpus.folder, True, **settings)
        again.load_state_dict(state)
        for _ in again:
            pass
        assert again.stats()["skipped"] == count > 5
    # Only a hundred bad lines of one piece of 2 MiB have places; the total is right nevertheless.
    line = record("x", "ArXiv")
    write_shard(tmp_path / "many" / "00", [b"bad"] * 350 + [line] + [b"bad"] * 20 + [line], "single")
    stream = raw(tmp_path / "many", True, epochs=1, on_error="skip")
    assert [one[1] for document in stream for one in found_of(document)] == [350, 371]
    assert stream.stats()["skipped"] == 370


def test_closing_an_iterator_ends_its_threads(tmp_path: Path) -> None:
    made(tmp_path, [30], form="single", text_of=lambda rng: "x" * 1_000_000)
    before = set(threading.enumerate())
    batches: Any = iter(raw(tmp_path, True, shuffle_block=4))
    next(batches)
    started = set(threading.enumerate()) - before
    assert started
    batches.close()
    for thread in started:
        thread.join(60)
    assert not started & set(threading.enumerate())


def test_a_shard_that_was_changed_is_an_error(tmp_path: Path) -> None:
    documents = [record(f"{i:04}" + "x" * 200, "ArXiv") for i in range(100)]
    path = tmp_path / "a.jsonl"
    for lines, subsets, words in (
        ([*documents[:50], b" " * len(documents[50]), *documents[51:]], None, r"a\.jsonl: was changed since its index"),
        ([*documents[:50], b"{" + documents[50][1:-1] + b"]", *documents[51:]], None, r"a\.jsonl: was changed since"),
        ([line.replace(b"ArXiv", b"Githu") for line in documents], ["ArXiv"], "other subsets.*pilekit index"),
        (documents[:50], None, "was changed since its index was made"),
    ):
        path.write_bytes(b"\n".join(documents))
        stream = raw(path, lanes=(1, 1), subsets=subsets)
        path.write_bytes(b"\n".join(lines))
        refused(words, list, islice(stream, 100))


# Passes and states


def test_workers_accumulation_and_stops_change_nothing_of_a_pass(corpora: Corpora) -> None:
    for sizes in ({"grad_accum": 4, "world_size": 2, "rank": 1}, {"batch_size": 2, "world_size": 3, "rank": 2}):
        whole = list(map(found_of, raw(corpora["few"].folder, epochs=1, **sizes)))
        assert list(map(found_of, raw(corpora["few"].folder, epochs=1, **sizes).loader(num_workers=2))) == whole
        for number in range(len(whole) + 1):
            stream = raw(corpora["few"].folder, epochs=1, **sizes)
            for _ in islice(stream, number):
                pass
            again = raw(corpora["few"].folder, epochs=1, **sizes)
            again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
            assert list(map(found_of, again)) == whole[number:]


def test_a_stock_loader_keeps_the_state_of_batches_alone(corpora: Corpora) -> None:
    folder = corpora["few"].folder
    stream = raw(folder, batch_size=2, lanes=(1, 2))
    first = next(iter(DataLoader(stream, batch_size=None, num_workers=2)))
    stream.advance(first)
    assert stream.state_dict()["step"] == 1
    refused("call it once for each batch", stream.advance, first)
    single = raw(folder)
    refused("collate_fn", single.advance, next(iter(DataLoader(single, batch_size=None))))
    single = raw(folder)
    single.advance(next(iter(DataLoader(single, batch_size=None, collate_fn=lambda document: document))))
    assert single.state_dict()["step"] == 1
