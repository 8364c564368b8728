"""Runs repeated with changes in between: the same result, or a clear refusal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pilekit import PilekitError
from pilekit.dedup import run
from pilekit.dedup.run import dedup_corpus
from tests.dedup.planted import planted_corpus
from tests.shards.making import flipped
from tests.stopping import tree


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


def test_files_that_were_removed_are_made_again(corpus: Path, finished: Path, out: Path) -> None:
    whole = tree(finished)
    for gone in ("clean", "masks/web.jsonl.mask", "removed.parquet", "summary.json", "sketches"):
        if (out / gone).is_dir():
            shutil.rmtree(out / gone)
        else:
            (out / gone).unlink()
        dedup_corpus(corpus, out=out, jobs=1)
        found = tree(out)  # A finished run needs no sketches.
        assert found == {name: content for name, content in whole.items() if name in found or gone != "sketches"}


def test_other_settings_are_named(corpus: Path, out: Path) -> None:
    before = tree(out)
    for options, message in (
        ({"threshold": 0.81}, "made with other settings: threshold is 0.8 there, 0.81 here"),
        ({"keep": "first"}, 'keep is "longest" there, "first" here'),
        ({"subsets": ["ArXiv"]}, r'subsets is not given there, \["ArXiv"\] here'),
        ({"write": False}, "write is true there, false here"),
    ):
        with pytest.raises(PilekitError, match=message):
            dedup_corpus(corpus, out=out, jobs=1, **options)  # type: ignore[arg-type]
        assert tree(out) == before


def test_a_shard_that_changes_during_the_run_or_a_damaged_sketch_is_named_and_the_run_resumes(
    corpus: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, whole = tmp_path / "data", tree(finished)
    shutil.copytree(corpus, data)
    for moment in ("find_exact", "store_shingles", "decide", "mask_shard", "clean_shard"):
        out, real = tmp_path / moment, getattr(run, moment)

        def after_a_change(*arguments: Any, real: Any = real, **options: Any) -> Any:
            (data / "web.jsonl.zst").write_bytes((corpus / "web.jsonl.zst").read_bytes()[::-1])
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
