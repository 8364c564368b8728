"""Deduplicating in a pipeline: by the masks of a run, or in one pass with the candidates of `datasketch.MinHashLSH`."""

from __future__ import annotations

import pickle
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError, ShardWriter, read, read_corpus
from pilekit.artifacts.header import HEADER_FILE
from pilekit.corpus import Corpus
from pilekit.dedup import deduplicated
from pilekit.dedup.deduplicated import Deduplicated
from pilekit.dedup.near_duplicates import NearDuplicates
from pilekit.dedup.run import deduplicate
from pilekit.dedup.sketch.bands import choose_bands
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.documents import DocumentBatch
from pilekit.pipeline.selecting import select_corpus
from tests.dedup import reference
from tests.dedup.planted import planted
from tests.pipeline.making import batch, cut, identities

MANY = planted(60, seed=3, alone=20, words=(30, 120)).texts
SHORT = ["", "  ", "one", "One.", "one two three four", "ONE, two! three four", "one two three four five", "é", "É"]


def lsh_keeps(texts: Sequence[str], threshold: float) -> list[str]:
    """The texts that stay if `MinHashLSH` finds the candidates and sets of tuples are compared."""
    bands = choose_bands(threshold, 128)
    index = MinHashLSH(num_perm=bands.num_perm, params=(bands.bands, bands.rows))
    sets = [reference.shingles(text) for text in texts]
    kept = []
    for number, text in enumerate(texts):
        sketch = MinHash(bands.num_perm, 1, scheme="affine32", hashfunc=lambda shingle: shingle & 0xFFFFFFFF)
        sketch.update_batch(shingle_set(np.frombuffer(text.encode(), dtype=np.uint8)).tolist())
        if not any(reference.jaccard(sets[number], sets[other]) >= threshold for other in index.query(sketch)):
            index.insert(number, sketch)
            kept.append(text)
    return kept


def passed(texts: Sequence[str], stage: NearDuplicates, lengths: Sequence[int] = ()) -> list[str]:
    return [text for _, _, _, text in identities(stage(cut(batch(texts), lengths)))]


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_near_duplicates_are_those_that_lsh_finds(threshold: float) -> None:
    texts = [*SHORT, *MANY, *SHORT, *MANY[:10]]
    kept = passed(texts, NearDuplicates(threshold), [1, 0, 7])
    assert kept == lsh_keeps(texts, threshold)
    assert len(kept) < len(texts) - 19


@given(st.lists(st.sampled_from([*SHORT, *MANY[:12]]), max_size=25), st.lists(st.integers(0, 9), max_size=5))
def test_batches_make_no_difference(texts: list[str], lengths: list[int]) -> None:
    assert passed(texts, NearDuplicates(), lengths) == lsh_keeps(texts, 0.8)


def test_each_call_begins_anew_and_the_stage_can_be_sent_to_a_process() -> None:
    stage = NearDuplicates(0.7, memory=10**8)
    assert passed(MANY, stage) == passed(MANY, stage) == passed(MANY, pickle.loads(pickle.dumps(stage)))
    assert pickle.loads(pickle.dumps(stage)) == stage


def made_up(words: int) -> Iterator[DocumentBatch]:
    drawn = random.Random(0)
    number = 0
    while True:
        yield batch([" ".join(f"{drawn.getrandbits(40):x}" for _ in range(words)) for _ in range(10)], first=number)
        number += 10


@pytest.mark.parametrize("words", [3, 600])
def test_memory_is_bounded(words: int) -> None:
    memory = 4_000_000
    for _ in NearDuplicates()(iter([batch(["compiled"])])):
        pass
    tracemalloc.start()
    try:
        with pytest.raises(PilekitError) as raised:
            for _ in NearDuplicates(memory=memory)(made_up(words)):
                pass
        # The exception still holds the stack frames, and with them all kept documents.
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert raised.match(r"^00\.jsonl: document [\d,]+: .* memory=4,000,000 bytes; .*`pilekit dedup`")
    # A dict doubles when it grows, which shows only afterwards; and the last batch does not count.
    assert 0.6 * memory < held < 1.4 * memory


@pytest.mark.parametrize("arguments", [{"threshold": 0}, {"threshold": 1.1}, {"threshold": "0.8"}, {"memory": "4GB"}])
def test_near_duplicates_refuses_what_makes_no_sense(arguments: dict[str, object]) -> None:
    with pytest.raises(PilekitError, match=r"threshold|memory"):
        NearDuplicates(**arguments)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards whose documents have copies in either; ArXiv and, every fifth, Github."""
    folder = tmp_path_factory.mktemp("corpus")
    for number, texts in enumerate((MANY[:70], [*MANY[70:], *MANY[:20], *SHORT])):
        (folder / "train").mkdir(exist_ok=True)
        labels = ["Github" if place % 5 == 0 else "ArXiv" for place in range(len(texts))]
        with ShardWriter(folder / "train" / f"0{number}.jsonl.zst") as writer:
            writer.write(batch(texts, labels, f"train/0{number}.jsonl"))
    return folder


@pytest.fixture(scope="module")
def dedup(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "dedup"
    deduplicate(corpus, out=out, jobs=1)
    return out


def kept_lines(batches: Iterator[DocumentBatch]) -> list[tuple[str, bytes]]:
    return [(one.shard, bytes(line)) for one in batches for line in one.raw_lines()]


def test_deduplicated_passes_what_the_clean_shards_hold(corpus: Path, dedup: Path) -> None:
    stage = pickle.loads(pickle.dumps(Deduplicated(dedup)))
    found = kept_lines(stage(iter(read_corpus(Corpus(corpus)))))
    assert found == kept_lines(iter(read_corpus(Corpus(dedup / "clean"))))
    assert 0 < len(found) < len(MANY) + 20


def test_shards_may_come_in_turns_and_more_than_masks_are_held(
    corpus: Path, dedup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplicated, "HELD_MASKS", 1)
    shards = [list(cut(next(iter(read(shard))), [9] * 12)) for shard in Corpus(corpus).shards]
    in_turns = [one for both in zip(*shards, strict=True) for one in both]
    found = list(Deduplicated(str(dedup))(iter(in_turns)))
    assert all(len(one) for one in found)
    assert sorted(kept_lines(iter(found))) == sorted(kept_lines(iter(read_corpus(Corpus(dedup / "clean")))))


def fails(dedup: Path, batches: Iterator[DocumentBatch]) -> str:
    with pytest.raises(PilekitError) as raised:
        list(Deduplicated(dedup)(batches))
    return str(raised.value)


def test_another_shard_of_the_same_name_is_refused(corpus: Path, dedup: Path, tmp_path: Path) -> None:
    select_corpus(corpus, tmp_path / "code", subsets=["ArXiv"], jobs=1)
    told = fails(dedup, iter(read_corpus(Corpus(tmp_path / "code"))))
    assert told.startswith("train/00.jsonl: document 0 is not the one that was deduplicated in ")


def test_a_shard_that_was_not_read_is_refused(corpus: Path, dedup: Path) -> None:
    told = fails(dedup, iter(read(corpus / "train" / "00.jsonl.zst")))
    assert told.startswith("00.jsonl: was not deduplicated in ")
    assert "which has train/00.jsonl, train/01.jsonl; " in told


def test_without_its_sketch_a_shard_is_taken_as_it_is(corpus: Path, dedup: Path, tmp_path: Path) -> None:
    import shutil

    copied = tmp_path / "copied"
    shutil.copytree(dedup, copied)
    shutil.rmtree(copied / "sketches")
    shutil.rmtree(copied / "clean")
    batches = [list(Deduplicated(folder)(iter(read_corpus(Corpus(corpus))))) for folder in (dedup, copied)]
    assert kept_lines(iter(batches[0])) == kept_lines(iter(batches[1]))

    masks = copied / "masks" / "train"
    (masks / "00.jsonl.mask").write_bytes((masks / "01.jsonl.mask").read_bytes())
    assert "00.jsonl.mask: belongs to another shard" in fails(copied, iter(read_corpus(Corpus(corpus))))
    (masks / "00.jsonl.mask").unlink()
    assert "00.jsonl.mask: " in fails(copied, iter(read_corpus(Corpus(corpus))))


def test_folders_that_hold_no_finished_run_are_refused(corpus: Path, dedup: Path, tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match=HEADER_FILE):
        Deduplicated(corpus)
    select_corpus(corpus, tmp_path / "selection", sample=0.9, jobs=1)
    with pytest.raises(PilekitError, match='kind "selection", not "dedup"'):
        Deduplicated(tmp_path / "selection")
    header = (dedup / HEADER_FILE).read_text()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / HEADER_FILE).write_text(header.replace('"finished": true', '"finished": false'))
    with pytest.raises(PilekitError, match="is not finished"):
        Deduplicated(tmp_path / "half")
