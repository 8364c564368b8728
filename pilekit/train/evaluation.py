"""Bits per byte during training: the same figures as `pilekit bpb`, on any number of ranks.

Every rank reads and tokenizes the held-out documents, which costs little, and forms the same batches of windows as a
single process. Only the forward passes are divided: in each round, every rank computes one of the next batches. A batch
is the same on whichever rank it runs, so no figure depends on the number of ranks. Batches hold about the same number
of tokens, so ranks wait little for each other.

With sharded parameters, a forward pass gathers them from all ranks, so all ranks must make the same number of passes. A
rank without a batch in the last round repeats the last batch, and its result is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError, message_logger
from pilekit.evaluate.bits_per_byte import score_corpus
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.score.batching import Float64, Forward, Passes, Windows
from pilekit.evaluate.settings import ScoreSettings
from pilekit.models.causal import CausalLM
from pilekit.shards.read.reader import OnError
from pilekit.stream.read.token_files import token_corpus
from pilekit.tokenize import Tokenizer
from pilekit.train.config.check import manifest_of, naming_field
from pilekit.train.config.sections import TrainConfig
from pilekit.train.log.metrics import StepBitsPerByte
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import Ranks, lost_rank

logger = message_logger(__name__)


def open_held_out(config: TrainConfig) -> Corpus | None:
    """The documents for `train.eval_every`: the shards of `train.eval_path`, or the val shards of `data.path`.

    None if nothing is measured, with a warning if `train.eval_path` is given. Raises PilekitError, naming the field, if
    there are no such shards.
    """
    train, data = config.train, config.data
    if not train.eval_every:
        if train.eval_path is not None:
            logger.warning("train.eval_path is not used, because train.eval_every is 0")
        return None
    manifest = manifest_of(data)
    with naming_field("data.path" if train.eval_path is None else "train.eval_path"):
        if train.eval_path is not None:
            return Corpus(train.eval_path, manifest).only_held_out()
        corpus = token_corpus(data.path, manifest) or Corpus(data.path, manifest)
    if not any(shard.split == "val" for shard in corpus.held_out):
        raise PilekitError(
            f"train.eval_every = {train.eval_every}: there are no val shards among those of data.path to measure on; "
            "name held-out shards with train.eval_path, or set train.eval_every = 0"
        )
    return corpus.split("val")


def evaluate(
    engine: StepEngine,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    limit: int | None = None,
    on_error: OnError = "raise",
) -> BitsPerByte:
    """`score_corpus` of the engine's model. All ranks take part and get the same figures.

    limit      the most documents of each subset that are scored; None scores all
    on_error   what a bad line does, as in `bits_per_byte`

    Training continues afterwards unchanged: no weight, gradient or random number is touched. Raises PilekitError on all
    ranks for a bad corpus, or if a loss is not finite.
    """
    assert isinstance(engine.lm, CausalLM), 'which "train.eval_every" needs'
    with engine.evaluating():
        passes = divide_passes(engine.ranks)
        settings = ScoreSettings(limit=limit, on_error=on_error)
        return score_corpus(engine.lm, tokenizer, corpus, settings, passes=passes)


def held_out_score(engine: StepEngine, tokenizer: Tokenizer, corpus: Corpus, config: TrainConfig) -> StepBitsPerByte:
    """The figures of `corpus` for the metrics of a step."""
    result = evaluate(engine, tokenizer, corpus, limit=config.train.eval_limit, on_error=config.data.on_error)
    subsets = {name: subset.bpb for name, subset in result.subsets.items()}
    return StepBitsPerByte(overall=result.overall.bpb, subsets=subsets)


def divide_passes(ranks: Ranks) -> Passes:
    """Divide forward passes among the ranks, and give all ranks all losses."""

    def passes(batches: Sequence[Windows], forward: Forward) -> Iterable[list[Float64]]:
        losses_of_rank: dict[int, list[Float64]] = {}
        for first in range(0, len(batches), ranks.world_size):
            number = first + ranks.rank
            try:
                losses = forward(batches[min(number, len(batches) - 1)])
            except PilekitError as error:
                raise (lost_rank(error.__cause__, ranks) if error.__cause__ else None) or error from error.__cause__
            losses_of_rank[number] = losses
        by_number = {number: losses for part in ranks.gather(losses_of_rank) for number, losses in part.items()}
        return [by_number[number] for number in range(len(batches))]

    return passes
