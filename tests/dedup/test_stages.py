"""Deduplicating in a pipeline: by the masks of a run, or in one pass with the candidates of `datasketch.MinHashLSH`."""

from __future__ import annotations

import pickle
import random
import shutil
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH

from pilekit import PilekitError, ShardWriter, read, read_corpus
from pilekit.corpus import Corpus
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.dedup.near_duplicates import NearDuplicates
from pilekit.dedup.run import dedup_corpus
from pilekit.dedup.sketch.bands import choose_bands
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.documents import DocumentBatch
from pilekit.pipeline.selecting import select_corpus
from tests.dedup import reference
from tests.dedup.planted import planted
from tests.pipeline.making import batch, cut, identities

MANY = planted(40, seed=3, alone=20, words=(30, 120)).texts
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


def test_near_duplicates_are_those_that_lsh_finds() -> None:
    texts = [*SHORT, *MANY, *SHORT, *MANY[:10]]
    for threshold in (0.5, 0.8):
        stage = NearDuplicates(threshold, memory=10**8)
        kept = passed(texts, stage, [1, 0, 7])
        assert kept == lsh_keeps(texts, threshold)
        assert len(kept) < len(texts) - 19
        assert passed(texts, pickle.loads(pickle.dumps(stage))) == kept
    for arguments in ({"threshold": 0}, {"threshold": 1.1}, {"threshold": "0.8"}, {"memory": "4GB"}):
        with pytest.raises(PilekitError, match=r"threshold|memory"):
            NearDuplicates(**arguments)  # type: ignore[arg-type]


def made_up(words: int) -> Iterator[DocumentBatch]:
    drawn = random.Random(0)
    number = 0
    while True:
        yield batch([" ".join(f"{drawn.getrandbits(40):x}" for _ in range(words)) for _ in range(10)], first=number)
        number += 10


def test_memory_is_bounded() -> None:
    memory = 2_000_000
    list(NearDuplicates()(iter([batch(["compiled"])])))
    for words in (3, 600):
        tracemalloc.start()
        try:
            with pytest.raises(PilekitError) as raised:
                list(NearDuplicates(memory=memory)(made_up(words)))
            # The exception still holds the stack frames, and with them all kept documents.
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert raised.match(r"^00\.jsonl: document [\d,]+: .* memory=2,000,000 bytes; .*`pilekit dedup`")
        # A dict doubles when it grows, which shows only afterwards; and the last batch does not count.
        assert 0.6 * memory < held < 1.4 * memory


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
    dedup_corpus(corpus, out=out, jobs=1)
    return out


def kept_lines(batches: Iterator[DocumentBatch]) -> list[tuple[str, bytes]]:
    return [(one.shard, bytes(line)) for one in batches for line in one.raw_lines()]


class OneMask(DropDuplicates):
    masks_in_memory = 1


def test_the_stage_passes_the_documents_of_the_clean_shards(corpus: Path, dedup: Path, tmp_path: Path) -> None:
    """Shards may come in turns, more than masks are held; without its sketch a shard is taken as it is."""
    expected = kept_lines(iter(read_corpus(Corpus(dedup / "clean"))))
    stage = pickle.loads(pickle.dumps(DropDuplicates(dedup)))
    assert kept_lines(stage(iter(read_corpus(Corpus(corpus))))) == expected
    assert 0 < len(expected) < len(MANY) + 20
    shards = [list(cut(next(iter(read(shard))), [9] * 12)) for shard in Corpus(corpus).shards]
    found = list(OneMask(str(dedup))(iter([one for both in zip(*shards, strict=True) for one in both])))
    assert all(len(one) for one in found)
    assert sorted(kept_lines(iter(found))) == sorted(expected)
    shutil.copytree(dedup, tmp_path / "copied", ignore=shutil.ignore_patterns("sketches", "clean"))
    assert kept_lines(DropDuplicates(tmp_path / "copied")(iter(read_corpus(Corpus(corpus))))) == expected


def test_other_shards_and_other_masks_are_refused(corpus: Path, dedup: Path, tmp_path: Path) -> None:
    def fails(match: str, batches: Iterator[DocumentBatch], folder: Path = dedup) -> None:
        with pytest.raises(PilekitError, match=match):
            list(DropDuplicates(folder)(batches))

    select_corpus(corpus, tmp_path / "code", subsets=["ArXiv"], jobs=1)
    differs = r"^train/00\.jsonl: document 0 is not the one that was deduplicated in "
    fails(differs, iter(read_corpus(Corpus(tmp_path / "code"))))
    absent = r"^00\.jsonl: was not deduplicated in .* which has train/00\.jsonl, train/01\.jsonl; "
    fails(absent, iter(read(corpus / "train" / "00.jsonl.zst")))
    copied = tmp_path / "copied"
    shutil.copytree(dedup, copied)
    masks = copied / "masks" / "train"
    (masks / "00.jsonl.mask").write_bytes((masks / "01.jsonl.mask").read_bytes())
    fails(r"00\.jsonl\.mask: belongs to another shard", iter(read_corpus(Corpus(corpus))), copied)
    (masks / "00.jsonl.mask").unlink()
    fails(r"00\.jsonl\.mask: ", iter(read_corpus(Corpus(corpus))), copied)
