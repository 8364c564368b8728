"""The trainer: raw shards in, a trained model out.

`Trainer.fit` is the whole loop, to be read from top to bottom. It rests on three rules. A step is one batch of the
stream, and its loss the mean over its target tokens, so how it is cut into micro-batches changes nothing. Whatever is
random in a step is drawn from (train.seed, step), so no state of a generator needs saving. And the stream is told of
each batch that is trained on, so its state after a step is where the next step's batch begins. Together they make
a run that was stopped and continued the same, bit for bit, as one that was not (with as many threads, which a
checkpoint records).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
import xxhash
from torch.nn.utils import clip_grad_norm_

from pilekit.errors import PilekitError, visible
from pilekit.evaluate.causal_lm import isolates_documents
from pilekit.stream import Batch
from pilekit.train.checkpoint import Checkpoints, Progress
from pilekit.train.config import TrainConfig, check
from pilekit.train.data import open_stream
from pilekit.train.export import export_model
from pilekit.train.failed_step import failed_step, is_out_of_memory
from pilekit.train.interrupt import first_interrupt
from pilekit.train.metrics import MetricsLog, StepMetrics
from pilekit.train.model import build_model, fingerprint
from pilekit.train.objectives import SubsetLosses, clm_loss, count_targets
from pilekit.train.optimizer import build_optimizer
from pilekit.train.precision import autocast
from pilekit.train.ranks import join
from pilekit.train.run_folder import RunFolder, check_start, open_run, take_config
from pilekit.train.schedule import learning_rate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finished:
    """What `fit` came to.

    step          optimizer steps done, those of earlier runs counted
    tokens        tokens trained on in them, padding not counted
    interrupted   whether Ctrl-C ended it; the same command goes on
    model         the model_dir, or None where steps are left
    last          the figures of the last step, or None if this call did none
    """

    step: int
    tokens: int
    interrupted: bool
    model: Path | None
    last: StepMetrics | None


@dataclass(frozen=True, slots=True)
class StepLosses:
    """The losses of one step: their mean, by subset, and one by one (float32 [rows, seq_len - 1])."""

    mean: float
    by_subset: SubsetLosses
    nll: torch.Tensor


class Trainer:
    """Trains the model of a config on the shards of the config, in one process, into the run folder `out`.

    The constructor reads the config, finds the shards, loads the tokenizer and builds the model; what is wrong with any
    of them is a PilekitError, and nothing has been written. `fit` trains. A GPU is used where there is one.
    """

    def __init__(self, config: TrainConfig, out: str | Path) -> None:
        check(config)
        data = config.data
        self.config = config
        self.out = Path(out)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.stream = open_stream(config)
        self.tokenizer = self.stream.tokenizer
        self.lm = build_model(config.model, self.tokenizer, seq_len=data.seq_len, seed=config.train.seed)
        torch.nn.Module.to(self.lm.model, self.device)  # transformers' own `to` has lost its types
        if data.attention == "document" and not isolates_documents(self.lm):
            raise PilekitError(
                f"a {visible(self.lm.model.config.model_type, 60)} model does not keep the documents of a row apart; "
                'set data.attention = "causal"'
            )
        self.optimizer = build_optimizer(self.lm.model, config.optimizer)
        self._place = self.stream.state_dict()
        if config.precision.dtype == "fp16":
            raise PilekitError('precision.dtype = "fp16": this trainer cannot scale a loss yet; use "bf16"')

    def fit(self, on_step: Callable[[StepMetrics], None] | None = None) -> Finished:
        """Train up to `train.steps`, from the run's newest checkpoint if there is one, and write `model/`.

        `on_step` is called after every step. Ctrl-C ends the step, saves it and returns. A loss or a gradient that is
        not a number is a PilekitError that names the step and its documents.
        """
        train, steps, optimizer = self.config.train, self.config.steps, self.optimizer
        metrics = None
        with open_run(self.out) as run, first_interrupt() as interrupted, closing(iter(self.stream)) as batches:
            step, tokens = self._begin(run)
            saved = step
            with MetricsLog(run.metrics_file, resume_step=step) as log:
                try:
                    while step < steps and not interrupted():
                        started = time.perf_counter()
                        batch = next(batches)
                        self.stream.advance(batch)
                        waited = time.perf_counter() - started

                        lr = self._learning_rate(step)
                        for group in optimizer.param_groups:
                            group["lr"] = lr * group["lr_scale"]
                        torch.manual_seed(seed_of_step(train.seed, step))
                        losses = self._accumulate_gradients(batch)
                        grad_norm = float(clip_grad_norm_(self.lm.model.parameters(), train.clip_norm))
                        if not math.isfinite(losses.mean) or not math.isfinite(grad_norm):
                            raise failed_step(run, step + 1, losses.mean, grad_norm, lr, batch, losses.nll)
                        optimizer.step()
                        optimizer.zero_grad()

                        seen = int((batch["doc_ids"] >= 0).sum())
                        step, tokens, self._place = step + 1, tokens + seen, self.stream.state_dict()
                        seconds = time.perf_counter() - started
                        metrics = StepMetrics(
                            step=step,
                            loss=losses.mean,
                            loss_by_subset=losses.by_subset.by_name(self.stream.subset_names),
                            lr=lr,
                            grad_norm=grad_norm,
                            tokens=tokens,
                            tokens_per_second=seen / seconds,
                            data_wait=waited / seconds,
                            step_seconds=seconds,
                        )
                        if step % self.config.log.every == 0 or step == steps:
                            log.write(metrics)
                        if on_step is not None:
                            on_step(metrics)
                        if step % self.config.checkpoint.every == 0:
                            self._save(run, step, tokens)
                            saved = step
                except PilekitError:
                    with suppress(PilekitError):  # the step that failed has changed nothing; what it says counts
                        if step > saved:
                            self._save(run, step, tokens)
                    raise
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    raise PilekitError(
                        f"step {step + 1}: out of memory; lower train.micro_batch_size or data.seq_len"
                    ) from error
            if step > saved:
                self._save(run, step, tokens)
            if step < steps:
                return Finished(step, tokens, interrupted=True, model=None, last=metrics)
            if metrics is not None or not run.model.exists():
                export_model(run.model, self.lm, self.tokenizer)
            return Finished(step, tokens, interrupted=False, model=run.model, last=metrics)

    def _learning_rate(self, step: int) -> float:
        config = self.config
        return learning_rate(step, steps=config.steps, lr=config.optimizer.lr, schedule=config.schedule)

    def _accumulate_gradients(self, batch: Batch) -> StepLosses:
        """Add up, micro-batch by micro-batch, the gradients of the mean loss over all target tokens of the batch."""
        targets = count_targets(batch)
        if targets == 0:
            raise PilekitError("none of the step's rows has a token to predict; are there only empty documents?")
        by_subset, nlls = SubsetLosses(), []
        size = self.config.train.micro_batch_size
        for first in range(0, len(batch["input_ids"]), size):
            rows = {name: column[first : first + size].to(self.device) for name, column in batch.items()}
            with autocast("bf16" if self.config.precision.dtype == "bf16" else "fp32", self.device):
                loss, nll = clm_loss(self.lm, rows, attention=self.config.data.attention, scale=1 / targets)
            loss.backward()  # type: ignore[no-untyped-call]
            by_subset.add(nll, rows)
            nlls.append(nll)
        nll = torch.cat(nlls)
        return StepLosses(float(nll.double().sum()) / targets, by_subset, nll)

    def _begin(self, run: RunFolder) -> tuple[int, int]:
        """(steps, tokens) done so far; weights, optimizer and stream are put where they were then."""
        self.optimizer.zero_grad()
        checkpoints = self._checkpoints(run)
        checkpoint = checkpoints.newest()
        check_start(run, self.config)
        if checkpoint is None:
            if self.optimizer.state:
                raise PilekitError("this Trainer has trained already, and nothing of it was saved; make a new one")
            take_config(run, self.config, None)
            return 0, 0
        done = checkpoints.load(checkpoint, self.lm.model, self.optimizer)
        if done.model != fingerprint(self.lm.model):
            raise PilekitError(
                f"{visible(str(run.path))}: its checkpoint is of a model of another configuration; put the "
                "config.json back that it was begun with, or name another folder with --out"
            )
        try:
            self.stream.load_state_dict(done.stream)
        except PilekitError as error:
            raise PilekitError(
                f"{visible(str(run.path))}: cannot go on with other data ({error}); give [data] as it was, or name "
                "another folder with --out"
            ) from error
        self._place = done.stream
        take_config(run, self.config, checkpoint)
        if done.threads != torch.get_num_threads():
            logger.warning("computing with %d threads, as the checkpoint was made with, to go on exactly", done.threads)
            torch.set_num_threads(done.threads)
        return done.step, done.tokens

    def _save(self, run: RunFolder, step: int, tokens: int) -> None:
        if not all(bool(parameter.isfinite().all()) for parameter in self.lm.model.parameters()):
            raise PilekitError(
                f"step {step}: the weights are no longer numbers and are not saved; lower optimizer.lr or lengthen "
                "schedule.warmup, and run again"
            )
        progress = Progress(step, tokens, self._place, torch.get_num_threads(), fingerprint(self.lm.model))
        self._checkpoints(run).save(self.lm.model, self.optimizer, progress, msgspec.to_builtins(self.config))

    def _checkpoints(self, run: RunFolder) -> Checkpoints:
        keep_last = self.config.checkpoint.keep_last
        return Checkpoints(run.checkpoints, run.latest_file, join(), keep_last=keep_last, asynchronous=False)


def seed_of_step(seed: int, step: int) -> int:
    """What torch's generators are seeded with for `step` (from 0): any two steps and seeds are unrelated."""
    return xxhash.xxh3_64_intdigest(f"{seed} {step}".encode())
