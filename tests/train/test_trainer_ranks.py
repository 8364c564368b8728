"""The whole trainer on real process groups: what it computes, and how it stops and goes on, on any number of ranks."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shlex
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zstandard
from torch import distributed as dist
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from pilekit.engine.ranks import join
from pilekit.errors import PilekitError
from pilekit.stream.read import plan
from pilekit.tokenize import load_tokenizer
from pilekit.train.checkpoint import saving
from pilekit.train.checkpoint.manifest import read_state
from pilekit.train.checkpoint.tensors import write_tensors
from pilekit.train.config import load_config
from pilekit.train.data import open_stream
from pilekit.train.log.metrics import StepMetrics
from pilekit.train.step.sharding import own_part
from pilekit.train.trainer import Trainer
from tests.process_groups import ProcessGroups
from tests.small_disk import small_disk
from tests.tiny import Family, tiny_corpus, tiny_model, tiny_tokenizer
from tests.train.checkpoint.saving import Warned, state_of
from tests.train.runs import lines

Array = npt.NDArray[Any]
Record = dict[str, Any]

pytestmark = pytest.mark.timeout(900)

TIMEOUT = 240.0
"""Of each call of ranks: a hang is a failure, and a busy machine is none."""
STAGES = [0, 1, 2, 3]
STEPS = 6

CONFIG = """
[data]
path = "{folder}/corpus"
tokenizer = "{folder}/tokenizer"
seq_len = 24
window = 8
[model]
config = "{folder}/plain/config.json"
[train]
steps = 6
global_batch_size = 8
micro_batch_size = 2
clip_norm = 0.5
[optimizer]
lr = 0.01
eps = 1e-3
[schedule]
warmup = 2
[checkpoint]
every = 2
"""
"""`eps` is far above what rounding leaves of a gradient that should be 0, which Adam would else make a full step of."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a tokenizer, configs of a model without and with dropout, and run.toml."""
    folder = tmp_path_factory.mktemp("made")
    tiny_corpus(folder / "corpus", shards=2, documents=60)
    tiny_tokenizer(folder / "tokenizer")
    for name, dropout in (("plain", 0.0), ("dropout", 0.1)):
        GPTNeoXConfig(
            vocab_size=320,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=32,
            initializer_range=0.2,
            hidden_dropout=dropout,
            attention_dropout=dropout,
        ).save_pretrained(folder / name)
    (folder / "run.toml").write_text(CONFIG.format(folder=folder))
    return folder


# --- in each rank ---


@dataclass
class Seen:
    """What one rank saw of a run, up to its end or its error."""

    rows: list[list[list[int]]] = field(default_factory=list)
    """Of each step that was begun: the input_ids that this rank trained on."""
    steps: list[int] = field(default_factory=list)
    """The steps that `on_step` told of."""
    finished: tuple[int, bool] | None = None
    error: str | None = None
    state: dict[str, Array] = field(default_factory=dict)
    """The whole state in the end, on rank 0."""


def fit(
    made: Path,
    out: Path,
    changes: Sequence[str],
    stop: int | None = None,
    also: Callable[[StepMetrics], None] = lambda metrics: None,
) -> Seen:
    """Train; at step `stop` the last rank alone is sent what Ctrl-C sends, and after each step `also` is called."""
    ranks, seen = join(), Seen()

    def on_step(metrics: StepMetrics) -> None:
        seen.steps.append(metrics.step)
        if metrics.step == stop and ranks.rank == ranks.world_size - 1:
            os.kill(os.getpid(), signal.SIGINT)
        also(metrics)

    try:
        ours = Trainer(load_config(made / "run.toml", changes), out)
        note_rows(ours, seen.rows)
        finished = ours.fit(on_step)
        seen.finished = finished.step, finished.interrupted
        state = state_of(*cast("Any", ours.engine.state()))
        if ranks.is_first:
            seen.state = {name: tensor.numpy() for name, tensor in state.items()}
    except PilekitError as error:
        seen.error = str(error)
    return seen


def note_rows(ours: Trainer, steps: list[list[list[int]]]) -> None:
    """Append the token ids of each step to `steps`, as the engine gets them."""
    forward_backward, begins = ours.engine.forward_backward, [True]

    def noting(rows: Mapping[str, torch.Tensor], *, scale: float, last: bool) -> torch.Tensor:
        if begins[0]:
            steps.append([])
        steps[-1] += rows["input_ids"].tolist()
        begins[0] = last
        return forward_backward(rows, scale=scale, last=last)

    cast("Any", ours.engine).forward_backward = noting


def fit_each(made: Path, runs: Sequence[tuple[Path, Sequence[str]]]) -> list[Seen]:
    """Several runs, one after another: one message instead of many."""
    return [fit(made, out, changes) for out, changes in runs]


# --- around them ---


def assert_close(ours: list[Record], theirs: list[Record], *, loss: float, grad_norm: float) -> None:
    """Every figure of every step, up to relative differences; whatever is no loss or norm to the bit."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"loss", "loss_by_subset", "grad_norm"}:
            assert one[key] == other[key], key
        assert one["loss"] == pytest.approx(other["loss"], rel=loss), one["step"]
        assert one["loss_by_subset"] == pytest.approx(other["loss_by_subset"], rel=loss), one["step"]
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=grad_norm), one["step"]


def rows_of_steps(seen: Sequence[Seen]) -> list[list[list[int]]]:
    """The rows that all ranks trained on, of each step, in an order that no number of ranks changes."""
    return [sorted(row for part in parts for row in part) for parts in zip(*(one.rows for one in seen), strict=True)]


def assert_same_state(one: dict[str, Array], other: dict[str, Array]) -> None:
    assert one
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert np.array_equal(one[name], other[name]), name


# --- the figures ---


def case(dtype: str, zero: int, micro: int) -> tuple[str, ...]:
    clip_norm = "inf" if dtype == "bf16" else "0.5"
    sections = (f"precision.dtype={dtype}", f"parallel.zero={zero}", f"train.micro_batch_size={micro}")
    return (*sections, f"train.clip_norm={clip_norm}")


def check_figures(
    made: Path, folder: Path, process_group: ProcessGroups, cases: Mapping[int, Sequence[tuple[str, int, int]]]
) -> None:
    """Run (dtype, stage, micro-batch size) on so many ranks each, against one rank, stage 0 and one row at a time.

    In float32 only the order of sums differs. In bf16 the gradient of a micro-batch is rounded to 8 bits, so one row in
    each gives any number of ranks the same numbers to sum, mostly without rounding, and figures are as close as in
    float32. (Not where gradients are clipped: the norm differs by the order of its sum, by which a weight in thousands
    is rounded to another bfloat16.) With more rows they are as close as two ways of rounding.
    """
    alone = [(folder / f"alone-{dtype}", case(dtype, 0, 1)) for dtype in ("fp32", "bf16")]
    (expected,) = process_group(1).run(fit_each, made, alone, timeout=TIMEOUT)
    for world_size, given in cases.items():
        runs = [(folder / "-".join(map(str, (world_size, *one))), case(*one)) for one in given]
        seen = process_group(world_size).run(fit_each, made, runs, timeout=TIMEOUT + 5 * len(runs))
        for number, ((dtype, _, micro), (run, _)) in enumerate(zip(given, runs, strict=True)):
            parts = [of_rank[number] for of_rank in seen]
            assert [part.error for part in parts] == [None] * world_size
            assert [part.steps for part in parts] == [[*range(1, STEPS + 1)]] * world_size
            assert rows_of_steps(parts) == rows_of_steps([expected[dtype == "bf16"]])
            near = dtype == "fp32" or micro == 1
            tolerances = {"loss": 1e-5, "grad_norm": 1e-5} if near else {"loss": 2e-3, "grad_norm": 4e-3}
            assert_close(lines(run), lines(folder / f"alone-{dtype}"), **tolerances)


def test_figures_are_those_of_one_process(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    two = [
        ("fp32", 0, 1),
        ("fp32", 1, 2),
        ("fp32", 2, 4),
        ("fp32", 3, 2),
        ("bf16", 0, 1),
        ("bf16", 3, 1),
        ("bf16", 2, 4),
    ]
    check_figures(made, tmp_path, process_group, {2: two, 4: [("fp32", 0, 2), ("fp32", 3, 1), ("bf16", 3, 1)]})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_figures_of_all_stages_precisions_and_sizes(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    cases = {
        world_size: [
            (dtype, zero, micro)
            for dtype in ("fp32", "bf16")
            for zero in STAGES
            for micro in (1, 2, 4, 8)
            if 8 // world_size % micro == 0
        ]
        for world_size in (1, 2, 4)
    }
    check_figures(made, tmp_path, process_group, cases)


@dataclass
class Step:
    """What went into a step: the weights before it, on rank 0, and this rank's rows."""

    weights: dict[str, Array]
    rows: dict[str, Array]


def fit_and_note_all(made: Path, out: Path, changes: Sequence[str]) -> tuple[list[Step], tuple[str, ...]]:
    """(every step, the subsets' names) of a run, in each rank."""
    ours = Trainer(load_config(made / "run.toml", changes), out)
    steps: list[Step] = []
    forward_backward, begins = ours.engine.forward_backward, [True]

    def noting(rows: Mapping[str, torch.Tensor], *, scale: float, last: bool) -> torch.Tensor:
        columns = {name: rows[name].numpy().copy() for name in ("input_ids", "doc_ids", "subset_ids")}
        if begins[0]:
            weights = {name: value.numpy().copy() for name, value in ours.engine.full_parameters()}
            steps.append(Step(weights, columns))
        else:
            steps[-1].rows = {name: np.concatenate([steps[-1].rows[name], columns[name]]) for name in columns}
        begins[0] = last
        return forward_backward(rows, scale=scale, last=last)

    cast("Any", ours.engine).forward_backward = noting
    ours.fit()
    return steps, ours.stream.subset_names


def losses_of(model: Any, rows: dict[str, Array], names: Sequence[str]) -> list[tuple[str, float]]:
    """(subset, loss) of each token that has one before it in its document and row: documents one at a time, alone."""
    losses = []
    for ids, documents, subsets in zip(rows["input_ids"], rows["doc_ids"], rows["subset_ids"], strict=True):
        for document in range(int(documents.max()) + 1):
            own = torch.from_numpy(ids[documents == document])
            shares = torch.log_softmax(model(input_ids=own[None], use_cache=False).logits[0].double(), -1)
            (subset,) = set(subsets[documents == document].tolist())
            losses += [(names[subset], -float(shares[i, own[i + 1]])) for i in range(len(own) - 1)]
    return losses


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (
            2,
            (
                "parallel.zero=3",
                "train.global_batch_size=6",
                "train.micro_batch_size=1",
                "data.packing=none",
                "data.window=1",
            ),
        ),
        pytest.param(4, ("parallel.zero=2", "data.attention=document"), marks=pytest.mark.slow),
        pytest.param(
            2, ("parallel.zero=1", "train.global_batch_size=6", "train.micro_batch_size=3"), marks=pytest.mark.slow
        ),
    ],
)
def test_losses_are_those_of_the_model_and_the_documents(
    made: Path, tmp_path: Path, process_group: ProcessGroups, world_size: int, changes: tuple[str, ...]
) -> None:
    """Computed from the weights before each step, document by document: of the whole step, and of each subset in it."""
    seen = process_group(world_size).run(fit_and_note_all, made, tmp_path / "run", changes, timeout=TIMEOUT)
    records, names = lines(tmp_path / "run"), seen[0][1]
    assert len(records) == STEPS
    config: Any = GPTNeoXConfig.from_pretrained(made / "plain")
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").eval()
    uneven, several = 0, 0
    for record, parts in zip(records, zip(*(steps for steps, _ in seen), strict=True), strict=True):
        model.load_state_dict({name: torch.from_numpy(value) for name, value in parts[0].weights.items()})
        with torch.no_grad():
            by_rank = [losses_of(model, part.rows, names) for part in parts]
        by_subset = defaultdict(list)
        for subset, loss in (pair for losses in by_rank for pair in losses):
            by_subset[subset].append(loss)
        mean = np.mean([loss for losses in by_subset.values() for loss in losses])
        assert record["loss"] == pytest.approx(mean, rel=1e-5)
        assert record["loss_by_subset"] == pytest.approx(
            {name: np.mean(by_subset[name]) for name in by_subset}, rel=1e-5
        )
        mean_of_means = np.mean([np.mean([loss for _, loss in losses]) for losses in by_rank])
        uneven += abs(mean_of_means / mean - 1) > 1e-3
        several += len(by_subset) > 2
    assert several >= STEPS // 2
    if "data.packing=none" in changes:
        assert uneven >= 2  # where a mean over ranks of their means would have been wrong


# --- stopped and continued ---


def fit_in_parts(made: Path, out: Path, changes: Sequence[str], stops: Sequence[int]) -> list[Seen]:
    """A run that is interrupted after each of these steps and ends in the last part."""
    parts = [fit(made, out, changes, stop) for stop in stops]
    assert [part.finished for part in parts] == [(stop, True) for stop in stops]
    return [*parts, fit(made, out, changes)]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_resumed(
    made: Path, folder: Path, process_group: ProcessGroups, world_size: int, changes: tuple[str, ...], seed: int
) -> None:
    group, last = process_group(world_size), f"checkpoints/step-{STEPS}"
    stops = sorted(random.Random(seed).sample(range(1, STEPS), 2))
    whole = group.run(fit, made, folder / "whole", changes, timeout=TIMEOUT)
    in_parts = group.run(fit_in_parts, made, folder / "parts", changes, stops, timeout=TIMEOUT)
    assert [one.finished for one in whole] == [(STEPS, False)] * world_size
    for one, parts in zip(whole, in_parts, strict=True):
        assert one.rows == [rows for part in parts for rows in part.rows]
        assert one.steps == [step for part in parts for step in part.steps]
    assert_same_state(in_parts[0][-1].state, whole[0].state)
    assert lines(folder / "parts") == lines(folder / "whole")
    assert files_of(folder / "parts" / last) == files_of(folder / "whole" / last)  # tensors, stream, loss scale
    assert files_of(folder / "parts/model") == files_of(folder / "whole/model")


@pytest.mark.parametrize(("dtype", "zero"), [("bf16", 3), pytest.param("fp32", 1, marks=pytest.mark.slow)])
def test_stopped_and_continued_is_undisturbed(
    made: Path, tmp_path: Path, process_group: ProcessGroups, dtype: str, zero: int
) -> None:
    """Bit for bit, with dropout, at random steps, beside asynchronous checkpoints."""
    changes = (f"model.config={made}/dropout", *case(dtype, zero, 2))
    check_resumed(made, tmp_path, process_group, 2, changes, seed=zero)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "zero", "world_size"),
    [("fp32", 0, 2), ("fp32", 2, 4), ("bf16", 1, 2), ("bf16", 2, 1), ("fp16", 3, 2), ("fp16", 0, 1)],
)
def test_stopped_and_continued_anywhere(
    made: Path, tmp_path: Path, process_group: ProcessGroups, dtype: str, zero: int, world_size: int
) -> None:
    changes = (f"model.config={made}/dropout", *case(dtype, zero, 1), "checkpoint.every=1", "data.packing=concat")
    if dtype == "fp16":
        changes += ("precision.loss_scale=16777216", "precision.loss_scale_window=2")
    check_resumed(made, tmp_path, process_group, world_size, changes, seed=10 * world_size + zero)


@pytest.mark.parametrize(
    "parts",
    [
        [(2, 3), (1, 2), (2, 0)],
        pytest.param([(4, 3), (2, 0), (1, 2), (4, 1)], marks=pytest.mark.slow),
        pytest.param([(2, 3), (2, 2), (2, 3), (2, 0), (2, 3), (2, 1)], marks=pytest.mark.slow),
    ],
)
def test_continued_on_other_ranks_and_in_other_stages(
    made: Path, tmp_path: Path, process_group: ProcessGroups, parts: list[tuple[int, int]]
) -> None:
    """The same rows in every step, token for token, and losses that differ by the order of sums."""
    whole = process_group(1).run(fit, made, tmp_path / "whole", (), timeout=TIMEOUT)
    rows = []
    for number, (world_size, zero) in enumerate(parts, 1):
        stop = number if number < len(parts) else None
        seen = process_group(world_size).run(
            fit, made, tmp_path / "parts", case("fp32", zero, 1), stop, timeout=TIMEOUT
        )
        assert [part.error for part in seen] == [None] * world_size
        assert [part.finished for part in seen] == [(stop or STEPS, stop is not None)] * world_size
        rows += rows_of_steps(seen)
    assert rows == rows_of_steps(whole)
    assert_close(lines(tmp_path / "parts"), lines(tmp_path / "whole"), loss=1e-5, grad_norm=1e-5)
    for name, value in whole[0].state.items():
        np.testing.assert_allclose(seen[0].state[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def fit_and_leave(made: Path, out: Path) -> list[str]:
    """Training is cut short while a checkpoint is being written, slowly; the checkpoints right after that."""

    def slowly(*arguments: Any) -> None:
        time.sleep(1.0)
        write_tensors(*arguments)

    def leave(metrics: StepMetrics) -> None:
        if metrics.step == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "write_tensors", slowly)
        with pytest.raises(KeyboardInterrupt):
            Trainer(load_config(made / "run.toml"), out).fit(leave)
    return [path.name for path in (out / "checkpoints").iterdir()]


def test_whoever_trains_on_in_a_process_finds_the_checkpoint_that_was_under_way(
    made: Path, tmp_path: Path, process_group: ProcessGroups
) -> None:
    group, run = process_group(2), tmp_path / "run"
    assert group.run(fit_and_leave, made, run, timeout=TIMEOUT) == [["step-2"]] * 2
    for part in group.run(fit, made, run, (), timeout=TIMEOUT):
        assert (part.error, part.steps) == (None, [3, 4, 5, 6])


@pytest.mark.slow
def test_workers_beside_ranks_change_nothing(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    """However many there are before and after a stop; what they have read ahead is not trained on."""
    group = process_group(2)
    whole = group.run(fit, made, tmp_path / "whole", (), timeout=TIMEOUT)
    parts = [
        group.run(fit, made, tmp_path / "parts", (f"data.workers={workers}",), stop, timeout=2 * TIMEOUT)
        for workers, stop in ((2, 3), (1, None))
    ]
    assert [one.finished for part in parts for one in part] == [(3, True)] * 2 + [(STEPS, False)] * 2
    for rank in range(2):
        assert [rows for part in parts for rows in part[rank].rows] == whole[rank].rows
    assert_same_state(parts[-1][0].state, whole[0].state)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


# --- what one rank finds wrong ---


def fit_shard_after_shard(made: Path, out: Path, changes: Sequence[str]) -> Seen:
    """As if the shards were long and in one frame each: every rank reads its own, as it goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "HELD_BYTES", 0)
        patch.setattr(plan, "MOST_DECODED", 0)
        return fit(made, out, changes)


def test_a_bad_line_of_one_rank_ends_all(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    """It lies so far behind the first documents that a whole piece of the shard is read before it."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(["the", "quick", "brown fox", "12345"], k=10)) for _ in range(60)]
    good = [json.dumps({"text": text, "meta": {"pile_set_name": "Github"}}) for text in texts]
    others = [json.dumps({"text": "x" * (1 << 20), "meta": {"pile_set_name": "ArXiv"}})] * 5
    broken = [*good[:16], *others, '{"text": 5, "meta": {"pile_set_name": "Github"}}', *good[16:]]
    (tmp_path / "corpus").mkdir()
    for number, shard in enumerate((good, broken)):
        raw = zstandard.compress("\n".join([*shard, ""]).encode())
        (tmp_path / f"corpus/0{number}.jsonl.zst").write_bytes(raw)
    group, run = process_group(2), tmp_path / "run"
    changes = (f"data.path={tmp_path}/corpus", "data.subsets=['Github']", "data.window=4", "parallel.zero=2")
    first, second = group.run(
        fit_shard_after_shard, made, run, (*changes, "train.steps=60", "checkpoint.every=1000"), timeout=TIMEOUT
    )
    assert first.error is not None
    assert first.error == second.error
    assert "01.jsonl.zst" in first.error
    assert "line 22" in first.error
    done = len(first.steps)
    assert first.steps == second.steps == list(range(1, done + 1))
    assert len(first.rows) == len(second.rows) == done > 1
    # what was done is not lost
    assert (run / "latest").read_text().strip() == f"checkpoints/step-{done}"
    assert [record["step"] for record in lines(run)] == first.steps
    onwards = (*changes, "data.on_error=skip", f"train.steps={done + 3}")
    for part in group.run(fit_shard_after_shard, made, run, onwards, timeout=TIMEOUT):
        assert (part.error, part.steps) == (None, [done + 1, done + 2, done + 3])


@pytest.fixture(scope="module")
def rare(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Changes for a corpus where one document has a token whose embedding, finite but huge, leaves its row no loss."""
    folder = tmp_path_factory.mktemp("rare")
    draw = random.Random(1)
    texts = [" ".join(draw.choices(["the", "quick", "brown fox", "12345"], k=draw.randint(1, 12))) for _ in range(200)]
    texts[RARE] += " Ω"
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[omega(made)] = 1e30
    model.save_pretrained(folder / "model")
    return (f"data.path={folder}/corpus.jsonl", f"model.path={folder}/model", "train.micro_batch_size=1", "data.seed=2")


RARE = 60
"""The number of that document."""


def omega(made: Path) -> int:
    """The first byte of Ω, which nothing else in that corpus has."""
    return int(load_tokenizer(made / "tokenizer").encode_batch(["Ω"])[0][0])


def step_and_rank(seen: Sequence[Seen], token: int) -> tuple[int, int]:
    """Where the token was first trained on; steps counted from 1."""
    places = (
        (step, rank)
        for step, parts in enumerate(zip(*(part.rows for part in seen), strict=True), 1)
        for rank, rows in enumerate(parts)
        if any(token in row for row in rows)
    )
    return next(places)


@pytest.mark.parametrize(("dtype", "zero"), [("fp32", 3), pytest.param("bf16", 0, marks=pytest.mark.slow)])
def test_a_loss_that_is_no_number_on_one_rank_ends_all(
    made: Path, tmp_path: Path, process_group: ProcessGroups, rare: tuple[str, ...], dtype: str, zero: int
) -> None:
    group, run = process_group(2), tmp_path / "run"
    changes = (*rare, f"precision.dtype={dtype}", f"parallel.zero={zero}", "train.steps=20", "checkpoint.keep_last=1")
    first, second = group.run(fit, made, run, changes, timeout=TIMEOUT)
    step, rank = step_and_rank([first, second], omega(made))
    assert step > 1
    assert first.error is not None
    assert first.error == second.error
    assert first.error.startswith(f"step {step}: the loss is nan, in rows with ")
    assert first.steps == second.steps == list(range(1, step))
    report = json.loads((run / f"failed-step-{step}.json").read_text())
    assert [row["rank"] for row in report["rows"]] == [0] * 4 + [1] * 4
    (bad,) = [row for row in report["rows"] if not row["finite"]]
    assert bad["rank"] == rank
    assert {"shard": "corpus.jsonl", "number": RARE} in bad["documents"]
    assert f"corpus.jsonl document {RARE}" in first.error
    # the step changed nothing, and the one before it is saved: there it goes on, to fail again
    assert [record["step"] for record in lines(run)] == first.steps
    assert (run / "latest").read_text().strip() == f"checkpoints/step-{step - 1}"
    told, _, command = first.error.partition("; the step's documents are shown by: ")
    words = shlex.split(command)
    assert Path(words[words.index("--state") + 1]).is_dir()
    for again in group.run(fit, made, run, changes, timeout=TIMEOUT):
        assert again.steps == []
        assert again.error is not None
        assert again.error.partition("; the step's")[0] == told


def fit_on_a_disk_that_fills(
    made: Path, out: Path, changes: Sequence[str], full: range, stop: int | None = None
) -> tuple[Seen, list[str]]:
    """The disk of `out` has no block free in the steps of `full`; also, what pilekit has warned of."""
    filler, warned = out.parent / "filler", Warned()

    def fill(metrics: StepMetrics) -> None:
        if join().is_first and metrics.step + 1 == full.start:
            with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        if join().is_first and metrics.step + 1 == full.stop:
            filler.unlink()

    logging.getLogger("pilekit").addHandler(warned)
    try:
        return fit(made, out, changes, stop, fill), warned.lines
    finally:
        logging.getLogger("pilekit").removeHandler(warned)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a file system of its own, with room for a run but not for its checkpoints."""
    with small_disk(tmp_path / "small", 1 << 20) as disk:
        if disk.limit is not None:
            pytest.skip("no file system may be mounted here")
        yield disk.path


WAITING = "metrics.jsonl: cannot be written: No space left on device; training goes on, and lines from step "


def test_a_full_disk_costs_no_line_of_the_metrics(
    made: Path, tmp_path: Path, small: Path, process_group: ProcessGroups
) -> None:
    group, run = process_group(2), small / "run"
    changes = ("parallel.zero=3", "train.steps=30", "checkpoint.every=10")
    group.run(fit, made, tmp_path / "whole", changes, timeout=TIMEOUT)
    (first, warned), (second, silent) = group.run(
        fit_on_a_disk_that_fills,
        made,
        run,
        (*changes, f"checkpoint.dir={tmp_path}/checkpoints"),
        range(5, 25),
        timeout=TIMEOUT,
    )
    assert [first.finished, second.finished] == [(30, False)] * 2
    assert first.steps == list(range(1, 31))
    assert lines(run) == lines(tmp_path / "whole")
    assert [line.startswith(f"{run}/{WAITING}") for line in warned].count(True) == 1
    assert silent == []


def test_metrics_that_no_room_is_made_for_are_told_by_all_at_the_end(
    made: Path, tmp_path: Path, small: Path, process_group: ProcessGroups
) -> None:
    """The run was interrupted; its last step is saved, and it can go on."""
    group, run = process_group(2), small / "run"
    changes = ("train.steps=32", f"checkpoint.dir={tmp_path}/checkpoints", "checkpoint.every=100")
    (first, _), (second, _) = group.run(fit_on_a_disk_that_fills, made, run, changes, range(5, 99), 30, timeout=TIMEOUT)
    assert first.error is not None
    assert first.error == second.error
    told = re.fullmatch(
        rf"{run}/metrics\.jsonl: cannot be written: No space left on device; it lacks the figures from step (\d+) on, "
        "nothing else is lost; make room before the run goes on",
        first.error,
    )
    assert told is not None
    assert 5 <= int(told[1]) <= 25
    (small / "filler").unlink()
    for part in group.run(fit, made, run, changes, timeout=TIMEOUT):
        assert (part.error, part.steps) == (None, [31, 32])
    assert [record["step"] for record in lines(run)] == [*range(1, int(told[1])), 31, 32]


def fit_and_refuse(made: Path, out: Path, changes: Sequence[str], at: int, rank: int) -> Seen:
    """What one rank is to do after a step fails."""

    def refuse(metrics: StepMetrics) -> None:
        if metrics.step == at and join().rank == rank:
            raise PilekitError(f"rank {rank} does not like step {at}")

    return fit(made, out, changes, also=refuse)


@pytest.mark.parametrize(("at", "rank"), [(3, 1), pytest.param(STEPS, 0, marks=pytest.mark.slow)])
def test_what_is_told_of_a_step_fails_on_one_rank_and_ends_all(
    made: Path, tmp_path: Path, process_group: ProcessGroups, at: int, rank: int
) -> None:
    group, run = process_group(2), tmp_path / "run"
    for part in group.run(fit_and_refuse, made, run, (), at, rank, timeout=TIMEOUT):
        assert part.error == f"rank {rank} does not like step {at}"
        assert part.steps == list(range(1, at + 1))
    assert (run / "latest").read_text().strip() == f"checkpoints/step-{at}"
    assert [record["step"] for record in lines(run)] == list(range(1, at + 1))
    for part in group.run(fit, made, run, (), timeout=TIMEOUT):
        assert (part.finished, part.steps) == ((STEPS, False), list(range(at + 1, STEPS + 1)))


def collectives_of(made: Path, out: Path, changes: Sequence[str]) -> int:
    """How often ranks spoke in a run."""
    calls = 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += options.get("group") is join().control
            return function(*arguments, **options)

        return count

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather_object", "broadcast_object_list"):
            patch.setattr(dist, name, counting(getattr(dist, name)))
        assert fit(made, out, changes).error is None
    return calls


def test_a_step_costs_four_messages(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    """Targets and tokens, the losses, the gradient's norm, and whether to stop."""
    counts = [
        process_group(2).run(
            collectives_of, made, tmp_path / f"{steps}", (f"train.steps={steps}", "checkpoint.every=99")
        )
        for steps in (3, 10)
    ]
    assert [ten - three for three, ten in zip(*counts, strict=True)] == [4 * 7] * 2


# --- steps without a token to predict ---


def fit_and_note_weights(made: Path, out: Path, changes: Sequence[str]) -> tuple[Seen, list[Array]]:
    """After each step the numbers of all weights that this rank holds."""
    held: list[Array] = []
    ours = Trainer(load_config(made / "run.toml", changes), out)
    seen = Seen()
    note_rows(ours, seen.rows)

    def note(metrics: StepMetrics) -> None:
        seen.steps.append(metrics.step)
        parameters = ours.engine.lm.model.parameters()
        held.append(torch.cat([own_part(parameter).detach().flatten() for parameter in parameters]).numpy())

    finished = ours.fit(note)
    seen.finished = finished.step, finished.interrupted
    return seen, held


@pytest.mark.parametrize(
    ("world_size", "dtype", "zero"), [(2, "fp16", 0), pytest.param(1, "fp32", 3, marks=pytest.mark.slow)]
)
def test_a_step_without_a_token_to_predict_is_skipped_on_all_ranks(
    made: Path, tmp_path: Path, process_group: ProcessGroups, world_size: int, dtype: str, zero: int
) -> None:
    """One document a row, many of them empty; which steps have none else, the stream tells."""
    draw, shard = random.Random(3), tmp_path / "corpus.jsonl"
    texts = [" ".join(draw.choices(["quick", "12345"], k=5)) if draw.random() < 0.6 else "" for _ in range(300)]
    shard.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = ("data.packing=none", "data.window=4", "train.global_batch_size=2", "train.steps=12")
    changes = (*given, *case(dtype, zero, 1), f"data.path={shard}", "precision.loss_scale=1024", "schedule.kind=linear")
    group = process_group(world_size)
    parts = group.run(fit_and_note_weights, made, tmp_path / "run", changes, timeout=TIMEOUT)

    config = load_config(made / "run.toml", changes)
    batches = islice(open_stream(config, world_size=1), 12)
    empty = [bool((batch["labels"][:, 1:] == -100).all()) for batch in batches]
    assert 2 < sum(empty) < 9
    before: Record | None = None
    for number, (is_empty, record) in enumerate(zip(empty, lines(tmp_path / "run"), strict=True)):
        assert record["skipped"] == sum(empty[: number + 1])
        assert (record["loss"] is None) == (record["grad_norm"] is None) == is_empty
        assert (record["loss_by_subset"] == {}) == is_empty
        assert record["loss_scale"] == (1024 if dtype == "fp16" else None)
        taken = number - sum(empty[:number])
        rate = 0.01 * (taken + 1) / 2 if taken < 2 else 0.01 * (1 - (taken - 2) / 10)
        assert record["lr"] == pytest.approx(rate, rel=1e-12)
        assert record["tokens"] > (0 if before is None else before["tokens"])
        for _, held in parts:
            if number:
                assert np.array_equal(held[number], held[number - 1]) == is_empty
        before = record
    for seen, _ in parts:
        assert seen.finished == (12, False)
        assert len(seen.rows) == 12 - sum(empty)  # nothing else was computed
    group.run(fit_in_parts, made, tmp_path / "parts", changes, [1 + empty.index(True), 7], timeout=TIMEOUT)
    assert lines(tmp_path / "parts") == lines(tmp_path / "run")
    assert files_of(tmp_path / "parts/model") == files_of(tmp_path / "run/model")


# --- fp16 ---


@pytest.mark.parametrize("zero", [3, pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)])
def test_an_overflow_on_one_rank_skips_the_step_on_all_also_when_continued(
    made: Path, tmp_path: Path, process_group: ProcessGroups, rare: tuple[str, ...], zero: int
) -> None:
    group = process_group(2)
    scale = ("precision.loss_scale=1024", "precision.loss_scale_window=2", "precision.loss_scale_hysteresis=1")
    changes = (*rare, *scale, "precision.dtype=fp16", f"parallel.zero={zero}", "train.steps=8")
    whole = group.run(fit, made, tmp_path / "whole", changes, timeout=TIMEOUT)
    assert [part.error for part in whole] == [None, None]
    step, rank = step_and_rank(whole, omega(made))
    assert rank == 1
    assert 2 < step < 7
    records = lines(tmp_path / "whole")
    value, good, skipped = 1024.0, 0, 0
    for record, before in zip(records, [None, *records[:-1]], strict=True):
        overflows = record["step"] == step
        assert record["loss_scale"] == value
        good, skipped = (0, skipped + 1) if overflows else (good + 1, skipped)
        value, good = (value / 2, 0) if overflows else (value * 2, 0) if good == 2 else (value, good)
        assert record["skipped"] == skipped
        assert (record["grad_norm"] is None) == (record["loss"] is None) == overflows
        if before is not None and before["grad_norm"] is None:
            assert record["lr"] == before["lr"]  # the schedule waits for the step that was skipped
        elif before is not None and before["step"] > 2:
            assert record["lr"] < before["lr"]
    stops = [step - 1, step, step + 1]
    in_parts = group.run(fit_in_parts, made, tmp_path / "parts", changes, stops, timeout=TIMEOUT)
    assert lines(tmp_path / "parts") == records
    assert_same_state(in_parts[0][-1].state, whole[0].state)
    states = [read_state(tmp_path / run / "checkpoints/step-8").progress for run in ("whole", "parts")]
    assert states[0] == states[1]
    assert states[0].skipped == 1
    assert states[0].loss_scale is not None
    assert states[0].loss_scale["value"] == value


def test_training_in_fp16_converges(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    """From a scale that is far too large, which all ranks come down from alike."""
    changes = (*case("fp16", 2, 4), "precision.loss_scale=1073741824", "precision.loss_scale_hysteresis=1")
    changes += ("train.steps=40", "checkpoint.every=1000", "optimizer.eps=1e-8")
    seen = process_group(2).run(fit, made, tmp_path / "run", changes, timeout=TIMEOUT)
    assert [part.error for part in seen] == [None, None]
    records = lines(tmp_path / "run")
    assert 0 < records[-1]["skipped"] < 20
    assert records[-1]["loss_scale"] < 2**30
    assert records[-1]["grad_norm"] is not None
    losses = [record["loss"] for record in records if record["loss"] is not None]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


# --- the trained model ---


def fit_and_gather(made: Path, out: Path, changes: Sequence[str]) -> dict[str, Array]:
    """The weights in the end, by name, on rank 0."""
    ours = Trainer(load_config(made / "run.toml", changes), out)
    assert ours.fit().model == out / "model"
    return {name: value.numpy().copy() for name, value in ours.engine.full_parameters()}


@pytest.mark.parametrize(("family", "dtype"), [("gpt2", "fp32"), pytest.param("llama", "bf16", marks=pytest.mark.slow)])
def test_the_exported_model_is_the_trained_one(
    made: Path, tmp_path: Path, process_group: ProcessGroups, family: Family, dtype: str
) -> None:
    """gpt2's head is its embedding, which is in the file once."""
    begun = tiny_model(family, seed=3)
    for module in begun.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    begun.config.update(
        {name: 0.0 for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop") if hasattr(begun.config, name)}
    )
    begun.save_pretrained(tmp_path / "begun")
    changes = (f"model.path={tmp_path}/begun", *case(dtype, 3, 1))
    weights, rest = process_group(2).run(fit_and_gather, made, tmp_path / "two", changes, timeout=TIMEOUT)
    assert all(value.size == 0 for value in rest.values())
    process_group(1).run(fit, made, tmp_path / "one", changes, timeout=TIMEOUT)

    ids = torch.randint(2, 300, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = begun.eval()(input_ids=ids).logits
        exported, alone = (
            AutoModelForCausalLM.from_pretrained(tmp_path / run / "model")(input_ids=ids).logits
            for run in ("two", "one")
        )
        trained = tiny_model(family, seed=4).eval()
        missing, unknown = trained.load_state_dict(
            {name: torch.from_numpy(w) for name, w in weights.items()}, strict=False
        )
        assert unknown == []
        assert missing == (["lm_head.weight"] if family == "gpt2" else [])
        assert torch.equal(trained(input_ids=ids).logits, exported)
    torch.testing.assert_close(exported, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(exported, before, atol=0.1)
