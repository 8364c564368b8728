"""Other implementations of attention: refused where they cannot run, and proven to keep documents apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pilekit.errors import PilekitError
from pilekit.models.causal import isolates_documents
from pilekit.train import backends as engines
from pilekit.train import trainer as training
from pilekit.train.config.file import load_config
from pilekit.train.model.attention import use_attention
from tests.tiny.models import tiny_model
from tests.train.runs import tiny_run, trainer

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
