"""Memorised sequences are those that `generate` continues word for word, in batches of any size.

Tiny models learn some texts by heart. They then read these, the same with changed letters, and others.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig

from pilekit.corpus import Corpus
from pilekit.exposure.memorised import memorised
from pilekit.shards.read.reader import read_corpus
from pilekit.tokenize import Tokenizer, load_tokenizer
from tests.evaluate.documents import write
from tests.evaluate.folders import rows_of, without_bits
from tests.tiny.models import SMALL, tiny_tokenizer

PROMPT = CONTINUATION = 32
EVERY = 7
LETTERS = "abcdefghijklmnopqrstuvwxyz   "
CONFIGS = {"gpt_neox": GPTNeoXConfig, "llama": LlamaConfig}
SHAPE = SMALL | {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 64, "initializer_range": 0.02}


def texts() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(LETTERS, k=150)) for _ in range(4)]


def windows(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    ids = tokenizer.encode(text)
    return [ids[begin : begin + 64] for begin in range(0, len(ids) - 63, EVERY)]


@pytest.fixture(scope="module", params=list(CONFIGS))
def learned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows `texts()` by heart, to a loss under 0.1 behind a few tokens."""
    folder = tmp_path_factory.mktemp("learned")
    tiny_tokenizer(folder)
    rows = torch.tensor([row for text in texts() for row in windows(load_tokenizer(folder), text)])
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(CONFIGS[request.param](**SHAPE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
    for _ in range(600):
        losses = torch.nn.functional.cross_entropy(
            model(input_ids=rows).logits[:, 15:-1].flatten(0, 1), rows[:, 16:].flatten()
        )
        if losses < 0.05:
            break
        losses.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses < 0.1
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The texts that were learned, the same with changed letters, others, and some that are too short."""
    rng, documents = random.Random(1), []
    for text in texts():
        letters = list(text)
        for place in rng.sample(range(len(text)), 2):
            letters[place] = rng.choice("xyz")
        others = "".join(rng.choices(LETTERS, k=100))
        documents += [("ArXiv", text), ("Github", "".join(letters)), ("Github", others), ("ArXiv", text[:40])]
    documents += [("Github", ""), ("PubMed Abstracts", "short"), ("PubMed Abstracts", texts()[0][:90] + "!")]
    return write(tmp_path_factory.mktemp("known") / "known.jsonl", documents)


@torch.no_grad()
def generated(model_dir: Path, corpus: Path, every: int | None) -> list[dict[str, Any]]:
    """Each sequence, continued by `generate`, one at a time; the longest start that both have, and the exact bits."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    tokenizer, found = load_tokenizer(model_dir), []
    for batch in read_corpus(Corpus(corpus)):
        hashes = batch.text_hashes()[1].tolist()
        for number, text, hashed, subset in zip(
            batch.numbers.tolist(), batch.texts, hashes, batch.subsets, strict=True
        ):
            ids = tokenizer.encode(text)
            last = len(ids) - PROMPT - CONTINUATION
            places = range(0, last + 1, every) if every else [0] if last >= 0 else []
            for place in places:
                prompt, own = ids[place : place + PROMPT], ids[place + PROMPT : place + PROMPT + CONTINUATION]
                inputs = torch.tensor([prompt])
                output = model.generate(
                    inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=CONTINUATION
                )[0, PROMPT:].tolist()
                same = [mine == its for mine, its in zip(own, output, strict=False)]
                run = same.index(False) if False in same else len(same)
                logits = model(input_ids=torch.tensor([prompt + own])).logits[0, PROMPT - 1 : -1].double()
                losses = torch.nn.functional.cross_entropy(logits, torch.tensor(own), reduction="sum")
                right = int((logits.argmax(1) == torch.tensor(own)).sum())
                row = {"shard": batch.shard, "number": number, "subset": subset, "text": hashed, "place": place}
                found.append({**row, "right": right, "run": run, "bits": float(losses) / np.log(2)})
    return found


@pytest.mark.parametrize("every", [None, EVERY])
def test_sequences_are_those_that_generate_continues(
    learned: Path, known: Path, tmp_path: Path, every: int | None
) -> None:
    result = memorised(learned, known, every=every or "first", out=tmp_path / "out")
    rows, expected = rows_of(tmp_path / "out"), generated(learned, known, every)
    assert len(rows) == len(expected) > 10
    for row, other in zip(rows, expected, strict=True):
        assert row.pop("bits") == pytest.approx(other.pop("bits"), rel=1e-4, abs=1e-4)
        assert not row.pop("near_tie")
        assert row == other
    everything = [row["run"] == CONTINUATION for row in expected]
    assert 0 < sum(everything) < len(expected)
    overall = result.overall
    assert (overall.documents, overall.sequences, overall.memorised) == (19, len(expected), sum(everything))
    assert (overall.right_tokens, overall.run_tokens) == tuple(
        sum(row[name] for row in expected) for name in ("right", "run")
    )
    for name, share in result.subsets.items():
        of_subset = [row for row in expected if row["subset"] == name]
        assert (share.sequences, share.memorised) == (
            len(of_subset),
            sum(row["run"] == CONTINUATION for row in of_subset),
        )
        numbers = {row["number"] for row in of_subset}
        assert share.too_short == share.documents - len(numbers)
    assert result["ArXiv"].share == 1.0


def test_batches_of_1_to_64_sequences_give_the_same(learned: Path, known: Path, tmp_path: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(learned), load_tokenizer(learned)
    expected = memorised(learned, known, every=EVERY, out=tmp_path / "default")
    rows = rows_of(tmp_path / "default")
    assert len(rows) > 64
    for sequences in range(1, 65):
        result = memorised(model, known, tokenizer=tokenizer, every=EVERY, batch_tokens=63 * sequences)
        assert (result.overall, result.subsets) == (expected.overall, expected.subsets)
    for sequences in (1, 7, 64):
        out = tmp_path / str(sequences)
        memorised(learned, known, every=EVERY, batch_tokens=63 * sequences, out=out)
        assert without_bits(rows_of(out)) == without_bits(rows)
        assert [row["bits"] for row in rows_of(out)] == pytest.approx([row["bits"] for row in rows], rel=1e-4, abs=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_2000_sequences_have_the_tokens_that_generate_gives(learned: Path, tmp_path: Path) -> None:
    rng, documents = random.Random(2), []
    for number in range(24):  # each a learned text, another one behind it, and a few changed letters
        letters = list(texts()[number % 4] + rng.choice(texts())[: number % 50])
        for place in rng.sample(range(len(letters)), number % 5):
            letters[place] = rng.choice("xyz")
        documents.append(("ArXiv", "".join(letters)))
    corpus = write(tmp_path / "many.jsonl", documents)
    result = memorised(learned, corpus, every=1, out=tmp_path / "out")
    assert result.overall.near_ties == 0
    rows, tokenizer = rows_of(tmp_path / "out"), load_tokenizer(learned)
    assert len(rows) >= 2000
    ids = [tokenizer.encode(text) for _, text in documents]
    sequences = torch.tensor([ids[row["number"]][row["place"] : row["place"] + PROMPT + CONTINUATION] for row in rows])
    model: Any = AutoModelForCausalLM.from_pretrained(learned).eval()
    model.generation_config.eos_token_id = None  # no end before the last token
    outputs = [
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            max_new_tokens=CONTINUATION,
        )
        for prompts in sequences[:, :PROMPT].split(64)
    ]
    same = torch.cat(outputs)[:, PROMPT:] == sequences[:, PROMPT:]
    runs = same.long().cumprod(dim=1).sum(dim=1).tolist()
    assert [row["run"] for row in rows] == runs
    assert result.overall.memorised == runs.count(CONTINUATION)
    assert 100 < result.overall.memorised < len(rows) - 100
