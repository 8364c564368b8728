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
from pilekit.evaluate.masked import pseudo_nll
from pilekit.evaluate.masked.model import MaskedLM, as_masked_lm
from pilekit.evaluate.masked.pseudo_nll import Template, chosen, pseudo_score_documents, template_of
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.score import batching
from pilekit.evaluate.score.batching import TokenizedDocument
from pilekit.tokenize import load_tokenizer
from tests.evaluate.pseudo_reference import reference_losses, reference_pseudo_nll
from tests.tiny import tiny_corpus, tiny_tokenizer
from tests.tiny_masked import FAMILIES, VOCABULARY, mobile_bert, roberta_tokenizer, tiny

TEMPLATE = Template((0,), (2,), 3)
ROOM = 38
LENGTHS = [0, 1, 2, 17, ROOM - 1, ROOM, ROOM + 1, 1, 0, 2 * ROOM, 2 * ROOM + 1, 5]
LMS = {family: tiny(family) for family in ("bert", "roberta")}


def documents(lengths: list[int]) -> list[TokenizedDocument]:
    rng = np.random.default_rng(0)
    ids = [rng.integers(4, VOCABULARY, size=length).astype(np.uint32) for length in lengths]
    return [
        TokenizedDocument("a.jsonl", number, 1000 + number, "Github", 4 * len(one), one)
        for number, one in enumerate(ids)
    ]


def scored(lm: MaskedLM, given: list[TokenizedDocument], **changes: Any) -> list[ScoredDocument]:
    """The scored documents in the order of their numbers."""
    found = pseudo_score_documents(lm, given, **{"template": TEMPLATE, "max_length": 40, **changes})
    return sorted(found, key=lambda one: one.number)


@pytest.mark.parametrize("family", [*FAMILIES, "mobilebert"])
def test_scores_equal_one_masked_token_at_a_time(family: str) -> None:
    lm = as_masked_lm(mobile_bert().double()) if family == "mobilebert" else tiny(family)
    assert lm.head_by_place == (family != "mobilebert")
    assert lm.max_length == 40  # RoBERTa has 42 position embeddings, but uses two of them for no token
    given, progress = documents(LENGTHS), list[int]()
    double = scored(lm, given, scored=progress.append)
    expected = [reference_pseudo_nll(lm.model, of.ids.tolist(), TEMPLATE, 40) for of in given]
    single = scored(as_masked_lm(cast("Any", lm.model).float()), given)
    for exact, rounded, of, right in zip(double, single, given, expected, strict=True):
        assert (exact.number, exact.text, exact.bytes, exact.tokens) == (of.number, of.text, of.bytes, len(of.ids))
        assert exact.nll == pytest.approx(right, rel=1e-12, abs=1e-12)
        assert rounded.nll == pytest.approx(right, rel=1e-6, abs=1e-6)
    assert sum(progress) == sum(LENGTHS)


@settings(max_examples=20)
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
    lm, given = LMS[family], documents(lengths)
    max_length = room + len(template.before) + len(template.behind)
    found = scored(lm, given, template=template, max_length=max_length, batch_tokens=batch_tokens)
    assert [one.number for one in found] == list(range(len(lengths)))
    for one, of in zip(found, given, strict=True):
        right = reference_pseudo_nll(lm.model, of.ids.tolist(), template, max_length)
        assert one.nll == pytest.approx(right, rel=1e-12, abs=1e-12)


def test_batches_order_and_company_change_nothing() -> None:
    lm = tiny("roberta", dtype=torch.float32)
    given = documents([*LENGTHS, *range(3, 60, 7)])
    for sample in (None, 3):
        alone = [one.nll for one in scored(lm, given, batch_tokens=1, sample=sample)]
        halves = scored(lm, given[::2], sample=sample) + scored(lm, given[1::2], sample=sample)
        others = [sorted(halves, key=lambda one: one.number), scored(lm, given[::-1], sample=sample)]
        others += [scored(lm, given, batch_tokens=size, sample=sample) for size in (64, 10**6)]
        for found in others:
            assert [one.nll for one in found] == pytest.approx(alone, rel=1e-6)
            assert sum(one.nll for one in found) == pytest.approx(sum(alone), rel=1e-7)


def test_a_uniform_model_needs_the_logarithm_of_its_vocabulary() -> None:
    lm = tiny("roberta")
    torch.nn.init.zeros_(lm.head.weight)
    torch.nn.init.zeros_(lm.head.bias)
    for sample in (None, 1, 7):
        for one in scored(lm, documents(LENGTHS), sample=sample):
            assert one.nll == pytest.approx(one.tokens * math.log(VOCABULARY), rel=1e-15)


def test_the_loss_of_a_token_depends_on_every_other_token() -> None:
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
    """The number of rows of the largest tensor of logits made inside."""

    rows = 0

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        made = function(*given, **(named or {}))
        if isinstance(made, torch.Tensor) and made.dim() and made.shape[-1] == VOCABULARY:
            self.rows = max(self.rows, made.numel() // VOCABULARY)
        return made


def test_the_logits_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits at one place of each row; if a model makes all places, of a few rows at a time."""
    with cast("Any", LargestLogits)() as largest:
        scored(tiny("roberta", dtype=torch.float32), documents([5 * ROOM, 20, 3]), batch_tokens=4000)
    assert largest.rows == 4000 // 40
    monkeypatch.setattr(batching, "CHUNK_BYTES", 90 * 4 * VOCABULARY)
    with cast("Any", LargestLogits)() as largest:
        scored(as_masked_lm(mobile_bert()), documents([5 * ROOM, 20, 3]), batch_tokens=4000)
    assert 40 <= largest.rows <= 90


def test_a_sample_counts_for_the_whole_window() -> None:
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
    for sample in (ROOM, 10**9):
        assert scored(lm, given, sample=sample) == scored(lm, given)


def test_the_mean_over_all_choices_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens, sample in ((5, 1), (5, 2), (6, 3)):
        monkeypatch.undo()
        (whole,) = scored(LMS["roberta"], documents([tokens]))
        found = []
        for choice in combinations(range(tokens), sample):
            monkeypatch.setattr(pseudo_nll, "chosen", lambda *_, choice=choice: np.array(choice))
            found += [one.nll for one in scored(LMS["roberta"], documents([tokens]), sample=sample)]
        assert max(found) > min(found)
        assert sum(found) / len(found) == pytest.approx(whole.nll, rel=1e-12)


@pytest.mark.parametrize(("tokens", "sample"), [(5, 1), (5, 2), (6, 3)])
def test_every_choice_is_equally_likely(tokens: int, sample: int) -> None:
    """Chi-square over seeds, over texts and over windows: below the quantile of 1 - 1e-4."""
    quantile = {5: 23.51, 10: 33.72, 20: 52.39}  # degrees of freedom: choices minus one
    for vary in range(3):
        counts: Counter[tuple[int, ...]] = Counter()
        for i in range(4000):
            identity = [1, 2, 3]
            identity[vary] = i
            counts[tuple(chosen(tokens, sample, *identity).tolist())] += 1
        every = list(combinations(range(tokens), sample))
        assert set(counts) == set(every)
        expected = 4000 / len(every)
        assert sum((counts[one] - expected) ** 2 / expected for one in every) < quantile[len(every)]


def test_windows_and_texts_have_choices_of_their_own() -> None:
    first = [tuple(chosen(510, 10, 0, 7, window).tolist()) for window in range(20)]
    assert len(set(first)) == 20
    assert all(list(one) == sorted(set(one)) for one in first)
    assert len({tuple(chosen(510, 10, 0, text, 0).tolist()) for text in range(20)}) == 20
    assert len({tuple(chosen(510, 10, seed, 7, 0).tolist()) for seed in range(20)}) == 20
    assert chosen(510, 4, 0, 2**64 - 1, 0).tolist() == [63, 106, 238, 314]  # on any machine and version


def test_the_look_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pseudo_nll, "LOOK_AHEAD_BATCHES", 2)
    read: list[int] = []

    def endless() -> Iterator[TokenizedDocument]:
        for number in range(10**9):
            read.append(number)
            yield TokenizedDocument("a", number, number, "x", 1, np.full(number % 7, 9, dtype=np.uint32))

    found = pseudo_score_documents(LMS["bert"], endless(), template=TEMPLATE, max_length=40, batch_tokens=100)
    for _ in range(200):
        next(found)
        assert len(read) < 260


def test_a_failure_names_the_document() -> None:
    lm = tiny("bert", dtype=torch.float32)
    with torch.no_grad():
        lm.head.weight = torch.nn.Parameter(lm.head.weight.clone())
        cast("Any", lm.model).get_input_embeddings().weight[300] = math.nan
    assert len(scored(lm, documents([3, 5]))) == 2  # without that token
    bad = TokenizedDocument("b\x1b.jsonl", 17, 3, "Pile-CC", 9, np.array([9, 300, 8], np.uint32))
    with pytest.raises(PilekitError, match="not a finite number") as caught:
        scored(lm, [*documents([3, 5]), bad])
    assert r"b\x1b.jsonl, document 17 (Pile-CC)" in str(caught.value)
    given = documents([4])
    given[0].ids[2] = VOCABULARY
    with pytest.raises(PilekitError, match=r"^a.jsonl, document 0 \(Github\): the model fails at a window of 6 tokens"):
        scored(LMS["bert"], given)


def test_a_batch_that_does_not_fit_is_scored_in_parts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = scored(LMS["bert"], documents(LENGTHS))
    losses = pseudo_nll._losses

    def small(lm: MaskedLM, batch: list[Any], mask: int) -> list[float]:
        if len(batch) * batch[0].length > 200:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return losses(lm, batch, mask)

    monkeypatch.setattr(pseudo_nll, "_losses", small)
    parts = scored(LMS["bert"], documents(LENGTHS))
    assert [one.nll for one in parts] == pytest.approx([one.nll for one in whole], rel=1e-12)
    assert [message[:46] for message in caplog.messages] == ["memory does not hold a forward pass over 4,080"]


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
    with pytest.raises(PilekitError, match="max_length is 2, and 2 of these are the special tokens"):
        template.room(2)


def template_with(processor: Any, folder: Path) -> Template:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox"]
    made: Any = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(words[:5])
    if processor is not None:
        made.post_processor = processor
    made.save(str(folder / "tokenizer.json"))
    return template_of(load_tokenizer(folder))


def test_templates(tmp_path: Path) -> None:
    special = [("[CLS]", 2), ("[SEP]", 3)]
    swapped = processors.TemplateProcessing(single="$A [SEP] [CLS]", pair=None, special_tokens=special)
    assert template_with(None, tmp_path) == Template((), (), 4)
    assert template_with(processors.BertProcessing(special[1], special[0]), tmp_path) == Template((2,), (3,), 4)
    sequence = processors.Sequence([processors.ByteLevel(), swapped])
    assert template_with(sequence, tmp_path) == Template((), (3, 2), 4)
    twice = processors.TemplateProcessing(single="[CLS] $A [SEP] $A", special_tokens=special)
    with pytest.raises(PilekitError, match="does not put the same special tokens around every text"):
        template_with(twice, tmp_path)
    with pytest.raises(PilekitError, match="has no mask token, which a masked model needs; name it as"):
        template_of(load_tokenizer(tiny_tokenizer(tmp_path / "causal")))
