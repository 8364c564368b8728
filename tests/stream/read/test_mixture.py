"""`weights`: an epoch has the asked shares of tokens, and every process finds the same factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilekit import Corpus, PileStream, load_tokenizer, read
from pilekit.stream.read.mixture import exact_repeats
from tests.refusing import refused
from tests.stream.collecting import read_in_turn
from tests.stream.corpora import mixed, record, write_shard
from tests.tokenize.making import byte_level_bpe, saved


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    mixed(folder / "data", documents=400)
    saved(byte_level_bpe(300), folder / "tokenizer.json")
    return folder


def stream(data: Path, weights: Any, **changes: Any) -> PileStream:
    given: dict[str, Any] = {"tokenizer": data / "tokenizer.json", "seq_len": 64, "batch_size": 4, **changes}
    return PileStream(data / "data", weights=weights, **given)


def tokens(data: Path) -> dict[str, int]:
    """Tokens of each subset, EOD included, by encoding everything."""
    tokenizer = load_tokenizer(data / "tokenizer.json")
    found: dict[str, int] = {}
    for batch in read(data / "data"):
        for subset, text in zip(batch.subsets, batch.texts, strict=True):
            found[subset] = found.get(subset, 0) + len(tokenizer.encode_batch([text])[0]) + 1
    return found


def test_an_epoch_has_these_shares_of_tokens(data: Path) -> None:
    has = tokens(data)
    first, second, third = sorted(has)[:3]
    weights = {first: 5, second: 3.0, third: 2}
    made = stream(data, weights)
    assert set(made.subsets or ()) == set(weights)
    epoch = {name: has[name] * made.repeats.get(name, 1.0) for name in weights}
    assert sum(epoch.values()) == pytest.approx(sum(has[name] for name in weights), rel=0.03)
    for name, weight in weights.items():
        assert epoch[name] / sum(epoch.values()) == pytest.approx(weight / 10, rel=0.03)
    spelt = stream(data, {name.lower(): weight / 10 for name, weight in weights.items()}, seed=5, rank=1, world_size=2)
    assert spelt.repeats == made.repeats == exact_repeats(made.repeats, made.subsets, Corpus(data / "data").manifest)
    explicit = stream(data, None, subsets=list(weights), repeats=made.repeats)
    assert [batch["input_ids"].tolist() for batch, _ in zip(made, range(5), strict=False)] == [
        batch["input_ids"].tolist() for batch, _ in zip(explicit, range(5), strict=False)
    ]
    assert made.explain()["repeats"] == made.repeats
    assert f"{first} {made.repeats[first]:g}" in str(made.explain())


@pytest.mark.parametrize("append_eod", [True, False])
def test_texts_are_measured_where_most_documents_are_empty(tmp_path: Path, append_eod: bool) -> None:
    tokenizer = saved(byte_level_bpe(300), tmp_path / "tokenizer.json")
    texts = {"ArXiv": ["some words " * 4000, *[""] * 3000], "Github": ["def f(x): return x"] * 30}
    lines = [record(text, name) for name, every in texts.items() for text in every]
    write_shard(tmp_path / "data" / "00", lines, "plain")
    made = stream(tmp_path, {"ArXiv": 1, "Github": 1}, tokenizer=tokenizer, append_eod=append_eod)
    encode = load_tokenizer(tokenizer).encode_batch
    has = {name: len(encode(every)[0]) + append_eod * len(every) for name, every in texts.items()}
    assert made.repeats == {name: pytest.approx(sum(has.values()) / 2 / has[name], rel=0.001) for name in has}


def test_a_share_that_needs_too_many_uses_of_a_small_subset_is_refused(tmp_path: Path) -> None:
    tokenizer = saved(byte_level_bpe(300), tmp_path / "tokenizer.json")
    lines = [record("a", "ArXiv"), *[record("def f(x): return x", "Github")] * 2000]
    write_shard(tmp_path / "data" / "00", lines, "plain")
    message = r"^weights: ArXiv reaches its share with [\d,]+ uses of its documents per epoch, and 1,000 are the most"
    refused(message, stream, tmp_path, {"ArXiv": 1, "Github": 1}, tokenizer=tokenizer)


def test_mixtures_that_make_no_sense_are_refused(data: Path) -> None:
    for weights, changes, message in (
        ({}, {}, "weights is a dict from subset to share"),
        ({"ArXiv": 0}, {}, "weights of ArXiv: 0 is no share"),
        ({"ArXiv": True}, {}, "True is no share"),
        ({"ArXiv": 1, "arxiv": 1}, {}, "weights names ArXiv twice"),
        ({"Arxif": 1}, {}, "did you mean ArXiv"),
        ({"Enron Emails": 1, "ArXiv": 1}, {}, "weights names Enron Emails, which has no text"),
        ({"ArXiv": 1}, {"repeats": {"ArXiv": 2}}, "weights replaces repeats and subsets"),
        ({"ArXiv": 1}, {"tokenizer": None}, "weights are shares of tokens"),
    ):
        refused(message, stream, data, weights, **changes)
    with read_in_turn():
        refused(r"weights need random access .* with `pilekit reframe`, or give repeats", stream, data, {"ArXiv": 1})
