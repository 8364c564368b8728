"""Distillation: the loss is a plain formula, a student starts from its teacher, and ranks change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from pilekit.errors import PilekitError
from pilekit.models.logit_transform import UNCHANGED, LogitTransform
from pilekit.train.config.file import load_config
from pilekit.train.config.sections import TeacherConfig
from pilekit.train.estimate import estimate
from pilekit.train.model.shape import kept_blocks
from pilekit.train.step.chunked_loss import Head, TeacherOutput, chunked_cross_entropy
from pilekit.train.step.losses import StepLoss
from pilekit.train.step.teacher import Teacher
from pilekit.workers.ranks import join
from tests.refusing import refused
from tests.tiny.logit_transforms import transformed
from tests.tiny.masked import tiny as tiny_masked
from tests.tiny.models import tiny_neox_config, tiny_tokenizer
from tests.train.ranks.fitting import STEPS, Job, case
from tests.train.runs import trainer
from tests.train.step.test_losses import masked, packed
from tests.train.step.test_losses import tiny as tiny_causal


@given(
    rows=st.integers(0, 12),
    vocabulary=st.integers(1, 9),
    chunk=st.integers(1, 14),
    temperature=st.sampled_from([0.5, 1.0, 4.0]),
    transforms=st.sampled_from(
        [(UNCHANGED, UNCHANGED), (LogitTransform(cap=1.5), LogitTransform(times=3.0, over=2.0))]
    ),
    seed=st.integers(0, 1000),
)
def test_the_loss_in_chunks_is_the_formula(
    rows: int, vocabulary: int, chunk: int, temperature: float, transforms: tuple[LogitTransform, ...], seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    shapes = [(rows, 3), (vocabulary, 3), (vocabulary,), (rows, 5), (vocabulary, 5), (vocabulary,)]
    given = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    leaves, teacher = [leaf.requires_grad_() for leaf in given[:3]], given[3:]
    targets = torch.randint(vocabulary, (rows,), generator=draw)
    student, other = (
        transformed(transform, functional.linear(*of))
        for transform, of in zip(transforms, (leaves, teacher), strict=True)
    )
    soft, shares = (logits / temperature for logits in (student, other))
    divergence = functional.kl_div(soft.log_softmax(-1), shares.log_softmax(-1), reduction="sum", log_target=True)
    right = 0.3 * temperature**2 * divergence + 0.9 * functional.cross_entropy(student, targets, reduction="sum")

    weights = TeacherConfig(temperature=temperature, kl=0.3, cross_entropy=0.9)
    taught = TeacherOutput(teacher[0], Head(*teacher[1:], transforms[1]), weights)
    head = Head(leaves[1], leaves[2], transforms[0])
    found, each = chunked_cross_entropy(leaves[0], head, targets, rows=chunk, taught=taught)

    torch.testing.assert_close(found, right)
    torch.testing.assert_close(each, functional.cross_entropy(student, targets, reduction="none").detach())
    for one, other in zip(torch.autograd.grad(found, leaves), torch.autograd.grad(right, leaves), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_the_loss_of_a_step_compares_both_models(kind: str) -> None:
    is_masked = kind == "masked"
    made, family = (tiny_masked, "roberta") if is_masked else (tiny_causal, "gpt_neox")
    student, teacher = made(family, dtype=torch.float32), made(family, dtype=torch.float32)
    with torch.no_grad():
        for parameter in teacher.model.parameters():
            parameter.mul_(1.3)
    attention = "row" if is_masked else "causal"
    given = {
        "data": {"tokenizer": "none", "attention": attention},
        "train": {"steps": 1, "objective": "mlm" if is_masked else "clm"},
        "teacher": {"path": "none", "temperature": 3.0, "kl": 0.7, "cross_entropy": 0.2, "cosine": 0.4},
    }
    batch = masked([24]) if is_masked else packed([24, 24])
    targets = batch["labels"] if is_masked else batch["labels"][:, 1:]
    chosen = targets != -100
    ours, theirs = (
        (logits if is_masked else logits[:, :-1])[chosen]
        for logits in (model.model(input_ids=batch["input_ids"]).logits for model in (student, teacher))
    )
    mine, yours = (hidden_states(model, batch["input_ids"], is_masked)[chosen] for model in (student, teacher))
    soft = functional.kl_div((ours / 3).log_softmax(-1), (theirs / 3).log_softmax(-1), reduction="sum", log_target=True)
    right = 0.7 * 9 * soft + 0.2 * functional.cross_entropy(ours, targets[chosen], reduction="sum")
    right = (right + 0.4 * (1 - functional.cosine_similarity(mine, yours)).sum()) / 7
    trained = [parameter for parameter in student.model.parameters() if parameter.requires_grad]
    right_gradients = torch.autograd.grad(right, trained, allow_unused=True)

    frozen = Teacher(teacher, load_config(given), join())
    loss, _ = StepLoss(student, attention=attention, teacher=frozen)(batch, 1 / 7)
    torch.testing.assert_close(loss, right, rtol=1e-5, atol=1e-5)
    for one, other in zip(torch.autograd.grad(loss, trained, allow_unused=True), right_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def hidden_states(lm: Any, ids: Tensor, is_masked: bool) -> Tensor:
    """What the head reads, caught as it runs."""
    seen: list[Tensor] = []
    hook = lm.head.register_forward_hook(lambda _head, given, _made: seen.append(given[0]))
    lm.model(input_ids=ids)
    hook.remove()
    return seen[0] if is_masked else seen[0][:, :-1]


@pytest.fixture(scope="module")
def taught(made: Path) -> tuple[str, ...]:
    """Changes for a run with a teacher of five blocks."""
    teacher = tiny_neox_config(initializer_range=0.3, num_hidden_layers=5, hidden_dropout=0.1)
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(teacher).save_pretrained(made / "teacher")
    tiny_tokenizer(made / "teacher")
    return f"teacher.path={made}/teacher", "teacher.cosine=0.3"


@pytest.mark.parametrize(
    "cases",
    [[("fp32", 3)], pytest.param([("fp32", 0), ("fp32", 1), ("bf16", 2), ("bf16", 3)], marks=pytest.mark.slow)],
)
def test_two_ranks_learn_as_one_from_a_teacher_of_any_type_in_any_stage(
    job: Job, taught: tuple[str, ...], cases: list[tuple[str, int]]
) -> None:
    """As one rank in stage 0, one row at a time."""
    typed = {dtype: (*taught, f"teacher.dtype={dtype}") for dtype, _ in cases}
    one = {dtype: (*changes, *case("fp32", 0, 1)) for dtype, changes in typed.items()}
    two = [
        (dtype, (*typed[dtype], *case("fp32", zero, 2)), *[1e-5 if dtype == "fp32" else 1e-3] * 2)
        for dtype, zero in cases
    ]
    job.check_as_one(one, two)


@pytest.mark.slow
def test_a_resumed_run_with_a_teacher_equals_one_that_never_stopped(job: Job, taught: tuple[str, ...]) -> None:
    job.check_resumed(2, (*taught, "model.from_teacher=2", *case("bf16", 3, 2)), seed=4)


def test_a_student_begins_as_blocks_of_its_teacher(
    made: Path, tmp_path: Path, taught: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_blocks(12, 6) == [0, 2, 4, 7, 9, 11]  # those of distilroberta-base
    assert [kept_blocks(5, kept) for kept in (1, 2, 5)] == [[0], [0, 4], [0, 1, 2, 3, 4]]
    ours = trainer(made, tmp_path / "run", *taught, "model.from_teacher=3")
    weights = dict(AutoModelForCausalLM.from_pretrained(made / "teacher").named_parameters())
    found = dict(ours.engine.full_parameters())
    assert ours.engine.lm.model.config.num_hidden_layers == 3
    assert len(found) < len(weights)
    for name, value in found.items():
        for student, teacher in ((2, 4), (1, 2)):
            name = name.replace(f"layers.{student}.", f"layers.{teacher}.")
        assert torch.equal(value, weights[name]), name
    assert ours.fit().step == STEPS
    assert ours.engine.lm.model.config.num_hidden_layers == 3
    tiny_neox_config(hidden_size=16).save_pretrained(tmp_path / "narrow")
    tiny_neox_config(vocab_size=310).save_pretrained(tmp_path / "small")
    for changes, message in (
        (("model.from_teacher=6",), "has 5 blocks, and model.from_teacher is 6; set it lower"),
        (("teacher.path=nowhere",), "nowhere: there is no such model"),
        (("teacher.kl=0", "teacher.cosine=0"), "teaches nothing"),
        ((f"model.config={tmp_path}/narrow", "teacher.cosine=0.5"), "compares states of one width"),
        ((f"model.config={tmp_path}/small",), "predicts 320 ids, and the model 310"),
        (("parallel.backend=accelerate",), 'with parallel.backend = "accelerate" it must be'),
    ):
        with monkeypatch.context() as patch, pytest.raises(PilekitError, match=message):
            patch.setattr("pilekit.train.model.build.load_model", lambda *_, **__: pytest.fail("weights were read"))
            trainer(made, tmp_path / "none", *taught, *changes)
        with pytest.raises(PilekitError, match=message):  # as --dry-run
            estimate(load_config(made / "tiny.toml", (*taught, *changes)), 1)
    for changes in (("model.from_teacher=3",), ("train.objective=distill",)):
        refused(r"needs teacher\.path", load_config, made / "tiny.toml", changes)
    assert not (tmp_path / "none").exists()


def test_the_objective_distill_is_that_of_the_teacher(made: Path, tmp_path: Path, taught: tuple[str, ...]) -> None:
    distill = ("train.objective=distill",)
    assert load_config(made / "tiny.toml", (*taught, *distill)) == load_config(made / "tiny.toml", taught)
    tiny_masked("roberta").model.save_pretrained(tmp_path)
    with pytest.raises(PilekitError, match=r"teacher\.path: nowhere: there is no such model"):
        load_config(made / "tiny.toml", (*distill, "teacher.path=nowhere"))
    found = load_config(made / "tiny.toml", (*distill, f"teacher.path={tmp_path}"))
    assert found.train.objective == "mlm"
