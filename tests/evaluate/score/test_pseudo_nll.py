"""Pseudo-log-likelihoods beside a reference that masks one token at a time; samples; templates; `bits_per_byte`."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from pilekit import bits_per_byte
from pilekit.errors import PilekitError
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import read_result
from pilekit.evaluate.score.batching import TokenizedDocument
from pilekit.evaluate.score.pseudo_nll import Template, masked_scoring, sampled_places, template_of
from pilekit.models.masked import MaskedLM, as_masked_lm
from pilekit.tokenize import load_tokenizer
from tests.evaluate.documents import documents_of
from tests.evaluate.reference import reference_losses
from tests.evaluate.score.making import document, ignore, records
from tests.refusing import refused
from tests.tiny.masked import FAMILIES, VOCABULARY, mobile_bert, roberta_dir, roberta_tokenizer, tiny
from tests.tiny.models import tiny_corpus, tiny_tokenizer

TEMPLATE = Template((0,), (2,), 3)
ROOM = 38
LMS = {**{family: tiny(family) for family in FAMILIES}, "mobilebert": as_masked_lm(mobile_bert().double())}


def documents(lengths: list[int]) -> list[TokenizedDocument]:
    rng = np.random.default_rng(0)
    return [document(rng.integers(4, VOCABULARY, size=length).tolist(), at) for at, length in enumerate(lengths)]


def scored(
    lm: MaskedLM, given: list[TokenizedDocument], scored: Callable[[int], None] = ignore, **changes: Any
) -> list[ScoredDocument]:
    """The scored documents in the order of their numbers."""
    scoring = masked_scoring(lm, **{"template": TEMPLATE, "max_length": 40, **changes})
    return sorted(records(given, scoring, scored), key=lambda one: one.number)


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 30), max_size=5),
    st.integers(1, 12),
    st.sampled_from([Template((), (), 3), Template((0,), (2,), 3), Template((), (2, 0), 3)]),
    st.sampled_from([1, 7, 64, 4096]),
    st.sampled_from(sorted(LMS)),
    st.sampled_from([None, 1, 4]),
)
@example([0, 1, 2, 17, 37, 38, 39, 76, 77], 38, TEMPLATE, 4096, "roberta", None)
@example([39, 5], 38, TEMPLATE, 64, "mobilebert", None)  # its logits are made at all places
def test_scores_equal_one_masked_token_at_a_time(
    lengths: list[int], room: int, template: Template, batch_tokens: int, family: str, sample: int | None
) -> None:
    """The sum over the sampled tokens of a window counts for all of them."""
    lm, given, progress = LMS[family], documents(lengths), list[int]()
    assert lm.head_by_place == (family != "mobilebert")
    assert lm.max_length == 40  # RoBERTa has 42 position embeddings, but uses two of them for no token
    max_length = room + len(template.before) + len(template.behind)
    options = {"template": template, "max_length": max_length, "batch_tokens": batch_tokens}
    found = scored(lm, given, **options, sample=sample, seed=5, scored=progress.append)
    assert [(one.number, one.tokens) for one in found] == list(enumerate(lengths))
    assert sum(progress) == sum(lengths)
    for one, of in zip(found, given, strict=True):
        right = 0.0
        for number, losses in enumerate(reference_losses(lm.model, of.ids.tolist(), template, max_length)):
            places = sampled_places(len(losses), sample, 5, of.text, number).tolist()
            assert len(places) == min(sample or len(losses), len(losses))
            right += len(losses) / len(places) * sum(losses[place] for place in places)
        assert one.nll == pytest.approx(right, rel=1e-12, abs=1e-12)


class LargestLogits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The number of rows of the largest tensor of logits made inside."""

    rows = 0

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        made = function(*given, **(named or {}))
        if isinstance(made, torch.Tensor) and made.dim() and made.shape[-1] == VOCABULARY:
            self.rows = max(self.rows, made.numel() // VOCABULARY)
        return made


def test_the_logits_held_are_bounded() -> None:
    """Logits at one place of each row; if a model makes all places, of a few rows at a time."""
    with cast("Any", LargestLogits)() as largest:
        scored(tiny("roberta", dtype=torch.float32), documents([5 * ROOM, 20, 3]), batch_tokens=4000)
    assert largest.rows == 4000 // 40
    chunk = 90 * 4 * VOCABULARY
    with cast("Any", LargestLogits)() as largest:
        scored(as_masked_lm(mobile_bert()), documents([5 * ROOM, 20, 3]), batch_tokens=4000, chunk_bytes=chunk)
    assert 40 <= largest.rows <= 90


def test_every_choice_is_equally_likely() -> None:
    """Chi-square over seeds, over texts and over windows: below the quantile of 1 - 1e-4."""
    quantile = {5: 23.51, 10: 33.72, 20: 52.39}  # degrees of freedom: choices minus one
    for tokens, sample in ((5, 1), (5, 2), (6, 3)):
        for vary in range(3):
            counts: Counter[tuple[int, ...]] = Counter()
            for i in range(4000):
                identity = [1, 2, 3]
                identity[vary] = i
                counts[tuple(sampled_places(tokens, sample, *identity).tolist())] += 1
            every = list(combinations(range(tokens), sample))
            assert set(counts) == set(every)
            expected = 4000 / len(every)
            assert sum((counts[one] - expected) ** 2 / expected for one in every) < quantile[len(every)]
    assert sampled_places(510, 4, 0, 2**64 - 1, 0).tolist() == [63, 106, 238, 314]  # on any machine and version


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
    refused("max_length is 2, and 2 of these are the special tokens", template.room, 2)


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
    refused("does not put the same special tokens around every text", template_with, twice, tmp_path)
    with pytest.raises(PilekitError, match="has no mask token, which a masked model needs; name it as"):
        template_of(load_tokenizer(tiny_tokenizer(tmp_path / "causal")))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    tiny_corpus(folder / "corpus", shards=2, documents=20)
    roberta_dir(folder / "corpus", folder / "model")
    return folder


def figures(folder: str, **changes: Any) -> BitsPerByte:
    return bits_per_byte(Path(folder) / "model", Path(folder) / "corpus", device="cpu", **changes)


def test_every_document_is_as_in_the_reference(made: Path) -> None:
    """Tokens, special tokens and logits come from transformers alone, in float64."""
    model: Any = AutoModelForMaskedLM.from_pretrained(made / "model").double().eval()
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(made / "model")
    template = Template((tokenizer.bos_token_id,), (tokenizer.eos_token_id,), tokenizer.mask_token_id)
    result = figures(str(made), limit=3)
    assert result.protocol["kind"] == "masked"
    assert result.protocol["template"] == {"before": [300], "behind": [302], "mask": 303}
    assert result.protocol["max_length"] == 40
    every = []
    for label, texts in documents_of(made / "corpus").items():
        first = texts[:3]
        ids = [tokenizer(text, split_special_tokens=True, add_special_tokens=False)["input_ids"] for text in first]
        nlls = [sum(map(sum, reference_losses(model, one, template, 40))) for one in ids]
        size = sum(len(text.encode()) for text in first)
        score = result.subsets.pop(label)
        assert (score.documents, score.bytes) == (len(first), size)
        assert score.nll == pytest.approx(sum(nlls), rel=1e-6)
        assert score.bpb == pytest.approx(sum(nlls) / math.log(2) / size, rel=1e-6)
        every += nlls
    assert result.subsets == {}
    assert sorted(result.records.nll) == pytest.approx(sorted(every), rel=1e-5, abs=1e-5)
    assert 0.0 in every  # an empty document
    in_memory = bits_per_byte(model.float(), made / "corpus", tokenizer=tokenizer, limit=3)
    assert in_memory.protocol["template"] == result.protocol["template"]
    assert in_memory.overall.nll == pytest.approx(result.overall.nll, rel=1e-6)


def test_no_figure_is_called_bits_per_byte(made: Path, tmp_path: Path) -> None:
    content = figures(str(made), mlm_sample=2, out=tmp_path).to_dict()
    assert read_result(tmp_path).to_dict() == json.loads(json.dumps(content))
    assert '"bpb"' not in json.dumps(content)
    for score in (content["overall"], content["weighted"], *content["subsets"].values()):
        assert score["pseudo_bpb"] > 0
    assert content["published"] is None


def test_options_and_folders_that_do_not_fit(made: Path, tmp_path: Path) -> None:
    other = shutil.copytree(made / "model", tmp_path / "model")
    content = json.loads((other / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<mask>"]
    (other / "tokenizer.json").write_text(json.dumps(content))
    for model, options, words in (
        (made / "model", {"context_len": 8}, "context_len is for causal models, and this roberta model is a masked"),
        (made / "model", {"prefix": "eos"}, "prefix is for causal models"),
        (made / "model", {"paper": True}, "paper is for causal models"),
        (made / "model", {"max_length": 41}, "max_length is 41, but the model has 40 positions"),
        (made / "model", {"max_length": 2}, "2 of these are the special tokens"),
        (other, {}, "has no mask token"),
    ):
        refused(words, bits_per_byte, model, made / "corpus", device="cpu", **options)
