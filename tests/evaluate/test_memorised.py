"""Memorised sequences are those that `generate` continues word for word; batches, kills and ranks change none."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig

from pilekit.corpus import Corpus
from pilekit.corpus.sidecar_files import SEQUENCES_FILE
from pilekit.evaluate.results.memorised_result import SEQUENCES, MemorisedShare, StoredMemorised
from pilekit.evaluate.score.batching import TokenizedDocument
from pilekit.evaluate.score.causal_nll import _leads
from pilekit.evaluate.score.continuations import NEAR, begins, scored_sequences
from pilekit.exposure import memorised as module
from pilekit.exposure.memorised import memorised
from pilekit.shards.read.reader import read_corpus
from pilekit.tokenize import Tokenizer, load_tokenizer
from tests.evaluate.documents import write
from tests.evaluate.folders import note_scored, only_file
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.shards.making import flipped
from tests.tiny.masked import roberta_dir
from tests.tiny.models import SMALL, tiny_model, tiny_model_dir, tiny_tokenizer

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


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out / SEQUENCES_FILE).to_pylist()
    return rows


def without_bits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "bits"} for row in rows]


@torch.no_grad()
def generated(model_dir: Path, corpus: Path, every: int | None) -> list[dict[str, Any]]:
    """Each sequence, continued by `generate`, one at a time; the longest start that both have, and the exact bits."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    tokenizer, found = load_tokenizer(model_dir), []
    for batch in read_corpus(Corpus(corpus)):
        for number, text, subset in zip(batch.numbers.tolist(), batch.texts, batch.subsets, strict=True):
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
                row = {"shard": batch.shard, "number": number, "subset": subset, "place": place, "right": right}
                found.append({**row, "run": run, "bits": float(losses) / np.log(2)})
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


@pytest.mark.parametrize("batch_tokens", [63, 63 * 3, 63 * 64])
def test_a_batch_of_any_size_gives_the_same(model_dir: Path, corpus: Path, tmp_path: Path, batch_tokens: int) -> None:
    options: dict[str, Any] = {"prompt": 5, "continuation": 4, "every": 3}
    memorised(model_dir, corpus, **options, out=tmp_path / "default")
    memorised(model_dir, corpus, **options, out=tmp_path / "other", batch_tokens=batch_tokens // 8)
    default, other = rows_of(tmp_path / "default"), rows_of(tmp_path / "other")
    assert without_bits(default) == without_bits(other)
    assert [row["bits"] for row in default] == pytest.approx([row["bits"] for row in other], rel=1e-6)
    assert any(row["right"] for row in default)


@given(st.lists(st.lists(st.integers(-2, 2), min_size=4, max_size=4), min_size=1, max_size=9), st.data())
def test_leads_tell_the_arg_max_with_ties(rows: list[list[int]], data: st.DataObject) -> None:
    logits = torch.tensor(rows, dtype=torch.float32)
    targets = torch.tensor([data.draw(st.integers(0, 3)) for _ in rows])
    leads = _leads(logits.clone(), targets).numpy()
    assert (~np.signbit(leads)).tolist() == (logits.argmax(dim=1) == targets).tolist()
    for lead, row, target in zip(leads.tolist(), rows, targets.tolist(), strict=True):
        assert lead == row[target] - max(row[:target] + row[target + 1 :])


@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 50))
def test_sequences_begin_where_they_are_whole(tokens: int, length: int, every: int) -> None:
    whole = [place for place in range(tokens) if place + length <= tokens]
    assert list(begins(tokens, length, every)) == [place for place in whole if place % every == 0]
    assert list(begins(tokens, length, None)) == whole[:1]


@pytest.mark.parametrize(
    ("leads", "right", "run", "near_tie"),
    [
        ([3, 0.0, 1], 3, 3, True),  # a tie with the lower id
        ([3, -0.0, 1], 2, 1, True),
        ([3, -0.0, -1], 1, 1, False),  # another token is wrong anyway
        ([3, 2, 1], 3, 3, False),
        ([3, -1e-9, 1e-9], 2, 1, True),
        ([-1, 2, 3], 2, 0, False),
    ],
)
def test_near_ties_that_decide_are_counted(leads: list[float], right: int, run: int, near_tie: bool) -> None:
    document = TokenizedDocument("a", 0, 0, "s", 9, np.arange(9, dtype=np.uint32))
    document.parts[5, 0] = 1.0, np.array([1.0, 2.0, 3.0, *leads])
    [row] = scored_sequences(document, 3, torch.float32)
    assert row.tolist() == (5, right, run, near_tie, pytest.approx(6 / np.log(2)))


def test_a_near_tie_is_wider_in_a_coarser_precision() -> None:
    document = TokenizedDocument("a", 0, 0, "s", 9, np.arange(9, dtype=np.uint32))
    document.parts[0, 0] = 1.0, np.array([1.0, 0.4])
    flags = {
        dtype: bool(scored_sequences(document, 1, dtype)["near_tie"][0]) for dtype in (torch.float32, torch.bfloat16)
    }
    assert flags == {torch.float32: False, torch.bfloat16: True}
    assert NEAR * torch.finfo(torch.bfloat16).eps == 0.5


@given(st.integers(1, 5000), st.data())
def test_an_interval_is_wilsons(sequences: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, sequences))
    found = MemorisedShare(sequences=sequences, memorised=count)
    assert found.interval is not None
    low, high = found.interval
    assert 0 <= low <= count / sequences <= high <= 1
    for bound, is_end in ((low, count == 0), (high, count == sequences)):
        if not is_end:  # the share is 1.96 standard errors of the bound away from it
            error = (bound * (1 - bound) / sequences) ** 0.5
            assert abs(count / sequences - bound) == pytest.approx(1.959964 * error, rel=1e-6)


def test_without_sequences_there_is_no_share(model_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [("ArXiv", "one"), ("ArXiv", "")])
    result = memorised(model_dir, tmp_path, prompt=10, continuation=10)
    overall = result.overall
    assert (overall.documents, overall.too_short, overall.sequences) == (2, 2, 0)
    assert (overall.share, overall.interval, overall.right_share, overall.mean_run) == (None, None, None, None)
    assert "–" in str(result)


OPTIONS: dict[str, Any] = {"prompt": 5, "continuation": 4, "every": 3, "batch_tokens": 100}


def counted(model_dir: Path, corpus: Path, out: Path | None) -> dict[str, Any]:
    return memorised(model_dir, corpus, out=out, **OPTIONS).to_dict()


def test_any_ranks_resume_with_the_same_figures(
    process_group: ProcessGroups, model_dir: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, rng = counted(model_dir, corpus, tmp_path / "alone"), random.Random(0)
    rows = rows_of(tmp_path / "alone")
    assert counted(model_dir, corpus, None) == expected
    assert process_group(2).run(counted, model_dir, corpus, None) == [expected, expected]
    for ranks in (1, 2):  # a kill tears the last line of the records
        out = tmp_path / f"resumed-{ranks}"
        shutil.copytree(tmp_path / "alone", out)
        (out / SEQUENCES_FILE).unlink()
        file = only_file(out)
        content = file.read_bytes()
        file.write_bytes(content[: rng.randrange(len(content) // 4, len(content) // 2)])
        if ranks == 1:
            begun: list[tuple[str, int]] = []
            with monkeypatch.context() as patch:
                note_scored(patch, begun)
                assert counted(model_dir, corpus, out) == expected
            assert 0 < len(begun) < 50
        else:
            assert process_group(2).run(counted, model_dir, corpus, out) == [expected, expected]
        assert without_bits(rows_of(out)) == without_bits(rows)
    with monkeypatch.context() as patch:  # all is recorded: no model is loaded
        patch.setattr(module, "load_causal_lm", None)
        assert counted(model_dir, corpus, tmp_path / "alone") == expected


def test_the_file_is_sealed_and_holds_the_figures(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    expected = counted(model_dir, corpus, tmp_path / "out")
    path = tmp_path / "out" / SEQUENCES_FILE
    with SEQUENCES.open_table(path, StoredMemorised) as (header, file):
        assert {name: getattr(header, name) for name in ("overall", "subsets", "groups", "protocol")} == expected
        assert file.metadata.num_rows == expected["overall"]["sequences"]
    path.write_bytes(flipped(path.read_bytes(), 1000))

    def read() -> None:
        with SEQUENCES.open_table(path, StoredMemorised):
            pass

    refused("sequences.parquet: is damaged .*; remove it, and the same command writes it again", read)


def test_what_is_wrong_is_one_line(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    masked = roberta_dir(corpus, tmp_path / "masked")
    for options, message in (
        ({}, "^a sequence has 64 tokens, 32 of them the prompt, but the model has 32 positions; give shorter ones$"),
        ({"every": "second"}, "^every is first or a number of tokens, 1 at least, not 'second'$"),
        ({"every": 0}, "^every is first or a number"),
        ({"prompt": 0}, "^prompt and continuation are numbers of tokens, 1 at least$"),
        ({"model": masked}, "is a masked model, which continues no text; give a causal one"),
        ({"out": model_dir}, "holds a model"),
    ):
        refused(message, memorised, **{"model": model_dir, "data": corpus, **options})
    file = tmp_path / "bad.jsonl"
    file.write_text('{"text": "one"}\n{"text": 1}\n')
    refused("bad.jsonl", memorised, model_dir, file, prompt=1, continuation=1)
    skipping = memorised(model_dir, file, prompt=1, continuation=1, on_error="skip")
    assert (skipping.overall.documents, skipping.protocol["skipped_lines"]) == (1, 1)


def test_a_model_that_gives_nan_is_named(corpus: Path, tmp_path: Path) -> None:
    model = tiny_model()
    torch.nn.init.constant_(model.gpt_neox.final_layer_norm.weight, torch.nan)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer(tmp_path / "model")
    message = r"00\.jsonl, document \d+ \(.*\): the model's loss is nan, not a finite number; its weights"
    refused(message, counted, tmp_path / "model", corpus, tmp_path / "out")
    assert not (tmp_path / "out" / SEQUENCES_FILE).exists()


def test_limits_choose_documents(model_dir: Path, corpus: Path) -> None:
    result = memorised(model_dir, corpus, limit=2, prompt=2, continuation=2)
    assert [share.documents for share in result.subsets.values()] == [2] * len(result.subsets)
    one = memorised(model_dir, corpus, subsets=["ArXiv"], prompt=2, continuation=2)
    assert list(one.subsets) == ["ArXiv"]
    assert one.protocol["sequences"] == {"prompt": 2, "continuation": 2, "every": "first"}
    assert json.loads(json.dumps(one.to_dict())) == one.to_dict()


def test_a_model_that_makes_all_logits_itself_gives_the_same(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pilekit.models import causal

    model_dir = tiny_model_dir(tmp_path / "model")
    expected = counted(model_dir, corpus, None)
    monkeypatch.setattr(causal, "logit_transform_of", lambda *_: None)
    assert counted(model_dir, corpus, None) == expected
