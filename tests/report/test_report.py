"""What the page says: numbers of the artefacts, their sources, and what it leaves out."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Corpus
from pilekit.dedup.run import dedup_corpus
from pilekit.dedup.sketch.bands import Bands
from pilekit.display.fitted_table import percentage, rounded_bytes
from pilekit.errors import PilekitError
from pilekit.evaluate.results.result_folder import read_result
from pilekit.report.collect import sort_out
from pilekit.report.dedup import Measured, intervals, measured_recall
from pilekit.report.page import write_report
from pilekit.report.training import thinned
from pilekit.stats.summary import corpus_stats
from tests.cli.running import run
from tests.pipeline.making import write_shard
from tests.report.artefacts import HOSTILE, SUBSETS, branch_folder, hostile_corpus, run_folder
from tests.tiny.models import tiny_tokenizer


class Page(HTMLParser):
    """The tables (caption -> rows of cells), and the sources (number -> command)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self._in = ""
        self._rows: list[list[str]] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag == "table":
            self._rows = []
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th", "caption"):
            self._in, self._held = tag, ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._rows[-1].append(self._held.strip())
        if tag == "caption":
            self._caption = re.sub(r" *\[\d+\]", "", self._held).strip()
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in:
            self._held += data


@pytest.fixture(scope="module")
def parsed(page: Path) -> Page:
    return Page(page)


def test_every_section_is_filled_with_the_numbers_of_its_artefact(parsed: Page, made: Path) -> None:
    stats = json.loads((made / "stats.json").read_text())
    of = {name: one for name, one in stats["subsets"].items() if name.isascii() and name.isprintable()}
    rows = {row[0]: row for row in parsed.tables["Subsets"]}
    for name, one in of.items():
        assert rows[name][1:3] == [f"{one['documents']:,}", rounded_bytes(one["bytes"])]
    assert rows["ArXiv"][4] == "8.96"
    assert rows["Total"][1:3] == [f"{stats['documents']:,}", rounded_bytes(stats["bytes"])]
    originals = of["ArXiv"]["documents"] - of["ArXiv"]["copies"]
    assert rows["ArXiv"][-2:] == [f"{of['ArXiv']['documents'] / originals:.2f}", "2"]

    summary = json.loads((made / "unique" / "summary.json").read_text())
    rows = {row[0]: row for row in parsed.tables["Removed from each subset"]}
    assert rows["Total"][1:5] == [f"{summary[key]:,}" for key in ("read", "exact", "near", "kept")]
    assert summary["exact"] > 0
    assert summary["near"] > 0

    cleaned = json.loads((made / "clean" / "summary.json").read_text())
    assert parsed.tables["Dropped, by subset and rule"][-1][0].strip() in cleaned["rules"]
    assert parsed.tables["Evaluations found in the corpus"][1][1:3] == ["2", "1"]
    [judged] = json.loads((made / "decontaminated" / "summary.json").read_text())["evaluations"].values()
    rows = parsed.tables["Verdicts by evaluation and subset"]
    assert rows[0] == ["Evaluation", "Subset", "Leak", "Question", "Text"]
    assert [row[2:] for row in rows[1:]] == [
        [f"{count:,}" for count in verdicts.values()] for _, verdicts in sorted(judged["subsets"].items())
    ]
    assert sum(verdicts["leak"] for verdicts in judged["subsets"].values()) > 0
    assert len(parsed.tables["Loss by subset: nats per token"]) == 11
    losses = {row[0]: row for row in parsed.tables["Loss by subset: nats per token"]}
    samples = parsed.tables["Samples: how the model continues prompts"][1:]
    assert [row[0] for row in samples] == [step for step in ("10", "30", "40", "60") for _ in HOSTILE]
    assert float(losses["ArXiv"][2]) > float(losses["ArXiv"][3]) > 2

    result = read_result(made / "bpb-10")
    (caption,) = [name for name in parsed.tables if re.fullmatch("Bits per byte of .*models/step-10", name)]
    rows = {row[0]: row for row in parsed.tables[caption]}
    assert {*SUBSETS} < set(rows)
    assert rows["ArXiv"][5] == f"{result.subsets['ArXiv'].bpb:.4f}"
    assert result.published is not None
    assert rows["ArXiv"][-len(result.published.columns) :] == [
        f"{of.subsets['ArXiv']:.4f}" for of in result.published.columns
    ]
    assert "B against A" in parsed.tables
    assert "At the threshold, 99.83 % of the pairs are compared. Measured on " in parsed.text


def test_every_part_links_to_its_source_a_command_that_the_command_line_takes(page: Path) -> None:
    from click import Context

    from pilekit.cli.main import pilekit

    text = page.read_text()
    assert len(re.findall(r"<figcaption>|<caption>|<h3>", text)) == len(re.findall(r'class="source"', text)) - len(
        re.findall('class="artefact wide"|class="wide message"', text)
    )
    texts = re.findall(r'<li id="source-(\d+)"[^>]*><code>(.*?)</code>', text)
    assert [int(number) for number, _ in texts] == list(range(1, 13))
    made_from = re.findall(r"made from (.*?); pilekit", text)
    assert sum("quiz" in names for names in made_from) == 1
    assert not any(name.startswith("/") for names in made_from for name in names.split(", "))
    for _, text in texts:
        _, name, *arguments = shlex.split(html.unescape(text).partition(" > ")[0])
        command = pilekit.get_command(Context(pilekit), name)
        assert command is not None
        command.make_context(name, arguments)  # wrong usage raises
        assert name in ("stats", "verify", "bpb") or "CORPUS" not in arguments


def test_restarts_are_marked_and_two_reports_differ_in_their_time_alone(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", ["ArXiv", "Github"])
    pages = []
    for name in ("one.html", "two.html"):
        write_report(tmp_path / "run", tmp_path / name)
        pages.append(re.sub(r", \d{4}-\d\d-\d\d \d\d:\d\d UTC", "", (tmp_path / name).read_text()))
    assert pages[0] == pages[1]
    assert re.search(r"<dt>restarts</dt><dd><a [^>]*>2</a>", pages[0])
    assert "A dashed line is a restart." in pages[0]


def test_a_branch_and_its_trunk_name_each_other(tmp_path: Path) -> None:
    trunk = run_folder(tmp_path / "trunk", ["ArXiv"])
    origin = tmp_path / "trunk/checkpoints/step-40"
    branch = branch_folder(tmp_path / "branch", origin, ["ArXiv"])
    for folder, named in ((trunk, ["was left by", str(branch)]), (branch, ["began from", str(origin)])):
        write_report(folder, tmp_path / "report.html")
        page = html.unescape(re.sub("<[^>]*>", "\n", (tmp_path / "report.html").read_text()))
        table = page[page.index("Branches") :].split("\n")
        assert [text for text in table if text in (*named, "40")][:3] == [*named, "40"]


def test_empty_sections_are_absent_and_a_corpus_is_counted(tmp_path: Path) -> None:
    corpus = hostile_corpus(tmp_path / "corpus", ["ArXiv", "Github"])
    assert write_report(corpus, tmp_path / "report.html") == ("Corpus",)
    page = (tmp_path / "report.html").read_text()
    assert "Deduplication" not in page
    assert f"pilekit stats {corpus} --copies" in page
    tokenizer = tiny_tokenizer(tmp_path)
    write_report(corpus, tmp_path / "report.html", manifest="pile-uncopyrighted", tokenizer=tokenizer)
    given = f"--copies --tokenizer {tokenizer} --manifest pile-uncopyrighted"
    assert given in (tmp_path / "report.html").read_text()
    assert "2 subsets" not in Page(tmp_path / "report.html").tables
    (corpus / "bad.jsonl").write_text('{"text": 5}\n' * 3)
    write_report(corpus, tmp_path / "report.html")
    assert re.search(r"<dt>bad lines skipped</dt><dd>(<a [^>]*>)?3<", (tmp_path / "report.html").read_text())
    (corpus / "bad.jsonl").unlink()
    with pytest.raises(PilekitError, match="is an input and the output; name another file"):
        write_report([corpus / "01.jsonl.zst", corpus / "00.jsonl.zst"], corpus / "00.jsonl.zst")
    done = run("report", corpus / "00.jsonl.zst", corpus / "01.jsonl.zst", "--out", tmp_path / "cli.html", exit_code=0)
    assert done.stdout == f"{tmp_path / 'cli.html'}: Corpus\n"


def test_title_and_date_are_those_given_and_hostile_ones_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, out = write_shard(tmp_path / "one.jsonl", ["one text"]), tmp_path / "report.html"
    options = ("--title", f"Mine {HOSTILE[0]}\u202e", "--date", "spring <b>2025</b>")
    run("report", shard, *options, "--out", out, exit_code=0)
    text, page = out.read_text(), Page(out)
    assert f"<h1>Mine {html.escape(HOSTILE[0])}\\u202e</h1>" in text
    assert f"<title>Mine {html.escape(HOSTILE[0])}\\u202e: corpus</title>" in text
    assert ", spring <b>2025</b>." in page.text
    assert "<b>" not in text
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    write_report(shard, out)
    assert ", 1970-01-02 00:00 UTC." in out.read_text()
    write_report(shard, out, date="today")
    assert ", today." in out.read_text()
    for wrong in ("yesterday", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(PilekitError, match=r"SOURCE_DATE_EPOCH is .*, not a number of seconds since 1970"):
            write_report(shard, out)


def test_a_small_share_is_not_shown_as_nothing(tmp_path: Path) -> None:
    texts = [f"{place} {' '.join(f'w{place}x{word}' for word in range(8))}" for place in range(2400)]
    shard = write_shard(tmp_path / "data.jsonl", [*texts, texts[0]], ["ArXiv"] * 2400 + ["Github"])
    dedup_corpus(shard, out=tmp_path / "unique", write=False, jobs=1)
    write_report([tmp_path / "unique", shard], tmp_path / "report.html")
    assert re.search(r"<dt>removed</dt><dd><a [^>]*>&lt;0\.1 %<", (tmp_path / "report.html").read_text())
    assert [percentage(share, 1) for share in (0, 0.0004, 0.0006, 0.5, 1)] == ["0.0", "<0.1", "0.1", "50.0", "100.0"]
    for share in (0.0, 1e-12, 0.00004, 0.00005, 0.00006, 0.12345, 0.99999):
        assert (percentage(share) == "0.00") == (share == 0)
    write_shard(tmp_path / "large.jsonl", ["x" * 100_000, "y"], ["ArXiv", "Github"])
    write_report(tmp_path / "large.jsonl", tmp_path / "report.html")
    assert {row[0]: row[3] for row in Page(tmp_path / "report.html").tables["Subsets"]}["Github"] == "<0.01"


def test_the_chart_of_lengths_says_what_its_marks_are(tmp_path: Path) -> None:
    """Of a counted corpus a line is the median. Of a saved output, a bar goes from there to the 99th percentile."""
    shard = write_shard(tmp_path / "one.jsonl", ["x" * 700, "", "ab"], ["ArXiv", "Empty", "Two"])
    (tmp_path / "stats.json").write_text(json.dumps(corpus_stats(Corpus(shard)).to_dict()))
    for path, marks in ((shard, "line: median"), (tmp_path / "stats.json", "bar: median to 99th percentile")):
        write_report(path, tmp_path / "report.html")
        text = (tmp_path / "report.html").read_text()
        assert f"UTF-8 bytes of a document ({marks})" in text
        assert "100 mB" not in text
        lengths = text.partition("Document lengths of ")[2].partition("</svg>")[0]
        assert "Empty" in lengths


def test_each_kept_document_may_have_a_single_copy(tmp_path: Path) -> None:
    texts = [f"text {place // 2}" for place in range(8)]
    dedup_corpus(write_shard(tmp_path / "pairs.jsonl", texts), out=tmp_path / "unique", jobs=1)
    assert write_report(tmp_path / "unique", tmp_path / "report.html") == ("Deduplication",)
    page = Page(tmp_path / "report.html")
    assert "Largest clusters" not in page.tables
    assert "4 pairs to judge the threshold by" in page.text


def test_lost_texts_are_not_shown_and_a_damaged_artefact_is_an_error_if_given_and_left_out_if_found(
    tmp_path: Path,
) -> None:
    corpus = hostile_corpus(tmp_path / "corpus", ["ArXiv", "Github"])
    dedup_corpus(corpus, out=tmp_path / "made" / "unique", jobs=1)
    shutil.rmtree(corpus)
    assert write_report(tmp_path / "made" / "unique", tmp_path / "lost.html") == ("Deduplication",)
    page = Page(tmp_path / "lost.html")
    assert "The texts are not shown: " in page.text
    assert page.tables["Largest clusters"][0][-1] == "Least similarity"
    run_folder(tmp_path / "made" / "run", ["ArXiv"])
    (tmp_path / "made" / "unique" / "summary.json").write_text("[]")
    with pytest.raises(PilekitError, match=r"summary\.json: is no summary"):
        write_report(tmp_path / "made" / "unique", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    assert write_report(tmp_path / "made", tmp_path / "report.html") == ("Training",)
    assert "Left out: " in (tmp_path / "report.html").read_text()
    (tmp_path / "made" / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(PilekitError, match=r"nothing to report in .*: .*is no summary"):
        write_report(tmp_path / "made", tmp_path / "other.html")
    counted = {"documents": 0, "bytes": 0, "skipped": 0, "subsets": {}}
    others = [{"a": 1}, [1], {"findings": 3}, {**counted, "subsets": {"a": {}}}]
    for other in [*others, *({**counted, name: "x"} for name in counted)]:
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(PilekitError, match=r"other\.json: is no output of `pilekit stats --json`"):
            write_report(tmp_path / "other.json", tmp_path / "other.html")


def test_artefacts_are_found_once_whatever_is_given(made: Path) -> None:
    kinds = ["bpb"] * 2 + ["compared", "cleaning", "decontamination", "run", "stats", "substrings", "dedup"]
    kinds += ["count", "trace", "verify"]
    assert sorted(one.kind for one in sort_out([made], [])[0]) == sorted(kinds)
    twice, corpora = sort_out([made, made / "unique", made / "bpb-10" / "result.json", made / "stats.json"], [])
    assert (len(twice), corpora) == (len(kinds), [])
    assert sort_out([made / "unique", made], [])[0][0].is_given


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=300), st.integers(1, 40))
def test_a_thinned_curve_keeps_its_sums(values: list[float | None], points: int) -> None:
    y = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    known = ~np.isnan(y)
    x, thin = thinned(np.arange(len(y), dtype=np.float64), y, points)
    assert len(x) == len(thin) == min(points, int(known.sum()))
    assert np.all(np.diff(x) > 0)
    if known.any():
        assert y[known].min() - 1e-6 <= thin.min() <= thin.max() <= y[known].max() + 1e-6


def test_the_measured_recall_is_near_the_computed_one() -> None:
    texts = [" ".join(f"word{(place * text) % 997}" for place in range(300)) for text in range(1, 40)]
    for bands in (Bands(21, 6), Bands(8, 16)):
        measured = measured_recall(texts, bands, 5, 1)
        assert sum(one.pairs for one in measured) > 2000
        for one, low, high in zip(measured, *intervals(measured), strict=True):
            # Five of the bins may stray a little: within a bin, the curve bends.
            assert low - 0.06 <= bands.probability(one.similarity) <= high + 0.06
    assert measured_recall(["too short"], Bands(21, 6), 5, 1) == []
    assert intervals([Measured(0.9, 10, 10)])[1] == pytest.approx([1])
