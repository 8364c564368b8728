"""What `FolderJob` guarantees, in every command that writes shards: kills, processes, bad lines, changed input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pilekit import (
    PilekitError,
    assemble_corpus,
    clean_corpus,
    count_phrases,
    decontaminate_corpus,
    dedup_corpus,
    reframe_corpus,
    select_corpus,
    substrings_corpus,
    tokenize_corpus,
    trace_texts,
)
from tests.dedup.checking import write_corpus
from tests.kills import left_at_each_renaming
from tests.shards import making
from tests.stopping import tree
from tests.tokenize.making import byte_level_bpe, saved

PASSAGE = " ".join(f"word{number}" for number in range(60))
PROSE = "The end of it was that all of us have come home, and the rest stayed with the others to be there.\n"
QUESTION = " ".join(["zebra"] * 20)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies, near-copies, passages, text of an evaluation, text that fails rules, and held-out shards beside train."""
    folder = tmp_path_factory.mktemp("every")
    texts = {
        "train/00": [f"{PASSAGE} end of train", "only train", "copied", PROSE + PROSE.upper(), PASSAGE[:200] * 2],
        "train/01": [f"before {QUESTION} after " * 3, "copied", f"{PASSAGE}, again", "a short text", f"{PASSAGE} end"],
        "val": [PASSAGE, "copied", "only val"],
    }
    write_corpus(folder / "data", {name: [making.record(text) for text in of] for name, of in texts.items()})
    (folder / "quiz.jsonl").write_text(json.dumps({"text": QUESTION, "answer": "after"}) + "\n")
    saved(byte_level_bpe(300), folder / "tokenizer.json")
    sources = 'name = "mine"\n[assemble]\nshards = 2\nval = 0.2\n[[subsets]]\nname = "A"\nsources = ["data/train"]\n'
    (folder / "mine.toml").write_text(sources)
    return folder


COMMANDS: dict[str, Callable[..., Any]] = {
    "select": lambda folder, out, **work: select_corpus(folder / "data", out, min_bytes=7, **work),
    "clean": lambda folder, out, **work: clean_corpus(
        folder / "data", out, rules="gopher-repetition", pii="ip", **work
    ),
    "reframe": lambda folder, out, **work: reframe_corpus(folder / "data", out, **work),
    "dedup": lambda folder, out, **work: dedup_corpus(folder / "data", out, held_out="protect", **work),
    "substrings": lambda folder, out, **work: substrings_corpus(folder / "data", out, held_out="protect", **work),
    "decontaminate": lambda folder, out, **work: decontaminate_corpus(
        folder / "data", out, against=folder / "quiz.jsonl", **work
    ),
    "decontaminate, verdicts": lambda folder, out, **work: decontaminate_corpus(
        folder / "data", out, against=folder / "quiz.jsonl", question="text", answer="answer", cut="leak", **work
    ),
    "assemble": lambda folder, out, **work: assemble_corpus(folder / "mine.toml", out, **work),
    "count": lambda folder, out, **work: count_phrases(
        folder / "data", ["word1", QUESTION], out / "counts.parquet", **work
    ),
    "trace": lambda folder, out, **work: trace_texts(folder / "data", [PASSAGE], out / "traces.parquet", **work),
    "tokenize": lambda folder, out, **work: tokenize_corpus(
        folder / "data", out / "pile", folder / "tokenizer.json", **work
    ),
}
SHARD_BY_SHARD = [name for name in COMMANDS if name not in ("assemble", "tokenize", "reframe")]
"""The commands that take a bad line for no document, and return a result with `skipped`."""


# See tokenize/files/test_killed.py, trace/test_count_phrases.py and trace/test_trace_texts.py.
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("tokenize", "count", "trace")])
def test_a_killed_run_ends_with_the_same_bytes_and_does_nothing_twice(data: Path, tmp_path: Path, name: str) -> None:
    moments, left = left_at_each_renaming(tmp_path, lambda out: COMMANDS[name](data, out, jobs=1))
    assert moments > 6
    assert ".unfinished" in left
    assert any(path.endswith(".zst") for path in left)


@pytest.mark.parametrize("name", COMMANDS)
def test_processes_change_no_byte_and_a_finished_run_returns_at_once(
    data: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for jobs in (1, 2):
        COMMANDS[name](data, tmp_path / str(jobs), jobs=jobs)
    expected = tree(tmp_path / "1")
    assert tree(tmp_path / "2") == expected
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "1").rglob("*")}
    COMMANDS[name](data, tmp_path / "1", jobs=2)
    assert "already done" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "1").rglob("*")} == times


@pytest.mark.parametrize("name", SHARD_BY_SHARD)
def test_a_bad_line_is_an_error_unless_it_is_to_be_skipped_and_an_error_again(
    data: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(data, tmp_path / "bad")
    path, run = tmp_path / "bad/data/train/00.jsonl.zst", partial(COMMANDS[name], tmp_path / "bad", tmp_path / "out")
    path.write_bytes(making.zstd_frame(b"\n".join([making.record(PASSAGE), b'{"text": 1}', making.record(PROSE * 2)])))
    for _ in range(2):
        with pytest.raises(PilekitError, match=r'00\.jsonl\.zst, line 2: field "text" is a number'):
            run()
    for _ in range(2):  # The first call resumes the run that failed.
        result = run(on_error="skip")
        assert (result.summary["skipped"], [bad.line for bad in result.skipped.examples]) == (1, [2])
    before = tree(tmp_path / "out")
    with pytest.raises(PilekitError, match=r"00\.jsonl\.zst, line 2"):
        run()
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_changed_shard_is_named_and_changes_nothing(data: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(data, tmp_path / "other")
    COMMANDS[name](tmp_path / "other", tmp_path / "out")
    before, path = tree(tmp_path / "out"), tmp_path / "other/data/train/01.jsonl.zst"
    path.write_bytes(making.zstd_frame(making.record("another text")))
    with pytest.raises(PilekitError, match=r"made from other .*01\.jsonl.* is not the same any more"):
        COMMANDS[name](tmp_path / "other", tmp_path / "out")
    assert tree(tmp_path / "out") == before
