"""The work on shards: how many processes run, what each may use, the order of results, and what a resumed run does."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pilekit
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Shard, load_manifest, shard_of
from pilekit.display.wrong_names import with_nearest_keywords
from pilekit.errors import PilekitError
from pilekit.pipeline.find_text import find_text
from pilekit.pipeline.sample_documents import sample_documents
from pilekit.shards import corpus_job as module
from pilekit.shards import work
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import FolderJob, corpus_folder
from pilekit.workers import Advance

MIB = 1 << 20


def job_over(shards: list[Shard], **options: Any) -> CorpusJob:
    return CorpusJob(Corpus.of_shards(shards, load_manifest()), **options)


@given(
    sizes=st.lists(st.none() | st.sampled_from([0, 100, 63 * MIB, 64 * MIB, 300 * MIB]), max_size=9),
    jobs=st.none() | st.integers(1, 12),
    cpus=st.integers(1, 9),
    per_job=st.integers(1, 3),
    in_memory=st.booleans(),
    memory=st.integers(0, 10**12),
)
def test_a_machine_is_shared_by_as_many_processes_as_pay(
    sizes: list[int | None], jobs: int | None, cpus: int, per_job: int, in_memory: bool, memory: int
) -> None:
    shards = [Shard(f"{place}", f"{place}.zst", size) for place, size in enumerate(sizes)]
    shards += [Shard("m", "memory://m.zst", 5)] * in_memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "usable_cpus", lambda: cpus)
        job = job_over(shards, jobs=jobs, cpus_per_job=per_job)
        processes, share = job.processes(shards), job.share(shards, memory)
    if in_memory:
        expected = 1
    elif jobs is not None:
        expected = min(jobs, max(1, len(shards)))
    else:
        expected = cpus // per_job or cpus
        if None not in sizes:
            expected = min(expected, 1 + sum(size or 0 for size in sizes) // (64 * MIB))
        expected = max(1, min(expected, len(shards)))
    assert processes == expected
    assert share.memory == memory // processes
    assert 1 <= share.threads <= cpus
    assert share.threads * processes <= max(cpus, processes)
    if share.ahead:
        assert processes == 1 or share.threads > 1


def describe(item: tuple[Shard, int], advance: Advance, *, factor: int, share: Share) -> tuple[str, int, int, int]:
    advance(item[1])
    if item[1] == 13:
        raise PilekitError("an unlucky number")
    return item[0].name, factor * item[1], share.memory, os.getpid()


def shards_in(folder: Path, count: int) -> list[Shard]:
    shards = []
    for place in range(count):
        path = folder / f"{place}.jsonl"
        path.write_text(f'{{"text":"{place}"}}\n')
        shards.append(shard_of(str(path)))
    return shards


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order_with_the_share_of_one_process(tmp_path: Path, jobs: int) -> None:
    shards, amounts = shards_in(tmp_path, 6), list[int]()
    job = job_over(shards, jobs=jobs, advance=amounts.append)
    items = list(zip(shards, range(6), strict=True))
    results = list(job.each(partial(describe, factor=3), items, memory=1000))
    assert [result[:3] for result in results] == [(shard.name, 3 * n, 1000 // jobs) for shard, n in items]
    assert ({result[3] for result in results} == {os.getpid()}) == (jobs == 1)
    assert sum(amounts) == sum(range(6))
    with pytest.raises(PilekitError, match=r"^1\.jsonl: an unlucky number$"):
        list(job.each(partial(describe, factor=3), [(shards[0], 0), (shards[1], 13), (shards[2], 2)]))


def write_name(shard: Shard, file: BinaryIO, advance: Advance, *, share: Share) -> int:
    file.write(shard.name.encode())
    return len(shard.name)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_of_a_result_is_removed_before_the_next(tmp_path: Path, jobs: int) -> None:
    shards = shards_in(tmp_path, 5)
    seen: list[Path] = []
    for shard, (file, size) in zip(shards, job_over(shards, jobs=jobs).each_file(write_name, shards, "x"), strict=True):
        assert file.read_bytes() == shard.name.encode()
        assert size == len(shard.name)
        assert not any(path.exists() for path in seen)
        seen.append(file)
    assert not seen[-1].parent.exists()


def note_bytes(
    shard: Shard,
    advance: Advance,
    *,
    share: Share,
    output: Output,
    inputs: Inputs,
    prefix: str = "",
    bad: tuple[str, ...] = (),
    skipped: tuple[str, ...] = (),
) -> None:
    if shard.name in bad:
        raise PilekitError("cannot be read")
    path = output.path(shard.name, ".copy")
    runs = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(f"{runs}")
    inputs.check(shard)
    output.note(prefix + shard.name, {"runs": runs, "skipped": int(shard.name in skipped)}, path)


def run(shards: list[Shard], out: Path, then: Callable[[FolderJob], Any], **options: Any) -> Any:
    with corpus_folder(job_over(shards, **options), out, kind="test", parameters={}) as job:
        return then(job)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_resumed_run_does_the_shards_that_are_left(tmp_path: Path, jobs: int) -> None:
    shards, out = shards_in(tmp_path, 4), tmp_path / "out"
    names = [shard.name for shard in shards]
    fails = partial(note_bytes, bad=(names[1],), skipped=(names[2],))
    with pytest.raises(PilekitError, match=r"^1\.jsonl: cannot be read$"):
        run(shards, out, lambda job: job.process_unfinished(fails), jobs=jobs)
    assert sorted(path.name for path in out.glob("*.copy")) == [f"{names[place]}.copy" for place in (0, 2, 3)]

    amounts, order = list[int](), list[str]()
    results = run(
        shards,
        out,
        lambda job: job.process_unfinished(note_bytes, then=lambda name, result: order.append(name)),
        jobs=jobs,
        on_error="raise",  # so the shard with skipped lines is read again
        advance=amounts.append,
    )
    assert order == names == list(results)
    assert [result["runs"] for result in results.values()] == [1, 1, 2, 1]
    assert sum(amounts) == sum(shards[place].size or 0 for place in (0, 3))

    results = run(shards, out, lambda job: job.process_unfinished(note_bytes), on_error="raise")
    assert [result["runs"] for result in results.values()] == [1, 1, 2, 1]  # finished before


def test_skipped_lines_stay_skipped_and_steps_have_notes_of_their_own(tmp_path: Path) -> None:
    shards, out = shards_in(tmp_path, 2), tmp_path / "out"
    work = partial(note_bytes, skipped=(shards[0].name,))

    def both(job: FolderJob) -> None:
        for _ in range(2):
            assert [result["runs"] for result in job.process_unfinished(work).values()] == [1, 1]
        other = job.process_unfinished(partial(work, prefix="/step/"), shards[:1], note="/step/")
        assert other == {shards[0].name: {"runs": 2, "skipped": 1}}

    run(shards, out, both, on_error="skip")


def test_a_shard_that_is_left_beside_the_note_of_the_whole_has_all_done_again(tmp_path: Path) -> None:
    shards, out = shards_in(tmp_path, 3), tmp_path / "out"

    def forgets(job: FolderJob) -> None:
        job.process_unfinished(note_bytes, whole="/whole")
        job.output.note("/whole", {})
        job.output.forget_shard(shards[1].name)
        results = job.process_unfinished(note_bytes, whole="/whole")
        assert [result["runs"] for result in results.values()] == [2, 2, 2]
        assert job.output.result("/whole") is None

    run(shards, out, forgets)


def test_a_full_disk_is_an_error_before_any_work(tmp_path: Path) -> None:
    shards, out = (
        [
            shard_of(str(path.rename(path.with_suffix(".jsonl.zst"))))
            for path in [Path(shard.path) for shard in shards_in(tmp_path, 2)]
        ],
        tmp_path / "out",
    )
    with pytest.raises(PilekitError, match="testing"):
        run(shards, out, lambda job: job.process_unfinished(note_bytes, room=("testing", 1e18)))
    assert not out.exists()


def test_parts_do_their_shards_and_a_run_without_a_part_the_rest(tmp_path: Path) -> None:
    shards, out = shards_in(tmp_path, 5), tmp_path / "out"
    with pytest.raises(PilekitError, match="part 4 of 3"):
        run(shards, out, lambda job: job.process_unfinished(note_bytes), part=(4, 3))
    assert not out.exists()
    done = [{*run(shards, out, lambda job: job.process_unfinished(note_bytes), part=(part, 3))} for part in (1, 2)]
    assert done[0].isdisjoint(done[1])
    results = run(shards, out, lambda job: job.process_unfinished(note_bytes))
    assert len(results) == 5 > len(done[0] | done[1])
    assert {result["runs"] for result in results.values()} == {1}


TAKES = {
    pilekit.corpus_stats: work.Work,
    pilekit.clean_corpus: work.Work,
    with_nearest_keywords(find_text): work.Work,
    with_nearest_keywords(sample_documents): work.Work,
    pilekit.select_corpus: work.PartWork,
    pilekit.index_corpus: work.PartWork,
    pilekit.tokenize_corpus: work.PartWork,
    pilekit.verify_corpus: work.StoredWork,
    pilekit.reframe_corpus: work.StoredWork,
    pilekit.decontaminate_corpus: work.StepWork,
    pilekit.dedup_corpus: work.SortWork,
    pilekit.substrings_corpus: work.SortWork,
    pilekit.assemble_corpus: work.SortWork,
}


@pytest.mark.parametrize("function", TAKES, ids=lambda function: function.__name__)
def test_each_option_is_in_the_help_once_and_no_other_is_taken(function: Callable[..., Any]) -> None:
    text, parameters = inspect.getdoc(function) or "", inspect.signature(function).parameters
    options = {*TAKES[function].__annotations__}
    assert "work" not in parameters
    assert {*parameters} & {"on_error", "jobs", "cluster", "part", "memory"} <= options
    for name in options:
        assert [line.split("  ")[0] for line in text.splitlines()].count(name) == 1, name
        assert parameters[name].default == getattr(CorpusJob, name, None)
    assert "see `" not in text
    assert max(map(len, text.splitlines())) <= 116
    for wrong in ("job", "nothing_like_it", *{"part", "memory", "on_error"} - options):
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument '{wrong}'"):
            function("x", "y", **{wrong: 1})


@settings(max_examples=20)
@given(st.sampled_from([*TAKES]), st.sampled_from(["jobs", "cluster"]))
def test_a_misspelt_option_is_answered_with_the_right_one(function: Callable[..., Any], option: str) -> None:
    with pytest.raises(TypeError, match=rf"did you mean {option}\?$"):
        function("x", **{f"{option}_": 1})
