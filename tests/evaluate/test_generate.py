"""Continuations against a plain loop over the model's logits, one token and one prompt at a time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit import generate, load_tokenizer, prompts_of
from tests.cli.running import refused as refused_command
from tests.cli.running import run, run_json
from tests.refusing import refused
from tests.tiny.models import WORDS, tiny_model, tiny_tokenizer

LENGTH, EOS = 128, 0


@pytest.fixture(scope="module", params=["gpt_neox", "llama"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sometimes ends a document, with a generation_config.json that must not matter."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny_tokenizer(folder)
    model = tiny_model(request.param, vocab_size=300, max_length=LENGTH)
    model.save_pretrained(folder)
    penalties = {"repetition_penalty": 5.0, "num_beams": 4, "do_sample": True, "max_length": 3, "eos_token_id": 7}
    (folder / "generation_config.json").write_text(json.dumps(penalties))
    return folder


def greedy(model_dir: Path, ids: list[int], new: int) -> list[int]:
    """The plainest greedy decoding: the whole sequence through the model for each token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    sequence = [EOS, *ids]
    for _ in range(new):
        with torch.no_grad():
            sequence.append(int(model(torch.tensor([sequence]), use_cache=False).logits[0, -1].argmax()))
        if sequence[-1] == EOS:
            break
    return sequence[1 + len(ids) :]


@settings(max_examples=10)
@given(prompts=st.lists(st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join), min_size=1, max_size=25))
def test_greedy_continuations_are_the_plain_loops_in_any_company(model_dir: Path, prompts: list[str]) -> None:
    tokenizer = load_tokenizer(model_dir)
    made = generate(model_dir, prompts, max_new_tokens=8)
    assert [one.prompt.text for one in made] == prompts
    for one in made:
        wanted = greedy(model_dir, tokenizer.encode_batch([one.prompt.text])[0].tolist(), 8)
        assert one.ended == (wanted[-1] == EOS)
        assert list(one.tokens) == [token for token in wanted if token != EOS]
        assert one.text == tokenizer.decode(one.tokens)


def test_drawn_continuations_follow_the_models_probabilities_and_their_seed(model_dir: Path) -> None:
    model, tokenizer = tiny_model(vocab_size=300, max_length=LENGTH), load_tokenizer(model_dir)
    draw = {"max_new_tokens": 1, "temperature": 1.5, "tokenizer": tokenizer}
    made = generate(model, ["the"] * 3000, seed=3, **draw)
    with torch.no_grad():
        ids = torch.tensor([[EOS, *tokenizer.encode_batch(["the"])[0].tolist()]])
        chances = (model.eval()(ids).logits[0, -1] / 1.5).softmax(-1)
    drawn = Counter(one.tokens[0] if one.tokens else EOS for one in made)
    for token, chance in enumerate(chances.tolist()):
        assert abs(drawn[token] - 3000 * chance) < 6 * (3000 * chance + 1) ** 0.5

    some = ["the", "quick", "12345"]
    draw["max_new_tokens"] = 10
    first = [one.text for one in generate(model, some, seed=3, **draw)]
    assert first == [one.text for one in generate(model, [*some, "def f(x):"], seed=3, **draw)][:3]
    assert first != [one.text for one in generate(model, some, seed=4, **draw)]
    likeliest = [one.text for one in generate(model, some, max_new_tokens=10, tokenizer=tokenizer)]
    assert likeliest == [one.text for one in generate(model, some, seed=3, **draw, top_p=1e-9)]
    state = torch.get_rng_state()
    generate(model, some, seed=3, **draw)
    assert torch.equal(state, torch.get_rng_state())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "some.jsonl"
    subsets = ["ArXiv", "Github", "ArXiv", "ArXiv", "other", "Github"]
    texts = [" ".join(WORDS[number % 7 :]) * 2 for number in range(5)] + ["a"]
    records = [{"text": text, "meta": {"pile_set_name": name}} for text, name in zip(texts, subsets, strict=True)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_prompts_are_the_first_tokens_of_the_first_documents(model_dir: Path, corpus: Path) -> None:
    found = prompts_of(corpus, model_dir, tokens=6, per_subset=2)
    assert [(one.shard, one.number, one.subset) for one in found] == [
        ("some.jsonl", 0, "ArXiv"),
        ("some.jsonl", 1, "Github"),
        ("some.jsonl", 2, "ArXiv"),
        ("some.jsonl", 4, "other"),
    ]
    tokenizer = load_tokenizer(model_dir)
    for one, text in zip(
        found, (json.loads(corpus.read_text().splitlines()[i])["text"] for i in (0, 1, 2, 4)), strict=True
    ):
        assert list(one.tokens or ()) == tokenizer.encode_batch([text])[0][:6].tolist()
    assert [one.number for one in prompts_of(corpus, model_dir, tokens=6, subsets=["GitHub"])] == [1]
    assert [one.prompt for one in generate(model_dir, found, max_new_tokens=2)] == found
    refused("some.jsonl|longer than 5,000 tokens", prompts_of, corpus, model_dir, tokens=5000)


def test_what_cannot_be_continued_is_named(model_dir: Path) -> None:
    refused("128 positions", generate, model_dir, ["the quick brown fox"], max_new_tokens=127)
    refused("temperature is 0 or more", generate, model_dir, ["a"], temperature=float("nan"))
    refused("top_p", generate, model_dir, ["a"], top_p=0.0)
    refused("max_new_tokens", generate, model_dir, ["a"], max_new_tokens=0)
    refused("needs its tokenizer", generate, tiny_model(), ["a"])


def test_the_command_prints_text_or_json_lines_and_writes_files(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    few = ("--max-new-tokens", 4)
    (expected,) = generate(model_dir, ["the quick"], max_new_tokens=4)
    assert "the quick" in run("generate", model_dir, "the quick", *few, exit_code=0).stdout
    assert run_json("generate", model_dir, "the quick", *few) == json.loads(json.dumps(expected.to_dict()))
    (tmp_path / "prompts.txt").write_text("the quick\n\n12345\r\n")
    out = tmp_path / "made.jsonl"
    run("generate", model_dir, "--prompts", tmp_path / "prompts.txt", *few, "--out", out, exit_code=0)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["prompt"] for line in written] == ["the quick", "12345"]
    assert written[0] == json.loads(json.dumps(expected.to_dict()))
    of_documents = ("generate", model_dir, "--data", corpus, "--prompt-tokens", 6, *few)
    shown = run(*of_documents, "--json", exit_code=0).stdout.splitlines()
    assert [json.loads(line)["subset"] for line in shown] == ["ArXiv", "Github", "other"]
    assert "some.jsonl 4 other" in run(*of_documents, exit_code=0).stdout

    for words, error in (
        (("--prompts", tmp_path / "none.txt"), "none.txt: cannot be read"),
        (("a", "--out", tmp_path), "is a folder"),
        (("a\udcff",), "not UTF-8"),
    ):
        refused_command(error, "generate", model_dir, *words)
    for words in ((), ("a", "--data", corpus)):
        assert "give prompts" in run("generate", model_dir, *words, exit_code=2).stderr
