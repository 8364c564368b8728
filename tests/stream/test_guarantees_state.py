"""Guarantees of PileStream's state: exact resume, small states, refusals, the cost of restoring."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.stream import PileStream
from pilekit.tokenize import Tokenizer
from tests.stream.collecting import ALL, Way, counted, no_brown_fox, rows_of, run, steps_of
from tests.stream.conftest import PACKINGS, Corpora, Expected, Settings
from tests.stream.corpora import made
from tests.stream.reference import Encoder, Plan, lane_documents, lane_rows, windows
from tests.tiny import tiny_tokenizer

# 3. Resume


@pytest.mark.parametrize("packing", PACKINGS)
def test_resume_after_every_batch(corpora: Corpora, settings: Settings, packing: str) -> None:
    changes = {**settings, "packing": packing, "batch_size": 8, "grad_accum": 2}
    stream = PileStream(corpora["uneven"].folder, **changes, outputs=ALL)
    states, rows = [json.dumps(stream.state_dict())], []
    for batch in islice(stream, 14):
        rows.append(rows_of(batch, stream.subset_names))
        states.append(json.dumps(stream.state_dict()))
    for done in range(0, 14, 1 if packing == "best_fit" else 5):
        rest, again = run(corpora["uneven"].folder, changes, batches=14 - done, state=states[done])
        assert rest == rows[done:]
        assert json.loads(again) == json.loads(states[14])


def test_resuming_again_and_again_on_other_topologies(corpora: Corpora, settings: Settings, expected: Expected) -> None:
    """Chained through JSON: ranks x accumulation x workers change at each stop, at whole steps."""
    wanted = counted(expected(corpora["mixed"], 18, packing="best_fit"))
    states: list[str] | None = None
    step = 0
    for world_size, grad_accum, workers in [(1, 1, 2), (2, 2, 0), (4, 1, 0), (1, 4, 3), (8, 1, 0), (2, 1, 1)]:
        changes = {**settings, "batch_size": 16 // world_size // grad_accum, "grad_accum": grad_accum}
        ranks, saved = [], []
        for rank in range(world_size):
            here = {**changes, "rank": rank, "world_size": world_size}
            found, state = run(
                corpora["mixed"].folder, here, "loader" if workers else "iter", workers, 3 * grad_accum, states
            )
            ranks.append(found)
            saved.append(state)
        assert steps_of(ranks, grad_accum) == wanted[step : step + 3]
        merged = PileStream.merge_state_dicts([json.loads(one) for one in saved])
        states = [json.dumps(merged)] if world_size < 4 else saved
        step += 3


@pytest.mark.parametrize("way", ["loader", "stock"])
@pytest.mark.parametrize("workers", [1, 2])
def test_resume_with_workers_that_read_ahead(corpora: Corpora, settings: Settings, way: Way, workers: int) -> None:
    """A state counts only batches handed out, not those prefetched; also before the first batch."""
    changes = {**settings, "batch_size": 8, "global_batch_size": 16, "grad_accum": 2}
    whole, _ = run(corpora["mixed"].folder, changes, batches=16)
    for done in (0, 1, 7):
        first, state = run(corpora["mixed"].folder, changes, way, workers, done)
        assert first == whole[:done]
        assert run(corpora["mixed"].folder, changes, way, workers, 16 - done, state)[0] == whole[done:]


def test_a_killed_worker_is_an_error(corpora: Corpora, settings: Settings) -> None:
    """No hang, and the stream's processes leave no shared memory."""
    stream = PileStream(corpora["mixed"].folder, **settings, batch_size=16)
    before = {child.pid for child in multiprocessing.active_children()}
    iterator = iter(stream.loader(num_workers=2))
    next(iterator)
    workers = [child for child in multiprocessing.active_children() if child.pid not in before]
    assert len(workers) == 2
    pids = [os.getpid(), *(worker.pid for worker in workers)]
    assert workers[0].pid is not None
    # On SIGCHLD torch raises wherever the main process is, here or inside the loader.
    with pytest.raises((RuntimeError, PilekitError), match="DataLoader worker"):
        os.kill(workers[0].pid, signal.SIGKILL)
        for _ in range(200):
            next(iterator)
    with suppress(RuntimeError):
        del iterator
        gc.collect()
    for worker in workers:
        while worker.is_alive():
            with suppress(RuntimeError):
                worker.join(1)
    left = [path.name for path in Path("/dev/shm").iterdir()]
    assert not [name for name in left if any(f"_{pid}_" in name for pid in pids)]


# 4. State


def test_the_state_is_small_wherever_the_run_stands(corpora: Corpora, settings: Settings) -> None:
    changes = {**settings, "lanes": (64, 4), "batch_size": 64}
    sizes = [len(run(corpora["mixed"].folder, changes, batches=count)[1]) for count in (0, 1, 40)]
    assert max(sizes) < 64_000
    assert max(sizes) - min(sizes) < 1000


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("seq_len", {"seq_len": 32}),
        ("packing", {"packing": "concat"}),
        ("seed", {"seed": 1}),
        ("window", {"window": 32}),
        ("lanes|rows", {"lanes": (4, 2)}),
        ("lanes|columns", {"lanes": (8, 4)}),
        ("global_batch_size", {"batch_size": 32}),
        ("tokenizer", {"tokenizer": "other"}),
        ("shards", {"data": "fewer"}),
        ("shards", {"data": "changed"}),
        ("shuffle", {"shuffle": False}),
        ("filters", {"filters": [no_brown_fox]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_state_of_something_else_is_refused(
    tmp_path: Path, corpora: Corpora, settings: Settings, field: str, change: Settings
) -> None:
    corpus = corpora["few"]
    given = {**settings, "batch_size": 16}
    _, state = run(corpus.folder, given, batches=2)
    data: Any = corpus.folder
    if "tokenizer" in change:
        change = {"tokenizer": str(tiny_tokenizer(tmp_path, 290))}
    if "data" in change:
        files = sorted(corpus.folder.glob("*.zst"))
        data = files[:1]
        if change["data"] == "changed":
            data = made(tmp_path, [3, 2], seed=99).folder
        change = {}
    with pytest.raises(PilekitError, match=field):
        run(data, {**given, **change}, batches=1, state=state)


def test_changed_repeats_are_refused_unless_asked_for(corpora: Corpora, settings: Settings) -> None:
    given = {**settings, "batch_size": 16, "outputs": ALL}
    _, state = run(corpora["mixed"].folder, given, batches=3)
    for change in ({"repeats": {"ArXiv": 2.0}}, {"subsets": ["ArXiv", "Github"]}):
        field = next(iter(change))
        with pytest.raises(PilekitError, match=field):
            run(corpora["mixed"].folder, {**given, **change}, state=state)
        stream = PileStream(corpora["mixed"].folder, **{**given, **change})
        stream.load_state_dict(json.loads(state), strict=False)
        found = [rows_of(batch, stream.subset_names) for batch in islice(stream, 60)]
        names = {name for batch in found[-20:] for row in batch for name in row.subsets if name}
        assert names == ({"ArXiv", "Github"} if field == "subsets" else names | {"ArXiv"})
        saved = json.dumps(stream.state_dict())
        assert field in saved, "the change is recorded"
        assert json.loads(saved)["step"] == 63
        rest = [rows_of(batch, stream.subset_names) for batch in islice(stream, 3)]
        assert run(corpora["mixed"].folder, {**given, **change}, batches=3, state=saved)[0] == rest


def test_restoring_costs_at_most_a_window_a_lane(
    monkeypatch: pytest.MonkeyPatch, corpora: Corpora, settings: Settings, encode: Encoder
) -> None:
    """Counts the tokens, EOD included, that are encoded until every lane has handed out its next rows."""
    corpus = corpora["mixed"]
    counted_tokens = 0
    encode_batch = Tokenizer.encode_batch

    def counting(self: Tokenizer, texts: Any) -> Any:
        nonlocal counted_tokens
        ids, offsets = encode_batch(self, texts)
        counted_tokens += len(ids) + len(texts)
        return ids, offsets

    given = {**settings, "batch_size": 16, "outputs": ALL}
    plan = Plan(corpus.shards, 8, 2, 16, 64, window=16)
    costs = {}
    for done in (2, 30, 58):  # of 59 in an epoch
        _, state = run(corpus.folder, given, batches=done)
        stream = PileStream(corpus.folder, **given)
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, "encode_batch", counting)
            counted_tokens = 0
            stream.load_state_dict(json.loads(state))
            iterator = iter(stream)
            next(iterator)
            next(iterator)
            costs[done] = counted_tokens
        allowed = 0
        for lane in range(16):
            behind, first = 2 * (done // 2), 0  # rows handed out: two for each visit; and of earlier windows
            for window in windows(lane_documents(corpus.lines, plan, encode, lane), plan):
                end = first + len(list(lane_rows(iter(window), plan)))
                if first < behind + 2 and end > behind:
                    allowed += sum(len(document.tokens) for document in window)
                if end >= behind + 2:
                    break
                first = end
        assert 0 < costs[done] <= allowed
    assert costs[58] <= 2 * costs[2]
