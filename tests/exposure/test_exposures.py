"""Copies and exposures of scored documents are those that plain loops over the tables of a dedup and a run count."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus.manifest import load_manifest
from pilekit.dedup.output.removed_format import REMOVALS, SCHEMA, RemovalsHeader
from pilekit.evaluate.results.memorised_groups import GROUPS, NONE, shown_class
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.exposure.recorded_copies import RecordedCopies
from pilekit.exposure.run_documents import RunDocuments
from pilekit.exposure.run_exposure import RunExposure
from pilekit.exposure.scored_documents import Joined
from pilekit.train.log.document_log import SCHEMA as LOG_SCHEMA
from pilekit.train.log.document_log import LogPart, log_parts
from pilekit.train.run_folder import RunFolder
from tests.train.runs import small_config

Place = tuple[str, int]
Piece = tuple[int, Place, int]
"""A step, a document, and the first token."""

SCORED = {"a": (1, "a"), "b": (2, "b"), "control": (3, "c")}
READ = {"train/b": (2, "b"), "train/a": (1, "a"), "train/c": (4, "d")}
"""The contents of shards: of the three that are scored two were read, under other names, beside one more."""
COMMON = ["a", "b"]

PLAIN = pa.schema(
    [(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type) for field in LOG_SCHEMA]
)

ALL = [(shard, number) for shard in READ for number in range(4)]

scored_places = st.sets(st.tuples(st.sampled_from(list(SCORED)), st.integers(0, 3)), min_size=4)
pieces = st.lists(st.tuples(st.integers(3, 12), st.sampled_from(ALL), st.integers(0, 2)), min_size=8, max_size=40)


@st.composite
def clusters(draw: st.DrawFn) -> list[set[Place]]:
    """Documents in clusters; the first of each, sorted, is the kept one."""
    members = draw(st.permutations(ALL))
    ends = sorted(draw(st.sets(st.sampled_from(range(1, len(ALL))), max_size=8)) | {0, len(ALL)})
    return [set(members[begin:end]) for begin, end in pairwise(ends)]


def records_of(scored: set[Place]) -> Records:
    documents = [
        ScoredDocument(shard, number, 0, "ArXiv" if number % 3 else "Github", 9, 9, 0.0) for shard, number in scored
    ]
    return Records.of(documents, list(SCORED), load_manifest())


def there(document: ScoredDocument) -> Place:
    """The document in the shard that was read, or where it is."""
    return (f"train/{document.shard}" if document.shard in COMMON else document.shard), document.number


def write_removed(folder: Path, drawn: list[set[Place]]) -> None:
    rows = []
    for cluster in drawn:
        kept, *removed = sorted(cluster)
        rows += [(*place, "x", *kept, "x", 0.9, "near", "this") for place in removed]
    table = pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * 9, names=SCHEMA.names).cast(SCHEMA)
    with REMOVALS.writing_table(folder / "removed.parquet", SCHEMA, RemovalsHeader(parameters={}, inputs={})) as writer:
        for begin in range(0, len(table), 4):
            writer.write_table(table.slice(begin, 4))


def is_ignored(step: int, place: Place) -> bool:
    """Whether the piece of a document in a step gave no loss."""
    return (step + place[1]) % 3 == 0


def logged(folder: Path, drawn: list[Piece], steps: range) -> RunExposure:
    """A run whose log goes beyond its newest checkpoint, and begins before its first step."""
    run = RunFolder(folder)
    run.documents.mkdir()
    for begin, end in ((3, 7), (8, 12)):
        rows = [
            {"step": step, "row": 0, "shard": shard, "number": number, "subset": "x", "first": token, "last": 9}
            | {"ignored": is_ignored(step, (shard, number))}
            for step, (shard, number), token in sorted(drawn, key=lambda piece: piece[0])
            if begin <= step <= end
        ]
        LogPart(begin, end, 0, 1).write(run.documents, pa.Table.from_pylist(rows, PLAIN).cast(LOG_SCHEMA))
    parts = log_parts(run.documents)
    return RunExposure(RunDocuments(run, small_config(), steps, None, steps.stop - 1, parts), READ, COMMON)


@given(
    clusters() | st.none(),
    pieces | st.none(),
    scored_places,
    st.integers(4, 12),
    st.sampled_from([None, ["Github"], []]),
)
def test_copies_and_exposures_are_those_of_a_plain_loop(
    drawn: list[set[Place]] | None,
    trained: list[Piece] | None,
    scored: set[Place],
    newest: int,
    subsets: list[str] | None,
) -> None:
    records, steps = records_of(scored), range(4, newest + 1)
    with tempfile.TemporaryDirectory() as name:
        copies = run = None
        if drawn is not None:
            write_removed(Path(name), drawn)
            copies = RecordedCopies(Path(name), READ, COMMON, 0.8, subsets)
        if trained is not None:
            run = logged(Path(name), trained, steps)
        facts = Joined(SCORED, copies, run).facts(records)
    expected: dict[str, list[int]] = {} if drawn is None else {"copies": []}
    expected |= {} if trained is None else {"times_seen": [], "steps_since_seen": []}
    for document in records.documents():
        place = there(document)
        cluster = next((cluster for cluster in drawn or () if place in cluster), {place})
        if drawn is not None:
            is_compared = document.shard in COMMON and (subsets is None or document.subset in subsets)
            expected["copies"].append(len(cluster) if is_compared else NONE)
        if trained is not None:
            its = [
                (step, token)
                for step, other, token in trained
                if other in cluster and step in steps and not is_ignored(step, other)
            ]
            begun = sum(token == 0 for _, token in its)
            expected["times_seen"].append(max(begun, 1) if its else 0)
            expected["steps_since_seen"].append(newest - max(step for step, _ in its) if its else NONE)
    assert {name: values.tolist() for name, values in facts.items()} == expected


@given(st.integers(0, 10**7))
def test_each_number_is_in_the_class_that_names_it(value: int) -> None:
    for group in GROUPS.values():
        first, last = group.class_of(value)
        assert first <= value <= last
        assert {group.class_of(end) for end in (first, last)} == {(first, last)}
        assert group.class_of(last + 1)[0] == last + 1
        assert group.place(group.name(value)) == first
        assert group.place(group.name(NONE)) > first


def test_classes_have_the_names_of_the_page() -> None:
    names = {by: list(dict.fromkeys(map(group.name, range(1, 1500)))) for by, group in GROUPS.items()}
    assert names["copies"][:6] == names["times_seen"][:6] == ["1", "2", "3-4", "5-8", "9-16", "17-32"]
    assert names["steps_since_seen"][:5] == ["0-9", "10-29", "30-99", "100-299", "300-999"]
    assert GROUPS["times_seen"].name(0) == "0"
    assert GROUPS["steps_since_seen"].name(NONE) == "never"
    assert shown_class("1000-2999") == "1,000–2,999"
    assert shown_class("not compared") == "not compared"
