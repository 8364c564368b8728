"""pilekit scores documents as lm-evaluation-harness does: the real package, on the same model, one document at a time.

Every document is a subset of its own, so the public function gives the figure of each. The harness computes in float32
and adds a window's log-probabilities in float32 too, so the tolerance is 1e-6.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import zstandard
from tokenizers import processors
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.shards.read.reader import read
from tests.benchmarks.bpb.lm_eval_peer import log_likelihoods
from tests.tiny.models import WORDS, Family, tiny_model_dir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # the first test installs the harness, and torch

TOLERANCE = 1e-6

_rng = random.Random(0)
_WORDS = [word for word in WORDS if not word.startswith("<|")]
DOCUMENTS = [
    "",
    "a",
    " ",
    "\n",
    "the same text",
    "the same text",
    "the same texx",
    "é and é, ﬁ, ½ ²",
    "日本語の文章と中文的句子。한국어 😀👍🏽 \u200b\u0000\x1b[31m",
    "\tdef area(radius):\r\n        return 3.14159 * radius ** 2      \n\n\n",
    *(" ".join(_rng.choices(_WORDS, k=words)) for words in [1, 2, 3, 4, 5, 6, 8, 11, 20, 70]),
]
SPECIAL = ["<|endoftext|>", "before <|endoftext|> after", "<|endoftext|>the text begins with it", "<|padding|> x"]


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama"])
def test_each_family(tmp_path: Path, family: Family) -> None:
    model_dir = named(tiny_model_dir(tmp_path / "model", family))
    same(ours(tmp_path, model_dir, DOCUMENTS + SPECIAL), log_likelihoods(model_dir, DOCUMENTS + SPECIAL, batch_size=3))


def test_shorter_windows_and_another_prefix(tmp_path: Path) -> None:
    model_dir = named(tiny_model_dir(tmp_path / "model"))
    theirs = log_likelihoods(model_dir, DOCUMENTS, max_length=7, prefix_token_id=42, batch_size=2)
    assert (theirs["max_length"], theirs["prefix_token_id"]) == (7, 42)
    same(ours(tmp_path, model_dir, DOCUMENTS, max_length=7, prefix=42), theirs)


def test_a_beginning_token_that_the_tokenizer_adds_is_not_scored(tmp_path: Path) -> None:
    model_dir = named(tiny_model_dir(tmp_path / "model", "llama"), bos_token="<|padding|>")
    tokenizer: Any = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|padding|> $A", special_tokens=[("<|padding|>", 1)]
    )
    tokenizer.save(str(model_dir / "tokenizer.json"))
    found = ours(tmp_path, model_dir, DOCUMENTS)
    theirs = log_likelihoods(model_dir, DOCUMENTS, batch_size=4)
    assert theirs["prefix_token_id"] == found.protocol["prefix"]["id"] == 1
    same(found, theirs)
    # By default the harness adds the token to every text and scores it as part of the text (its issue 3333).
    default = log_likelihoods(model_dir, DOCUMENTS, batch_size=4, add_bos_token=None)
    assert default["bits_per_byte"] != pytest.approx(found.overall.bpb, rel=1e-3)


def test_the_text_of_special_tokens_is_the_one_difference_to_its_defaults(tmp_path: Path) -> None:
    model_dir = named(tiny_model_dir(tmp_path / "model"))
    found = ours(tmp_path, model_dir, [*DOCUMENTS, SPECIAL[1]])
    default = log_likelihoods(model_dir, [*DOCUMENTS, SPECIAL[1]], special_tokens="parse", add_bos_token=None)
    theirs = default["log_likelihoods"]
    assert nlls(found, len(DOCUMENTS)) == pytest.approx([-one for one in theirs[:-1]], rel=TOLERANCE)
    assert found.subsets[subset(len(DOCUMENTS))].nll != pytest.approx(-theirs[-1], rel=1e-3)


def test_real_text(real_corpus: Path, tmp_path: Path) -> None:
    """By a random model of Pythia-14M's shape, far from uniform, at its full length."""
    texts = [text for batch in read(real_corpus / "val.jsonl.zst") for text in batch.texts]
    documents = [*[text for text in texts if len(text) < 8_000][:25], max(texts, key=len)[:20_000]]
    model_dir = named(tiny_model_dir(tmp_path / "model"))
    (model_dir / "tokenizer.json").write_bytes((real_corpus / "20B_tokenizer.json").read_bytes())
    config = GPTNeoXConfig(
        vocab_size=50304,
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=2048,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(model_dir)
    found = ours(tmp_path, model_dir, documents)
    assert found.subsets[subset(len(documents) - 1)].tokens > 2048
    same(found, log_likelihoods(model_dir, documents, batch_size=2))


def named(model_dir: Path, **tokens: str) -> Path:
    """`model_dir`, with the special tokens where both packages look for them."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", **tokens}
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config))
    return model_dir


def ours(folder: Path, model_dir: Path, documents: Sequence[str], **settings: Any) -> Any:
    lines = [
        json.dumps({"text": text, "meta": {"pile_set_name": subset(number)}}) for number, text in enumerate(documents)
    ]
    shard = folder / "documents.jsonl.zst"
    shard.write_bytes(zstandard.compress(("\n".join(lines) + "\n").encode()))
    return bits_per_byte(model_dir, shard, **settings)


def subset(number: int) -> str:
    return f"document {number}"


def nlls(found: Any, documents: int) -> list[float]:
    return [found.subsets[subset(number)].nll for number in range(documents)]


def same(found: Any, theirs: dict[str, Any]) -> None:
    expected = [-one for one in theirs["log_likelihoods"]]
    assert len(set(expected)) > len(expected) // 2  # the models tell documents apart
    assert nlls(found, len(expected)) == pytest.approx(expected, rel=TOLERANCE)
    assert found.overall.bpb == pytest.approx(theirs["bits_per_byte"], rel=TOLERANCE)
