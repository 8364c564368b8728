"""The trainer: raw shards in, a trained model out, on one process or many.

`Trainer.fit` is the whole loop; read it from top to bottom. It rests on four rules:

1. A step is one batch of the stream on each rank, and its loss is the mean over all their target tokens. So the number
   of ranks and micro-batches changes nothing but rounding.
2. Every random number of a step is drawn from (train.seed, step, rank). So no generator's state needs saving.
3. The stream's state is recorded after each batch that was trained on: the next step's batch begins there.
4. If one rank fails or is asked to stop, all ranks hear of it in the same step.

Together they make a run that was stopped and resumed equal, bit for bit, to a run that never stopped. This holds for
the same number of ranks and threads, which a checkpoint records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import torch
import xxhash
from transformers import PreTrainedModel

from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, message_logger, shortened, visible
from pilekit.models.causal import CausalLM, isolates_documents
from pilekit.models.masked import MaskedLM, keeps_documents_apart
from pilekit.stream.batch.batch import Batch
from pilekit.stream.pile_stream import PileStream
from pilekit.train.backends import build_engine, check_backend
from pilekit.train.checkpoint.manifest import Progress
from pilekit.train.checkpoint.saving import Checkpoints
from pilekit.train.config.backend_file import backend_settings
from pilekit.train.config.check import check_model
from pilekit.train.config.file import load_config, to_toml
from pilekit.train.config.sections import ModelConfig, TrainConfig
from pilekit.train.data import open_batches, open_stream
from pilekit.train.evaluation import evaluate, open_held_out
from pilekit.train.launch.environment import adopt_slurm
from pilekit.train.launch.interrupt import first_interrupt
from pilekit.train.log.alerts import MemoryGrowth, against_waiting
from pilekit.train.log.logs import open_logs
from pilekit.train.log.metrics import StepBitsPerByte, StepMetrics, step_memory
from pilekit.train.log.mfu import full_speed
from pilekit.train.log.peek import inspect_step_command
from pilekit.train.log.profile import Profile, part
from pilekit.train.log.samples import open_prompts, open_samples
from pilekit.train.log.viewers import check_viewers
from pilekit.train.model.build import build_model, build_on, fingerprint, model_shapes, use_attention
from pilekit.train.model.export import export_model
from pilekit.train.model.lora import merged
from pilekit.train.run_folder import AVERAGED, RunFolder, check_start, open_run, take_config
from pilekit.train.step.failed_step import explained, failed_step
from pilekit.train.step.losses import StepSums, count_targets
from pilekit.train.step.optimizer import rates_by_group
from pilekit.train.step.schedule import learning_rate
from pilekit.train.step.sharding import own_part
from pilekit.train.step.step_engine import Update
from pilekit.train.step.teacher import check_heads
from pilekit.workers.ranks import join

logger = message_logger(__name__)

NO_UPDATE = Update(grad_norm=math.nan, skipped=True)
"""The update of a step that has no token to predict, or whose loss is not a number."""


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
    """Trains the model of a config on its shards, as one rank of the job; writes into the run folder `out`.

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
        self.config = config
        self.out = Path(out)
        streams: list[PileStream] = []  # rank 0 comes first: it builds missing indexes
        ranks.on_rank0(lambda: streams.append(open_stream(config)))
        self.stream = ranks.on_all_ranks(lambda: streams[0] if streams else open_stream(config))
        self.tokenizer = self.stream.tokenizer
        self.held_out = ranks.on_all_ranks(lambda: open_held_out(config))
        self.prompts = ranks.on_rank0(lambda: open_prompts(config, self.tokenizer))
        objective, seq_len, seed = config.train.objective, config.data.seq_len, config.train.seed
        build = partial(build_model, tokenizer=self.tokenizer, seq_len=seq_len, seed=seed, objective=objective)
        source = config.source if model is None else model
        ranks.on_rank0(lambda: bool(model_shapes(config, self.tokenizer, source)))  # its errors; nothing is loaded
        lm = build_on(ranks, partial(build, source, lora=config.lora), config.lora)
        models = [lm]
        if config.teacher.path is not None:
            teacher = ModelConfig(path=config.teacher.path, adapter=config.teacher.adapter)
            models.append(build_on(ranks, partial(build, teacher, field="teacher.path")))
            ranks.on_rank0(lambda: check_heads(*models))
        for each in models if config.data.attention == "document" else ():
            if not ranks.on_rank0(partial(_keeps_documents_apart, each, seq_len)):
                raise ranks.error(
                    f"a {visible(each.model.config.model_type, 60)} model cannot keep the documents of a row apart; "
                    f'set data.attention = "{"row" if objective == "mlm" else "causal"}"'
                )
        self._full_speed = full_speed(lm.model, seq_len, config.precision.dtype, ranks)
        fast = config.model.attention_implementation
        if fast != "sdpa":
            ranks.on_all_ranks(lambda: use_attention(lm.model, fast))
        self.engine = build_engine(lm, config, ranks, *models[1:])
        if fast != "sdpa":
            self._try_attention(min(2, config.train.micro_batch_size))
        self._model = fingerprint(lm.model)
        self._is_given = model is not None
        self._has_trained = False

    def __repr__(self) -> str:
        return f"Trainer({str(self.out)!r}, {self.stream!r})"

    def _try_attention(self, rows: int) -> None:
        """Raise PilekitError unless the model computes on these ranks, and keeps the documents of `rows` apart."""
        lm, fast = self.engine.lm, self.config.model.attention_implementation
        assert isinstance(lm, CausalLM), "masked models use sdpa"

        def leaks() -> bool:
            try:
                return not isolates_documents(lm, rows)
            except RuntimeError as error:  # the kernels lack a shape: those of flex attention need heads of 16 or wider
                raise PilekitError(
                    f'model.attention_implementation = "{fast}": does not run with this model here '
                    f'({shortened(" ".join(str(error).split()), 200)}); set "sdpa"'
                ) from error

        with self.engine.evaluating():
            mixed = self.ranks.any(self.ranks.on_all_ranks(leaks))
        if mixed and self.config.data.attention == "document":
            remedy = "train.micro_batch_size = 1, or " if rows > 1 else ""
            raise self.ranks.error(
                f'model.attention_implementation = "{fast}": mixes the documents of a row here; set {remedy}"sdpa", or '
                'data.attention = "causal"'
            )

    def fit(self, on_step: Callable[[StepMetrics], None] | None = None) -> TrainResult:
        """Train up to the config's steps, from the run's newest checkpoint if there is one, and write `model/`.

        `on_step` is called after every step, on every rank; if it raises a PilekitError on any rank, all ranks raise.
        Ctrl-C, SIGTERM and SIGHUP finish the step, save it and return. If a loss or a gradient is not a number, a
        PilekitError names the step and its documents.
        """
        config, ranks, engine, steps = self.config, self.ranks, self.engine, self.config.steps
        with first_interrupt() as interrupted, self._opened() as (run, checkpoints, batches):
            done = self._begin(run, checkpoints)
            saved, metrics, failed = done.step, None, None
            remedy, peek = against_waiting(self.stream), partial(self._peek, checkpoints)
            rate = partial(learning_rate, steps=steps, lr=config.optimizer.lr, schedule=config.schedule)
            growth = MemoryGrowth()
            profile = Profile(run.path / "profile", config, ranks, remedy)
            sampled = run, config, ranks, engine, self.tokenizer, self.prompts, done.step
            logs = open_logs(run, config, ranks, remedy, peek, done.step)
            with logs as log, open_samples(*sampled) as sample, profile:
                try:
                    while not self._is_asked_to_stop(interrupted(), failed) and done.step < steps:
                        with profile.step(done.step + 1):
                            started = time.perf_counter()
                            with part("data"):
                                batch, targets, tokens = self._next(batches)
                            waited = time.perf_counter() - started

                            lr = rate(done.step - done.skipped)
                            torch.manual_seed(seed_of_step(config.train.seed, done.step, ranks.rank))
                            nll = self._accumulate_gradients(batch, targets)
                            memory, names = step_memory(ranks.device), self.stream.subset_names
                            sums = StepSums.over(ranks, nll, batch, names, waited=waited, memory=memory)
                            scale = engine.loss_scale.value if engine.loss_scale else None
                            with part("checkpoint"):
                                checkpoints.before_update()
                            is_sound = targets > 0 and (scale or math.isfinite(sums.loss))
                            update = engine.update(lr) if is_sound else NO_UPDATE
                            if update.skipped and targets and (update.at_floor or not scale):
                                self._save_before_raising(checkpoints, done, saved)
                                saved = done.step
                                bad = done.step + 1, sums.loss, update.grad_norm, lr, batch, nll
                                raise failed_step(run, ranks, *bad, peek=peek(done.step + 1), scale=scale)

                            done = replace(
                                done,
                                step=done.step + 1,
                                skipped=done.skipped + update.skipped,
                                tokens=done.tokens + tokens,
                                stream=self.stream.state_dict(),
                            )
                            seconds = time.perf_counter() - started
                            figures = done, sums, update, tokens
                            metrics, failed = self._figures(*figures, lr=lr, scale=scale, seconds=seconds)
                            if config.log.memory and ranks.is_first:
                                growth.write(done.step, sums.memory)
                            failed = sample(done.step) or failed
                            failed = error_of(metrics, log, on_step) or failed
                            with part("checkpoint"):
                                checkpoints.poll()
                                if done.step % config.checkpoint.every == 0:
                                    self._save(checkpoints, done)
                                    saved = done.step
                except PilekitError:
                    self._save_before_raising(checkpoints, done, saved)
                    raise
                if done.step > saved:
                    self._save(checkpoints, done)
                finished = done.step >= steps  # a run may have more steps than its new config
                model = run.adapter if config.lora.rank and not config.lora.merge else run.model
                if finished and (metrics is not None or not ranks.on_rank0(model.exists)):
                    if config.train.ema:
                        self._export(run, AVERAGED, dict(engine.averaged_parameters()))
                    self._export(run, "", dict(engine.full_parameters()))
                checkpoints.finish()
            return TrainResult(done.step, done.tokens, not finished, model if finished else None, metrics)

    def _export(self, run: RunFolder, ending: str, weights: dict[str, torch.Tensor]) -> None:
        """Write the model; with `[lora]`, write its adapters instead, and with lora.merge the merged model too."""
        lm, lora = self.engine.lm, self.config.lora
        model, adapter = (folder.with_name(folder.name + ending) for folder in (run.model, run.adapter))
        export = partial(export_model, lm=lm, tokenizer=self.tokenizer, config=to_toml(self.config))
        if lora.rank:
            self.ranks.on_rank0(lambda: export(adapter, weights=weights, only_adapters=True))
        if lora.merge:
            self.ranks.on_rank0(lambda: export(model, weights=merged(lm.model, weights)))
        elif not lora.rank:
            self.ranks.on_rank0(lambda: export(model, weights=weights))

    def _is_asked_to_stop(self, interrupted: bool, failed: PilekitError | None) -> bool:
        """Whether any rank was interrupted. If a rank failed after its last step, all raise that error."""
        request = self.ranks.all_max(2 if failed else int(interrupted))
        if request == 2:
            self.ranks.on_all_ranks(lambda: _raise(failed))
        return request == 1

    def _next(self, batches: Iterator[Batch]) -> tuple[Batch, int, int]:
        """This rank's batch of the next step, and the number of targets and tokens of all ranks' batches.

        A step may have no target, as with documents of one token.
        """
        batch, error = None, None
        try:
            batch = next(batches)
            own = [count_targets(batch, self.config.train.objective), int((batch["doc_ids"] >= 0).sum()), 0]
        except PilekitError as raised:
            error, own = raised, [0, 0, 1]
        targets, tokens, failures = map(int, self.ranks.sum(torch.tensor(own, dtype=torch.float64)).tolist())
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
            part = {name: column[first : first + size] for name, column in batch.items()}
            last = first + size >= rows
            nlls.append(self.engine.forward_backward(part, scale=self.ranks.world_size / targets, last=last))
        return torch.cat(nlls).cpu()

    def _figures(
        self,
        done: Progress,
        sums: StepSums,
        update: Update,
        tokens: int,
        *,
        lr: float,
        scale: float | None,
        seconds: float,
    ) -> tuple[StepMetrics, PilekitError | None]:
        """The line of metrics.jsonl for step `done.step`, which trained on `tokens` and took `seconds`.

        If it is time, it measures bits per byte, in which all ranks take part. If that fails, the line is without them,
        and the error is returned: the step is saved, so a resumed run would never write its line.
        """
        stream, speed = self.stream, tokens / seconds
        bpb, failed = self._bits_per_byte(done.step)
        metrics = StepMetrics(
            step=done.step,
            loss=sums.loss if math.isfinite(sums.loss) else None,
            loss_by_subset=sums.by_subset,
            lr=lr,
            lr_by_group=rates_by_group(self.engine.optimizer, lr),
            grad_norm=None if update.skipped else update.grad_norm,
            update_norm=update.update_norm,
            tokens=done.tokens,
            padding=1 - tokens / (stream.global_batch_size * stream.seq_len),
            tokens_per_second=speed,
            data_wait=min(1.0, sums.waited / seconds),
            step_seconds=seconds,
            memory_bytes=max(sums.memory.get("GPU", sums.memory["CPU"])),
            mfu=None if self._full_speed is None else speed / self._full_speed,
            loss_scale=scale,
            skipped=done.skipped,
            bpb=bpb,
        )
        return metrics, failed

    def _peek(self, checkpoints: Checkpoints, step: int) -> str:
        """The command that shows the documents of a step (from 1)."""
        return inspect_step_command(self.config, self.stream, step, checkpoints.before(step))

    def _bits_per_byte(self, step: int) -> tuple[StepBitsPerByte | msgspec.UnsetType, PilekitError | None]:
        """Bits per byte every `train.eval_every` steps and after the last; else UNSET. Also the error, if it failed."""
        train, held_out = self.config.train, self.held_out
        if held_out is None or (step % train.eval_every and step != self.config.steps):
            return msgspec.UNSET, None
        on_error = self.config.data.on_error
        try:
            found = evaluate(
                self.engine, self.tokenizer, held_out, self.ranks, limit=train.eval_limit, on_error=on_error
            )
        except PilekitError as error:
            return msgspec.UNSET, error
        subsets = {name: of.bpb for name, of in found.subsets.items()}
        return StepBitsPerByte(overall=found.overall.bpb, subsets=subsets), None

    @contextmanager
    def _opened(self) -> Iterator[tuple[RunFolder, Checkpoints, Iterator[Batch]]]:
        """The run's folder, which rank 0 locks, its checkpoints, and this rank's batches, until the block ends."""
        config, ranks = self.config, self.ranks
        with ExitStack() as opened:
            run = ranks.on_rank0(lambda: opened.enter_context(open_run(self.out, config)))
            checkpoints = Checkpoints(run.checkpoints, run.latest_file, ranks, config.checkpoint)
            opened.callback(checkpoints.close)
            batches = opened.enter_context(closing(open_batches(self.stream, config)))
            with explained(ranks):
                yield run, checkpoints, batches

    def _begin(self, run: RunFolder, checkpoints: Checkpoints) -> Progress:
        """Load the newest checkpoint, if there is one, into weights, optimizer and stream; returns the progress."""
        config, ranks, engine = self.config, self.ranks, self.engine
        folder, name = checkpoints.newest(), visible(run.path)
        ranks.on_rank0(lambda: check_start(run, config))
        if folder is None and config.checkpoint.resume not in ("auto", "never"):
            folder = Path(config.checkpoint.resume)
        if folder is None:
            if self._has_trained:
                raise ranks.error("this Trainer has trained already, and nothing was saved; make a new one")
            ranks.on_rank0(lambda: take_config(run, config, None))
            self._has_trained = True
            return Progress(0, 0, self.stream.state_dict(), torch.get_num_threads(), self._model)
        self._has_trained = True
        done = engine.load(partial(checkpoints.load, folder))
        if done.model != self._model:
            raise ranks.error(
                f"{name}: its checkpoint is of a model of another configuration; put back the config.json that it "
                "started with, or its model object, or name another folder with --out"
            )
        if self._is_given and ranks.is_first:
            logger.warning("%s: resumes with the weights of %s, not those of the model object", name, folder.name)
        try:
            ranks.on_all_ranks(lambda: self.stream.load_state_dict(done.stream))
        except PilekitError as error:
            raise ranks.error(
                f"{name}: cannot resume with other data ({error}); give [data] as it was, or name another folder with "
                "--out"
            ) from error
        if engine.loss_scale is not None and done.loss_scale is not None:
            engine.loss_scale.load_state_dict(done.loss_scale)
        if done.step < config.steps:  # else nothing is trained with this config
            ranks.on_rank0(lambda: take_config(run, config, done.step))
        if done.world_size == ranks.world_size and done.threads != torch.get_num_threads():
            if ranks.is_first:
                logger.warning("computing with %d threads, as when the checkpoint was made", done.threads)
            torch.set_num_threads(done.threads)
        return replace(done, stream=self.stream.state_dict())

    def _save_before_raising(self, checkpoints: Checkpoints, done: Progress, saved: int) -> None:
        """Save the steps done so far when a step has failed. A second error is dropped in favour of the first."""
        with suppress(PilekitError):
            if done.step > saved:
                self._save(checkpoints, done)
            checkpoints.finish()

    def _save(self, checkpoints: Checkpoints, done: Progress) -> None:
        ranks, (model, optimizer) = self.ranks, self.engine.state()
        if ranks.any(not all(bool(own_part(parameter).isfinite().all()) for parameter in model.parameters())):
            raise ranks.error(
                f"step {done.step}: the weights are no longer numbers and are not saved; lower optimizer.lr or "
                "lengthen schedule.warmup, and run again"
            )
        scale = self.engine.loss_scale
        progress = replace(
            done,
            stream=PileStream.merge_state_dicts(ranks.gather(done.stream)),
            threads=torch.get_num_threads(),
            loss_scale=None if scale is None else scale.state_dict(),
            world_size=ranks.world_size,
        )
        checkpoints.save(model, optimizer, progress, msgspec.to_builtins(self.config))


def error_of(metrics: StepMetrics, *listeners: Callable[[StepMetrics], object] | None) -> PilekitError | None:
    """Call the listeners, in order, with a step's figures. Returns the first error, which all ranks must hear of."""
    try:
        for listener in listeners:
            if listener is not None:
                listener(metrics)
    except PilekitError as error:
        return error
    return None


def seed_of_step(seed: int, step: int, rank: int = 0) -> int:
    """The seed of torch's generators for `step` (from 0) on a rank; any two seeds are unrelated."""
    return xxhash.xxh3_64_intdigest(f"{seed} {step} {rank}".encode() if rank else f"{seed} {step}".encode())


def _keeps_documents_apart(lm: CausalLM | MaskedLM, seq_len: int) -> bool:
    return keeps_documents_apart(lm, seq_len) if isinstance(lm, MaskedLM) else isolates_documents(lm)


def _raise(error: PilekitError | None) -> None:
    if error is not None:
        raise error
