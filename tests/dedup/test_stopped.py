"""Runs killed at any moment and repeated, with changes in between: the same result, nothing done twice, or a clear
refusal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilekit import PilekitError
from pilekit.dedup import run
from pilekit.dedup.run import dedup_corpus
from tests.dedup.planted import planted_corpus
from tests.shards.making import flipped
from tests.stopping import tree

# One process only makes children. Each child dies at another moment, just before or just after a renaming: that is
# when the files on disk change for a later run. Every second renaming, before and after it, is every state between two.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from pilekit.dedup.run import dedup_corpus

data, folder, before, step = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "before", int(sys.argv[4])

def run(moment, out):
    renamed = 0
    def patched(source, target, *, of=os.replace, **options):
        nonlocal renamed
        renamed += 1
        if renamed == moment and before:
            os.kill(os.getpid(), signal.SIGKILL)
        of(source, target, **options)
        if renamed == moment:
            os.kill(os.getpid(), signal.SIGKILL)
    os.replace = patched
    dedup_corpus(data, out=out, jobs=1)

moment, status = 1, None
while status != 0:
    out = folder / str(moment)
    child = os.fork()
    if not child:
        try:
            run(moment, out)
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0 or os.WIFSIGNALED(status), status
    moment += step
shutil.rmtree(out)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_corpus(tmp_path_factory.mktemp("corpus"), 40, 3)


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "out"
    dedup_corpus(corpus, out=out, jobs=1)
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished folder."""
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def finished_files(out: Path) -> dict[Path, int]:
    """The files that the next run must use again, and their inodes, which change when a file is replaced."""
    notes = [path.read_text() for path in (out / ".unfinished").glob("*.json")]
    done = [*(out / "sketches").rglob("*.parquet")]
    done += [path for path in (out / "clean").rglob("*") if any(f'"clean/{path.name}"' in note for note in notes)]
    if any("removed.parquet" in note for note in notes):
        done += [out / "removed.parquet", *(out / "masks").rglob("*.mask")]
    return {path: path.stat().st_ino for path in done}


@pytest.mark.parametrize(
    ("when", "every"),
    [("behind", 6), *(pytest.param(when, 2, marks=pytest.mark.slow) for when in ("before", "behind"))],
)
def test_killed_at_a_moment_and_run_again(corpus: Path, finished: Path, tmp_path: Path, when: str, every: int) -> None:
    whole = tree(finished)
    script = [sys.executable, "-c", KILLED, str(corpus), str(tmp_path), when, str(every)]
    done = subprocess.run(script, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    left: set[str] = set()
    for out in tmp_path.iterdir():
        left |= {path.relative_to(out).parts[0] for path in out.rglob("*") if not path.name.endswith(".partial")}
        before = finished_files(out)
        dedup_corpus(corpus, out=out, jobs=1)
        assert tree(out) == whole
        assert {path: path.stat().st_ino for path in before} == before
    assert left > {"pilekit.json", "sketches", "scratch", "removed.parquet", "masks", "clean"}


def test_the_same_run_again_answers_at_once(corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = dedup_corpus(corpus, out=out, jobs=1)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    monkeypatch.setattr(run, "sketch_shard", None)
    again = dedup_corpus(corpus, out=out, jobs=2, memory=1 << 30)
    assert (again.summary, again.skipped) == (first.summary, first.skipped)
    assert again.removed.equals(first.removed)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_what_was_taken_away_is_made_again(corpus: Path, finished: Path, out: Path) -> None:
    whole = tree(finished)
    for gone in ("clean", "masks/web.jsonl.mask", "removed.parquet", "summary.json", "sketches"):
        if (out / gone).is_dir():
            shutil.rmtree(out / gone)
        else:
            (out / gone).unlink()
        dedup_corpus(corpus, out=out, jobs=1)
        found = tree(out)  # A finished run needs no sketches.
        assert found == {name: content for name, content in whole.items() if name in found or gone != "sketches"}


def reversed_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def test_changed_input_and_other_parameters_are_named(corpus: Path, out: Path, tmp_path: Path) -> None:
    data, before = tmp_path / "data", tree(out)
    shutil.copytree(corpus, data)

    def fails(match: str, **options: Any) -> None:
        with pytest.raises(PilekitError, match=match):
            dedup_corpus(data, out=out, jobs=1, **options)
        assert tree(out) == before

    fails("made with other settings: threshold is 0.8 there, 0.81 here", threshold=0.81)
    fails('keep is "longest" there, "first" here', keep="first")
    fails(r'subsets is not given there, \["ArXiv"\] here', subsets=["ArXiv"])
    fails("write is true there, false here", write=False)
    fails("spellings is", manifest="demo")  # of other subsets, so labels may mean others
    assert dedup_corpus(corpus, out=out, jobs=1, on_error="skip").summary["read"] > 0  # there is no bad line
    reversed_bytes(data / "train" / "01.jsonl.zst")
    fails(r"other shards: train/01\.jsonl is not the same any more.*--out")
    (data / "train" / "01.jsonl.zst").unlink()
    fails(r"train/01\.jsonl is not among them now")


def test_a_shard_that_changes_during_the_run_or_a_damaged_sketch_is_named_and_the_run_resumes(
    corpus: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, whole = tmp_path / "data", tree(finished)
    shutil.copytree(corpus, data)
    for moment in ("find_exact", "store_shingles", "decide", "mask_shard", "clean_shard"):
        out, real = tmp_path / moment, getattr(run, moment)

        def after_a_change(*arguments: Any, real: Any = real, **options: Any) -> Any:
            if (data / "web.jsonl.zst").read_bytes() == (corpus / "web.jsonl.zst").read_bytes():
                reversed_bytes(data / "web.jsonl.zst")
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(run, moment, after_a_change)
            with pytest.raises(PilekitError, match=r"web\.jsonl\.zst: (has|was) changed"):
                dedup_corpus(data, out=out, jobs=1)
        if moment == "find_exact":
            sketch = out / "sketches" / "web.jsonl.parquet"
            content = sketch.read_bytes()
            sketch.write_bytes(flipped(content, len(content) // 3))
            shutil.copy2(corpus / "web.jsonl.zst", data)
            with pytest.raises(PilekitError, match=r"web\.jsonl\.parquet: is damaged.*remove it"):
                dedup_corpus(data, out=out, jobs=1)
            sketch.unlink()
        shutil.copy(corpus / "web.jsonl.zst", data)
        dedup_corpus(data, out=out, jobs=1)
        assert {**tree(out), "pilekit.json": b""} == {**whole, "pilekit.json": b""}
