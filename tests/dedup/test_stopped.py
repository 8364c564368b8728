"""Killed at any moment and run again, changed in between: the same result, nothing done twice, or a clear refusal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pilekit import PilekitError
from pilekit.dedup import run as steps
from pilekit.dedup.run import deduplicate
from tests.dedup.checking import check, corpus_documents
from tests.dedup.test_run import planted_corpus
from tests.stopping import interrupt, kill, stop_when, tree

# One process that makes nothing but children: each dies at another moment, just before or behind a renaming, and so at
# every moment at which what is on disk changes for a later run.
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
    """What an undisturbed run leaves."""
    out = tmp_path_factory.mktemp("whole") / "out"
    deduplicate(corpus, out=out, jobs=1)
    return tree(out)


def finished_work(out: Path) -> dict[Path, int]:
    """The files that a later run is to leave as they are, and their inodes, which tell whether it did."""
    notes = [path.read_text() for path in (out / ".unfinished").glob("*.json")]
    done = [*(out / "sketches").rglob("*.parquet")]
    done += [path for path in (out / "clean").rglob("*") if any(f'"clean/{path.name}"' in note for note in notes)]
    if any("removed.parquet" in note for note in notes):
        done += [out / "removed.parquet", *(out / "masks").rglob("*.mask")]
    return {path: path.stat().st_ino for path in done}


def scratch_steps(out: Path) -> set[str]:
    """The steps that have left something."""
    inside = {path.relative_to(out).parts for path in out.rglob("*") if not path.name.endswith(".partial")}
    return {parts[1] if parts[0] == "scratch" and len(parts) > 1 else parts[0] for parts in inside}


def killed_everywhere(corpus: Path, whole: dict[str, bytes], folder: Path, when: str, every: int) -> set[str]:
    """Returns the steps at which it was killed."""
    script = [sys.executable, "-c", KILLED, str(corpus), str(folder), when, str(every)]
    done = subprocess.run(script, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    killed = set()
    for out in folder.iterdir():
        killed |= scratch_steps(out)
        before = finished_work(out)
        deduplicate(corpus, out=out, jobs=1)
        assert tree(out) == whole
        assert {path: path.stat().st_ino for path in before} == before
    return killed


STEPS = {
    "pilekit.json",
    "sketches",
    "sets",
    "removed.parquet",
    "masks",
    "clean",
    "summary.json",
}


def test_killed_at_some_moments_and_run_again(corpus: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    assert killed_everywhere(corpus, whole, tmp_path, "behind", 6) > STEPS - {"summary.json"}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "behind"])
def test_killed_at_every_moment_and_run_again(corpus: Path, whole: dict[str, bytes], tmp_path: Path, when: str) -> None:
    assert killed_everywhere(corpus, whole, tmp_path, when, 1) > STEPS


def command(corpus: Path, out: Path, *options: str) -> list[str]:
    program = "from pilekit.cli.dedup import command; command()"
    return [sys.executable, "-c", program, str(corpus), "--out", str(out), *options]


def some(folder: Path, pattern: str) -> bool:
    return any(folder.glob(pattern))


def stopped_folder(
    folder: Path, options: list[str], corpus: Path, pattern: str, stop: Callable[[subprocess.Popen[str]], None]
) -> Path:
    """What a run leaves that is stopped when there is a file of this pattern; now and then one ends before."""
    for attempt in range(10):
        out = folder / f"{attempt}"
        code, _ = stop_when(command(corpus, out, *options), partial(some, out, pattern), stop)
        if code != 0:
            return out
    raise AssertionError("ten runs ended before they could be stopped")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["sketches/*/*.partial", "scratch/sets/*.partial", "clean/*/*.partial"])
def test_workers_killed_with_their_parent(corpus: Path, whole: dict[str, bytes], tmp_path: Path, pattern: str) -> None:
    out = stopped_folder(tmp_path, ["--jobs", "2"], corpus, pattern, kill)
    assert subprocess.run(command(corpus, out, "--jobs", "2"), check=False, capture_output=True).returncode == 0
    assert tree(out) == whole


def test_interrupted_it_goes_on(corpus: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    out = stopped_folder(tmp_path, [], corpus, "sketches/*.parquet", interrupt)
    deduplicate(corpus, out=out, jobs=1)
    assert tree(out) == whole


# Finished.


def test_the_same_run_again_answers_at_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = deduplicate(corpus, out=tmp_path / "out", jobs=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    monkeypatch.setattr(steps, "sketch_shard", None)
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


# Something is not as it was.


def changed(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


@pytest.mark.parametrize("finished", [False, True])
def test_input_that_changed_is_named(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(corpus, data)
    if finished:
        deduplicate(data, out=out, jobs=1)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(steps, "store_shingles", fail)
            with pytest.raises(ZeroDivisionError):
                deduplicate(data, out=out, jobs=1)
    before = tree(out)
    changed(data / "train" / "01.jsonl.zst")
    with pytest.raises(PilekitError, match=r"other shards: train/01\.jsonl is not the same any more.*--out"):
        deduplicate(data, out=out, jobs=1)
    (data / "train" / "01.jsonl.zst").unlink()
    with pytest.raises(PilekitError, match=r"train/01\.jsonl is not among them now"):
        deduplicate(data, out=out, jobs=1)
    shutil.copy(corpus / "train" / "01.jsonl.zst", data / "train")
    shutil.copy(corpus / "train" / "01.jsonl.zst", data / "02.jsonl.zst")
    with pytest.raises(PilekitError, match=r"02\.jsonl was not among them"):
        deduplicate(data, out=out, jobs=1)
    assert tree(out) == before


def fail(*arguments: Any, **options: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("moment", ["find_exact", "store_shingles", "Resolver", "mask_shard", "clean_shard"])
def test_a_shard_that_changes_meanwhile_is_named(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(corpus, data)
    real = getattr(steps, moment)

    def after_a_change(*arguments: Any, **options: Any) -> Any:
        if (data / "val.jsonl.zst").read_bytes() == (corpus / "val.jsonl.zst").read_bytes():
            changed(data / "val.jsonl.zst")
        return real(*arguments, **options)

    monkeypatch.setattr(steps, moment, after_a_change)
    with pytest.raises(PilekitError, match=r"val\.jsonl\.zst: (is not the shard any more|was changed)"):
        deduplicate(data, out=out, jobs=1)
    monkeypatch.undo()
    # Brought back, it is gone on with.
    shutil.copy(corpus / "val.jsonl.zst", data)
    deduplicate(data, out=out, jobs=1)
    check(out, corpus_documents(corpus))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threshold": 0.81}, "threshold is 0.8 there, 0.81 here"),
        ({"threshold": 0.7}, "threshold"),
        ({"ngram": 4}, "ngram is 5 there, 4 here"),
        ({"num_perm": 256}, "num_perm"),
        ({"keep": "first"}, 'keep is "longest" there, "first" here'),
        ({"subsets": ["ArXiv"]}, r'subsets is null there, \["ArXiv"\] here'),
        ({"subsets": ["ArXiv"], "only": True}, "subsets is"),
        ({"write": False}, "write is true there, false here"),
        ({"on_error": "skip"}, None),
        ({"manifest": "demo"}, None),
    ],
)
def test_other_parameters_are_named(
    corpus: Path, whole_folder: Path, options: dict[str, Any], named: str | None
) -> None:
    if named is None:  # There is no bad line; the other manifest has text and label in the same places.
        assert deduplicate(corpus, out=whole_folder, jobs=1, **options).summary["read"] > 0
        return
    with pytest.raises(PilekitError, match=f"made with other settings: {named}"):
        deduplicate(corpus, out=whole_folder, jobs=1, **options)


@pytest.fixture(scope="module")
def whole_folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("folder") / "out"
    deduplicate(corpus, out=out, jobs=1)
    return out


def test_a_damaged_artefact_is_named(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(steps, "find_exact", fail)
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
