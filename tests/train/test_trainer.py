"""The trainer on tiny models: equal to a plain PyTorch loop, and unchanged by stops."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.stream.pile_stream import PileStream
from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus
from pilekit.train.config.file import load_config
from pilekit.train.evaluation import open_held_out
from pilekit.train.log.metrics import StepMetrics
from pilekit.train.trainer import TrainResult
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.stream.corpora import made as documents
from tests.stream.corpora import some_text
from tests.train.plain_loop import plain_adamw
from tests.train.runs import TIMES, interrupt_at, lines, tiny_run, trainer

OUTPUTS = ("input_ids", "labels", "position_ids", "doc_ids", "subset_ids")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model with dropout."""
    rows = ("data.seq_len=24", "data.window=8", "train.global_batch_size=6", "train.clip_norm=0.5")
    rates = ("optimizer.lr=0.01", "schedule.warmup=3", "schedule.min_lr=0.001")
    changes = (*rows, *rates, "train.steps=8", "checkpoint.every=3")
    shape = {"hidden_dropout": 0.1, "initializer_range": 0.02}
    return tiny_run(tmp_path_factory.mktemp("made"), *changes, documents=40, **shape)


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    """The run of tiny.toml, without a stop."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, trainer(made, run).fit()


@pytest.mark.slow
def test_token_files_give_the_losses_of_the_shards(made: Path, tmp_path: Path) -> None:
    """Also with workers, other numbers of them before and after a stop: rows that were read ahead are not lost."""
    corpus = documents(tmp_path / "shards", [60, 50], text_of=lambda rng: some_text(rng) or "a").folder
    tokenize_corpus(corpus, tmp_path / "tokens" / "pile", made / "tokenizer", append_eod=True)
    trainer(made, tmp_path / "by-text", f"data.path={corpus}").fit()
    given = f"data.path={tmp_path}/tokens/pile"
    assert trainer(made, tmp_path / "by-ids", given, "data.workers=2").fit(interrupt_at(4)).interrupted
    trainer(made, tmp_path / "by-ids", given, "data.workers=1").fit()
    assert lines(tmp_path / "by-ids") == lines(tmp_path / "by-text")
    with pytest.raises(PilekitError, match=r"there are no val shards among those of data\.path"):
        open_held_out(load_config(made / "tiny.toml", [given, "train.eval_every=2"]))


def test_the_files_of_a_run(made: Path, whole: tuple[Path, TrainResult]) -> None:
    run, finished = whole
    assert (finished.step, finished.interrupted, finished.model) == (8, False, run / "model")
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == {
        "documents",
        "metrics.jsonl",
        "config.toml",
        "pilekit.json",
        "checkpoints",
        "model",
    }
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step-6", "step-8"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [list(record) for record in records] == [
        [
            *("step", "loss", "loss_by_subset", "lr", "lr_by_group", "grad_norm", "update_norm"),
            *("tokens", "padding", *TIMES, "mfu", "compilations", "loss_scale", "skipped"),
        ]
    ] * 8
    assert [record["step"] for record in records] == list(range(1, 9))
    assert all(0 <= record["data_wait"] <= 1 for record in records)
    assert load_config(run / "config.toml") == load_config(made / "tiny.toml", ["model.attention_implementation=sdpa"])
    assert (run / "model" / "config.toml").read_bytes() == (run / "config.toml").read_bytes()


@pytest.mark.parametrize(
    ("attention", "micro_batch_size"), [("document", 1), pytest.param("causal", 6, marks=pytest.mark.slow)]
)
def test_it_equals_a_plain_loop(made: Path, tmp_path: Path, attention: str, micro_batch_size: int) -> None:
    """The loop shares only the stream with the trainer: whole batches, losses token by token."""
    changes = (f"data.attention={attention}", f"train.micro_batch_size={micro_batch_size}")
    shape = GPTNeoXConfig.from_pretrained(made / "shape", hidden_dropout=0.0)
    shape.save_pretrained(tmp_path / "plain")
    ours = trainer(made, tmp_path / "run", *changes, f"model.config={tmp_path}/plain")
    model = AutoModelForCausalLM.from_config(shape, attn_implementation="sdpa")
    model.load_state_dict(ours.engine.lm.model.state_dict())
    stream = PileStream(
        Corpus(made / "data"), tokenizer=made / "tokenizer", seq_len=24, batch_size=6, window=8, outputs=OUTPUTS
    )
    tokens = 0
    ours.fit()
    records = lines(tmp_path / "run")

    optimizer = plain_adamw(model, eps=1e-8)
    for step, batch in zip(range(8), stream, strict=False):
        tokens += int((batch["doc_ids"] >= 0).sum())
        lr = 0.01 * (step + 1) / 3 if step < 3 else 0.001 + 0.009 * (1 + math.cos(math.pi * (step - 3) / 5)) / 2
        positions = batch["position_ids"] if attention == "document" else torch.arange(24).expand(6, 24)
        logits = model(input_ids=batch["input_ids"], position_ids=positions, use_cache=False).logits
        sums, counts = defaultdict(float), defaultdict(int)
        losses = []
        shares = torch.log_softmax(logits, -1)
        for row in range(len(logits)):
            for place in range(1, 24):
                if (label := int(batch["labels"][row, place])) != -100:
                    nll = -shares[row, place - 1, label]
                    subset = stream.subset_names[int(batch["subset_ids"][row, place])]
                    losses.append(nll)
                    sums[subset] += nll.item()
                    counts[subset] += 1
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad *= min(1.0, 0.5 / float(norm))
        for group in optimizer.param_groups:
            group["lr"] = lr
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        moved = torch.sqrt(
            sum(((p.detach() - old) ** 2).sum() for p, old in zip(model.parameters(), before, strict=True))
        )
        record = records[step]
        assert record["update_norm"] == pytest.approx(float(moved), rel=1e-3)
        assert record["lr_by_group"] == {"decay": record["lr"], "no_decay": record["lr"]}
        assert record["loss"] == pytest.approx(loss.item(), rel=2e-5)
        assert record["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
        assert record["lr"] == pytest.approx(lr, rel=1e-12)
        assert record["loss_by_subset"] == pytest.approx({name: sums[name] / counts[name] for name in sums}, rel=2e-5)
    assert records[-1]["tokens"] == tokens
    for name, tensor in AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("dtype", "stops"), [pytest.param("bf16", [1, 2, 3, 4, 5, 6, 7], marks=pytest.mark.slow), ("fp32", [2, 5])]
)
def test_an_interrupted_run_equals_one_that_never_stopped(
    made: Path, tmp_path: Path, dtype: str, stops: list[int]
) -> None:
    """Bit for bit: metrics, weights, with dropout, through the end of the corpus and past it."""
    changes = (f"precision.dtype={dtype}", "train.global_batch_size=10")
    trainer(made, tmp_path / "whole", *changes).fit()
    for stop in stops:
        finished = trainer(made, tmp_path / "parts", *changes).fit(interrupt_at(stop))
        assert (finished.step, finished.interrupted, finished.model) == (stop, True, None)
        assert not (tmp_path / "parts" / "model").exists()
    assert not trainer(made, tmp_path / "parts", *changes).fit().interrupted
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    whole = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    parts = load_file(tmp_path / "parts" / "model" / "model.safetensors")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    last = [tmp_path / run / "checkpoints/step-8/__0_0.distcp" for run in ("parts", "whole")]
    assert last[0].read_bytes() == last[1].read_bytes()


KILLED = """
import os, signal, sys, time, torch
from pathlib import Path
from pilekit.train.config.file import load_config
from pilekit.train.trainer import Trainer

def kill(metrics):
    if metrics.step == 5:
        while not Path(sys.argv[2], "checkpoints/step-3").exists():  # the checkpoint is saved beside training
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(int(sys.argv[3]))
Trainer(load_config(Path(sys.argv[1])), sys.argv[2]).fit(kill)
"""


def test_a_killed_run_resumes_from_its_last_checkpoint(
    made: Path, whole: tuple[Path, TrainResult], tmp_path: Path, process_group: ProcessGroups
) -> None:
    code, _, stderr = process_group.script(
        KILLED, str(made / "tiny.toml"), str(tmp_path / "killed"), str(torch.get_num_threads())
    )
    assert code == -signal.SIGKILL, stderr
    assert [record["step"] for record in lines(tmp_path / "killed")] == [1, 2, 3, 4, 5]
    steps: list[int] = []
    trainer(made, tmp_path / "killed").fit(lambda metrics: steps.append(metrics.step))
    assert steps == [4, 5, 6, 7, 8]
    assert lines(tmp_path / "killed") == lines(whole[0])


def test_a_second_interrupt_stops_at_once(made: Path, tmp_path: Path) -> None:
    def twice(metrics: StepMetrics) -> None:
        if metrics.step == 2:  # before the first checkpoint
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

    ours = trainer(made, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        ours.fit(twice)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    refused("make a new one", ours.fit)


def test_a_run_may_get_more_or_fewer_steps(made: Path, tmp_path: Path) -> None:
    changes = ("schedule.kind=constant",)
    trainer(made, tmp_path / "parts", *changes, "train.steps=5").fit()
    newest = tmp_path / "parts/checkpoints/step-5"  # on another disk now, behind a link
    newest.rename(tmp_path / "elsewhere")
    newest.symlink_to(tmp_path / "elsewhere")
    trainer(made, tmp_path / "parts", *changes).fit()
    trainer(made, tmp_path / "whole", *changes).fit()
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    before = (tmp_path / "parts" / "metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "parts" / "model")
    finished = trainer(made, tmp_path / "parts", *changes, "train.steps=4").fit()
    assert (finished.step, finished.interrupted, finished.last) == (8, False, None)
    assert finished.model == tmp_path / "parts" / "model"
    assert finished.model.exists()
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == before


def test_a_wrong_config_is_refused_before_anything_is_written(made: Path, tmp_path: Path) -> None:
    for change, message in (
        ("data.path=nowhere", "data.path: nowhere"),
        ("data.tokenizer=nowhere", "data.tokenizer: no tokenizer"),
        ("data.subsets=['ArXif']", "data.subsets: .*ArXiv"),
        ("data.manifest=nope", "data.manifest: no manifest is called nope"),
        ("model.path=nowhere", "model.path: nowhere: there is no such model"),
        ("teacher.path=nowhere", "^teacher.path: nowhere: there is no such model"),
        ("data.seq_len=33", "33"),
    ):
        refused(message, trainer, made, tmp_path / "run", change)
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_model_or_other_data_is_refused(made: Path, tmp_path: Path) -> None:
    run, config = tmp_path / "run", tmp_path / "config.json"
    config.write_bytes((made / "shape" / "config.json").read_bytes())
    trainer(made, run, f"model.config={config}", "train.steps=4").fit()
    for change in ("train.seed=1", "data.subsets=['Github']"):
        with pytest.raises(PilekitError, match=change.split("=")[0].removeprefix("data.")):
            trainer(made, run, f"model.config={config}", change).fit()
    other = shutil.copytree(made / "tokenizer", tmp_path / "other")
    (other / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|padding|>"}))
    with pytest.raises(PilekitError, match=r"its end-of-document token \(eos_id\) is \d+, here it is \d+; use"):
        trainer(made, run, f"model.config={config}", f"data.tokenizer={other}").fit()
    config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_act": "relu"}))
    with pytest.raises(PilekitError, match="model of another configuration"):
        trainer(made, run, f"model.config={config}").fit()
    assert len(lines(run)) == 4
    assert load_config(run / "config.toml").data.subsets is None


def test_a_measurement_that_fails_leaves_no_gap_in_the_metrics(made: Path, tmp_path: Path) -> None:
    (shard := tmp_path / "val.jsonl").write_text('{"text": 5}\n')
    changes = ("train.eval_every=2", f"train.eval_path={shard}")
    with pytest.raises(PilekitError, match=r"val.jsonl, line 1: "):
        trainer(made, tmp_path / "run", *changes).fit()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-2"]
    shard.write_text('{"text": "the quick"}\n')
    trainer(made, tmp_path / "run", *changes).fit()
    assert [(record["step"], "bpb" in record) for record in lines(tmp_path / "run")] == [
        (step, step in (4, 6, 8)) for step in range(1, 9)
    ]


def test_an_overflow_at_the_lowest_loss_scale_names_the_step(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second time, the file of its documents cannot be written."""
    scale = ("precision.dtype=fp16", "precision.loss_scale=1e30", "precision.loss_scale_floor=1e30")
    told = refused("^step 2: the gradient's norm is ", trainer(made, tmp_path, *scale).fit)
    assert " even at the lowest loss scale, 1e+30, in rows with 00.jsonl document " in told
    assert f"more (all of them: {tmp_path}/failed-step-2.json); " in told
    assert "run again, which continues after step 1, or from an earlier" in told
    assert told.endswith("--peek 1")
    assert json.loads((tmp_path / "failed-step-2.json").read_text())["step"] == 2
    assert [record["skipped"] for record in lines(tmp_path)] == [1]
    (tmp_path / "failed-step-2.json").unlink()
    (tmp_path / "failed-step-2.json").mkdir()
    again = refused("^step 2: ", trainer(made, tmp_path, *scale).fit)
    assert again == told.replace(f" (all of them: {tmp_path}/failed-step-2.json)", "")
    assert f"{tmp_path}/failed-step-2.json" in caplog.text
    first = ("precision.loss_scale_hysteresis=1", "schedule.warmup=0")
    assert "continues from the start" in refused("^step 1: ", trainer(made, tmp_path / "first", *scale, *first).fit)


def test_weights_that_are_not_numbers_are_not_saved(made: Path, tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match="step 1: update_norm is nan, so the run is lost; lower"):
        trainer(made, tmp_path / "run", "optimizer.lr=1e39", "schedule.warmup=0", "train.steps=1").fit()
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()
