"""Other implementations of attention: refused where they cannot run, and proven to keep documents apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pilekit.errors import PilekitError
from pilekit.models.causal import as_causal_lm, isolates_documents
from pilekit.train import backends as engines
from pilekit.train import trainer as training
from pilekit.train.config.file import load_config
from pilekit.train.model.attention import choose_attention, chosen_attention, use_attention
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.tiny.models import tiny_model, tiny_neox_config
from tests.train.plain_loop import random_rows
from tests.train.runs import small_config, tiny_run, trainer, warnings_of

FLEX = "model.attention_implementation=flex_attention"
FLASH = "model.attention_implementation=flash_attention_2"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("attention"), "train.steps=1")


def test_what_cannot_run_here_is_refused_in_one_line(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bf16, name = "precision.dtype=bf16", 'model.attention_implementation = "fl'
    refused = [
        ((FLASH,), f'{name}ash_attention_2": needs precision.dtype = "bf16" or "fp16"'),
        ((FLEX, "train.objective=mlm", "data.attention=row"), f'{name}ex_attention": with train.objective = "mlm" it'),
        (
            (FLEX, "parallel.backend=accelerate"),
            f'{name}ex_attention": with parallel.backend = "accelerate" it must be',
        ),
        ((FLEX,), f'{name}ex_attention": trains on a GPU only, and there is none; set "sdpa"'),
        ((FLASH, bf16), f'{name}ash_attention_2": the package flash_attn is not installed; install it, or set "sdpa"'),
    ]
    for changes, message in refused:
        with pytest.raises(PilekitError) as raised:
            trainer(made, tmp_path / "run", *changes)
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
    for wrong in ("flash_attention_2", "none_such"):
        with pytest.raises(PilekitError, match=f'^model.attention_implementation = "{wrong}": a gpt_neox model cannot'):
            use_attention(tiny_model(), wrong)


def leaking(module: Any, query: Any, key: Any, value: Any, _mask: Any, **more: Any) -> Any:
    """Attention to all tokens before, whatever their document."""
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, **more)


def failing(*_given: Any, **_more: Any) -> Any:
    """As flex attention fails on a GPU with narrow heads."""
    raise RuntimeError("NYI: heads of 8\nare")


def test_documents_are_proven_apart_with_the_implementation_itself(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flex attention, which a CPU computes forward only, in eager mode; and a broken one."""
    monkeypatch.setattr(
        training, "check_backend", lambda _config, _device: engines.check_backend(load_config(made / "tiny.toml"))
    )
    proofs: list[tuple[bool, int]] = []

    def noted(lm: Any, rows: int = 1) -> bool:
        proofs.append((isolates_documents(lm, rows), rows))
        return proofs[-1][0]

    monkeypatch.setattr("pilekit.train.model.attention.isolates_documents", noted)
    with torch.compiler.set_stance("force_eager"):
        trainer(made, tmp_path / "run", FLEX)
        assert proofs == [(True, 1), (True, 2)]
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flex_attention", leaking)
        with pytest.raises(
            PilekitError, match=r"mixes the documents of a row here; set train.micro_batch_size = 1, or"
        ):
            trainer(made, tmp_path / "run", FLEX)
        trainer(made, tmp_path / "run", FLEX, "data.attention=causal")
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flex_attention", failing)
        for attention in ("document", "causal"):
            with pytest.raises(
                PilekitError, match=r'^model.*"flex_attention": does not run .* \(NYI: heads of 8 are\); set "sdpa"$'
            ):
                trainer(made, tmp_path / "run", FLEX, f"data.attention={attention}")
    assert proofs[2:] == [(True, 1), (False, 2), (False, 2), (True, 1)]


# --- "auto" ---


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize(
    ("changes", "is_faster"),
    [
        (("precision.dtype=bf16",), True),
        (("precision.dtype=fp16",), True),
        ((), False),
        (("precision.dtype=bf16", "data.attention=causal"), False),
        (("precision.dtype=bf16", "parallel.zero=1", "parallel.backend=deepspeed"), False),
        (("precision.dtype=bf16", "model.preset=roberta-base", "train.objective=mlm"), False),
    ],
)
def test_varlen_is_chosen_where_it_is_faster_and_runs(
    device: str, runs: bool, changes: tuple[str, ...], is_faster: bool
) -> None:
    assert chosen_attention(small_config(changes), device, lambda: runs) == (
        "varlen" if device == "cuda" and is_faster and runs else "sdpa"
    )


@pytest.mark.parametrize("named", ["sdpa", "varlen", "flash_attention_2", "flex_attention"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_named_implementation_is_never_replaced(named: str, device: str) -> None:
    config = small_config([f"model.attention_implementation={named}", "precision.dtype=bf16"])
    assert chosen_attention(config, device, lambda: pytest.fail("it was tried")) == named
    assert chosen_attention(small_config(), device, lambda: pytest.fail("it was tried")) == "sdpa"


def steps_after_choosing(named: str, dropout: float) -> tuple[str, str, list[float], list[str]]:
    """(the engine's attention, the model's, losses of two steps, warnings), chosen as on a GPU."""
    torch.manual_seed(0)
    ranks, model = join(), AutoModelForCausalLM.from_config(tiny_neox_config(attention_dropout=dropout))
    config = small_config([f"model.attention_implementation={named}", "precision.dtype=bf16", "parallel.zero=3"])
    engine = StepEngine(as_causal_lm(model), config, ranks)
    with warnings_of() as warned:
        choose_attention(engine, config, "cuda")
    assert all(parameter.grad is None for parameter in model.parameters())
    losses = []
    for step in range(2):
        torch.manual_seed(step)
        batch = random_rows(step, 2, 16)
        losses.append(engine.forward_backward(batch, scale=0.01, last=True).sum().item())
        engine.update(1e-3)
    return engine.attention, model.config._attn_implementation, losses, [str(each.msg) for each in warned]


def test_auto_computes_as_the_implementation_that_it_takes(process_group: ProcessGroups) -> None:
    """On two ranks that share parameters, which a failed trial must leave between two steps."""
    ranks = process_group(2)
    named = ranks.run(steps_after_choosing, "varlen", 0.0)
    assert ranks.run(steps_after_choosing, "auto", 0.0) == named
    assert named[0][:2] == ("varlen", "varlen")
    fallen_back, plain = (ranks.run(steps_after_choosing, name, 0.1) for name in ("auto", "sdpa"))
    assert [each[:3] for each in fallen_back] == [each[:3] for each in plain]
    assert fallen_back[0][:2] == ("sdpa", "sdpa")
    assert plain[0][3] == fallen_back[1][3] == []
    assert fallen_back[0][3] == ["attention is computed by sdpa, because varlen cannot be: %s"]


def test_a_run_says_how_it_attends_and_what_changed(made: Path, tmp_path: Path) -> None:
    trainer(made, tmp_path / "run", "model.attention_implementation=varlen").fit()
    with warnings_of() as warned:
        again = trainer(made, tmp_path / "run", "train.steps=2")
        again.fit()
    (change,) = [each.getMessage() for each in warned if "attention" in each.getMessage()]
    assert change.endswith('resumes with model.attention_implementation = "sdpa", which was "varlen"')
    written = load_config(tmp_path / "run" / "config.toml").model.attention_implementation
    assert written == again.config.model.attention_implementation == "sdpa"
    with warnings_of() as warned:
        trainer(made, tmp_path / "run", "train.steps=3").fit()
    assert not [each for each in warned if "attention" in each.getMessage()]
