"""The limit is the lowest of the machine's memory and of the groups around this process, whatever their version."""

from __future__ import annotations

import os
from pathlib import Path

from pilekit import Corpus
from pilekit.artifacts.sort.memory_limit import machine_memory, memory_limit, sorting_memory
from pilekit.shards.corpus_job import CorpusJob


def test_the_lowest_limit_counts(tmp_path: Path) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_limit(groups, own) == machine_memory() == machine
    (inner := groups / "slurm" / "job_3").mkdir(parents=True)
    (older := groups / "memory" / "docker").mkdir(parents=True)
    own.write_text("0::/slurm/job_3\n9:memory:/docker\n3:cpu,cpuacct:/x\n")
    for file, content, expected in (
        (inner / "memory.max", "max\n", machine),
        (inner / "memory.max", "5000\n", 5000),
        (groups / "slurm" / "memory.max", "4000\n", 4000),
        (older / "memory.limit_in_bytes", "9223372036854771712\n", 4000),
        (older / "memory.limit_in_bytes", "3000\n", 3000),
        (groups / "memory.max", "2000\n", 2000),
        (tmp_path / "memory.max", "1\n", 2000),
    ):
        file.write_text(content)
        assert memory_limit(groups, own) == expected


def test_sorting_takes_4_gb_or_half_of_what_there_is(tmp_path: Path) -> None:
    for limit, expected in ((16 * 10**9, 4 * 10**9), (2 * 10**9, 10**9), (10**8, 64 * 10**6)):
        assert sorting_memory(limit) == expected
    (tmp_path / "memory.max").write_text(f"{10**9}\n")
    assert sorting_memory(memory_limit(tmp_path, tmp_path / "none")) == 10**9 // 2
    assert sorting_memory() == min(4 * 10**9, memory_limit() // 2)
    (tmp_path / "one.jsonl").write_text("")
    corpus = Corpus(tmp_path / "one.jsonl")
    assert CorpusJob.of_steps(corpus).sort_bytes == sorting_memory()
    assert CorpusJob.of_steps(corpus, memory=5).sort_bytes == 5
