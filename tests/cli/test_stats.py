"""`pilekit stats`: the table, JSON, skipped lines, the places of a corpus, and memory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import PILEKIT, cells, refused, run, run_json
from tests.memory_limit import value_and_peak
from tests.shards import making


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "00.jsonl.zst"
    lines = [making.record("abc"), making.record("é€", "ArXiv"), making.record("abc", "ArXiv")]
    path.write_bytes(making.zstd_frame(b"\n".join(lines) + b"\n"))
    return path


def test_table_figure_and_json(shard: Path, tmp_path: Path) -> None:
    result = run("stats", shard, "--copies", "--plot", tmp_path / "out.png")
    assert result.stderr == f"drawn: {tmp_path / 'out.png'}\n"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    rows = cells(result.stdout)
    assert rows[0][:3] == ["Subset", "Documents", "Bytes"]
    assert [row[0] for row in rows[2:4]] == ["ArXiv", "Github"]
    assert [*rows[-1][:4], rows[-1][-1]] == ["Total", "3", "11", "B", "1"]
    refused(r"out\.jpg", "stats", tmp_path / "missing.jsonl", "--plot", "out.jpg")  # before anything is read
    arxiv = {"documents": 2, "bytes": 8, "share": 8 / 11, "mean_bytes": 4.0, "median_bytes": 4.0, "p99_bytes": 4.98}
    github = {"documents": 1, "bytes": 3, "share": 3 / 11, "mean_bytes": 3.0, "median_bytes": 3.0, "p99_bytes": 3.0}
    subsets = {"ArXiv": arxiv | {"joined": []}, "Github": github | {"joined": []}}
    found = run_json("stats", shard)
    assert found == {"documents": 3, "bytes": 11, "skipped": 0, "subsets": subsets}
    assert list(found["subsets"]) == ["ArXiv", "Github"]
    assert run_json("stats", shard, "--copies")["subsets"]["ArXiv"] == subsets["ArXiv"] | {"copies": 1}
    assert list(run_json("stats", shard, "--subsets", " pile_github")["subsets"]) == ["Github"]
    refused("Github", "stats", shard, "--subsets", "Gitub")


def test_skipped_lines_are_listed_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([making.record("abc", "\x1b[31m\u009b日本"), *[b"bad \x1b[31m"] * 12]) + b"\n")
    refused("line 2", "stats", path)
    result = run("stats", path, "--on-error", "skip")
    assert "12 bad lines skipped" in result.stdout
    listed = result.stderr.splitlines()
    assert len(listed) == 11
    assert "a.jsonl, line 2" in listed[0]
    assert listed[-1] == "skipped: 2 lines more"
    in_json = run("stats", path, "--on-error", "skip", "--json").stdout
    assert json.loads(in_json)["skipped"] == 12
    assert in_json.isascii()


def test_several_paths_default_places_and_standard_input(
    shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "more" / "01.jsonl"
    other.parent.mkdir()
    other.write_bytes(making.record("x") + b"\n")
    assert run_json("stats", shard, other)["documents"] == 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PILEKIT_DATA", raising=False)
    assert run_json("stats")["documents"] == 4
    monkeypatch.setenv("PILEKIT_DATA", str(shard))
    assert run_json("stats")["documents"] == 3
    done = subprocess.run([*PILEKIT, "stats", "--json", "-"], input=shard.read_bytes(), capture_output=True, check=True)
    assert json.loads(done.stdout) == run_json("stats", shard)
    cut = subprocess.run([*PILEKIT, "stats", "-"], input=shard.read_bytes()[:-5], capture_output=True, check=False)
    assert (cut.returncode, cut.stdout) == (1, b"")
    assert cut.stderr.startswith(b"error: (stdin)")


MEASURE = """
import sys
from pilekit import Corpus
from pilekit.shards.corpus_job import Share
from pilekit.stats.counting import CountOptions, count_shard
corpus = Corpus(sys.argv[1])
options = CountOptions(corpus.manifest, None, None, False, "raise", int(sys.argv[2]))
item = (corpus.shards[0], None)
counts, _ = count_shard(item, lambda done: None, options=options, share=Share(ahead=True, threads=1))
print(int(counts.lengths.sum()))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_shard(tmp_path: Path) -> None:
    """Neither with compiled counting (for a process that reads much) nor with reading."""
    from tests.benchmarks.generating import write_shard

    peaks: dict[int, list[int]] = {0: [], 1 << 60: []}
    for megabytes in (50, 400):
        path = tmp_path / f"{megabytes}.jsonl.zst"
        documents = write_shard(path, megabytes * 1_000_000, seed=megabytes)
        for stored, of in peaks.items():
            counted, peak = value_and_peak(MEASURE, path, stored)
            assert counted == documents
            of.append(peak)
    for small, large in peaks.values():
        assert max(small, large) < 400e6
        # The second shard has 350 MB more text. The peaks may differ by how far the decoding thread ran ahead.
        assert large < small + 64e6
