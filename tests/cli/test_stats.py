from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pilekit import PilekitError
from pilekit.cli import options
from pilekit.cli.stats import command
from tests.shards import making

PILEKIT = [sys.executable, "-m", "pilekit.cli.main"]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "00.jsonl.zst"
    lines = [making.record("abc"), making.record("é€", "ArXiv"), making.record("abc", "ArXiv")]
    path.write_bytes(making.zstd_frame(b"\n".join(lines) + b"\n"))
    return path


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def stats_json(*arguments: str | Path) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_the_table_goes_to_stdout_and_nothing_else(shard: Path) -> None:
    result = run(shard, "--copies")
    assert result.exit_code == 0
    assert result.stderr == ""
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0][:3] == ["Subset", "Documents", "Bytes"]
    assert [row[0] for row in rows[2:4]] == ["ArXiv", "Github"]
    assert rows[-1][:4] == ["Total", "3", "11", "B"]
    assert rows[-1][-1] == "1"


def test_json_is_exactly_what_is_promised(shard: Path) -> None:
    arxiv = {"documents": 2, "bytes": 8, "share": 8 / 11, "mean_bytes": 4.0, "median_bytes": 4.0, "p99_bytes": 4.98}
    github = {"documents": 1, "bytes": 3, "share": 3 / 11, "mean_bytes": 3.0, "median_bytes": 3.0, "p99_bytes": 3.0}
    found = stats_json(shard)
    assert found == {"documents": 3, "bytes": 11, "skipped": 0, "subsets": {"ArXiv": arxiv, "Github": github}}
    assert list(found["subsets"]) == ["ArXiv", "Github"]
    assert stats_json(shard, "--copies")["subsets"]["ArXiv"] == arxiv | {"copies": 1}


def test_subsets_in_any_spelling(shard: Path) -> None:
    assert list(stats_json(shard, "--subsets", "GitHub")["subsets"]) == ["Github"]
    assert stats_json(shard, "--subsets", " pile_github, arxiv")["documents"] == 3
    with pytest.raises(PilekitError, match="Github"):
        run(shard, "--subsets", "Gitub")
    with pytest.raises(PilekitError, match="subset"):
        run(shard, "--subsets", " , ")


def test_skipped_lines_are_listed_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([making.record("abc"), *[b"bad \x1b[31m"] * 12]) + b"\n")
    with pytest.raises(PilekitError, match="line 2"):
        run(path)
    result = run(path, "--on-error", "skip")
    assert "12 bad lines skipped" in result.stdout
    told = result.stderr.splitlines()
    assert len(told) == 11
    assert "a.jsonl, line 2" in told[0]
    assert told[-1] == "skipped: 2 lines more"
    assert "\x1b" not in result.output
    assert stats_json(path, "--on-error", "skip")["skipped"] == 12


def test_json_holds_no_escape_sequences(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(making.record("abc", "\x1b[31m\u009b日本\u202e") + b"\n")
    result = run(path, "--json")
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout
    assert list(json.loads(result.stdout)["subsets"]) == ["\x1b[31m\u009b日本\u202e"]


def test_a_figure_is_drawn_where_asked(shard: Path, tmp_path: Path) -> None:
    result = run(shard, "--plot", tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "out.png" in result.stderr
    assert "out.png" not in result.stdout


def test_a_wrong_suffix_is_told_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match=r"out\.jpg"):
        run(tmp_path / "missing.jsonl", "--plot", "out.jpg")


def test_several_paths_and_folders(shard: Path, tmp_path: Path) -> None:
    other = tmp_path / "more" / "01.jsonl"
    other.parent.mkdir()
    other.write_bytes(making.record("x") + b"\n")
    assert stats_json(shard, other)["documents"] == 4
    assert stats_json(tmp_path)["documents"] == 4


def test_without_a_path_the_default_places_are_searched(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shard.parent)
    monkeypatch.delenv("PILEKIT_DATA", raising=False)
    assert stats_json()["documents"] == 3
    monkeypatch.setenv("PILEKIT_DATA", str(shard))
    assert stats_json()["documents"] == 3


@pytest.mark.parametrize("compressed", [True, False])
def test_standard_input(shard: Path, compressed: bool) -> None:
    data = shard.read_bytes() if compressed else making.unzstd(shard)
    done = subprocess.run([*PILEKIT, "stats", "--json", "-"], input=data, capture_output=True, check=True)
    assert json.loads(done.stdout) == stats_json(shard)
    assert done.stderr == b""


def test_standard_input_that_ends_early_is_an_error(shard: Path) -> None:
    done = subprocess.run([*PILEKIT, "stats", "-"], input=shard.read_bytes()[:-5], capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: (stdin)")
    assert done.stdout == b""


def test_stats_load_nothing_heavy(shard: Path) -> None:
    check = (
        "import sys; from pilekit.cli.stats import command; command([sys.argv[1]], standalone_mode=False)\n"
        "print([name for name in ('torch', 'numba', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check, str(shard)], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_real_text_from_a_pipe_as_from_the_file(real_corpus: Path) -> None:
    path = real_corpus / "val.jsonl.zst"
    unzstd = subprocess.Popen(["zstd", "-dcq", str(path.resolve())], stdout=subprocess.PIPE)
    done = subprocess.run([*PILEKIT, "stats", "--json", "-"], stdin=unzstd.stdout, capture_output=True, check=True)
    assert unzstd.wait() == 0
    assert json.loads(done.stdout) == stats_json(path)


def test_no_path_named_means_all_subsets() -> None:
    assert options.exact_subsets(None, None) is None  # type: ignore[arg-type]


# Not ru_maxrss: a child process inherits its parent's.
MEASURE = """
import json, re, sys
from pathlib import Path
from pilekit.stats import summary
from pilekit.stats.summary import corpus_stats
summary.SCANNED_FROM_BYTES = int(sys.argv[2])
stats = corpus_stats(sys.argv[1])
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps([stats.total.documents, peak]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("scanned_from", [0, 1 << 60], ids=["scanned", "read"])
def test_memory_does_not_grow_with_the_shard(tmp_path: Path, scanned_from: int) -> None:
    from tests.benchmarks.generating import write_shard

    peaks = []
    for megabytes in (50, 400):
        path = tmp_path / f"{megabytes}.jsonl.zst"
        documents = write_shard(path, megabytes * 1_000_000, seed=megabytes)
        command = [sys.executable, "-c", MEASURE, str(path), str(scanned_from)]
        done = subprocess.run(command, capture_output=True, check=True)
        counted, peak = json.loads(done.stdout)
        assert counted == documents
        peaks.append(peak)
    assert max(peaks) < 400e6
    # 350 MB more text; what differs is how far the decoding thread came to run ahead.
    assert peaks[1] < peaks[0] + 64e6
