"""`bits_per_byte`: documents in, figures per subset out.

    read -> the first `limit` documents of each subset -> tokens -> score_documents -> sums per subset, in float64

A document's bytes are those of its raw text as UTF-8, whatever a tokenizer's normaliser makes of it, and its text is
encoded as it stands: no token is added, none recognised in it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from pilekit.corpus import Corpus, resolve_subsets
from pilekit.documents import MAX_SUBSETS, DocumentBatch, too_many_subsets
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.causal_lm import CausalLM, check_vocabulary, load_causal_lm
from pilekit.evaluate.model_folder import check_folder, positions_of, read_config
from pilekit.evaluate.protocol import Rules, max_length_of, prefix_token, protocol
from pilekit.evaluate.result import BitsPerByte, Score, total
from pilekit.evaluate.scoring import (
    BATCH_TOKENS,
    ScoredDocument,
    Share,
    TokenizedDocument,
    ignore,
    one_by_one,
    score_documents,
)
from pilekit.shards import SkippedLines, read
from pilekit.shards.reading import OnError
from pilekit.tokenize import Tokenize, Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)


def bits_per_byte(
    model_dir: str | Path,
    data: str | Path | Sequence[str | Path] | Corpus | None = None,
    *,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    prefix: str | int = "auto",
    batch_tokens: int = BATCH_TOKENS,
    on_error: OnError = "raise",
    advance: Callable[[int], None] = ignore,
) -> BitsPerByte:
    """Score a model in Hugging Face's format, with its own tokenizer, on a corpus; in float32.

    Returns a `BitsPerByte`: a `Score` for each subset that has documents, in `.subsets`, one over all in `.overall`
    (`.bpb` is the figure), and in `.protocol` what the figures depend on.

    model_dir      a folder with config.json, safetensors and tokenizer.json
    data           a path, glob or URL, several of them, a `Corpus`, or None for the default places. Where val or test
                   shards lie among others, only they are scored, and a warning names them
    subsets        only documents of these subsets, in any spelling the manifest knows; None: all
    limit          the first so many documents of each subset; None: all. Reading ends when all subsets asked for have
                   as many; else when all of the manifest, and all others met until then, have
    max_length     tokens in a window; None: as many as the model has positions, 2048 where it declares no limit
    prefix         what stands before a document's first token: "bos", "eos", a token's id, "auto" (BOS, else EOS), or
                   "none": then the first token is context only and not predicted, while its bytes count
    batch_tokens   tokens in a forward pass: for speed and memory, the figures do not depend on it
    on_error       "raise": a bad line is a `PilekitError`; "skip": it is passed over, a warning tells how many were,
                   and so does "skipped_lines" in the protocol
    advance        called with each further amount of stored bytes dealt with

    PilekitError for anything wrong with the model, its tokenizer or the corpus, and if no document is selected.
    """
    if not isinstance(model_dir, str | os.PathLike):
        raise PilekitError(f"model_dir is the path of a model's folder, not {visible(repr(model_dir), 80)}")
    corpus = (data if isinstance(data, Corpus) else Corpus(data)).only_held_out()
    _check(limit=limit, max_length=max_length, batch_tokens=batch_tokens)
    _exact(subsets, corpus)
    check_folder(model_dir)  # What is wrong is told before the weights, which may take a minute, are read.
    max_length_of(positions_of(read_config(model_dir)), max_length)
    tokenizer = load_tokenizer(model_dir)
    prefix_token(prefix, tokenizer, None)
    lm = load_causal_lm(model_dir)
    check_vocabulary(lm.model, tokenizer, str(model_dir))
    return score_corpus(
        lm,
        tokenizer,
        corpus,
        subsets=subsets,
        limit=limit,
        max_length=max_length,
        prefix=prefix,
        batch_tokens=batch_tokens,
        on_error=on_error,
        advance=advance,
        model_dir=model_dir,
    )


def score_corpus(
    lm: CausalLM,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    prefix: str | int = "auto",
    batch_tokens: int = BATCH_TOKENS,
    on_error: OnError = "raise",
    advance: Callable[[int], None] = ignore,
    model_dir: str | Path | None = None,
    share: Share = one_by_one,
) -> BitsPerByte:
    """The same for a model in memory, in its own precision, on all shards of `corpus`.

    The model is afterwards as it was before: in training, if it was, and no random number is drawn. `model_dir` is
    where the protocol says it came from, and `share` who makes the forward passes (see `score_documents`).
    """
    _check(limit=limit, max_length=max_length, batch_tokens=batch_tokens)
    exact = _exact(subsets, corpus)
    rules = Rules(
        max_length_of(lm.max_length, max_length), str(prefix), prefix_token(prefix, tokenizer, lm), exact, limit
    )
    described = protocol(lm, tokenizer, corpus, rules, model_dir)
    credit = _Credit(advance)
    skipped = SkippedLines()
    documents = _documents(corpus, tokenizer, rules, on_error, skipped, credit)
    sums: dict[str, Score] = {}
    was_training = lm.model.training
    lm.model.train(False)
    try:
        for document in score_documents(
            lm,
            documents,
            prefix=rules.prefix_id,
            max_length=rules.max_length,
            batch_tokens=batch_tokens,
            scored=credit.scored,
            share=share,
        ):
            sums[document.subset] = _plus(sums.get(document.subset, Score()), document)
    finally:
        documents.close()
        lm.model.train(was_training)
    credit.all()
    if not sums:
        raise PilekitError(_nothing_selected(corpus, exact))
    for name in exact or ():
        if name not in sums:
            logger.warning("no documents of %s in %s", visible(name, 80), visible(corpus.root, 200))
    if skipped.count:
        lines = "1 bad line" if skipped.count == 1 else f"{skipped.count:,} bad lines"
        logger.warning("skipped %s, the first: %s", lines, visible(str(skipped.examples[0]), 500))
    described["skipped_lines"] = skipped.count
    known = (subset.name for subset in corpus.manifest.subsets if subset.name in sums)
    return BitsPerByte(total(sums.values()), {name: sums[name] for name in dict.fromkeys((*known, *sums))}, described)


def _documents(
    corpus: Corpus, tokenizer: Tokenizer, rules: Rules, on_error: OnError, skipped: SkippedLines, credit: _Credit
) -> Generator[TokenizedDocument, None, None]:
    tokenize = Tokenize(tokenizer)
    first = _FirstDocuments(corpus, rules)
    for shard in corpus.shards:
        with read(shard, rules.subsets, on_error, manifest=corpus.manifest, advance=credit.read) as reader:
            for batch in map(first.of, reader):
                credit.scored(0)
                sizes = batch.text_bytes().tolist()
                for tokens in tokenize(iter([batch])):
                    for i, (begin, end) in enumerate(zip(tokens.offsets, tokens.offsets[1:], strict=False)):
                        yield TokenizedDocument(
                            shard.name, int(tokens.numbers[i]), tokens.subsets[i], sizes[i], tokens.ids[begin:end]
                        )
                if first.are_all_there:
                    break
            skipped.merge(reader.skipped)
        if first.are_all_there:
            return


class _FirstDocuments:
    """Takes the first `limit` documents of each subset; counts what it takes."""

    def __init__(self, corpus: Corpus, rules: Rules) -> None:
        self.limit = rules.limit
        known = [subset.name for subset in corpus.manifest.subsets]
        self.taken = dict.fromkeys(known if rules.subsets is None else rules.subsets, 0)
        self.most = len(self.taken) + MAX_SUBSETS
        self.ends = self.limit is not None and bool(self.taken)

    def of(self, batch: DocumentBatch) -> DocumentBatch:
        keep = []
        for subset in batch.subsets:
            taken = self.taken.get(subset, 0)
            keep.append(self.limit is None or taken < self.limit)
            self.taken[subset] = taken + keep[-1]
        if len(self.taken) > self.most:
            raise too_many_subsets(MAX_SUBSETS)
        return batch.where(keep)

    @property
    def are_all_there(self) -> bool:
        return self.ends and all(taken == self.limit for taken in self.taken.values())


class _Credit:
    """Tells how many stored bytes have been dealt with: read and scored, where reading is far ahead of scoring.

    A small shard is read whole before its first token is scored. So a scored token counts for as many stored bytes as
    one usually takes, and what was read long ago for scored, whatever became of it.
    """

    BYTES_PER_TOKEN = 1.3
    READ_AHEAD = 4 << 20

    def __init__(self, advance: Callable[[int], None]) -> None:
        self.advance = advance
        self.bytes_read = self.told = self.tokens = 0

    def read(self, amount: int) -> None:
        self.bytes_read += amount  # the decoding thread's only act here: what is due is told by the other alone

    def scored(self, tokens: int) -> None:
        self.tokens += tokens
        due = max(int(self.tokens * self.BYTES_PER_TOKEN), self.bytes_read - self.READ_AHEAD)
        self._tell(min(due, self.bytes_read))

    def all(self) -> None:
        self._tell(self.bytes_read)

    def _tell(self, due: int) -> None:
        if due > self.told:
            self.advance(due - self.told)
            self.told = due


def _plus(score: Score, document: ScoredDocument) -> Score:
    return Score(
        score.documents + 1, score.bytes + document.bytes, score.tokens + document.tokens, score.nll + document.nll
    )


def _check(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and (type(value) is not int or value < 1):
            raise PilekitError(f"{name} is a whole number from 1 on, not {visible(repr(value), 40)}")


def _exact(subsets: Sequence[str] | None, corpus: Corpus) -> tuple[str, ...] | None:
    """The exact names of the subsets asked for; None: all."""
    if subsets is None:
        return None
    names = resolve_subsets(*([subsets] if isinstance(subsets, str) else subsets), manifest=corpus.manifest)
    if not names:
        raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
    return names


def _nothing_selected(corpus: Corpus, subsets: tuple[str, ...] | None) -> str:
    which = "" if subsets is None else f" of {visible(', '.join(subsets), 400)}"
    shards = "one shard" if len(corpus.shards) == 1 else f"{len(corpus.shards):,} shards"
    return (
        f"no documents{which} in the {shards} of {visible(corpus.root)}, so there is nothing to "
        "score; `pilekit stats` shows what is in them"
    )
