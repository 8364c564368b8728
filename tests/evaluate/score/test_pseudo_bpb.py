"""`bits_per_byte` of a masked model, from its folder to pseudo-bits per byte."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from pilekit import bits_per_byte
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import read_result
from pilekit.evaluate.score.pseudo_nll import Template
from tests.evaluate.documents import documents_of
from tests.evaluate.reference import reference_losses
from tests.refusing import refused
from tests.tiny.masked import roberta_dir
from tests.tiny.models import tiny_corpus


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
