"""Samples during training: how the model continues a few prompts, every `log.samples_every` steps and after the last.

All ranks make the same forward passes, because parameters may be sharded, and rank 0 writes. The likeliest token is
taken, without dropout, and every generator of random numbers is put back, so a run is the same with and without
samples. The lines of a step are written before its checkpoint, and a resumed run drops the lines of later steps, as in
metrics.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.evaluate.generate import Prompt, continued, prompts_of
from pilekit.models.causal import CausalLM
from pilekit.stream.read.token_files import token_corpus
from pilekit.tokenize import Tokenizer
from pilekit.train.config.check import manifest_of, wrong
from pilekit.train.config.sections import TrainConfig
from pilekit.train.log.metrics import StepLog, StepSample
from pilekit.train.model.attention import uncompiled, use_attention
from pilekit.train.run_folder import RunFolder
from pilekit.train.step.step_engine import StepEngine

PROMPTS = 4
PROMPT_TOKENS = 32
NEW_TOKENS = 64


def open_prompts(config: TrainConfig, tokenizer: Tokenizer) -> list[Prompt]:
    """The prompts of a run, with their ids, if it makes samples. Raises PilekitError if no prompt fits."""
    data, log, most = config.data, config.log, config.data.seq_len - 2
    if not log.samples_every:
        return []
    if log.samples_prompts is not None:
        texts = [Prompt(text, tuple(tokenizer.encode_batch([text])[0].tolist())) for text in log.samples_prompts]
        if max(map(_length, texts)) > most:
            raise wrong("log.samples_prompts", log.samples_prompts, f"must have at most {most} tokens, as data.seq_len")
        return texts
    manifest, remedy = manifest_of(data), "give log.samples_prompts"
    if config.train.eval_path is None and token_corpus(data.path, manifest) is not None:
        raise wrong("log.samples_every", log.samples_every, f"token files have no text to begin with; {remedy}")
    corpus, tokens = Corpus(config.train.eval_path or data.path, manifest), max(1, min(PROMPT_TOKENS, most // 3))
    rules: dict[str, Any] = {"tokens": tokens, "per_subset": PROMPTS, "most": PROMPTS, "on_error": data.on_error}
    try:
        return prompts_of(corpus, tokenizer, subsets=data.subsets, **rules)
    except PilekitError as error:
        raise PilekitError(f"log.samples_every = {log.samples_every}: {error}; or {remedy}") from error


@contextmanager
def open_samples(
    run: RunFolder,
    config: TrainConfig,
    engine: StepEngine,
    tokenizer: Tokenizer,
    prompts: list[Prompt],
    step: int,
) -> Iterator[Callable[[int], None]]:
    """Yield a function that every rank calls after every step. The lines of steps after `step` are dropped.

    A PilekitError of a call may be raised on one rank alone.
    """
    ranks = engine.ranks
    logs: list[StepLog[StepSample]] = []

    def write(step: int) -> None:
        if not prompts or (step % config.log.samples_every and step != config.steps):
            return
        assert isinstance(engine.lm, CausalLM)
        room = config.data.seq_len - 1 - max(map(_length, prompts))
        with engine.evaluating(), _plain(engine, config):
            samples = continued(
                engine.lm,
                tokenizer,
                prompts,
                str(run.path),
                max_new_tokens=min(NEW_TOKENS, room),
                in_step=ranks.world_size > 1,
            )
        for log in logs:
            for sample in samples:
                log.write(StepSample(step=step, **sample.to_dict()))

    def begin() -> None:
        if prompts or run.samples_file.exists():
            logs.append(opened.enter_context(StepLog(run.samples_file, StepSample, resume_step=step)))

    with ExitStack() as opened:
        ranks.on_rank0(begin)
        yield write
        ranks.on_rank0(opened.close)


def _length(prompt: Prompt) -> int:
    return len(prompt.tokens or ())


@contextmanager
def _plain(engine: StepEngine, config: TrainConfig) -> Iterator[None]:
    """Inside: no compiled code, and attention that knows a cache."""
    model, fast = engine.lm.model, engine.attention
    with uncompiled(config):
        if fast == "sdpa":
            yield
            return
        use_attention(model, "sdpa")
        try:
            yield
        finally:
            use_attention(model, fast)
