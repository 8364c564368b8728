"""`documents/` of a run: the same table for any ranks, whole after kills, and cut back to a step."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.shards.random_access.document_reader import read_documents
from pilekit.stream.batch.batch import Batch
from pilekit.stream.pile_stream import PileStream
from pilekit.train.log.document_log import DocumentLog, LogPart, cut_back, in_order, log_parts, logged_steps
from tests.kills import killed_at
from tests.small_disk import files_limited_to
from tests.tiny.models import tiny_corpus, tiny_tokenizer
from tests.train.runs import warnings_of

Row = tuple[int, int, str, int, str, int]
"""Step, row, shard, number, subset, tokens."""

ROWS, SEQ_LEN = 8, 24


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logged")
    tiny_corpus(folder / "data", documents=60)
    tiny_tokenizer(folder / "tokenizer")
    return folder


def stream_of(corpus: Path, rank: int = 0, ranks: int = 1, packing: str = "best_fit") -> PileStream:
    return PileStream(
        corpus / "data",
        corpus / "tokenizer",
        seq_len=SEQ_LEN,
        window=8,
        packing=packing,
        global_batch_size=ROWS,
        grad_accum=1,
        rank=rank,
        world_size=ranks,
        outputs=("input_ids", "labels", "doc_ids", "subset_ids"),
    )


def assert_is_table_of(folder: Path, stream: PileStream, steps: int) -> None:
    """The log's files make the table that a loop over one rank's batches, and over their tokens, says."""
    parts = log_parts(folder)
    assert logged_steps(parts) == ([range(1, steps + 1)] if steps else [])
    logged = in_order(table for part in parts for table in part.tables(folder)).to_pylist()
    texts = {
        (shard.name, document.number): document.text
        for shard in stream.corpus.shards
        for document in read_documents(shard, range(60))
    }
    expected: list[Row] = []
    pieces: list[list[int]] = []
    for step, batch in zip(range(1, steps + 1), stream, strict=False):
        for row, documents in enumerate(batch.documents()):
            doc_ids = batch["doc_ids"][row]
            for doc_id, document in enumerate(documents):
                here = doc_ids == doc_id
                (subset,) = set(batch["subset_ids"][row][here].tolist())
                expected.append((step, row, *document, stream.subset_names[subset], int(here.sum())))
                pieces.append(batch["input_ids"][row][here].tolist())
    columns = ("step", "row", "shard", "number", "subset")
    assert [(*(row[name] for name in columns), row["last"] - row["first"] + 1) for row in logged] == expected
    eos = stream.tokenizer.eos_id
    for row, ids in zip(logged, pieces, strict=True):
        whole = stream.tokenizer.encode_batch([texts[row["shard"], row["number"]]])[0].tolist()
        assert [*whole, eos][row["first"] : row["last"] + 1] == ids


def log_batches(logs: Sequence[DocumentLog], batches: Sequence[Iterable[Batch]], steps: Iterable[int]) -> None:
    for step in steps:
        for log, batch in zip(logs, batches, strict=True):
            log.add(step, next(iter(batch)))


@settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    packing=st.sampled_from(["best_fit", "concat", "none"]),
    starts=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 4, 8]), st.integers(0, 5), st.integers(0, 4), st.sampled_from([1, 20, 1 << 20])
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_the_table_of_any_ranks_that_were_killed_and_resumed(
    corpus: Path, tmp_path_factory: pytest.TempPathFactory, packing: str, starts: list[tuple[int, int, int, int]]
) -> None:
    """Each start has its number of ranks, saves after some steps, and is killed some steps later."""
    folder = tmp_path_factory.mktemp("log") / "documents"
    done, state = 0, None
    for ranks, saved, lost, most_rows in starts:
        cut_back(folder, done)
        streams = [stream_of(corpus, rank, ranks, packing) for rank in range(ranks)]
        for stream in streams if state is not None else []:
            stream.load_state_dict(state)
        logs = [DocumentLog(folder, stream, most_rows=most_rows) for stream in streams]
        batches = [iter(stream) for stream in streams]
        log_batches(logs, batches, range(done + 1, done + saved + 1))
        for log in logs:
            log.write()
        state = PileStream.merge_state_dicts([stream.state_dict() for stream in streams])
        done += saved
        log_batches(logs, batches, range(done + 1, done + lost + 1))
    cut_back(folder, done)
    assert_is_table_of(folder, stream_of(corpus, packing=packing), done)


def test_killed_at_each_file_operation(corpus: Path, tmp_path: Path) -> None:
    """A log of steps 1-4 and 5-9 is cut back to step 6, and steps 7-9 are written again."""
    batches = list(zip(range(1, 10), stream_of(corpus), strict=False))
    folder, work = tmp_path / "before", tmp_path / "work"

    def write(folder: Path, steps: range, most_rows: int = 1 << 20) -> None:
        log = DocumentLog(folder, stream_of(corpus), most_rows=most_rows)
        for step, batch in batches:
            if step in steps:
                log.add(step, batch)
        log.write()

    def resume() -> None:
        cut_back(work, 6)
        assert logged_steps(log_parts(work)) == [range(1, 7)]
        write(work, range(7, 10))

    write(folder, range(1, 5))
    write(folder, range(5, 10))
    for moment in itertools.count():
        shutil.copytree(folder, work)
        was_killed = killed_at(moment, resume)
        assert [range(1, 5), range(5, 7), range(7, 10)] == [
            range(part.first, part.last + 1) for part in log_parts(work)
        ] or was_killed
        resume()
        assert_is_table_of(work, stream_of(corpus), 9)
        assert {path.name for path in work.iterdir()} == {part.path(work).name for part in log_parts(work)}
        shutil.rmtree(work)
        if not was_killed:
            break
    assert moment > 5


def test_a_full_disk_lets_rows_wait_and_drops_too_many(corpus: Path, tmp_path: Path) -> None:
    batches = list(zip(range(1, 13), stream_of(corpus), strict=False))
    log = DocumentLog(tmp_path, stream_of(corpus), most_rows=60)
    with files_limited_to(100), warnings_of() as warnings:
        for step, batch in batches[:2]:
            log.add(step, batch)
            log.write()
    assert len(warnings) == 1
    assert "cannot be written" in (message := warnings[0].getMessage())
    assert "steps 1 to 1 wait in memory until there is room" in message
    log.write()
    assert_is_table_of(tmp_path, stream_of(corpus), 2)

    with files_limited_to(100), warnings_of() as warnings:
        for step, batch in batches[2:10]:
            log.add(step, batch)
    assert warnings
    assert "steps 3 to" in (message := warnings[0].getMessage())
    assert "are not logged, and pilekit seen can replay them" in message
    for step, batch in batches[10:]:
        log.add(step, batch)
    log.write()
    logged = logged_steps(log_parts(tmp_path))
    assert logged[0] == range(1, 3)
    assert logged[1].stop == 13
    assert logged[1].start > 3


def test_a_changed_file_and_a_changed_name_are_refused(corpus: Path, tmp_path: Path) -> None:
    log = DocumentLog(tmp_path, stream_of(corpus))
    log.add(1, next(iter(stream_of(corpus))))
    log.write()
    [part] = log_parts(tmp_path)
    path = part.path(tmp_path)
    content = path.read_bytes()
    renamed = part._replace(last=2)
    path.rename(renamed.path(tmp_path))
    with pytest.raises(PilekitError, match=r"is damaged \(its name is that of another file\); remove it, and pilekit"):
        list(renamed.tables(tmp_path))
    path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    with pytest.raises(PilekitError, match="does not match its sum"):
        list(part.tables(tmp_path))


def test_steps_that_a_rank_has_not_logged_are_not_logged() -> None:
    parts = [LogPart(1, 4, 0, 2), LogPart(1, 3, 1, 2), LogPart(5, 6, 0, 1), LogPart(7, 9, 0, 1), LogPart(12, 12, 0, 1)]
    assert logged_steps(parts) == [range(1, 4), range(5, 10), range(12, 13)]
    assert logged_steps([]) == []
