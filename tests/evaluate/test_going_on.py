"""An evaluation that was cut short goes on: nothing recorded is lost, or scored again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pilekit.errors import PilekitError
from pilekit.evaluate import bits_per_byte as module
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import read_line, read_result
from tests.evaluate.folders import lines, record_file, same
from tests.process_groups import ROOT
from tests.small_disk import small_disk
from tests.stopping import kill, stop_when


def test_a_finished_run_answers_from_its_records(
    whole: tuple[BitsPerByte, Path],
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "load_causal_lm", lambda *_, **__: pytest.fail("the weights were read"))
    out = shutil.copytree(whole[1], tmp_path / "out")
    before = record_file(out).read_bytes()
    told: list[int] = []
    result = bits_per_byte(model_dir, corpus, out=out, batch_tokens=7, advance=told.append)
    assert result.to_json() == whole[0].to_json()
    assert record_file(out).read_bytes() == before
    assert sum(told) == sum(path.stat().st_size for path in corpus.iterdir())
    (out / "result.json").unlink()
    assert bits_per_byte(model_dir, corpus, out=out).to_json() == whole[0].to_json()
    assert (out / "result.json").exists()


@pytest.mark.parametrize("share", [0.0, 0.13, 0.5, 0.97])
def test_a_torn_run_goes_on(
    share: float,
    whole: tuple[BitsPerByte, Path],
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    scored: list[tuple[str, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    (out / "result.json").unlink()
    content = record_file(out).read_bytes()
    record_file(out).write_bytes(content[: int(share * len(content))])
    left = content[: int(share * len(content))].count(b"\n")
    result = bits_per_byte(model_dir, corpus, out=out)
    same(result, whole[0])
    assert len(scored) == 50 - left
    are = [f"continuing: {left} of 50 documents are scored already, recorded in {out}"] if left else []
    assert caplog.messages == are
    assert max(Counter((line["shard"], line["document"]) for line in lines(out)).values()) == 1
    assert len(lines(out)) == 50
    assert read_result(out).to_json() == json.loads((out / "result.json").read_text())


def test_a_damaged_line_is_scored_again(
    whole: tuple[BitsPerByte, Path],
    model_dir: Path,
    corpus: Path,
    tmp_path: Path,
    scored: list[tuple[str, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "out")
    content = record_file(out).read_bytes().splitlines(keepends=True)
    of = json.loads(content[20])
    content[20] = content[20].replace(b'"nll":', b'"nll":1')
    record_file(out).write_bytes(b"".join(content))
    with pytest.raises(
        PilekitError, match="is of 50 documents, but 49 are recorded in records/; score the model again"
    ):
        read_result(out)
    result = bits_per_byte(model_dir, corpus, out=out)
    same(result, whole[0])
    assert scored == [(of["shard"], of["document"])]
    assert "1 line is damaged and passed over" in caplog.text
    same(read_result(out), whole[0])


class Stop(BaseException):
    pass


@pytest.mark.parametrize("batch_tokens", [1, 64, 4096])
def test_at_most_the_batch_under_way_is_lost(
    batch_tokens: int, whole: tuple[BitsPerByte, Path], model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    """Interrupted between any two forward passes, what was complete then is recorded, and nothing is torn."""
    rounds = 0
    for stop_at in (1, 2, 5, 11, 40):
        passes = 0
        out = tmp_path / str(stop_at)

        def advance(amount: int, stop_at: int = stop_at) -> None:
            nonlocal passes
            passes += 1
            if passes == stop_at:
                raise Stop

        try:
            result = bits_per_byte(model_dir, corpus, out=out, batch_tokens=batch_tokens, advance=advance)
        except Stop:
            rounds += 1
            assert not (out / "result.json").exists()
            for line in record_file(out).read_bytes().splitlines(keepends=True):
                assert read_line(line[:-1]) is not None
            result = bits_per_byte(model_dir, corpus, out=out, batch_tokens=batch_tokens)
        same(result, whole[0])
        assert len(lines(out)) == 50
    assert rounds


def command(model_dir: Path, corpus: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "pilekit", "bpb", str(model_dir), str(corpus), "--out", str(out), *more]


@pytest.mark.parametrize("number", [signal.SIGKILL, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 15))])
def test_a_process_that_is_stopped_goes_on(
    number: int, model_dir: Path, slow_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "out"

    def recorded() -> int:
        return sum(file.read_bytes().count(b"\n") for file in (out / "records").glob("*.jsonl"))

    stop = kill if number == signal.SIGKILL else lambda process: process.send_signal(number)
    code, errors = stop_when(
        command(model_dir, slow_corpus, out, "--batch-tokens", "32"), lambda: recorded() >= 100, stop
    )
    assert code == (130 if number == signal.SIGINT else -number), errors
    before = recorded()
    assert 100 <= before < 800
    content = record_file(out).read_bytes()
    assert content.endswith(b"\n")
    expected = bits_per_byte(model_dir, slow_corpus)
    same(bits_per_byte(model_dir, slow_corpus, out=out), expected)
    assert record_file(out).read_bytes().startswith(content)
    assert len(lines(out)) == 800


def test_a_full_disk_is_one_line_and_keeps_what_is_recorded(model_dir: Path, slow_corpus: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 136_000) as disk:
        out = disk.path / "out"
        ended = subprocess.run(
            command(model_dir, slow_corpus, out),
            cwd=ROOT,
            capture_output=True,
            text=True,
            preexec_fn=disk.limit,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 1
        [line] = ended.stderr.splitlines()
        assert "cannot be written: " in line
        assert "the same command goes on from there" in line
        content = record_file(out).read_bytes()
        assert content.endswith(b"\n")
        disk.grow()
        same(bits_per_byte(model_dir, slow_corpus, out=out), bits_per_byte(model_dir, slow_corpus))
        assert record_file(out).read_bytes().startswith(content)
