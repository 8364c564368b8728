"""The section of counted phrases: its figures and its most frequent phrases are those of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilekit import PilekitError, count_phrases
from pilekit.report.counts import MOST_FREQUENT
from pilekit.report.page import write_report
from tests.cli.running import run
from tests.pipeline.making import write_shard
from tests.report.test_report import Page

PHRASES = ["absent", "c", "a", "ab", "<b>", *(f"word{place:02}" for place in range(60))]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    rare = " ".join(f"word{place:02} " * (1 + place // 30) for place in range(60))
    return write_shard(folder / "00.jsonl", ["ab " * 20, "ab <b> c", rare], ["ArXiv", "Github", "ArXiv"])


@pytest.mark.parametrize("sort", ["count", "given"])
def test_the_section_shows_the_most_frequent_phrases_of_either_order(shard: Path, tmp_path: Path, sort: str) -> None:
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("\n".join(PHRASES))
    run("count", phrases, shard, "--sort", sort, "--out", tmp_path / "counts.parquet", exit_code=0)
    assert write_report(tmp_path / "counts.parquet", tmp_path / "report.html") == ("Counted phrases",)
    page = Page(tmp_path / "report.html")
    head, *rows = page.tables["The most frequent phrases"]
    assert head == ["Phrase", "Occurrences", "Documents", "Most in"]
    assert len(rows) == MOST_FREQUENT
    assert rows[:2] == [["a", "21", "2", "ArXiv 20; Github 1"], ["ab", "21", "2", "ArXiv 20; Github 1"]]
    assert rows[2:32] == [[f"word{place:02}", "2", "1", "ArXiv 2"] for place in range(30, 60)]
    assert rows[32:34] == [["c", "1", "1", "Github 1"], ["<b>", "1", "1", "Github 1"]]
    for shown in ("65", "64", "never", "1 to 9 times", "10 to 99 times", "pilekit count PHRASES CORPUS"):
        assert shown in page.text + (tmp_path / "report.html").read_text()
    assert write_report(tmp_path, tmp_path / "report.html") == ("Counted phrases",)


def test_phrases_of_which_none_is_found_and_a_damaged_file(shard: Path, tmp_path: Path) -> None:
    out = tmp_path / "counts.parquet"
    count_phrases(shard, ["absent", "nowhere"], out)
    write_report(out, tmp_path / "report.html")
    assert "No phrase stands in the corpus." in Page(tmp_path / "report.html").text
    content = bytearray(out.read_bytes())
    content[4:40] = bytes(36)
    out.write_bytes(content)
    with pytest.raises(PilekitError, match=r"counts\.parquet: is damaged .*; remove it, and run `pilekit count` again"):
        write_report(out, tmp_path / "report.html")
