"""torchdata's StatefulDataLoader over a stream: exact after any number of batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.conftest import Rows
from tests.frameworks.environment import ROOT, launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = f"""
import itertools, json, pickle, sys
sys.path.insert(0, {str(ROOT / "tests" / "frameworks")!r})
from torchdata.stateful_dataloader import StatefulDataLoader
from pilekit import PileStream
from watched import digests

tokenizer = PileStream("data/train", tokenizer="tokenizer.json", seq_len=256, batch_size=16).tokenizer
found = []

def loader(workers, every):
    stream = PileStream("data/train", tokenizer=tokenizer, seq_len=256, batch_size=16, lanes=(8, 2))
    return StatefulDataLoader(stream, batch_size=None, num_workers=workers, snapshot_every_n_steps=every)

for workers, every in [(0, 1), (1, 5), (2, 1), (2, 5), (3, 1), (3, 5)]:
    whole = loader(workers, every)
    begun, first, states = iter(whole), [], []
    for _ in range(8):
        states.append(pickle.dumps(whole.state_dict()) if first else None)
        first.append(digests(next(begun)))
    found.append([workers, every, 0, first])
    for done in (1, 2, 5, 7):
        other = loader(workers, every)
        other.load_state_dict(pickle.loads(states[done]))
        rest = [digests(batch) for batch in itertools.islice(other, 4)]
        found.append([workers, every, done, rest])
        if done == 5:  # and once more, from within what went on
            again = loader(workers, every)
            state = other.state_dict()
            again.load_state_dict(state)
            found.append([workers, every, 9, [digests(batch) for batch in itertools.islice(again, 3)]])
print(json.dumps(found))
"""


def test_it_goes_on_exactly_after_any_batch(python: Path, folder: Path, alone: Callable[..., Rows]) -> None:
    (folder / "script.py").write_text(SCRIPT)
    ended = launch(python, "script.py", folder=folder, ranks=1)
    assert ended.code == 0, ended.text[-4000:]
    found = json.loads(ended.text.splitlines()[-1])
    whole = alone(16, lanes=(8, 2))
    assert len(found) == 6 * 6
    for workers, every, done, rows in found:
        assert rows == whole[done : done + len(rows)], (workers, every, done)
