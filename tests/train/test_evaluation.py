"""Bits per byte during training: bit for bit the figures of one process, on any ranks and in any stage."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import score_corpus
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.results.scores import Score
from pilekit.evaluate.score.batching import TokenizedDocument
from pilekit.evaluate.score.causal_nll import causal_scoring
from pilekit.evaluate.settings import ScoreSettings
from pilekit.models.causal import CausalLM, as_causal_lm
from pilekit.tokenize import load_tokenizer
from pilekit.train.config.sections import TrainConfig
from pilekit.train.evaluation import divide_passes, evaluate, open_held_out
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import join
from tests.evaluate.score.making import records
from tests.process_groups import ProcessGroups
from tests.tiny.models import Family, tiny_corpus, tiny_model, tiny_tokenizer
from tests.train.runs import small_config


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, one of a single document, and a tokenizer."""
    folder = tmp_path_factory.mktemp("made")
    tiny_corpus(folder / "corpus", documents=25)
    tiny_corpus(folder / "single", shards=1, documents=1, seed=3)
    tiny_tokenizer(folder / "tokenizer")
    return folder


def engine_of(lm: CausalLM, stage: int, dtype: str) -> StepEngine:
    return StepEngine(lm, small_config({"parallel.zero": stage, "precision.dtype": dtype}), join())


def some_rows(seed: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(2, 320, (2, 16), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids, "position_ids": torch.arange(16).expand(2, 16)}


# ---- on ranks

Figures = tuple[Score, dict[str, Score]]


def figures(
    made: str, corpus: str, family: Family, stage: int, dtype: str, limit: int | None
) -> tuple[Figures, Figures, dict[str, bool]]:
    """The figures of one process and of all ranks, and whether everything else stayed as it was."""
    tokenizer, shards = load_tokenizer(Path(made, "tokenizer")), Corpus(Path(made, corpus))
    alone = score_corpus(as_causal_lm(tiny_model(family)), tokenizer, shards, ScoreSettings(limit=limit))
    engine = engine_of(as_causal_lm(tiny_model(family)), stage, dtype)
    engine.forward_backward(some_rows(join().rank), scale=0.01, last=True)
    parameters = list(engine.lm.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters], [parameter.grad for parameter in parameters]
    torch.manual_seed(5)
    drawn = torch.get_rng_state()
    together = evaluate(engine, tokenizer, shards, limit=limit)
    assert together.protocol["limit"] == limit
    left = {
        "training": engine.lm.model.training,
        "random numbers": torch.equal(drawn, torch.get_rng_state()),
        "weights": all(torch.equal(*map(local, pair)) for pair in zip(before[0], parameters, strict=True)),
        "gradients": all(old is new.grad for old, new in zip(before[1], parameters, strict=True)),
        "next step": math.isfinite(float(engine.forward_backward(some_rows(9), scale=0.01, last=True).sum()))
        and not engine.update(1e-3).result().skipped,
    }
    return (alone.overall, alone.subsets), (together.overall, together.subsets), left


def local(tensor: Any) -> torch.Tensor:
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def scored_documents(lengths: list[int], look_ahead: int, batch_tokens: int) -> list[list[ScoredDocument]]:
    """Scored by this process alone, and divided among the ranks."""
    draw = torch.Generator().manual_seed(1)
    documents = [
        TokenizedDocument(
            "a", i, 7 * i, "ArXiv", length, torch.randint(2, 320, (length,), generator=draw).numpy().astype("u4")
        )
        for i, length in enumerate(lengths)
    ]
    lm = as_causal_lm(tiny_model().eval())
    scoring = causal_scoring(lm, prefix=0, max_length=32, look_ahead=look_ahead, batch_tokens=batch_tokens)
    return [list(records(documents, one)) for one in (scoring, replace(scoring, passes=divide_passes(join())))]


def message_of(made: str, what: str, stage: int) -> str:
    tokenizer = load_tokenizer(Path(made, "tokenizer"))
    lm = as_causal_lm(tiny_model())
    if what == "poisoned":
        with torch.no_grad():
            lm.model.get_parameter("gpt_neox.embed_in.weight")[tokenizer.encode_batch(["Ω"])[0][-1]] = math.nan
    try:
        evaluate(engine_of(lm, stage, "fp32"), tokenizer, Corpus(Path(made, what)))
    except PilekitError as error:
        return str(error)
    return ""


# ---- the tests


@pytest.mark.parametrize(
    ("stage", "world_size"),
    [(3, 2), (3, 1), pytest.param(0, 2, marks=pytest.mark.slow), pytest.param(3, 4, marks=pytest.mark.slow)],
)
def test_the_figures_of_one_process_on_any_ranks(
    process_group: ProcessGroups, made: Path, world_size: int, stage: int
) -> None:
    for corpus, limit, family in (("corpus", None, "gpt_neox"), ("corpus", 3, "llama"), ("single", None, "gpt2")):
        group = process_group(world_size)
        for alone, together, left in group.run(figures, str(made), corpus, family, stage, "fp32", limit):
            assert together == alone
            assert all(left.values()), left


@pytest.mark.slow
def test_bf16_figures_do_not_depend_on_the_ranks(process_group: ProcessGroups, made: Path) -> None:
    found, stage = [], 3
    for world_size in (2, 4):
        results = process_group(world_size).run(figures, str(made), "corpus", "gpt_neox", stage, "bf16", None)
        for alone, together, left in results:
            found.append(together)
            assert together[0].nll == pytest.approx(alone[0].nll, rel=1e-2)
            assert together[0].nll != alone[0].nll  # it does compute in bf16
            assert all(left.values()), left
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_documents_scored_in_portions_are_the_same_bit_for_bit(process_group: ProcessGroups, world_size: int) -> None:
    lengths = [5, 0, 70, 1, 33, 32, 31, 8, 8, 8, 200, 2, 64, 3, 0, 17]
    for look_ahead, batch_tokens in ((1 << 20, 64), (60, 1), (150, 40), (1 << 20, 1 << 20)):
        for alone, shared in process_group(world_size).run(scored_documents, lengths, look_ahead, batch_tokens):
            assert shared == alone
            assert sorted(document.number for document in shared) == list(range(16))


def test_all_ranks_raise_the_same_error(process_group: ProcessGroups, made: Path) -> None:
    (made / "poisoned").mkdir(exist_ok=True)
    texts = [*["the quick brown fox " * 20] * 30, "Ω and more", *["12345 " * 30] * 30]
    (made / "poisoned" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (made / "broken").mkdir(exist_ok=True)
    (made / "broken" / "a.jsonl").write_text('{"text": "the quick"}\n{"text": 5}\n')
    messages = process_group(2).run(message_of, str(made), "poisoned", 3)
    assert messages[0].startswith("a.jsonl, document 30 ")
    assert messages[0] == messages[1]
    messages = process_group(2).run(message_of, str(made), "broken", 3)
    assert "line 2" in messages[0]
    assert messages[0] == messages[1]


# ---- which documents


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., TrainConfig]:
    for name in ("train/00", "train/01", "val", "test"):
        path = tmp_path / "pile" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "x"}\n')
    return lambda path="pile", **changes: small_config(
        {"data.path": tmp_path / path, "train.eval_every": 10, **changes}
    )


def test_the_val_shards_are_the_default(config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    for path, names in ((None, ["val.jsonl"]), ("test.jsonl", ["test.jsonl"]), ("train", ["00.jsonl", "01.jsonl"])):
        found = open_held_out(config(**{"train.eval_path": None if path is None else tmp_path / "pile" / path}))
        assert found is not None
        assert [shard.name for shard in found.shards] == names


def test_a_path_that_is_never_measured_on_is_a_warning(
    config: Callable[..., TrainConfig], caplog: pytest.LogCaptureFixture
) -> None:
    assert open_held_out(config(**{"train.eval_every": 0})) is None
    assert not caplog.messages
    assert open_held_out(config(**{"train.eval_every": 0, "train.eval_path": "pile"})) is None
    assert caplog.messages == ["train.eval_path is not used, because train.eval_every is 0"]


def test_missing_held_out_shards_are_named(config: Callable[..., TrainConfig]) -> None:
    for path in ("pile/train", "pile/val.jsonl"):
        with pytest.raises(PilekitError, match=r"train\.eval_every = 10: .* no val shards .* train\.eval_path"):
            open_held_out(config(path))
    with pytest.raises(PilekitError, match=r"train\.eval_path: .*nowhere"):
        open_held_out(config(**{"train.eval_path": "nowhere"}))
    with pytest.raises(PilekitError, match=r"data\.path: .*nowhere"):
        open_held_out(config("nowhere"))
