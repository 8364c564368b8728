"""The trainer: raw shards in, a trained model out, on one process or many.

`Trainer.fit` is the whole loop, `_step` launches one step, and `_record` records it. Read them from top to bottom. They
rest on five rules:

1. A step is one batch of the stream on each rank, and its loss is the mean over all their target tokens. So the number
   of ranks and micro-batches changes nothing but rounding.
2. Every random number of a step is drawn from (train.seed, step, rank). So no generator's state needs saving.
3. The stream's state is recorded after each batch that was trained on: the next step's batch begins there.
4. If one rank fails or is asked to stop, all ranks hear of it in the same step.
5. Nothing in a step waits for the device. Whether a step moves the weights is decided there (step/step_engine.py), and
   its figures are read while the next step's gradient is computed. The next update comes after that. So the weights are
   still those of the step that is recorded, and a step that failed has left them as they were. A step whose state is
   saved or measured is recorded before the next begins.

Together they make a run that was stopped and resumed equal, bit for bit, to a run that never stopped. This holds for
the same number of ranks and threads, which a checkpoint records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from msgspec import UNSET, UnsetType
from transformers import PreTrainedModel

from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError
from pilekit.stream.batch.batch import Batch
from pilekit.stream.pile_stream import PileStream
from pilekit.train.backends import build_engine, check_backend
from pilekit.train.checkpoint.saving import Checkpoints
from pilekit.train.config.backend_file import backend_settings
from pilekit.train.config.check import check_model
from pilekit.train.config.file import load_config
from pilekit.train.config.sections import TrainConfig
from pilekit.train.data import open_batches, open_stream
from pilekit.train.evaluation import held_out_score, open_held_out
from pilekit.train.launch.environment import adopt_slurm
from pilekit.train.launch.interrupt import first_interrupt
from pilekit.train.log.alerts import against_waiting
from pilekit.train.log.logs import check_viewers, open_logs
from pilekit.train.log.metrics import StepBitsPerByte, StepMetrics, step_memory
from pilekit.train.log.mfu import full_speed
from pilekit.train.log.peek import inspect_step_command
from pilekit.train.log.profile import Profile, part
from pilekit.train.log.samples import open_prompts, open_samples
from pilekit.train.model.attention import with_attention
from pilekit.train.model.build import build_models
from pilekit.train.model.export import export_run
from pilekit.train.open_run import LaunchedStep, OpenRun, Request
from pilekit.train.run_folder import open_run
from pilekit.train.step.arriving import Arriving, Moment
from pilekit.train.step.failed_step import FailedStep, explaining_errors, failed_step
from pilekit.train.step.losses import count_targets, step_sums
from pilekit.train.step.optimizer import rates_by_group
from pilekit.train.step.schedule import learning_rate
from pilekit.train.step.step_engine import NO_UPDATE, Update
from pilekit.train.training_state import TrainingState
from pilekit.workers.ranks import join


@dataclass(frozen=True, slots=True)
class TrainResult(NearestNames):
    """The result of `fit`.

    step          optimizer steps done, including those of earlier starts
    tokens        tokens trained on in these steps, without padding
    interrupted   whether Ctrl-C or SIGTERM ended it; the same command resumes
    model         the model_dir, or None if steps are left. With `[lora]` but not lora.merge, the folder of adapters
    last          the figures of the last step, or None if this call did none
    """

    step: int
    tokens: int
    interrupted: bool
    model: Path | None
    last: StepMetrics | None


class Trainer(NearestNames):
    """Trains the model of a config on its shards, as one rank of the job, and writes into the run folder `out`.

    `ranks.join` finds the rank: alone, under torchrun, or in a process group that exists already. All ranks make the
    same calls. The constructor finds the shards, loads the tokenizer, and builds and shards the model. Any error there
    is a PilekitError on all ranks, with nothing written. `fit` trains.

    model   a causal (or, with "mlm", masked) model of `transformers`, for a config without `[model]`. Training changes
            a copy in float32, not the object. The other ranks get rank 0's weights. Frozen parameters stay frozen
    """

    def __init__(
        self, config: TrainConfig, out: str | Path = "runs/run", *, model: PreTrainedModel | None = None
    ) -> None:
        check_model(config := load_config(config), model)
        adopt_slurm()
        self.ranks = ranks = join()
        ranks.on_all_ranks(lambda: check_backend(config, ranks.device))
        ranks.on_all_ranks(lambda: backend_settings(config, ranks.world_size))
        ranks.on_rank0(lambda: check_viewers(config))
        self._steps = config.steps
        self.out = Path(out)
        streams: list[PileStream] = []  # rank 0 comes first: it builds missing indexes
        ranks.on_rank0(lambda: streams.append(open_stream(config)))
        self.stream = ranks.on_all_ranks(lambda: streams[0] if streams else open_stream(config))
        self.tokenizer = self.stream.tokenizer
        self.held_out = ranks.on_all_ranks(lambda: open_held_out(config))
        self.prompts = ranks.on_rank0(lambda: open_prompts(config, self.tokenizer))
        lm, teacher = build_models(config, config.source if model is None else model, self.tokenizer, ranks)
        self._full_speed = full_speed(lm.model, config.data.seq_len, config.precision.dtype, ranks)
        self.engine = build_engine(lm, config, ranks, teacher)
        self.config = config = with_attention(config, self.engine.attention)
        self.state = TrainingState(self.engine, self.stream, config, is_object=model is not None)

    def __repr__(self) -> str:
        return f"Trainer({str(self.out)!r}, {self.stream!r})"

    def fit(self, on_step: Callable[[StepMetrics], None] | None = None) -> TrainResult:
        """Train up to the config's steps, from the run's newest checkpoint if there is one, and write `model/`.

        `on_step` is called after every step, on every rank. If it raises a PilekitError on any rank, all ranks raise.
        Ctrl-C, SIGTERM and SIGHUP finish the step, save it and return. If a loss or a gradient is not a number, a
        PilekitError names the step and its documents.
        """
        config, ranks, state = self.config, self.ranks, self.state
        with first_interrupt() as interrupted, self._open_run(interrupted, on_step) as run:
            while run.launched or (not self._request(run) and state.progress.step < self._steps):
                with run.profile.step(state.launched.step + 1):
                    self._step(run)
            if state.progress.step > state.saved:
                state.save()

            is_finished = state.progress.step >= self._steps  # a run may have more steps than its new config
            model = run.folder.adapter if config.lora.rank and not config.lora.merge else run.folder.model
            if is_finished and (run.metrics or not ranks.on_rank0(model.exists)):
                export_run(run.folder, self.engine, self.tokenizer, config)
            run.checkpoints.finish()
        return TrainResult(
            step=state.progress.step,
            tokens=state.progress.tokens,
            interrupted=not is_finished,
            model=model if is_finished else None,
            last=run.metrics,
        )

    @contextmanager
    def _open_run(
        self, interrupted: Callable[[], bool], on_step: Callable[[StepMetrics], None] | None
    ) -> Iterator[OpenRun]:
        """Lock the run's folder, load its newest checkpoint, and open its records, until the block ends.

        If the block raises a PilekitError, the steps before it are saved.
        """
        config, ranks, state = self.config, self.ranks, self.state
        with ExitStack() as opened:
            folder = ranks.on_rank0(lambda: opened.enter_context(open_run(self.out, config)))
            checkpoints = Checkpoints(folder.checkpoints, ranks, config.checkpoint)
            opened.callback(checkpoints.close)
            batches = opened.enter_context(closing(open_batches(self.stream, config)))
            opened.enter_context(explaining_errors(ranks))
            state.begin(folder, checkpoints)

            def peek(step: int) -> str:
                return inspect_step_command(config, self.stream, step, checkpoints.before(step))

            step = state.progress.step
            remedy = against_waiting(self.stream)
            log = opened.enter_context(open_logs(folder, config, ranks, remedy, peek, step))
            sample = opened.enter_context(open_samples(folder, config, self.engine, self.tokenizer, self.prompts, step))
            profile = opened.enter_context(Profile(folder.path / "profile", config, ranks, remedy))
            try:
                yield OpenRun(interrupted, on_step, folder, checkpoints, batches, peek, profile, sample, log)
            except PilekitError:
                state.save_before_raising()
                raise

    def _step(self, run: OpenRun) -> None:
        """Launch a step on the next batch, and record the step before it meanwhile. None of it waits for the device."""
        config, ranks, engine, state = self.config, self.ranks, self.engine, self.state
        began = Moment(ranks.device)
        try:
            with part("data"):
                batch, targets, tokens = self._next(run.batches)
        except PilekitError:
            if self._stops_before(run):
                return
            raise
        fed = Moment(ranks.device)

        # The gradient of the mean loss over all ranks' targets.
        torch.manual_seed(seed_of_step(config.train.seed, state.launched.step, ranks.rank))
        scale = [engine.loss_scale.value] if engine.loss_scale else []
        nll = self._accumulate_gradients(batch, targets)
        figures = Arriving([nll, *scale], ranks.device)
        memory, compilations = step_memory(ranks.device), engine.compilations.take() if engine.compilations else 0
        computed = Moment(ranks.device)

        # The step before is now complete, or will soon be.
        if self._stops_before(run):
            engine.drop_gradient()
            return

        # The update. If a loss or the gradient is not a number, the device leaves everything as it is.
        before = state.progress
        taken = before.step - before.skipped
        lr = learning_rate(taken, steps=self._steps, lr=config.optimizer.lr, schedule=config.schedule)
        with part("checkpoint"):
            run.checkpoints.before_update()
        resumed = Moment(ranks.device)
        state.launch(tokens)
        update = engine.update(lr, nll, is_first=taken == 0) if targets else NO_UPDATE
        moments = began, fed, computed, resumed, Moment(ranks.device)
        run.launched = LaunchedStep(batch, targets, tokens, figures, lr, update, moments, memory, compilations)
        if isinstance(update, Update) or run.is_ending or self._is_needed_alone(state.launched.step):
            self._record(run)

    def _is_needed_alone(self, step: int) -> bool:
        """Whether the state after `step` is saved, measured or sampled, so that no later step may have begun."""
        config = self.config
        saved, sampled = step % config.checkpoint.every == 0, self.prompts and step % config.log.samples_every == 0
        return bool(step == self._steps or saved or sampled or self._is_measured(step))

    def _is_measured(self, step: int) -> bool:
        return self.held_out is not None and (step % self.config.train.eval_every == 0 or step == self._steps)

    def _stops_before(self, run: OpenRun) -> bool:
        """Record the step before the present one, if it is not yet. Whether the run then ends without the present step.

        A request to stop that came while the present step was launched lets it finish.
        """
        is_finishing = run.interrupted()
        if run.launched is not None:
            self._record(run)
        request = self._request(run, is_finishing=is_finishing)
        run.is_ending = request is Request.LAST_STEP
        return request is Request.STOP

    def _record(self, run: OpenRun) -> None:
        """Read the figures of the launched step, record them, and save it if it is time. Raises if the step failed."""
        config, ranks, engine, state = self.config, self.ranks, self.engine, self.state
        assert run.launched is not None
        this, run.launched = run.launched, None
        nll, *scales = this.figures.read()
        update = this.update.result()
        began, fed, computed, resumed, ended = this.moments
        ended.wait()
        waited, seconds = fed.since(began), computed.since(began) + ended.since(resumed)
        scale = float(scales[0]) if scales else None
        names, documents = self.stream.subset_names, state.launched_documents()
        sums = step_sums(ranks, nll, this.batch, names, waited, this.memory, documents)
        if update.skipped and this.targets and (update.at_floor or not scale):
            engine.drop_gradient()
            state.cancel()
            state.save_before_raising()
            number = state.progress.step + 1
            failed = FailedStep(number, sums.loss, update.grad_norm, this.lr, scale, this.batch, nll, run.peek(number))
            raise failed_step(run.folder, ranks, failed)
        state.advance(this.batch, skipped=update.skipped)
        step = state.progress.step

        # A resumed run would never write these records, so an error of one does not keep the others from being
        # written, and the step is saved before the error is raised.
        bpb: StepBitsPerByte | UnsetType = UNSET
        if self.held_out is not None and self._is_measured(step):
            with run.postponing():
                bpb = held_out_score(engine, self.tokenizer, self.held_out, config)
        speed = this.tokens / seconds
        run.metrics = StepMetrics(
            step=step,
            loss=sums.loss if math.isfinite(sums.loss) else None,
            loss_by_subset=sums.by_subset,
            epochs_by_subset=self.stream.epochs_of(sums.documents) or UNSET,
            lr=this.lr,
            lr_by_group=rates_by_group(engine.optimizer, this.lr),
            grad_norm=None if update.skipped else update.grad_norm,
            update_norm=update.update_norm,
            tokens=state.progress.tokens,
            padding=1 - this.tokens / (self.stream.global_batch_size * self.stream.seq_len),
            tokens_per_second=speed,
            data_wait=min(1.0, sums.waited / seconds),
            step_seconds=seconds,
            memory_bytes=max(sums.memory.get("GPU", sums.memory["CPU"])),
            mfu=None if self._full_speed is None else speed / self._full_speed,
            compilations=this.compilations,
            loss_scale=scale,
            skipped=state.progress.skipped,
            bpb=bpb,
        )
        if self.prompts:
            with run.postponing():
                run.sample(step)
        with run.postponing():
            run.log(run.metrics, sums.memory)
            if run.on_step is not None:
                run.on_step(run.metrics)

        with part("checkpoint"):
            run.checkpoints.poll()
            if step % config.checkpoint.every == 0:
                state.save()

    def _request(self, run: OpenRun, *, is_finishing: bool = False) -> Request:
        """What any rank asks of all. If a rank failed while it recorded its last step, all raise that error."""
        own = Request.RAISE if run.failure else Request.NOTHING
        if run.failure is None and run.interrupted():
            own = Request.LAST_STEP if is_finishing else Request.STOP
        request = Request(self.ranks.all_max(own))
        if request is Request.RAISE:
            self.ranks.on_all_ranks(lambda: _raise(run.failure))
        return request

    def _next(self, batches: Iterator[Batch]) -> tuple[Batch, int, int]:
        """This rank's batch of the next step, and the number of targets and tokens of all ranks' batches.

        A step may have no target, as with documents of one token.
        """
        batch = error = None
        counts = [0, 0, 1]  # targets, tokens, and whether this rank has no batch
        try:
            batch = next(batches)
            counts = [count_targets(batch, self.config.train.objective), int((batch["doc_ids"] >= 0).sum()), 0]
        except PilekitError as raised:
            error = raised
        targets, tokens, failures = map(int, self.ranks.sum(torch.tensor(counts, dtype=torch.float64)).tolist())
        if failures:
            self.ranks.on_all_ranks(lambda: _raise(error))
        assert batch is not None
        return batch, targets, tokens

    def _accumulate_gradients(self, batch: Batch, targets: int) -> torch.Tensor:
        """Add up, micro-batch by micro-batch, the gradient of the mean loss over all `targets` of the step.

        Returns the losses of this rank's targets, float32, as `StepLoss` gives them. If no rank has a target, nothing
        is computed and the result is empty.
        """
        if targets == 0:
            return torch.empty(len(batch["labels"]), 0)
        rows, size = len(batch["input_ids"]), self.config.train.micro_batch_size
        nlls = []
        for first in range(0, rows, size):
            micro_batch = {name: column[first : first + size] for name, column in batch.items()}
            last = first + size >= rows
            nlls.append(self.engine.forward_backward(micro_batch, scale=self.ranks.world_size / targets, last=last))
        return torch.cat(nlls)


def seed_of_step(seed: int, step: int, rank: int = 0) -> int:
    """The seed of torch's generators for `step` (from 0) on a rank. Any two seeds are unrelated."""
    return xxhash.xxh3_64_intdigest(f"{seed} {step} {rank}".encode() if rank else f"{seed} {step}".encode())


def _raise(error: PilekitError | None) -> None:
    if error is not None:
        raise error
