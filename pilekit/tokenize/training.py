"""`train_tokenizer`: a byte-level BPE tokenizer from a sample of a corpus; the same input gives the same file.

The tokenizer is like GPT-2's: byte-level, so every text can be encoded and decoded byte for byte, without Unicode
normalisation (GPT-NeoX's NFC changes text). Its ids are `<|endoftext|>` 0, `<|padding|>` 1, the 256 bytes, and merges.
The trainer of the `tokenizers` library does the work; its result depends on neither threads nor the order of texts.

The sample is bounded, seeded, and spread over the shards. Each shard offers its first documents, up to eight times its
share of the sample's bytes. Shares follow the shards' stored sizes, and later shards get the bytes that a shard does
not use. The sample takes the offered documents with the smallest hash of (seed, shard name, document number), until it
has its bytes. So a small corpus is sampled evenly. Of thirty shards of 43 GB each, only the first per cent is read.
That is enough, because released Pile shards are shuffled. Only the sample is in memory.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.corpus import Corpus, Described, Source, subsets_or_all
from pilekit.display.progress import Report
from pilekit.errors import PilekitError
from pilekit.pipeline.stages import document_hashes
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.reader import read
from pilekit.tokenize.loading import load_tokenizer
from pilekit.tokenize.tokenizer import Tokenizer

SPECIAL_TOKENS = ("<|endoftext|>", "<|padding|>")
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)
DOCUMENTS_AT_ONCE = 256


def train_tokenizer(
    corpus: Corpus | Source,
    vocab_size: int,
    out: str | Path,
    subsets: Sequence[str] | None = None,
    sample_bytes: int = 200_000_000,
    *,
    seed: int = 0,
    manifest: Described = None,
    advance: Report = lambda *_: None,
) -> Tokenizer:
    """Train on about `sample_bytes` bytes of a corpus and write the tokenizer.json `out`, whole or not at all.

    corpus         a `Corpus`, a path, glob or URL, or a list of these; val and test shards are left out, unless there
                   are no others
    vocab_size     includes the two special tokens and the 256 bytes; a small sample may give fewer ids
    out            an existing file is replaced
    subsets        names in any spelling that the manifest knows; None: all
    sample_bytes   peak memory is several times as large
    manifest       describes the corpus at a path
    advance        receives the progress of each step
    """
    out = Path(out)
    if vocab_size < SMALLEST_VOCABULARY:
        raise PilekitError(
            f"a byte-level vocabulary has at least {SMALLEST_VOCABULARY} entries (256 bytes and "
            f"{len(SPECIAL_TOKENS)} special tokens), not {vocab_size}"
        )
    if sample_bytes < 1:
        raise PilekitError(f"the sample must have at least one byte, not {sample_bytes}")
    corpus = Corpus.of(corpus, manifest)
    check_target(out, follow_links=True, inputs=[shard.path for shard in corpus])
    corpus = corpus.without_held_out()
    subsets = subsets_or_all(subsets, corpus.manifest)
    size = corpus.size or 0
    sample = sample_by_hash(
        corpus, sample_bytes, subsets=subsets, seed=seed, advance=lambda stored: advance("sampling", stored, size)
    )
    if not sample:
        check_label(corpus, (), subsets)
        chosen = f" in {', '.join(subsets)}" if subsets else ""
        raise PilekitError(f"no text to train on in {corpus.root}{chosen}")
    content = _train(sample, vocab_size, advance)
    with write_atomically(out, follow_links=True) as file:
        file.write(content.encode())
    return load_tokenizer(out)


def _train(sample: list[bytes], vocab_size: int, advance: Report) -> str:
    """The trained tokenizer's JSON. Training runs in a thread, because Rust code cannot be interrupted."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    interrupted = threading.Event()
    trained: Future[str] = Future()

    def texts() -> Iterator[list[str]]:
        size = sum(map(len, sample))
        for begin in range(0, len(sample), DOCUMENTS_AT_ONCE):
            if interrupted.is_set():
                raise KeyboardInterrupt
            part = sample[begin : begin + DOCUMENTS_AT_ONCE]
            yield list(map(bytes.decode, part))
            advance("training", sum(map(len, part)), size)

    def work() -> None:
        try:
            bpe.train_from_iterator(texts(), trainer)
            trained.set_result(bpe.to_str(pretty=True))
        except BaseException as error:
            trained.set_exception(error)

    thread = threading.Thread(target=work, name="train-tokenizer", daemon=True)
    thread.start()
    try:
        return trained.result()
    finally:
        interrupted.set()
        thread.join(1)


OFFERED_PER_BYTE = 8
"""Bytes of text that are read for each byte of the sample."""


def sample_by_hash(
    corpus: Corpus,
    wanted_bytes: int,
    *,
    subsets: Sequence[str] | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda stored: None,
    offered_per_byte: int = OFFERED_PER_BYTE,
) -> list[bytes]:
    """Texts of documents in UTF-8, about `wanted_bytes` bytes of `subsets` (exact names; None: all), in hashed order.

    The last document is not cut, so the sample may be longer by part of it. `advance` is called with numbers of stored
    bytes, which add up to the size of the shards.
    """
    shards = corpus.shards
    sizes = [shard.size or 0 for shard in shards]
    # A heap with the largest hash on top, hence negated. Shard and number make every entry distinct.
    heap: list[tuple[int, str, int, bytes]] = []
    sample_size = 0
    to_offer = wanted_bytes * offered_per_byte
    for place, shard in enumerate(shards):
        remaining_size = sum(sizes[place:])
        limit = to_offer * sizes[place] // remaining_size if remaining_size else to_offer // (len(shards) - place)
        offered = reported = 0

        def report(stored: int) -> None:
            nonlocal reported
            reported += stored
            advance(stored)

        with read(shard, subsets, manifest=corpus.manifest, advance=report) as batches:
            for batch in batches:
                hashes = document_hashes(batch.shard, batch.numbers, seed).tolist()
                offered += int(batch.text_bytes().sum())
                for index, value in enumerate(hashes):
                    if (sample_size >= wanted_bytes and value > -heap[0][0]) or not batch.texts[index]:
                        continue
                    text = batch.texts[index].encode()
                    heapq.heappush(heap, (-value, batch.shard, int(batch.numbers[index]), text))
                    sample_size += len(text)
                    while sample_size - len(heap[0][3]) >= wanted_bytes:
                        sample_size -= len(heapq.heappop(heap)[3])
                if offered >= limit:
                    break
        advance(max(0, sizes[place] - reported))  # the part that was not read
        to_offer = max(0, to_offer - offered)
    return [entry[3] for entry in sorted(heap, key=lambda entry: (-entry[0], entry[1], entry[2]))]
