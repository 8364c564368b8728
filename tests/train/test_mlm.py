"""Masked language modelling: its models, and the trainer against a plain loop."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.models.masked import MaskedLM, as_masked_lm
from pilekit.stream.pile_stream import PileStream
from pilekit.tokenize import load_tokenizer
from pilekit.train.config.sections import ModelConfig
from pilekit.train.model.build import build_model
from pilekit.train.model.shape import model_shape
from tests.process_groups import ProcessGroups
from tests.tiny.masked import FAMILIES, PAD, called, config_of, made_of
from tests.tokenize.making import byte_level_bpe
from tests.train.plain_loop import plain_adamw
from tests.train.runs import lines, tiny_run, trainer
from tests.train.step.test_losses import masked_nll
from tests.train.test_trainer import OUTPUTS

SEQ_LEN = 24

Batch = dict[str, Tensor]
Attention = Literal["document", "row"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a BERT, whose tokenizer has a mask token, and the shapes of all families."""
    folder = tmp_path_factory.mktemp("made")
    model = ("train.objective=mlm", f"model.config={folder}/bert", "train.clip_norm=0.5", "optimizer.eps=1e-3")
    rows = ("data.seq_len=24", "data.window=8", "train.global_batch_size=8", "train.steps=6", "checkpoint.every=2")
    tiny_run(folder, *model, *rows, "optimizer.lr=0.01", "schedule.kind=constant", documents=60)
    byte_level_bpe(300, added=("<mask>",)).save(str(folder / "tokenizer" / "tokenizer.json"))
    for family in FAMILIES:
        config_of(family).save_pretrained(folder / family)
    return folder


def test_positions_and_shapes(made: Path) -> None:
    tokenizer = load_tokenizer(made / "tokenizer")
    for family in FAMILIES:
        given = ModelConfig(config=str(made / family))
        lm = build_model(given, tokenizer, seq_len=40, seed=3, objective="mlm")
        assert isinstance(lm, MaskedLM)
        assert (lm.max_length, lm.head_by_place, lm.model.training) == (40, True, True)
        assert type(lm.model).__name__.lower() == f"{family}formaskedlm"
        with pytest.raises(PilekitError, match=r"has 40 positions and data.seq_len is 41; set data.seq_len to 40 or"):
            model_shape(given, tokenizer, 41, "mlm")


def test_a_model_that_mixes_documents_is_refused(made: Path, tmp_path: Path) -> None:
    """Megatron-BERT's attention adds the mask to its numbers."""
    config_of("megatron").save_pretrained(tmp_path / "megatron")
    change = f"model.config={tmp_path / 'megatron'}"
    with pytest.raises(
        PilekitError, match=r"^a megatron-bert model cannot keep .* apart; set data.attention = \"row\"$"
    ):
        trainer(made, tmp_path / "run", change)
    assert not (tmp_path / "run").exists()
    assert trainer(made, tmp_path / "run", change, "data.attention=row", "train.steps=1").fit().step == 1


def steps_of(made: Path, count: int) -> list[Batch]:
    stream = PileStream(
        Corpus(made / "data"),
        tokenizer=made / "tokenizer",
        seq_len=SEQ_LEN,
        batch_size=8,
        window=8,
        objective="mlm",
        outputs=OUTPUTS,
    )
    return list(islice(stream, count))


def plain_losses(model: Any, steps: Sequence[Batch], attention: Attention) -> list[tuple[float, float]]:
    """(loss, norm) of each step; `model` is trained in place, with transformers' own loss and whole batches."""
    optimizer, losses = plain_adamw(model, eps=1e-3, lr=0.01), []
    for batch in steps:
        documents = batch["doc_ids"]
        inputs = {"input_ids": batch["input_ids"], "labels": batch["labels"]}
        if attention == "row":
            inputs["attention_mask"] = (documents >= 0).long()
        else:
            padding = torch.eye(SEQ_LEN, dtype=torch.bool) | (documents >= 0)[:, :, None]
            inputs["attention_mask"] = ((documents[:, :, None] == documents[:, None, :]) & padding)[:, None]
            inputs["position_ids"] = batch["position_ids"]
        loss = model(**inputs).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.item(), norm.item()))
    return losses


def model_of(made: Path, state: dict[str, Tensor]) -> Any:
    model = made_of(BertConfig.from_pretrained(made / "bert"))
    model.load_state_dict(state)
    return model.train()


@pytest.mark.parametrize("attention", ["document", pytest.param("row", marks=pytest.mark.slow)])
def test_it_is_the_plain_loop_and_loads_with_equal_logits(made: Path, tmp_path: Path, attention: Attention) -> None:
    ours = trainer(made, tmp_path / "run", f"data.attention={attention}")
    start = {name: value.clone() for name, value in ours.engine.lm.model.state_dict().items()}
    steps = steps_of(made, 6)
    lm = as_masked_lm(model_of(made, start))
    first = steps[0]
    nll = masked_nll(lm, first, attention)
    reference = model_of(made, start)
    expected = plain_losses(reference, steps, attention)

    finished = ours.fit()

    records = lines(tmp_path / "run")
    assert [record["loss"] for record in records] == pytest.approx([loss for loss, _ in expected], rel=1e-5)
    assert [record["grad_norm"] for record in records] == pytest.approx([norm for _, norm in expected], rel=1e-3)
    assert records[-1]["tokens"] == sum(int((batch["doc_ids"] >= 0).sum()) for batch in steps)
    by_subset: dict[str, list[float]] = defaultdict(list)
    for row, place in (first["labels"] != -100).nonzero().tolist():
        by_subset[ours.stream.subset_names[int(first["subset_ids"][row, place])]].append(float(nll[row, place]))
    assert records[0]["loss_by_subset"] == {
        name: pytest.approx(sum(losses) / len(losses), rel=1e-5) for name, losses in by_subset.items()
    }
    assert finished.model is not None
    loaded = AutoModelForMaskedLM.from_pretrained(finished.model, attn_implementation="sdpa")
    again = called(loaded, first["input_ids"])
    assert torch.equal(called(ours.engine.lm.model, first["input_ids"]), again)
    torch.testing.assert_close(called(reference, first["input_ids"]), again, rtol=1e-3, atol=1e-3)
    tokenizer = AutoTokenizer.from_pretrained(finished.model)
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (300, PAD)
    exported = load_tokenizer(finished.model)
    assert exported.mask_id == load_tokenizer(made / "tokenizer").mask_id == 300


# In each rank


def losses_of_stages(made: Path, out: Path, dtype: str) -> list[list[float]]:
    """The losses of the steps under some stages; the third step of stage 3 continues from a checkpoint."""
    found = []
    for zero in (1, 3):
        run = out / f"zero-{zero}"
        changes = (f"parallel.zero={zero}", f"precision.dtype={dtype}")
        for steps in (2, 3) if zero == 3 else (2,):
            trainer(made, run, *changes, f"train.steps={steps}").fit()
        found.append([record["loss"] for record in lines(run)])
    return found


@pytest.mark.parametrize(
    "dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.slow), pytest.param("fp16", marks=pytest.mark.slow)]
)
def test_two_ranks_are_the_plain_loop(made: Path, tmp_path: Path, process_group: ProcessGroups, dtype: str) -> None:
    start = trainer(made, tmp_path / "start").engine.lm.model.state_dict()
    steps = steps_of(made, 3)
    expected = [loss for loss, _ in plain_losses(model_of(made, start), steps, "document")]

    found = process_group(2).run(losses_of_stages, made, tmp_path, dtype)

    assert found[0] == found[1]
    for losses in found[0]:
        assert losses == pytest.approx(expected[: len(losses)], rel=1e-5 if dtype == "fp32" else 0.02)
        assert losses[:2] == pytest.approx(found[0][0], rel=1e-5 if dtype == "fp32" else 1e-3)
    assert [len(losses) for losses in found[0]] == [2, 3]
    stored = load_file(tmp_path / "zero-3" / "model" / "model.safetensors")
    assert not json.loads((tmp_path / "zero-3" / "model" / "config.json").read_text())["is_decoder"]
    assert stored.keys() <= model_of(made, start).state_dict().keys()


@pytest.mark.parametrize("family", ["bert", pytest.param("distilbert", marks=pytest.mark.slow)])
def test_adapters_of_a_masked_model_are_read_by_peft_and_merge(made: Path, tmp_path: Path, family: str) -> None:
    """Only the adapters change; the merged model predicts as the base model with the adapters does."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(5)
    begun = AutoModelForMaskedLM.from_config(config_of(family))
    begun.save_pretrained(tmp_path / "base")
    target = "query" if family == "bert" else "q_lin"
    changes = (f"model.path={tmp_path}/base", "lora.rank=2", f"lora.targets=['{target}']", "lora.merge=true")
    assert trainer(made, tmp_path / "run", *changes).fit().step == 6
    ids = torch.arange(2, 42).reshape(2, 20)
    before = called(begun, ids)
    adapted = peft.PeftModel.from_pretrained(begun, tmp_path / "run" / "adapter")
    names = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    assert names
    assert all(f".{target}.lora_" in name for name in names)
    found = called(adapted, ids)
    assert not torch.allclose(found, before, atol=1e-3)
    merged = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model")
    torch.testing.assert_close(called(merged, ids), found, rtol=1e-4, atol=1e-5)
    kept = load_file(tmp_path / "run" / "model" / "model.safetensors")
    for name, value in load_file(tmp_path / "base" / "model.safetensors").items():
        assert torch.equal(kept[name], value) != (f".{target}.weight" in name), name
