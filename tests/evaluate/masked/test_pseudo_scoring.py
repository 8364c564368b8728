"""Pseudo-log-likelihoods beside a reference that masks one token at a time; samples; templates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedTokenizerFast

from pilekit.errors import PilekitError
from pilekit.evaluate.masked import pseudo_scoring
from pilekit.evaluate.masked.model import MaskedLM, as_masked_lm
from pilekit.evaluate.masked.pseudo_scoring import Template, chosen, pseudo_score_documents, template_of
from pilekit.evaluate.score import causal_nll as scoring
from pilekit.evaluate.score.causal_nll import ScoredDocument, TokenizedDocument
from pilekit.tokenize import load_tokenizer
from tests.evaluate.pseudo_reference import reference_losses, reference_pseudo_nll
from tests.tiny import tiny_corpus, tiny_tokenizer
from tests.tiny_masked import FAMILIES, VOCABULARY, mobile_bert, roberta_tokenizer, tiny

TEMPLATE = Template((0,), (2,), 3)
ROOM = 38
LENGTHS = [0, 1, 2, 17, ROOM - 1, ROOM, ROOM + 1, 1, 0, 2 * ROOM, 2 * ROOM + 1, 5]


def documents(lengths: list[int], seed: int = 0) -> list[TokenizedDocument]:
    rng = np.random.default_rng(seed)
    return [
        TokenizedDocument("a.jsonl", number, 1000 + number, "Github", 4 * n, ids.astype(np.uint32))
        for number, n in enumerate(lengths)
        for ids in [rng.integers(4, VOCABULARY, size=n)]
    ]


def scored(lm: MaskedLM, given: list[TokenizedDocument], **changes: Any) -> list[ScoredDocument]:
    """In the order of their numbers."""
    found = pseudo_score_documents(lm, given, **{"template": TEMPLATE, "max_length": 40, **changes})
    return sorted(found, key=lambda one: one.number)


# Beside the reference


@pytest.mark.parametrize("family", [*FAMILIES, "mobilebert"])
def test_equal_to_one_masked_token_at_a_time_in_float64(family: str) -> None:
    lm = as_masked_lm(mobile_bert().double()) if family == "mobilebert" else tiny(family)
    assert lm.head_by_place == (family != "mobilebert")
    given = documents(LENGTHS)
    double = scored(lm, given)
    expected = [reference_pseudo_nll(lm.model, of.ids.tolist(), TEMPLATE, 40) for of in given]
    single = scored(as_masked_lm(cast("Any", lm.model).float()), given)
    for exact, rounded, of, right in zip(double, single, given, expected, strict=True):
        assert (exact.number, exact.text, exact.bytes, exact.tokens) == (of.number, of.text, of.bytes, len(of.ids))
        assert exact.nll == pytest.approx(right, rel=1e-12, abs=1e-12)
        assert rounded.nll == pytest.approx(right, rel=1e-6, abs=1e-6)


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 30), max_size=8),
    st.integers(1, 12),
    st.sampled_from([Template((), (), 3), Template((0,), (2,), 3), Template((), (2, 0), 3)]),
    st.sampled_from([1, 7, 64, 4096]),
    st.sampled_from(["bert", "roberta"]),
)
def test_any_lengths_windows_and_templates(
    lengths: list[int], room: int, template: Template, batch_tokens: int, family: str
) -> None:
    lm = LMS[family]
    max_length = room + len(template.before) + len(template.behind)
    given = documents(lengths)
    found = scored(lm, given, template=template, max_length=max_length, batch_tokens=batch_tokens)
    assert [one.number for one in found] == list(range(len(lengths)))
    for one, of in zip(found, given, strict=True):
        right = reference_pseudo_nll(lm.model, of.ids.tolist(), template, max_length)
        assert one.nll == pytest.approx(right, rel=1e-12, abs=1e-12)


LMS = {family: tiny(family) for family in ("bert", "roberta")}


def test_a_window_may_fill_all_positions_of_roberta() -> None:
    """Of 42 embeddings of positions the first two, up to that of padding, are no token's."""
    lm = LMS["roberta"]
    assert lm.model.config.max_position_embeddings == 42
    assert lm.max_length == 40
    (one,) = scored(lm, documents([ROOM]))
    assert one.nll == pytest.approx(
        reference_pseudo_nll(lm.model, documents([ROOM])[0].ids.tolist(), TEMPLATE, 40), rel=1e-12
    )


@pytest.mark.parametrize(
    ("family", "dtype", "rel"),
    [
        ("roberta", torch.float32, 1e-7),
        pytest.param("bert", torch.float64, 1e-12, marks=pytest.mark.slow),
        pytest.param("distilbert", torch.float32, 1e-7, marks=pytest.mark.slow),
    ],
)
def test_batches_change_nothing(family: str, dtype: torch.dtype, rel: float) -> None:
    lm = tiny(family, dtype=dtype)
    given = documents([*LENGTHS, *range(3, 60, 7)])
    for sample in (None, 3):
        alone = [one.nll for one in scored(lm, given, batch_tokens=1, sample=sample)]
        for batch_tokens in (64, 64 * 40, 10**6):
            together = [one.nll for one in scored(lm, given, batch_tokens=batch_tokens, sample=sample)]
            assert sum(together) == pytest.approx(sum(alone), rel=rel)
            assert together == pytest.approx(alone, rel=10 * rel)


def test_a_uniform_model_needs_the_logarithm_of_its_vocabulary() -> None:
    lm = tiny("roberta")
    torch.nn.init.zeros_(lm.head.weight)
    torch.nn.init.zeros_(lm.head.bias)
    for sample in (None, 1, 7):
        for one in scored(lm, documents(LENGTHS), sample=sample):
            assert one.nll / math.log(2) == pytest.approx(one.tokens * math.log2(VOCABULARY), rel=1e-15)


def test_what_is_masked_is_not_seen_and_all_else_is() -> None:
    """The loss of a window's only chosen token follows every other token, and its own only as what is asked for."""
    lm = LMS["bert"]
    (of,) = documents([9])
    place = int(chosen(9, 1, 0, of.text, 0)[0])
    before = scored(lm, [of], sample=1)[0].nll
    for changed in range(9):
        ids = of.ids.copy()
        ids[changed] = 5 if ids[changed] != 5 else 6
        (one,) = scored(lm, [TokenizedDocument(of.shard, 0, of.text, of.subset, of.bytes, ids)], sample=1)
        assert one.nll != before
        assert one.nll == pytest.approx(9 * reference_losses(lm.model, ids.tolist(), TEMPLATE, 40)[0][place], rel=1e-12)


class LargestLogits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many rows the largest tensor of logits has that is made within."""

    rows = 0

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        made = function(*given, **(named or {}))
        if isinstance(made, torch.Tensor) and made.dim() and made.shape[-1] == VOCABULARY:
            self.rows = max(self.rows, made.numel() // VOCABULARY)
        return made


def test_logits_are_held_at_one_place_of_each_row() -> None:
    lm = tiny("roberta", dtype=torch.float32)
    with cast("Any", LargestLogits)() as largest:
        scored(lm, documents([5 * ROOM, 20, 3]), batch_tokens=4000)
    assert largest.rows == 4000 // 40


def test_logits_of_all_places_are_made_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "CHUNK_BYTES", 90 * 4 * VOCABULARY)
    with cast("Any", LargestLogits)() as largest:
        scored(as_masked_lm(mobile_bert()), documents([5 * ROOM, 20, 3]), batch_tokens=4000)
    assert 40 <= largest.rows <= 90


# Samples


def test_a_sample_is_what_was_chosen_times_the_share_of_it() -> None:
    lm = LMS["roberta"]
    given = documents([*LENGTHS, 100])
    for one, of in zip(scored(lm, given, sample=4, seed=5), given, strict=True):
        right = 0.0
        for number, losses in enumerate(reference_losses(lm.model, of.ids.tolist(), TEMPLATE, 40)):
            places = chosen(len(losses), 4, 5, of.text, number).tolist()
            assert len(places) == min(4, len(losses))
            right += len(losses) / len(places) * sum(losses[place] for place in places)
        assert one.nll == pytest.approx(right, rel=1e-12, abs=1e-12)
        assert one.tokens == len(of.ids)


def test_a_sample_of_all_is_all() -> None:
    lm = LMS["bert"]
    for sample in (ROOM, 10**9):
        assert scored(lm, documents(LENGTHS), sample=sample) == scored(lm, documents(LENGTHS))


@pytest.mark.parametrize(("tokens", "sample"), [(5, 1), (5, 2), (6, 3), (5, 4)])
def test_the_mean_over_all_choices_is_the_whole(monkeypatch: pytest.MonkeyPatch, tokens: int, sample: int) -> None:
    lm = LMS["roberta"]
    (whole,) = scored(lm, documents([tokens]))
    found = []
    for choice in combinations(range(tokens), sample):
        monkeypatch.setattr(pseudo_scoring, "chosen", lambda *_, choice=choice: np.array(choice))
        found += [one.nll for one in scored(lm, documents([tokens]), sample=sample)]
    assert max(found) > min(found)
    assert sum(found) / len(found) == pytest.approx(whole.nll, rel=1e-12)


@pytest.mark.parametrize(("tokens", "sample"), [(5, 1), (5, 2), (6, 3), (5, 4)])
def test_every_choice_is_as_likely(tokens: int, sample: int) -> None:
    """Chi-square over seeds, over texts and over windows: below the quantile of 1 - 1e-4."""
    quantile = {5: 23.51, 10: 33.72, 20: 52.39}  # of as many choices less one
    draws = 4000
    for vary in range(3):
        counts: Counter[tuple[int, ...]] = Counter()
        for i in range(draws):
            identity = [1, 2, 3]
            identity[vary] = i
            counts[tuple(chosen(tokens, sample, *identity).tolist())] += 1
        every = list(combinations(range(tokens), sample))
        assert set(counts) == set(every)
        expected = draws / len(every)
        assert sum((counts[one] - expected) ** 2 / expected for one in every) < quantile[len(every)]


def test_windows_of_a_document_and_copies_of_it_choose_for_themselves() -> None:
    first = [tuple(chosen(510, 10, 0, 7, window).tolist()) for window in range(20)]
    assert len(set(first)) == 20
    assert all(list(one) == sorted(set(one)) for one in first)
    assert len({tuple(chosen(510, 10, 0, text, 0).tolist()) for text in range(20)}) == 20
    assert len({tuple(chosen(510, 10, seed, 7, 0).tolist()) for seed in range(20)}) == 20
    assert chosen(510, 4, 0, 2**64 - 1, 0).tolist() == [63, 106, 238, 314]  # of any machine and version


def test_a_choice_depends_neither_on_order_nor_on_company() -> None:
    lm = LMS["bert"]
    given = documents([*LENGTHS, 100, 60])
    together = scored(lm, given, sample=3)
    backwards = scored(lm, given[::-1], sample=3, batch_tokens=200)
    halves = scored(lm, given[::2], sample=3) + scored(lm, given[1::2], sample=3)
    for other in (backwards, sorted(halves, key=lambda one: one.number)):
        assert [one.nll for one in other] == pytest.approx([one.nll for one in together], rel=1e-12)


# Between documents


def test_documents_come_as_soon_as_they_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is a few batches; documents without a token are not held at all."""
    monkeypatch.setattr(pseudo_scoring, "LOOK_AHEAD_BATCHES", 2)
    read: list[int] = []
    told: list[int] = []

    def endless() -> Iterator[TokenizedDocument]:
        for number in range(10**9):
            read.append(number)
            yield TokenizedDocument("a", number, number, "x", 1, np.full(number % 7, 9, dtype=np.uint32))

    found = pseudo_score_documents(
        LMS["bert"], endless(), template=TEMPLATE, max_length=40, batch_tokens=100, scored=told.append
    )
    for _ in range(200):
        next(found)
        assert len(read) < 260
    assert sum(told) <= sum(number % 7 for number in read)


def test_all_tokens_are_told_of() -> None:
    for sample in (None, 2):
        told: list[int] = []
        scored(LMS["bert"], documents(LENGTHS), sample=sample, scored=told.append)
        assert sum(told) == sum(LENGTHS)


def test_no_documents() -> None:
    assert scored(LMS["bert"], []) == []


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_names_its_document(number: float) -> None:
    lm = tiny("bert", dtype=torch.float32)
    ids = np.array([9, 300, 8], np.uint32)
    model: Any = lm.model
    with torch.no_grad():
        lm.head.weight = torch.nn.Parameter(lm.head.weight.clone())
        model.get_input_embeddings().weight[300] = number
    assert len(scored(lm, documents([3, 5]))) == 2  # which do not have the token
    with pytest.raises(PilekitError, match="not a finite number") as caught:
        scored(lm, [*documents([3, 5]), TokenizedDocument("b\x1b.jsonl", 17, 3, "Pile-CC", 9, ids)])
    assert r"b\x1b.jsonl, document 17 (Pile-CC)" in str(caught.value)
    assert str(caught.value).isprintable()


def test_what_a_model_raises_names_the_document() -> None:
    given = documents([4])
    given[0].ids[2] = VOCABULARY
    with pytest.raises(PilekitError, match=r"^a.jsonl, document 0 \(Github\): the model fails at a window of 6 tokens"):
        scored(LMS["bert"], given)


def test_a_batch_that_memory_does_not_hold_is_made_in_parts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = scored(LMS["bert"], documents(LENGTHS))
    losses = pseudo_scoring._losses

    def small(lm: MaskedLM, batch: list[Any], mask: int) -> list[float]:
        if len(batch) * len(batch[0].window.inputs) > 200:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return losses(lm, batch, mask)

    monkeypatch.setattr(pseudo_scoring, "_losses", small)
    parts = scored(LMS["bert"], documents(LENGTHS))
    assert [one.nll for one in parts] == pytest.approx([one.nll for one in whole], rel=1e-12)
    assert [record.getMessage()[:46] for record in caplog.records] == ["memory does not hold a forward pass over 4,080"]


def test_too_short_a_window_and_too_small_a_sample() -> None:
    with pytest.raises(PilekitError, match="max_length is 2, and 2 of these are the special tokens"):
        scored(LMS["bert"], documents([3]), max_length=2)
    with pytest.raises(PilekitError, match="mlm_sample is a whole number from 1 on, not 0"):
        scored(LMS["bert"], documents([3]), sample=0)


# Templates


def test_the_template_of_roberta_is_what_transformers_makes(tmp_path: Path) -> None:
    file = roberta_tokenizer(tiny_corpus(tmp_path / "corpus"), tmp_path / "model")
    tokenizer = load_tokenizer(tmp_path / "model")
    template = template_of(tokenizer)
    theirs: Any = PreTrainedTokenizerFast.from_pretrained(file.parent)
    for text in ("", "the quick", "läuft über\n\t  x", "日本語"):
        ids, _ = tokenizer.encode_batch([text])
        assert [*template.before, *ids.tolist(), *template.behind] == theirs(text)["input_ids"]
    assert template == Template((theirs.bos_token_id,), (theirs.eos_token_id,), theirs.mask_token_id)
    assert template.room(40) == 38


def word_piece(processor: Any) -> Any:
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox"])}
    made: Any = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    if processor is not None:
        made.post_processor = processor
    return made


@pytest.mark.parametrize(
    ("processor", "before", "behind"),
    [
        (None, (), ()),
        (processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), (2,), (3,)),
        (
            processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair=None, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
            ),
            (2,),
            (3,),
        ),
        (
            processors.Sequence(
                [
                    processors.ByteLevel(),
                    processors.TemplateProcessing(
                        single="$A [SEP] [CLS]", pair=None, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
                    ),
                ]
            ),
            (),
            (3, 2),
        ),
    ],
)
def test_templates(processor: Any, before: tuple[int, ...], behind: tuple[int, ...], tmp_path: Path) -> None:
    word_piece(processor).save(str(tmp_path / "tokenizer.json"))
    assert template_of(load_tokenizer(tmp_path)) == Template(before, behind, 4)


def test_a_template_that_cannot_be_read(tmp_path: Path) -> None:
    twice = processors.TemplateProcessing(single="[CLS] $A [SEP] $A", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    word_piece(twice).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(PilekitError, match="does not put the same special tokens around every text") as caught:
        template_of(load_tokenizer(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_tokenizer_without_a_mask_token(tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match="has no mask token, which a masked model needs; name it as") as caught:
        template_of(load_tokenizer(tiny_tokenizer(tmp_path)))
    assert str(caught.value).isprintable()
