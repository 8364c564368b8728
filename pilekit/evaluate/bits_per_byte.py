"""`bits_per_byte`: documents in, figures per subset out.

    select_documents -> this rank's, not recorded yet -> tokens -> score_documents -> records -> tabulate

The figures are a function of the records, and of nothing else: it is the same for them whether a document was scored
now or in an earlier run, alone or on one rank of many. Ranks share nothing while they score, and meet at the end; so
nobody waits for anybody until then, and what an interrupted run has recorded serves one on any number of ranks.

A document's bytes are those of its raw text as UTF-8, whatever a tokenizer's normaliser makes of it, and its text is
encoded as it stands: no token is added, none recognised in it. What is wrong with model, tokenizer, corpus, folder or
machine is told before the weights, which may take minutes, are read; where all is recorded, they never are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pilekit.corpus import Corpus, Manifest
from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.masked.model import load_masked_lm
from pilekit.evaluate.masked.pseudo_scoring import Template, pseudo_score_documents
from pilekit.evaluate.model.causal import CausalLM, check_vocabulary, load_causal_lm
from pilekit.evaluate.model.device import device_of
from pilekit.evaluate.progress import ScoringProgress
from pilekit.evaluate.protocol import MLM_SEED, Data, Prepared, check_counts, corpus_of, prepare, protocol, rules_of
from pilekit.evaluate.ranks import apart, ranks_of_job
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.result import BitsPerByte, write_result
from pilekit.evaluate.results.result_folder import held_folder, record_file, records_folder
from pilekit.evaluate.results.tabulate import tabulate
from pilekit.evaluate.score.causal_nll import ScoredDocument, Share, TokenizedDocument, ignore, score_documents
from pilekit.evaluate.select_documents import Recorded, dealt, selected, tokenized
from pilekit.evaluate.training_copies import count_training_copies
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.reader import OnError
from pilekit.tokenize import Tokenizer

logger = logging.getLogger(__name__)

MOST_OTHERS = 30
"""Labels in the protocol that the manifest does not know: what is of thousands is told by a few."""


def bits_per_byte(
    model_dir: str | Path,
    data: Data = None,
    *,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    context_len: int = 1,
    prefix: str | int = "auto",
    paper: bool = False,
    train: Data = None,
    mlm_sample: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    out: str | Path | None = None,
    on_error: OnError = "raise",
    advance: Callable[[int], None] = ignore,
) -> BitsPerByte:
    """Score a model in Hugging Face's format, with its own tokenizer, on a corpus.

    Returns a `BitsPerByte`: a `Score` for each subset that has documents, in `.subsets`, one over all in `.overall`
    (`.bpb` is the figure, `.interval` its 95 % interval), and in `.protocol` what the figures depend on. A masked model
    (BERT's and RoBERTa's kind) is recognised by its config.json; its figures are pseudo-bits per byte.

    model_dir      a folder with config.json, safetensors and tokenizer.json
    data           a path, glob or URL, several of them, a `Corpus`, or None for the default places. Where val or test
                   shards lie among others, only they are scored, and a warning names them
    subsets        only documents of these subsets, in any spelling the manifest knows; None: all
    limit          the first so many documents of each subset; None: all. Reading ends when all subsets asked for have
                   as many; else when all of the manifest, and all others met until then, have
    max_length     tokens in a window; None: as many as the model has positions, 2048 where it declares no limit
    context_len    inputs that a window behind the first has, at the least, for each token that it predicts. 1, disjoint
                   windows, is what published figures are made with; more gives lower figures at a higher cost
    prefix         what stands before a document's first token: "bos", "eos", a token's id, "auto" (BOS, else EOS), or
                   "none": then the first token is context only and not predicted, while its bytes count
    paper          figures as in the Pile's paper, by its fixed constants of tokens per byte
    train          training shards: documents whose text occurs in them are counted, in `.training_copies`
    mlm_sample     of a masked model's window only so many tokens, drawn at random, are scored; None: all
    dtype          "fp32", "bf16", "fp16", or "auto": fp32 on a CPU, on a GPU as the weights are stored
    device         "cpu", "cuda", "cuda:N", or "auto": a GPU where there is one
    batch_tokens   tokens in a forward pass: for speed and memory, the figures do not depend on it. None: what suits the
                   device. Where memory does not hold so many, fewer are taken, and a warning says so
    out            a folder for result.json and the record of every document, written as soon as it is scored: an
                   interrupted call goes on from there when it is made again, and one that was complete answers at once
    on_error       "raise": a bad line is a `PilekitError`; "skip": it is passed over, a warning tells how many were,
                   and so does "skipped_lines" in the protocol
    advance        called with each further amount of stored bytes dealt with

    Among several processes (torchrun, or a process group that stands) all must make the same call: documents are dealt
    to them, all get the same result, and the first writes it. PilekitError, on all of them, for anything wrong with the
    model, its tokenizer, the corpus or the folder, and if no document is selected.
    """
    ranks = ranks_of_job()
    placed = ranks.on_all_ranks(lambda: device_of(device, ranks))

    def check() -> Prepared:
        check_counts(limit=limit, max_length=max_length, batch_tokens=batch_tokens, context_len=context_len)
        check_counts(mlm_sample=mlm_sample)
        prepared = prepare(
            model_dir,
            data,
            dtype=dtype,
            device=placed,
            world_size=ranks.world_size,
            subsets=subsets,
            limit=limit,
            max_length=max_length,
            context_len=context_len,
            prefix=prefix,
            paper=paper,
            mlm_sample=mlm_sample,
        )
        if train is not None:
            corpus_of(train)  # that it is there; it is read at the end
        return prepared

    of = ranks.on_rank0(check)

    def load() -> CausalLM | _Masked:
        if of.template is None:
            lm = load_causal_lm(model_dir, dtype=of.dtype, device=placed)
            check_vocabulary(lm.model, of.tokenizer, str(model_dir))
            return lm
        return _Masked(load_masked_lm(model_dir, dtype=of.dtype, device=placed), of.template)

    with ExitStack() as held:
        recorded = Recorded(Records.of([], [shard.name for shard in of.corpus.shards], of.corpus.manifest))
        if out is not None:
            recorded = Recorded(ranks.on_rank0(lambda: _held(out, of, held)))
        labels: dict[str, None] = {}
        records, skipped = _score(
            load,
            of,
            recorded,
            ranks,
            batch_tokens=batch_tokens,
            out=out,
            on_error=on_error,
            advance=advance,
            labels=labels,
        )

        def finish() -> BitsPerByte:
            described = {
                **of.protocol,
                "skipped_lines": skipped.count,
                "labels": _told(labels, of.corpus.manifest),
                "records": None if out is None else of.key,
            }
            result = tabulate(records, described, of.corpus.manifest)
            _tell(records, of, skipped)
            for warning in result.warnings:
                logger.warning("%s", visible(warning, 1000))
            if train is not None:
                copies = count_training_copies(records, corpus_of(train), on_error=on_error)
                result = replace(result, training_copies=copies)
            if out is not None:
                write_result(result, out)
            return result

        return ranks.on_rank0(finish)


def score_corpus(
    lm: CausalLM,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    context_len: int = 1,
    prefix: str | int = "auto",
    batch_tokens: int | None = None,
    on_error: OnError = "raise",
    share: Share | None = None,
) -> BitsPerByte:
    """The same for a causal model in memory, in its own precision, on all shards of `corpus`; nothing is written.

    The model is afterwards as it was before: in training, if it was, and no random number is drawn. `share` says who
    makes the forward passes (see `score_documents`); it is for processes that each make this call, as training does.
    """
    check_counts(limit=limit, max_length=max_length, batch_tokens=batch_tokens, context_len=context_len)
    rules = rules_of(
        corpus,
        tokenizer,
        lm.model,
        lm.max_length,
        masked=False,
        subsets=subsets,
        limit=limit,
        max_length=max_length,
        context_len=context_len,
        prefix=prefix,
    )
    described = protocol(
        lm.model, tokenizer, corpus, rules, dtype=lm.model.dtype, device=lm.model.device.type, model_dir=None
    )
    of = Prepared(corpus, rules, tokenizer, lm.model.dtype, described, "", None)
    recorded = Recorded(Records.of([], [shard.name for shard in corpus.shards], corpus.manifest))
    was_training = lm.model.training
    lm.model.train(False)
    try:
        records, skipped = _score(
            lambda: lm, of, recorded, None, batch_tokens=batch_tokens, on_error=on_error, share=share
        )
    finally:
        lm.model.train(was_training)
    _tell(records, of, skipped)
    return tabulate(records, {**described, "skipped_lines": skipped.count, "records": None}, corpus.manifest)


@dataclass(frozen=True, slots=True)
class _Masked:
    lm: Any
    template: Template


def _held(out: str | Path, of: Prepared, held: ExitStack) -> Records:
    """The folder's records; the folder stays locked while `held` is open. Logs how many documents need no scoring."""
    recorded = held.enter_context(held_folder(out, of.key, of.protocol, of.corpus.manifest))
    if len(recorded):
        documents = "1 document is" if len(recorded) == 1 else f"{len(recorded):,} documents are"
        logger.warning("resuming: %s scored already, recorded in %s", documents, visible(str(out)))
    return recorded


def _score(
    load: Callable[[], CausalLM | _Masked],
    of: Prepared,
    recorded: Recorded,
    ranks: Ranks | None,
    *,
    batch_tokens: int | None,
    out: str | Path | None = None,
    on_error: OnError = "raise",
    advance: Callable[[int], None] = ignore,
    share: Share | None = None,
    labels: dict[str, None] | None = None,
) -> tuple[Records, SkippedLines]:
    """All records, those of `recorded` and of all ranks, which none of them has before all have scored theirs.

    load     the model, which is asked for if a document is to be scored
    ranks    None: this process scores all
    out      where records are written as they come; None: nowhere
    labels   gets those of all documents that are read; None: only documents of the subsets asked for are
    """
    rank, world_size = (0, 1) if ranks is None else (ranks.rank, ranks.world_size)
    names = [shard.name for shard in of.corpus.shards]
    manifest = of.corpus.manifest
    progress = ScoringProgress(advance, world_size)
    skipped = SkippedLines()

    def own(check: Callable[[], None]) -> Records:
        def scored(tokens: int) -> None:
            progress.scored(tokens)
            check()

        with ExitStack() as opened:
            batches = opened.enter_context(
                closing(selected(of.corpus, of.rules, on_error, skipped, progress.read, labels))
            )
            left = map(recorded.left_of, progress.passing(batches))
            documents = tokenized(dealt(left, rank, world_size), of.tokenizer)
            found = _scored(load, documents, of, batch_tokens, scored, share)
            if out is not None:
                append = opened.enter_context(record_file(records_folder(out, of.key) / f"records.{rank}.jsonl"))
                found = _written(found, append)
            return Records.of(found, names, manifest)

    parts = [own(lambda: None)] if ranks is None else ranks.gather(apart(ranks, own))
    progress.all()

    def all_of_them() -> Records:
        records = Records.joined([recorded.all_met(), *parts], manifest)
        if not len(records):
            raise PilekitError(_nothing_selected(of.corpus, of.rules.subsets))
        return records

    return all_of_them() if ranks is None else ranks.on_all_ranks(all_of_them), skipped


def _scored(
    load: Callable[[], CausalLM | _Masked],
    documents: Iterable[TokenizedDocument],
    of: Prepared,
    batch_tokens: int | None,
    scored: Callable[[int], None],
    share: Share | None,
) -> Iterator[ScoredDocument]:
    documents = iter(documents)
    first = next(documents, None)
    if first is None:
        return
    lm, rules = load(), of.rules
    documents = chain([first], documents)
    if isinstance(lm, _Masked):
        yield from pseudo_score_documents(
            lm.lm,
            documents,
            template=lm.template,
            max_length=rules.max_length,
            sample=rules.mlm_sample,
            seed=MLM_SEED,
            batch_tokens=batch_tokens,
            scored=scored,
        )
    else:
        yield from score_documents(
            lm,
            documents,
            prefix=rules.prefix_id,
            max_length=rules.max_length,
            context_len=rules.context_len,
            batch_tokens=batch_tokens,
            scored=scored,
            share=share,
        )


def _written(documents: Iterable[ScoredDocument], append: Callable[[ScoredDocument], None]) -> Iterator[ScoredDocument]:
    for document in documents:
        append(document)
        yield document


def _told(labels: Iterable[str], manifest: Manifest) -> list[str]:
    """Of the labels met all that the manifest knows, in its order, and the first few others."""
    known = [subset.name for subset in manifest.subsets]
    met = set(labels)
    return [name for name in known if name in met] + [name for name in labels if name not in known][:MOST_OTHERS]


def _tell(records: Records, of: Prepared, skipped: SkippedLines) -> None:
    """Warn of what the figures do not show: subsets and labels that are not there, lines that were skipped."""
    corpus = of.corpus
    for name in of.rules.subsets or ():
        if name not in records.subsets:
            logger.warning("no documents of %s in %s", visible(name, 80), visible(corpus.root, 200))
    known = {subset.name for subset in corpus.manifest.subsets}
    for place, shard in enumerate(corpus.shards):
        labels = {records.subsets[code] for code in set(records.subset[records.shard == place].tolist())}
        if known and labels and not labels & known:
            logger.warning(
                "%s: has no label that the manifest %s knows, only %s; if labels are elsewhere in its records, give a "
                "manifest that says where",
                visible(shard.name, 200),
                visible(corpus.manifest.name, 60),
                visible(", ".join(sorted(labels)[:3]), 200),
            )
    if skipped.count:
        lines = "1 bad line" if skipped.count == 1 else f"{skipped.count:,} bad lines"
        logger.warning("skipped %s, the first: %s", lines, visible(str(skipped.examples[0]), 500))


def _nothing_selected(corpus: Corpus, subsets: tuple[str, ...] | None) -> str:
    which = "" if subsets is None else f" of {visible(', '.join(subsets), 400)}"
    shards = "one shard" if len(corpus.shards) == 1 else f"{len(corpus.shards):,} shards"
    return (
        f"no documents{which} in the {shards} of {visible(corpus.root)}, so there is nothing to "
        "score; `pilekit stats` shows what is in them"
    )
