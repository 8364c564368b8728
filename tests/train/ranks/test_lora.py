"""LoRA by peft: runs, adapters and merged models, on one rank and on two."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from pilekit.cli.main import pilekit
from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.train import backends as engines
from pilekit.train.config.file import load_config
from pilekit.train.estimate import estimate
from pilekit.train.trainer import Trainer
from tests.refusing import refused
from tests.stopping import tree
from tests.tiny.masked import called
from tests.tiny.models import Family
from tests.train.ranks.fitting import Job, base, case
from tests.train.runs import trainer

peft = pytest.importorskip("peft")

IDS = torch.arange(2, 42).reshape(2, 20)


def test_a_run_with_adapters_resumes_too_and_ends_in_what_peft_reads(job: Job) -> None:
    named = base(job.made)
    settings = ("lora.rank=3", "lora.alpha=12", "lora.dropout=0.1", "lora.merge=true", "train.ema=0.5")
    changes = (named, *settings, *case("fp32", 3, 2))
    job.check_resumed(2, changes, seed=3)
    run, begun = job.folder / "whole", AutoModelForCausalLM.from_pretrained(job.made / "base-gpt_neox")
    assert tree(job.folder / "parts/adapter") == tree(run / "adapter")
    before, found = called(begun, IDS), []
    for ending in ("", "-ema"):
        adapted = peft.AutoPeftModelForCausalLM.from_pretrained(run / f"adapter{ending}")
        merged = AutoModelForCausalLM.from_pretrained(run / f"model{ending}")
        found.append(called(adapted, IDS))
        torch.testing.assert_close(called(merged, IDS), found[-1], rtol=1e-4, atol=1e-5)
        for name, value in adapted.merge_and_unload().state_dict().items():
            assert torch.equal(value, merged.state_dict()[name]), name
        assert not torch.allclose(found[-1], before, atol=1e-3)
    assert not torch.allclose(*found, atol=1e-4)
    saved = peft.PeftModel.from_pretrained(begun, run / "adapter")
    saved.save_pretrained(job.folder / "by-peft")
    ours, theirs = (
        load_file(folder / "adapter_model.safetensors") for folder in (run / "adapter", job.folder / "by-peft")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {path.name for path in (run / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.toml",
    }
    configs = [
        json.loads((folder / "adapter_config.json").read_text()) for folder in (run / "adapter", job.folder / "by-peft")
    ]
    for config in configs:
        config["target_modules"].sort()  # peft writes a set
    assert configs[0] == configs[1]
    assert bits_per_byte(run / "model", job.made / "data", limit=3).overall.bpb > 0


@pytest.mark.parametrize(
    ("family", "targets"), [("gpt2", None), pytest.param("llama", ["q_proj", "mlp.down_proj"], marks=pytest.mark.slow)]
)
def test_only_the_adapters_of_the_targets_change_and_merge_comes_later(
    made: Path, tmp_path: Path, family: Family, targets: list[str] | None
) -> None:
    """gpt2's head is its embedding, and its matrices are stored the other way round."""
    changes = (base(made, family), "lora.rank=2", "train.steps=2", "optimizer.lr=0.1", "schedule.warmup=0")
    changes += () if targets is None else (f"lora.targets={targets}",)
    run, config = tmp_path / "run", load_config(made / "tiny.toml", changes)
    finished = Trainer(config, run).fit()
    assert finished.model == run / "adapter"
    assert not (run / "model").exists()
    refused("/adapter: is an adapter, without the model", bits_per_byte, run, made / "data")
    adapted = peft.AutoPeftModelForCausalLM.from_pretrained(run / "adapter")
    names = {
        name.rpartition(".lora_A")[0].rpartition(".")[2]
        for name in load_file(run / "adapter/adapter_model.safetensors")
    }
    assert names - {""} == ({"q_proj", "down_proj"} if targets else {"c_attn", "c_proj", "c_fc"})
    expected = called(adapted, IDS)
    parameters = [p for n, p in adapted.named_parameters() if "lora_" in n]
    held = estimate(config, 1).stages[0].held
    assert held.gradients == 4 * sum(p.numel() for p in parameters)
    done = CliRunner().invoke(pilekit, ["train", str(run / "config.toml"), "--out", str(run), "--merge"])
    assert done.exit_code == 0, done.output
    assert f"the model is in {run}/model; score it with" in done.output
    torch.testing.assert_close(
        called(AutoModelForCausalLM.from_pretrained(run / "model"), IDS), expected, rtol=1e-4, atol=1e-5
    )


def test_wrong_settings_are_told_before_anything_is_loaded(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = base(made)
    for changes, message in (
        (("lora.rank=8",), r"lora.rank = 8: adapts a trained model: give model.path, or set it to 0$"),
        ((named, "lora.merge=true"), r"lora.merge = true: needs lora.rank, such as 8$"),
        (
            (named, "lora.rank=2", 'lora.targets=["q_proj"]'),
            r'^lora.targets: "q_proj" is none of the model\'s linear '
            r"layers; there are dense, dense_4h_to_h, dense_h_to_4h, query_key_value$",
        ),
        ((named, "lora.rank=2", 'lora.targets=["lm_head"]'), r'^lora.targets: "lm_head" is none of'),
        ((named, "lora.rank=2", 'model.freeze=["*.lora_*"]'), r"^model.freeze: all parameters are frozen"),
        ((named, "lora.rank=2", "parallel.backend=accelerate"), r'with parallel.backend = "accelerate" it must be 0'),
    ):
        refused(message, trainer, made, tmp_path / "run", *changes)
    find = importlib.util.find_spec
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "peft" else find(name))
    with pytest.raises(PilekitError, match=r"^lora.rank = 2: the package peft is not installed; pip install 'pilekit"):
        trainer(made, tmp_path / "run", named, "lora.rank=2")
    assert not (tmp_path / "run").exists()
