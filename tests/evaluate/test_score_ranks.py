"""Any number of ranks gives the table of one process, also after kills and with another number of ranks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

from pilekit.corpus.sidecar_files import TOKENS_FILE
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import read_result
from pilekit.evaluate.score import causal_nll as scoring
from pilekit.evaluate.score_ranks import ending_together
from pilekit.evaluate.select_documents import DOCUMENT_BYTES, assign_to_rank
from pilekit.workers.ranks import join
from tests.evaluate.folders import figures_in, lines, note_scored, same
from tests.process_groups import ROOT, ProcessGroups
from tests.stopping import stop_when

Identity = tuple[str, int]


def evaluated(
    model_dir: Path, corpus: Path, out: Path | None, batch_tokens: int, limit_bytes: int | None = None
) -> tuple[BitsPerByte, list[Identity]]:
    """A rank's result, and the documents it scored."""
    begun: list[Identity] = []
    with pytest.MonkeyPatch.context() as patch:
        note_scored(patch, begun)
        options = {"batch_tokens": batch_tokens, "limit_bytes": limit_bytes, "per_token": out is not None}
        result = bits_per_byte(model_dir, corpus, out=out, **options)
    return result, begun


def failing(model_dir: Path, corpus: Path, out: Path, kind: str) -> tuple[str, str, float]:
    """(type, message, seconds after the failure) of each rank's error when rank 1 fails in its third pass."""
    passes, failed = 0, 0.0
    losses = scoring.losses_of

    def broken(*arguments: Any) -> Any:
        nonlocal passes, failed
        passes += 1
        if join().rank != 1:
            time.sleep(0.05)  # much work is left
        elif passes == 3:
            if kind == "error":
                raise KeyError("a bug")
            raise PilekitError("this document is bad")
        return losses(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "losses_of", broken)
        begin = time.monotonic()
        try:
            bits_per_byte(model_dir, corpus, out=out, batch_tokens=1, per_token=True)
        except Exception as error:
            return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", 0.0


def refused(model_dir: Path, corpus: Path, options: dict[str, Any]) -> tuple[str, str]:
    try:
        bits_per_byte(model_dir, **{"data": corpus, **options})
    except PilekitError as error:
        return type(error).__name__, str(error)
    return "", ""


def waiting() -> int:
    """Higher ranks work longer than the collective operations of their job wait."""
    ranks = join()
    hasty = replace(ranks, control=dist.new_group(backend="gloo", timeout=timedelta(seconds=1)))

    with ending_together(hasty):
        time.sleep(3 * ranks.rank)
    return 10 * ranks.rank


def recorded(out: Path) -> Counter[Identity]:
    return Counter((line["shard"], line["document"]) for line in lines(out))


@pytest.mark.parametrize("sizes", [(2, 1, 2), pytest.param((4, 1, 2, 2), marks=pytest.mark.slow)])
def test_any_ranks_give_the_table_of_one_process_and_resume_after_kills(
    process_group: ProcessGroups, model_dir: Path, corpus: Path, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    """A kill leaves the beginning of each rank's file: the files are cut short, and another number of ranks resumes."""
    (alone, _), out, rng = evaluated(model_dir, corpus, tmp_path / "alone", 256), tmp_path / "out", random.Random(0)
    tokens = pq.read_table(tmp_path / "alone" / TOKENS_FILE).to_pydict()
    kept: Counter[Identity] = Counter()
    for world_size in sizes:
        for is_finished in (False, True):
            if world_size == 1:
                results = [evaluated(model_dir, corpus, out, 256)]
            else:
                results = process_group(world_size).run(evaluated, model_dir, corpus, out, 256)
            scored = Counter(identity for _, begun in results for identity in begun)
            if is_finished:
                assert not scored
            else:
                assert not scored & kept
                assert recorded(out) == scored + kept
                assert len(recorded(out)) == alone.overall.documents == 50
            for result, _ in results:
                same(result, alone)
                assert result.protocol == alone.protocol
                assert result.to_dict() == read_result(out).to_dict()
            found = pq.read_table(out / TOKENS_FILE).to_pydict()
            assert found.pop("bits") == pytest.approx(tokens["bits"], rel=1e-4)
            assert found == {name: column for name, column in tokens.items() if name != "bits"}
        (out / "result.json").unlink()
        kept = Counter()
        for file in (out / "records").glob("*/*.jsonl"):
            content = file.read_bytes()
            file.write_bytes(content[: rng.randrange(len(content) + 1)])
            for line in map(json.loads, file.read_bytes().rpartition(b"\n")[0].splitlines()):
                kept[line["shard"], line["document"]] += 1


@given(
    st.lists(st.lists(st.integers(0, 3000), max_size=12), max_size=6), st.integers(1, 5), st.sampled_from(["x", "ü"])
)
def test_documents_are_dealt_by_their_bytes(sizes: list[list[int]], world_size: int, letter: str) -> None:
    number, batches = 0, []
    for of in sizes:
        numbers = np.arange(number, number + len(of), dtype=np.int64)
        batches.append(DocumentBatch([letter * size for size in of], ["s"] * len(of), "a", numbers))
        number += len(of)
    own = [list(assign_to_rank(batches, rank, world_size)) for rank in range(world_size)]
    assert all(len(batch) == len(own[0]) for batch in own)
    dealt_out = sorted(n for batches_of in own for batch in batches_of for n in batch.numbers.tolist())
    assert dealt_out == list(range(number))
    loads = [sum(int(size) + DOCUMENT_BYTES for batch in of for size in batch.text_bytes().tolist()) for of in own]
    largest = max((len(letter.encode()) * size + DOCUMENT_BYTES for of in sizes for size in of), default=0)
    assert max(loads) - min(loads) <= largest


@pytest.mark.parametrize("kind", ["bad", pytest.param("error", marks=pytest.mark.slow)])
def test_a_failure_of_one_rank_ends_all(
    process_group: ProcessGroups, model_dir: Path, corpus: Path, tmp_path: Path, kind: str
) -> None:
    """The others end at once, between two passes, although they have seconds of work left."""
    found = process_group(2).run(failing, model_dir, corpus, tmp_path / "out", kind)
    if kind == "bad":
        assert [message for _, message, _ in found] == ["this document is bad"] * 2
        assert [name for name, _, _ in found] == ["PilekitError", "AlreadyReported"]
    else:
        assert found[1][0] == "KeyError"
        assert found[0][0] == "PilekitError"
        assert found[0][1] == "KeyError on another rank"
    assert all(seconds < 60 for _, _, seconds in found)
    left = recorded(tmp_path / "out")
    assert set(left.values()) <= {1}
    result, begun = evaluated(model_dir, corpus, tmp_path / "out", 256)
    assert len(begun) == 50 - len(left)
    same(result, bits_per_byte(model_dir, corpus))


def test_rank_0_tells_the_error_of_all(process_group: ProcessGroups, model_dir: Path, corpus: Path) -> None:
    for options, words in (
        ({"device": "tpu"}, "device is auto, cpu, cuda or cuda:N, not 'tpu'"),
        ({"data": "-"}, "standard input (-) can be read by one process only"),
        ({"subsets": ["Books3"]}, "no documents of Books3"),
    ):
        (one, said), (other, said_too) = process_group(2).run(refused, model_dir, corpus, options)
        assert (one, other) == ("PilekitError", "AlreadyReported")
        assert words in said == said_too


@pytest.mark.slow
def test_ranks_wait_for_each_other_as_long_as_it_takes(process_group: ProcessGroups) -> None:
    assert process_group(2).run(waiting) == [0, 10]


@pytest.mark.slow
def test_torchrun_killed_and_resumed(
    model_dir: Path, slow_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is killed, which ends the job; two new ranks resume. Rank 0 alone prints."""
    monkeypatch.chdir(ROOT)
    for name, value in (("OMP_NUM_THREADS", "1"), ("GLOO_SOCKET_IFNAME", "lo"), ("CUDA_VISIBLE_DEVICES", "")):
        monkeypatch.setenv(name, value)
    alone, out = bits_per_byte(model_dir, slow_corpus), tmp_path / "out"

    def command(data: Path, *more: str) -> list[str]:
        job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return [*job, "-m", "pilekit", "bpb", str(model_dir), str(data), "--out", str(out), "--json", *more]

    def written() -> int:
        return sum(file.read_bytes().count(b"\n") for file in (out / "records").glob("*/*.jsonl"))

    def kill_one_rank(process: subprocess.Popen[str]) -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[0]), signal.SIGKILL)

    code, said = stop_when(command(slow_corpus, "--batch-tokens", "32"), lambda: written() >= 100, kill_one_rank)
    assert code != 0
    assert "error: " not in said  # torchrun says which rank died
    assert "SIGKILL" in said
    assert 100 <= written() < 800
    job = command(slow_corpus, "--plot", str(tmp_path / "a.png"))
    ended = subprocess.run(job, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["overall"]["nll"] == pytest.approx(alone.overall.nll, rel=1e-7)
    assert found == figures_in(out)
    assert [ended.stderr.count(word) for word in ("written: ", "drawn: ")] == [1, 1]
    same(read_result(out), alone)
    assert set(recorded(out).values()) == {1}
    facts = tmp_path / "facts.parquet"
    pq.write_table(pa.table({"shard": ["00.jsonl"] * 2, "number": [0, 0], "year": [1, 2]}), facts)
    for failing in (command(tmp_path / "missing.jsonl"), command(slow_corpus, "--by", f"{facts}:year")):
        failed = subprocess.run(failing, capture_output=True, text=True, check=False)
        assert (failed.returncode, failed.stderr.count("error: ")) == (1, 1), failed.stderr


def test_a_limit_of_bytes_takes_the_same_documents_on_any_number_of_ranks(
    process_group: ProcessGroups, model_dir: Path, corpus: Path
) -> None:
    alone = bits_per_byte(model_dir, corpus, limit_bytes=300)
    for result, _ in process_group(2).run(evaluated, model_dir, corpus, None, 256, 300):
        same(result, alone)
        assert result.protocol["limit_bytes"] == 300
