"""Memorised sequences are those that `generate` continues word for word; batches, kills and ranks change none."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from pilekit.corpus import Corpus
from pilekit.corpus.sidecar_files import SEQUENCES_FILE
from pilekit.evaluate.results.memorised_result import SEQUENCES, MemorisedShare, StoredMemorised
from pilekit.evaluate.score.batching import TokenizedDocument
from pilekit.evaluate.score.causal_nll import _leads
from pilekit.evaluate.score.continuations import NEAR, begins, scored_sequences
from pilekit.exposure import memorised as module
from pilekit.exposure.memorised import memorised
from pilekit.pipeline.selecting import select_corpus
from pilekit.shards.read.reader import OnError, read_corpus
from pilekit.tokenize import load_tokenizer
from tests.evaluate.documents import write
from tests.evaluate.folders import note_scored, only_file, rows_of, without_bits
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.shards.making import flipped
from tests.stopping import stop_when
from tests.tiny.masked import roberta_dir
from tests.tiny.models import tiny_model, tiny_model_dir, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]


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


def counted(model_dir: Path, corpus: Path, out: Path | None, **options: Any) -> dict[str, Any]:
    return memorised(model_dir, corpus, out=out, **OPTIONS, **options).to_dict()


def test_any_ranks_resume_with_the_same_figures(
    process_group: ProcessGroups,
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
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
    caplog.clear()
    with monkeypatch.context() as patch:  # all is recorded: no model is loaded
        patch.setattr(module, "load_causal_lm", None)
        assert counted(model_dir, corpus, tmp_path / "alone") == expected
    assert caplog.messages == [f"already done: 50 documents are scored already, recorded in {tmp_path / 'alone'}"]


@pytest.mark.slow
def test_a_killed_command_resumes_and_ends_with_the_same_bytes(
    model_dir: Path, slow_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sequence in a batch: the bits are then the same to the last digit, however often the work was begun."""
    monkeypatch.chdir(ROOT)

    def command(out: Path) -> list[str]:
        options = ("--prompt", "5", "--continuation", "4", "--every", "30", "--batch-tokens", "8")
        return [
            sys.executable,
            "-m",
            "pilekit",
            "memorised",
            str(model_dir),
            str(slow_corpus),
            *options,
            "--out",
            str(out),
        ]

    def written() -> int:
        return sum(file.read_bytes().count(b"\n") for file in tmp_path.glob("killed/records/*/*.jsonl"))

    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    whole = (tmp_path / "whole" / SEQUENCES_FILE).read_bytes()
    for least in (100, 400):
        code, said = stop_when(command(tmp_path / "killed"), lambda least=least: written() >= least, kill)  # type: ignore[misc]
        assert code == -signal.SIGKILL, said
        assert least <= written() < 800
        assert not (tmp_path / "killed" / SEQUENCES_FILE).exists()
    done = written()
    ended = subprocess.run(command(tmp_path / "killed"), check=True, capture_output=True, text=True)
    assert f"resuming: {done} documents are scored already" in " ".join(ended.stderr.split())
    assert (tmp_path / "killed" / SEQUENCES_FILE).read_bytes() == whole


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_damaged_shard_is_named_and_the_whole_one_resumes(
    model_dir: Path, corpus: Path, tmp_path: Path, on_error: OnError
) -> None:
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    shard, out = folder / "01.jsonl.zst", tmp_path / "out"
    whole = shard.read_bytes()
    expected = counted(model_dir, corpus, None)
    shard.write_bytes(whole[: len(whole) // 2])
    refused(r"01\.jsonl\.zst", counted, model_dir, folder, out, on_error=on_error)
    assert not (out / SEQUENCES_FILE).exists()
    shard.write_bytes(whole)
    assert counted(model_dir, folder, out, on_error=on_error) == expected


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


def test_a_sample_is_that_of_select(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    select_corpus(corpus, tmp_path / "selected", sample=0.4, seed=3)
    expected = memorised(model_dir, tmp_path / "selected", prompt=2, continuation=2)
    reported: list[tuple[int | None, ...]] = []
    sample = {"prompt": 2, "continuation": 2, "sample": 0.4, "seed": 3}
    result = memorised(model_dir, corpus, **sample, report=lambda *progress: reported.append(progress))
    assert (result.overall, result.subsets) == (expected.overall, expected.subsets)
    assert 0 < result.overall.documents < 60
    assert result.protocol["sample"] == {"share": 0.4, "seed": 3}
    few = memorised(model_dir, corpus, **sample, limit=2, report=lambda *progress: reported.append(progress))
    assert {share.documents for share in few.subsets.values()} == {2}
    done, total, _ = reported[-1]
    assert done == total == sum(len(text.encode()) for text in first_of_each(tmp_path / "selected", 2))
    refused("no documents of the sample in the 2 shards", counted, model_dir, corpus, None, sample=0.0)
    refused("a sample's fraction must lie between 0 and 1, not 2", counted, model_dir, corpus, None, sample=2)


def first_of_each(corpus: Path, limit: int) -> list[str]:
    """The texts of the first documents of each subset."""
    counts, texts = Counter[str](), []
    for batch in read_corpus(Corpus(corpus)):
        for subset, text in zip(batch.subsets, batch.texts, strict=True):
            counts[subset] += 1
            if counts[subset] <= limit:
                texts.append(text)
    return texts


def test_a_model_in_memory_is_taken_as_it_is(model_dir: Path, corpus: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_dir).train(), load_tokenizer(model_dir)
    expected = counted(model_dir, corpus, None)
    result = memorised(model, corpus, tokenizer=tokenizer, **OPTIONS)
    assert {"overall": expected["overall"], "subsets": expected["subsets"]} == {
        name: result.to_dict()[name] for name in ("overall", "subsets")
    }
    assert result.protocol["model"]["path"] is None
    assert model.training
    message = "adapter, out, dtype and device are for a model in a folder; save this one, or leave them out"
    refused(message, memorised, model, corpus, tokenizer=tokenizer, out="out")
    refused("a model in memory needs its tokenizer; give it as tokenizer=", memorised, model, corpus, **OPTIONS)
    refused("but the model has 32 positions", memorised, model, corpus, tokenizer=tokenizer)
    refused("a int is not a model of transformers", memorised, 42, corpus)


def test_a_model_that_makes_all_logits_itself_gives_the_same(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pilekit.models import causal

    model_dir = tiny_model_dir(tmp_path / "model")
    expected = counted(model_dir, corpus, None)
    monkeypatch.setattr(causal, "logit_transform_of", lambda *_: None)
    assert counted(model_dir, corpus, None) == expected
