"""Guarantees of PileStream's state: exact resume, small states, refusals, the cost of restoring.

Resuming on other topologies is in test_guarantees.py.
"""

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
from pilekit.stream.pile_stream import PileStream
from pilekit.tokenize import Tokenizer
from tests.refusing import refused
from tests.stream.collecting import ALL, Way, no_brown_fox, read_in_turn, rows_of, run
from tests.stream.conftest import PACKINGS, Corpora, Settings
from tests.stream.corpora import made
from tests.tiny.models import tiny_tokenizer

# 3. Resume


@pytest.mark.parametrize(
    ("packing", "way", "workers"),
    [*((packing, "iter", 0) for packing in PACKINGS), ("best_fit", "loader", 2), ("best_fit", "stock", 1)],
)
def test_resume_after_every_batch(corpora: Corpora, settings: Settings, packing: str, way: Way, workers: int) -> None:
    """A state counts only batches handed out, not those that workers read ahead; also before the first batch."""
    folder, given = corpora["uneven"].folder, {**settings, "packing": packing, "batch_size": 8, "grad_accum": 2}
    whole, end = run(folder, given, batches=10)
    for done in range(10) if (packing, way) == ("best_fit", "iter") else (0, 1, 7):
        first, state = run(folder, given, way, workers, done)
        assert first == whole[:done]
        rest, again = run(folder, given, way, workers, 10 - done, state)
        assert rest == whole[done:]
        assert json.loads(again) == json.loads(end)


def test_a_killed_worker_is_an_error(corpora: Corpora, settings: Settings) -> None:
    """No hang, and the stream's processes leave no shared memory."""
    stream = PileStream(corpora["mixed"].folder, **settings, batch_size=16)
    before = {child.pid for child in multiprocessing.active_children()}
    iterator = iter(stream.loader(num_workers=2))
    next(iterator)
    workers = [child for child in multiprocessing.active_children() if child.pid not in before]
    assert len(workers) == 2
    pids = [os.getpid(), *(worker.pid for worker in workers)]
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
    sizes = [len(run(corpora["mixed"].folder, changes, batches=count)[1]) for count in (0, 1, 12)]
    assert max(sizes) < 64_000
    assert max(sizes) - min(sizes) < 1000


def test_a_state_of_something_else_is_refused(tmp_path: Path, corpora: Corpora, settings: Settings) -> None:
    corpus = corpora["few"]
    given = {**settings, "batch_size": 16}
    _, state = run(corpus.folder, given, batches=2)
    for field, data, change in (
        ("seq_len", corpus.folder, {"seq_len": 32}),
        ("packing", corpus.folder, {"packing": "concat"}),
        ("seed", corpus.folder, {"seed": 1}),
        ("window", corpus.folder, {"window": 32}),
        ("lanes' rows", corpus.folder, {"lanes": (4, 2)}),
        ("lanes' columns", corpus.folder, {"lanes": (8, 4)}),
        ("global_batch_size", corpus.folder, {"global_batch_size": 32}),
        ("tokenizer", corpus.folder, {"tokenizer": str(tiny_tokenizer(tmp_path, 290))}),
        ("shards", sorted(corpus.folder.glob("*.zst"))[:1], {}),
        ("shards", made(tmp_path, [3, 2], seed=99).folder, {}),
        ("shuffle", corpus.folder, {"shuffle": False}),
        ("filters", corpus.folder, {"filters": [no_brown_fox]}),
    ):
        refused(f"does not fit: its {field} is", run, data, {**given, **change}, batches=1, state=state)
    with read_in_turn(), pytest.raises(PilekitError, match="does not fit: its"):
        run(corpus.folder, {**given, "lanes": "auto"}, state=state)


def test_changed_repeats_are_refused_unless_asked_for(corpora: Corpora, settings: Settings) -> None:
    given = {**settings, "batch_size": 16, "outputs": ALL}
    _, state = run(corpora["mixed"].folder, given, batches=3)
    for change in ({"repeats": {"ArXiv": 2.0}}, {"subsets": ["ArXiv", "Github"]}):
        field = next(iter(change))
        refused(field, run, corpora["mixed"].folder, {**given, **change}, state=state)
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
    monkeypatch: pytest.MonkeyPatch, corpora: Corpora, settings: Settings
) -> None:
    """Counts the documents encoded until every lane has handed out its next rows, of one window or of two."""
    encoded, encode_batch = list[int](), Tokenizer.encode_batch

    def counting(self: Tokenizer, texts: Any) -> Any:
        encoded.append(len(texts))
        return encode_batch(self, texts)

    given = {**settings, "batch_size": 16}
    states = {done: run(corpora["mixed"].folder, given, batches=done)[1] for done in (2, 30, 58)}  # of 59 in an epoch
    monkeypatch.setattr(Tokenizer, "encode_batch", counting)
    costs = {}
    for done, state in states.items():
        encoded.clear()
        run(corpora["mixed"].folder, given, batches=2, state=state)
        costs[done] = sum(encoded)
        assert 16 * 16 <= costs[done] < 1.5 * 16 * 16
    assert costs[58] <= 1.2 * costs[2]
