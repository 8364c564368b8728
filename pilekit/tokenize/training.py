"""`train_tokenizer`: a byte-level BPE tokenizer from a sample of a corpus; the same input gives the same file.

The tokenizer is like GPT-2's: byte-level, so every text can be encoded and decoded byte for byte, without Unicode
normalisation (GPT-NeoX's NFC changes text). Its ids are `<|endoftext|>` 0, `<|padding|>` 1, the 256 bytes, and merges.
The trainer of the `tokenizers` library does the work; its result depends on neither threads nor the order of texts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.corpus import Corpus, subsets_or_all
from pilekit.errors import PilekitError, visible
from pilekit.tokenize.loading import load_tokenizer
from pilekit.tokenize.sampling import SampledDocument, sample_by_hash
from pilekit.tokenize.tokenizer import Tokenizer

SPECIAL_TOKENS = ("<|endoftext|>", "<|padding|>")
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)
DOCUMENTS_AT_ONCE = 256

Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Called with a stage's name and its bytes; yields the function to call with the number of bytes newly done."""


@dataclass(frozen=True)
class SampledSubset:
    """One subset's part of the sample: documents, UTF-8 bytes of text, and tokens of the trained tokenizer."""

    documents: int
    bytes: int
    tokens: int


@dataclass(frozen=True)
class TrainedTokenizer:
    """The trained tokenizer: its file, the number of ids, and the sample by subset, largest first."""

    path: Path
    vocab_size: int
    subsets: dict[str, SampledSubset]

    def to_dict(self) -> dict[str, Any]:
        """All fields, the path as text."""
        return {**asdict(self), "path": str(self.path)}


def train_tokenizer(
    corpus: Corpus | str | Path | Sequence[str | Path],
    vocab_size: int,
    out: str | Path,
    subsets: Sequence[str] | None = None,
    sample_bytes: int = 200_000_000,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> TrainedTokenizer:
    """Train on about `sample_bytes` bytes of `corpus` (see sampling.py) and write the tokenizer.json `out`, atomically.

    `corpus` is a `Corpus`, a path, glob or URL, or a list of these. Val and test shards are left out, unless there are
    no others. `subsets` are names in any spelling that the manifest knows (None: all). `vocab_size` includes the two
    special tokens and the 256 bytes; a small sample may give fewer ids. An existing file is replaced. Peak memory is
    several times `sample_bytes`.
    """
    out = Path(out)
    if vocab_size < SMALLEST_VOCABULARY:
        raise PilekitError(
            f"a byte-level vocabulary has at least {SMALLEST_VOCABULARY} entries (256 bytes and "
            f"{len(SPECIAL_TOKENS)} special tokens), not {vocab_size}"
        )
    if sample_bytes < 1:
        raise PilekitError(f"the sample must have at least one byte, not {sample_bytes}")
    check_target(out, follow_links=True)
    show = progress or (lambda what, total: nullcontext(lambda amount: None))
    corpus = (corpus if isinstance(corpus, Corpus) else Corpus(corpus)).without_held_out()
    subsets = subsets_or_all(subsets, corpus.manifest)
    with show("sampling", corpus.size) as advance:
        sample = sample_by_hash(corpus, sample_bytes, subsets=subsets, seed=seed, advance=advance)
    if not sample:
        chosen = f" in {', '.join(subsets)}" if subsets else ""
        raise PilekitError(f"no text to train on in {visible(corpus.root)}{visible(chosen)}")
    with show("training", sum(len(document.text) for document in sample)) as advance:
        content = _train(sample, vocab_size, advance)
    with write_atomically(out, follow_links=True) as file:
        file.write(content.encode())
    tokenizer = load_tokenizer(out)
    return TrainedTokenizer(tokenizer.path, tokenizer.vocab_size, _by_subset(sample, tokenizer))


def _train(sample: list[SampledDocument], vocab_size: int, advance: Callable[[int], None]) -> str:
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
        for part in _parts(sample):
            if interrupted.is_set():
                raise KeyboardInterrupt
            yield [document.text.decode() for document in part]
            advance(sum(len(document.text) for document in part))

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


def _parts(sample: list[SampledDocument]) -> Iterator[list[SampledDocument]]:
    for begin in range(0, len(sample), DOCUMENTS_AT_ONCE):
        yield sample[begin : begin + DOCUMENTS_AT_ONCE]


def _by_subset(sample: list[SampledDocument], tokenizer: Tokenizer) -> dict[str, SampledSubset]:
    counts: dict[str, SampledSubset] = {}
    for part in _parts(sample):
        _, offsets = tokenizer.encode_batch([document.text.decode() for document in part])
        for document, tokens in zip(part, (offsets[1:] - offsets[:-1]).tolist(), strict=True):
            so_far = counts.get(document.subset, SampledSubset(0, 0, 0))
            size = so_far.bytes + len(document.text)
            counts[document.subset] = SampledSubset(so_far.documents + 1, size, so_far.tokens + tokens)
    return dict(sorted(counts.items(), key=lambda item: (-item[1].bytes, item[0])))
