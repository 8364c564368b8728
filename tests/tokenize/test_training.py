"""Training is deterministic, lossless and atomic; its sample is bounded, spread, and decided by the seed."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.tokenize import load_tokenizer
from pilekit.tokenize import training as training_module
from pilekit.tokenize.training import sample_by_hash, train_tokenizer
from tests.pipeline.making import write_shard
from tests.shards import making
from tests.tokenize.making import SPECIAL, hard_texts

WORDS = ["the", "quick", "brown", "fox", "jumps", "dog", "while", "résumé", "naïve", "中文", "😀", "self.value", "2024"]


def text_of(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three train shards of different sizes, and a val shard that must stay out."""
    root = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    for shard, documents in enumerate([200, 100, 400]):
        texts = [text_of(rng, int(rng.integers(1, 60))) + f" s{shard}d{i}" for i in range(documents)]
        texts[5] = ""
        write_shard(root / "train" / f"{shard:02}.jsonl.zst", texts, ["ArXiv", "Github"] * (documents // 2))
    write_shard(root / "val.jsonl.zst", ["held out text"] * 50, ["ArXiv"] * 50)
    return root


def all_documents(folder: Path) -> list[tuple[str, int, str, str]]:
    """(shard, number, subset, text) of the train shards, read with the standard tools."""
    return [
        (f"train/{path.stem}", number, subset, text)
        for path in sorted((folder / "train").glob("*.zst"))
        for number, text, subset in making.slow_documents(making.unzstd(path))
    ]


def expected_sample(folder: Path, wanted: int, seed: int, subset: str | None = None) -> list[bytes]:
    """The sample if all documents are offered: sort them by hash and take the smallest."""
    ordered = sorted(
        (xxhash.xxh3_64_intdigest(f"{seed}\0{shard}\0{number}".encode()), text.encode())
        for shard, number, label, text in all_documents(folder)
        if text and subset in (None, label)
    )
    sample: list[bytes] = []
    for _, text in ordered:
        if sum(map(len, sample)) >= wanted:
            break
        sample.append(text)
    return sample


def test_the_documents_with_the_smallest_hashes(folder: Path) -> None:
    corpus = Corpus(folder).without_held_out()
    sample = sample_by_hash(corpus, 3_000)
    assert 3_000 <= sum(map(len, sample)) < 3_500
    shards = {text.decode().rsplit(" ", 1)[1][:2] for text in sample}
    assert shards == {"s0", "s1", "s2"}, "every shard gives its share"
    whole = functools.partial(sample_by_hash, corpus, offered_per_byte=10**9)
    for wanted, seed in [(1, 0), (100, 1), (40_000, 0), (10**9, 1)]:
        sample = whole(wanted, seed=seed)
        assert sample == expected_sample(folder, wanted, seed)
        only = whole(wanted, seed=seed, subsets=["Github"])
        assert only == expected_sample(folder, wanted, seed, "Github")


def test_reading_is_bounded(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    # 4 shards of 12 MB of text; a batch is some MB, so a small sample must need one batch of each.
    texts = [text_of(rng, 3000) + str(i) for i in range(700)]
    for shard in range(4):
        write_shard(tmp_path / f"{shard:02}.jsonl.zst", texts)
    corpus = Corpus(tmp_path)
    offered: dict[str, int] = {}
    real = training_module.document_hashes

    def counting(shard: str, numbers: Any, seed: int) -> Any:
        offered[shard] = max(offered.get(shard, 0), int(numbers.max()) + 1)
        return real(shard, numbers, seed)

    told: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_module, "document_hashes", counting)
        sample = sample_by_hash(corpus, 200_000, advance=told.append)
    assert len(offered) == 4
    assert all(0 < documents < 500 for documents in offered.values()), offered
    assert all(sample)
    assert sum(told) == sum(shard.size or 0 for shard in corpus.shards)


def test_the_same_file_whatever_the_process(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pilekit.corpus import Corpus;"
        "from pilekit.tokenize.training import train_tokenizer;"
        "train_tokenizer(Corpus(Path(sys.argv[1])), 600, Path(sys.argv[2]))"
    )
    files = [tmp_path / "0.json", tmp_path / "1.json", tmp_path / "2.json"]
    train_tokenizer(Corpus(folder), 600, files[0])
    for threads, file in zip(("1", "2"), files[1:], strict=True):
        environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        subprocess.run([sys.executable, "-c", program, str(folder), str(file)], env=environment, check=True)
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()
    assert train_tokenizer(Corpus(folder), 600, tmp_path / "3.json", sample_bytes=2_000, seed=1).vocab_size <= 600
    assert files[0].read_bytes() != (tmp_path / "3.json").read_bytes()


def test_the_tokenizer_that_comes_out(folder: Path, tmp_path: Path) -> None:
    told: dict[tuple[str, int], int] = {}

    def advance(step: str, amount: int, total: int) -> None:
        told[step, total] = told.get((step, total), 0) + amount

    trained = train_tokenizer(folder, 600, tmp_path / "new" / "tokenizer.json", advance=advance)
    train_bytes = sum(path.stat().st_size for path in (folder / "train").iterdir())
    texts = sum(len(text.encode()) for *_, text in all_documents(folder))
    assert told == {("sampling", train_bytes): train_bytes, ("training", texts): texts}
    tokenizer = load_tokenizer(tmp_path / "new" / "tokenizer.json")
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.pad_id) == (600, 0, 1)
    assert tokenizer.backend == "fastokens"
    assert (trained.path, trained.fingerprint) == (tokenizer.path, tokenizer.fingerprint)
    held_out = tokenizer.encode_batch(["held out text"])[0]
    assert len(held_out) > 5  # words that are only in the val shard were not learnt

    @settings(max_examples=50, deadline=None)
    @given(hard_texts(SPECIAL))
    def lossless(text: str) -> None:
        ids, _ = tokenizer.encode_batch([text])
        assert tokenizer.decode(ids) == text
        assert not {0, 1} & set(ids.tolist())

    lossless()


def test_held_out_shards_alone_are_used_and_a_small_sample_ends_early(folder: Path, tmp_path: Path) -> None:
    sample = sample_by_hash(Corpus(folder / "val.jsonl.zst"), 10**6)
    assert sample == [b"held out text"] * 50
    trained = train_tokenizer(Corpus(folder), 30_000, tmp_path / "t.json", sample_bytes=300)
    assert 258 <= trained.vocab_size < 1000


def test_refusals_leave_an_existing_file(folder: Path, tmp_path: Path) -> None:
    corpus, path = Corpus(folder), tmp_path / "t.json"
    path.write_text("an earlier one")
    with pytest.raises(PilekitError, match="at least 258 entries"):
        train_tokenizer(corpus, 257, path)
    with pytest.raises(PilekitError, match="at least one byte"):
        train_tokenizer(corpus, 300, path, sample_bytes=0)
    with pytest.raises(PilekitError, match="is a folder"):
        train_tokenizer(corpus, 300, tmp_path)
    with pytest.raises(PilekitError, match=r"no text to train on in .* in Books3"):
        train_tokenizer(corpus, 300, path, ["Books3"])
    with pytest.raises(PilekitError, match="is an input and the output; name another file"):
        train_tokenizer(corpus, 300, folder / "val.jsonl.zst")
    assert path.read_text() == "an earlier one"
    train_tokenizer(str(folder), 300, path, ["GitHub"])
    assert load_tokenizer(path).vocab_size == 300
    assert list(tmp_path.iterdir()) == [path]


TRAIN = """
import sys, threading
from pilekit.tokenize.training import train_tokenizer

done = 0

def advance(step, amount, total):
    global done
    done += amount if step == "training" else 0
    if done == total:  # the trainer has all texts
        print("merging", flush=True)

try:
    train_tokenizer(sys.argv[1], 200_000, sys.argv[2], advance=advance)
except KeyboardInterrupt:
    if "train-tokenizer" in [thread.name for thread in threading.enumerate()]:
        print("interrupted while it was training", flush=True)
    raise
"""


@pytest.mark.slow
def test_interrupting_ends_at_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    alphabet = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    # Random letters: merging them keeps the trainer, which is not Python, busy for a long time.
    texts = ["".join(rng.choice(alphabet, 100_000)) for _ in range(30)]
    texts = [" ".join(text[i : i + 11] for i in range(0, len(text), 11)) for text in texts]
    write_shard(tmp_path / "00.jsonl.zst", texts)
    arguments = [sys.executable, "-c", TRAIN, str(tmp_path), str(tmp_path / "t.json")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "merging\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=240)
    assert out == "interrupted while it was training\n"
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0
    assert not (tmp_path / "t.json").exists()
