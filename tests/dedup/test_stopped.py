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
from pilekit.dedup.run import deduplicate
from tests.dedup.checking import check, corpus_documents
from tests.dedup.test_run import planted_corpus
from tests.stopping import tree

# One process only makes children. Each child dies at another moment, just before or after a renaming: at every moment
# at which the files on disk change for a later run.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from pilekit.dedup.run import deduplicate

data, folder, before, moments = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "before", sys.argv[4]
real = os.rename, os.replace

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
    deduplicate(data, out=out, jobs=1)

moment, step = 1, int(moments)
while True:
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
    if status == 0:
        shutil.rmtree(out)
        break
    assert os.WIFSIGNALED(status), status
    moment += step
print("done", moment)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_corpus(tmp_path_factory.mktemp("corpus"), 40, 3)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "out"
    deduplicate(corpus, out=out, jobs=1)
    return tree(out)


def finished_files(out: Path) -> dict[Path, int]:
    """The files that the next run must use again, and their inodes, which change when a file is replaced."""
    notes = [path.read_text() for path in (out / ".unfinished").glob("*.json")]
    done = [*(out / "sketches").rglob("*.parquet")]
    done += [path for path in (out / "clean").rglob("*") if any(f'"clean/{path.name}"' in note for note in notes)]
    if any("removed.parquet" in note for note in notes):
        done += [out / "removed.parquet", *(out / "masks").rglob("*.mask")]
    return {path: path.stat().st_ino for path in done}


def kill_and_rerun(corpus: Path, whole: dict[str, bytes], folder: Path, when: str, every: int) -> set[str]:
    """Returns the files that the killed runs had left."""
    script = [sys.executable, "-c", KILLED, str(corpus), str(folder), when, str(every)]
    done = subprocess.run(script, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    left: set[str] = set()
    for out in folder.iterdir():
        left |= {path.relative_to(out).parts[0] for path in out.rglob("*") if not path.name.endswith(".partial")}
        before = finished_files(out)
        deduplicate(corpus, out=out, jobs=1)
        assert tree(out) == whole
        assert {path: path.stat().st_ino for path in before} == before
    return left


LEFT = {"pilekit.json", "sketches", "scratch", "removed.parquet", "masks", "clean"}


def test_killed_at_some_moments_and_run_again(corpus: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    assert kill_and_rerun(corpus, whole, tmp_path, "behind", 6) > LEFT


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "behind"])
def test_killed_at_every_moment_and_run_again(corpus: Path, whole: dict[str, bytes], tmp_path: Path, when: str) -> None:
    assert kill_and_rerun(corpus, whole, tmp_path, when, 1) > LEFT


def test_the_same_run_again_answers_at_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = deduplicate(corpus, out=tmp_path / "out", jobs=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    monkeypatch.setattr(run, "sketch_shard", None)
    again = deduplicate(corpus, out=tmp_path / "out", jobs=2, memory=1 << 30)
    assert again.summary == first.summary
    assert again.skipped == first.skipped
    assert again.removed.equals(first.removed)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_what_was_taken_away_is_made_again(corpus: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for gone in ("clean", "masks/val.jsonl.mask", "removed.parquet", "summary.json", "sketches"):
        deduplicate(corpus, out=out, jobs=1)
        if (out / gone).is_dir():
            shutil.rmtree(out / gone)
        else:
            (out / gone).unlink()
        deduplicate(corpus, out=out, jobs=1)
        assert {name: content for name, content in whole.items() if not name.startswith("sketches")} == {
            name: content for name, content in tree(out).items() if not name.startswith("sketches")
        }


# Something has changed.


def changed(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def fail(*arguments: Any, **options: Any) -> None:
    raise ZeroDivisionError


def test_changed_input_is_named(corpus: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(corpus, data)
    deduplicate(data, out=out, jobs=1)
    before = tree(out)
    changed(data / "train" / "01.jsonl.zst")
    with pytest.raises(PilekitError, match=r"other shards: train/01\.jsonl is not the same any more.*--out"):
        deduplicate(data, out=out, jobs=1)
    (data / "train" / "01.jsonl.zst").unlink()
    with pytest.raises(PilekitError, match=r"train/01\.jsonl is not among them now"):
        deduplicate(data, out=out, jobs=1)
    assert tree(out) == before


@pytest.mark.parametrize("moment", ["find_exact", "store_shingles", "Resolver", "mask_shard", "clean_shard"])
def test_a_shard_that_changes_during_the_run_is_named(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(corpus, data)
    real = getattr(run, moment)

    def after_a_change(*arguments: Any, **options: Any) -> Any:
        if (data / "val.jsonl.zst").read_bytes() == (corpus / "val.jsonl.zst").read_bytes():
            changed(data / "val.jsonl.zst")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(run, moment, after_a_change)
        with pytest.raises(PilekitError, match=r"val\.jsonl\.zst: (is not the shard any more|was changed)"):
            deduplicate(data, out=out, jobs=1)
    shutil.copy(corpus / "val.jsonl.zst", data)  # With the shard back, the run resumes.
    deduplicate(data, out=out, jobs=1)
    check(out, corpus_documents(corpus))


def test_other_parameters_are_named(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    deduplicate(corpus, out=out, jobs=1)
    options: dict[str, Any]
    for options, named in (
        ({"threshold": 0.81}, "threshold is 0.8 there, 0.81 here"),
        ({"keep": "first"}, 'keep is "longest" there, "first" here'),
        ({"subsets": ["ArXiv"]}, r'subsets is null there, \["ArXiv"\] here'),
        ({"write": False}, "write is true there, false here"),
    ):
        with pytest.raises(PilekitError, match=f"made with other settings: {named}"):
            deduplicate(corpus, out=out, jobs=1, **options)
    # There is no bad line; the other manifest has text and label in the same places.
    for options in ({"on_error": "skip"}, {"manifest": "demo"}):
        assert deduplicate(corpus, out=out, jobs=1, **options).summary["read"] > 0


def test_a_damaged_artefact_is_named(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(run, "find_exact", fail)
        with pytest.raises(ZeroDivisionError):
            deduplicate(corpus, out=out, jobs=1)
    sketch = out / "sketches" / "val.jsonl.parquet"
    content = bytearray(sketch.read_bytes())
    content[len(content) // 3] ^= 1
    sketch.write_bytes(content)
    with pytest.raises(PilekitError, match=r"val\.jsonl\.parquet: is damaged.*remove it"):
        deduplicate(corpus, out=out, jobs=1)
    sketch.unlink()
    shutil.rmtree(out / "scratch", ignore_errors=True)
    deduplicate(corpus, out=out, jobs=1)
    check(out, corpus_documents(corpus))
