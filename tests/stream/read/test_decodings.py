"""The estimate of decodings is the count of what reading an epoch decodes, and `explain` tells it."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus
from pilekit.shards.random_access import document_reader
from pilekit.shards.random_access.document_reader import OpenReaders
from pilekit.shards.random_access.lines_by_number import LinesByNumber
from pilekit.shards.random_access.selected_lines import LineBitmap
from pilekit.stream import explanation
from pilekit.stream.order.unit_sequence import Sequence
from pilekit.stream.pile_stream import PileStream
from pilekit.stream.read.decodings import decodings_per_epoch
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.random_access import RandomAccess
from pilekit.stream.read.read_plan import choose_plan
from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus
from tests.shards.making import record, write_shard
from tests.stream.conftest import Corpora, Settings

SUBSETS = ["ArXiv", "Github", "Pile-CC", "Wikipedia (en)"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Two shards of many small frames, where one subset is rare, and a plain one, of which nothing is decoded."""
    rng, folder = random.Random(4), tmp_path_factory.mktemp("corpus")
    for shard, count in (("00.jsonl.zst", 700), ("01.jsonl.zst", 300)):
        texts = (" ".join(rng.choices(["one", "two", "three"], k=rng.randrange(200))) for _ in range(count))
        subsets = rng.choices(SUBSETS, [10, 10, 5, 1], k=count)
        write_shard(folder / shard, [record(*pair) for pair in zip(texts, subsets, strict=True)], 2000)
    (folder / "02.jsonl").write_bytes(b"".join(record("plain", "ArXiv") + b"\n" for _ in range(50)))
    return Corpus(folder)


@pytest.fixture(scope="module")
def selected(corpus: Corpus) -> StreamDocuments:
    """Without all documents of a subset, which therefore have no place among the selected ones."""
    return StreamDocuments(corpus, choose_plan(corpus), repeats={"Pile-CC": 0.0})


@pytest.mark.parametrize(
    "units",
    [
        {"ArXiv": 256, "Github": 256, "Wikipedia (en)": 256},
        {"ArXiv": 7, "Github": 1, "Wikipedia (en)": 3},
        {"Github": 5},
    ],
)
def test_the_estimate_from_all_frames_is_what_an_epoch_decodes(
    selected: StreamDocuments, units: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unit of an epoch of each subset is read, and each frame that is decoded for it is counted."""
    decoded = Counter[tuple[str, int]]()
    decode = LinesByNumber._decode_stored

    def counted(lines: LinesByNumber, frame: int, stored: memoryview) -> bytes | None:
        decoded[lines.path, frame] += 1
        return decode(lines, frame, stored)

    monkeypatch.setattr(LinesByNumber, "_decode_stored", counted)
    monkeypatch.setattr(document_reader, "WHOLE_BYTES", 0)
    readers = OpenReaders(selected.corpus, selected.plan.indexes)
    for name, unit in units.items():
        documents = selected.of_subset(name)
        sequence = Sequence(len(documents), unit, 1, 5, 1)
        source = RandomAccess(selected, sequence, name, documents, readers, end=sequence.per_epoch)
        assert sum(map(len, source.documents(0, 0, 0))) == len(documents)
    sizes: dict[tuple[str, int], int] = {}
    for shard, index in zip(selected.corpus.shards[:2], selected.plan.indexes[:2], strict=True):
        borders = np.append(index.frames.text_offset, index.header.content_bytes)
        sizes |= {(shard.path, frame): int(size) for frame, size in enumerate(np.diff(borders))}
    of_zstd = {place: times for place, times in decoded.items() if place in sizes}
    wanted = sum(times * sizes[place] for place, times in of_zstd.items()) / sum(sizes[place] for place in of_zstd)
    assert wanted > 1
    assert decodings_per_epoch(selected, units, whole_bytes=0) == pytest.approx(wanted)


def test_a_sample_of_frames_is_near(selected: StreamDocuments) -> None:
    units = dict.fromkeys(["ArXiv", "Github", "Wikipedia (en)"], 20)
    every = decodings_per_epoch(selected, units, whole_bytes=0)
    assert every is not None
    assert decodings_per_epoch(selected, units, frames=60, whole_bytes=0) == pytest.approx(every, rel=0.1)
    assert decodings_per_epoch(selected, units, frames=1, whole_bytes=0) is not None


def test_nothing_is_decoded_repeatedly_of_a_held_corpus_of_plain_shards_and_of_token_files(
    corpus: Corpus, selected: StreamDocuments, settings: Settings, tmp_path: Path
) -> None:
    assert decodings_per_epoch(selected, {"ArXiv": 5}) is None
    plain = Corpus(Path(corpus.shards[2].path))
    assert decodings_per_epoch(StreamDocuments(plain, choose_plan(plain)), {"ArXiv": 5}, whole_bytes=0) is None
    tokenize_corpus(corpus, tmp_path / "tokens", tokenizer=settings["tokenizer"])
    stream = PileStream(tmp_path / "tokens", **{**settings, "weights": [(0, {"ArXiv": 1})]})
    assert decodings_per_epoch(stream._documents, {"ArXiv": 5}, whole_bytes=0) is None


def test_explain_tells_it_with_the_remedy(
    corpora: Corpora, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpora["mixed"].folder
    changes: dict[str, Any] = {**settings, "weights": [(0, {"ArXiv": 1, "Github": 1})]}
    assert PileStream(folder, **changes).explain()["decodings"] is None
    monkeypatch.setattr(explanation, "decodings_per_epoch", partial(decodings_per_epoch, whole_bytes=0))
    told = PileStream(folder, **changes).explain()
    times = json.loads(json.dumps(told))["decodings"]
    assert times > 2
    line = f"each frame about {times:.1f} times in an epoch of each subset"
    assert f"decoding       {line}; token files of `pilekit tokenize` have no frames\n" in str(told)
    told["decodings"] = 1.9
    assert "decoding       each frame about 1.9 times in an epoch of each subset\n" in str(told)
    assert PileStream(folder, **settings).explain()["decodings"] is None


@given(st.integers(1, 10_000), st.randoms(use_true_random=False), st.floats(0, 1))
def test_lines_before_a_line(lines: int, rng: random.Random, share: float) -> None:
    chosen = [line for line in range(lines) if rng.random() < share]
    asked = sorted({0, lines, *(rng.randrange(lines + 1) for _ in range(9))})
    bitmap = LineBitmap.where(lines, [np.array(chosen, np.int64)])
    assert bitmap.before(np.array(asked)).tolist() == [sum(line < end for line in chosen) for end in asked]
    assert LineBitmap(lines).before(np.array(asked)).tolist() == asked
