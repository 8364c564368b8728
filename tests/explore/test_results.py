"""`explore` takes what `report` takes: each result has its page of the report, in a frame without rights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilekit.corpus import Corpus, load_manifest
from pilekit.explore.server import HEADERS
from pilekit.explore.sources import Sources
from pilekit.pipeline.cleaning import clean_corpus
from pilekit.report.collect import sort_out
from pilekit.report.page import report_page
from pilekit.stats.summary import corpus_stats
from tests.browser import Browser
from tests.cli.running import run
from tests.explore.making import LABELS, served, words
from tests.explore.test_server import ask
from tests.pipeline.making import write_shard
from tests.report.artefacts import HOSTILE, run_folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`corpus/`, a run that reads it, its saved counts, and its copy by `clean`."""
    folder = tmp_path_factory.mktemp("results")
    write_shard(folder / "corpus" / "00.jsonl", [words(seed) for seed in range(40)], LABELS * 10)
    config = run_folder(folder / "run", LABELS) / "config.toml"
    text = config.read_text()
    assert text.count('path = "data"') == 1
    config.write_text(text.replace('path = "data"', f"path = {json.dumps(str(folder / 'corpus'))}"))
    (folder / "stats.json").write_text(json.dumps(corpus_stats(Corpus(folder / "corpus")).to_dict()))
    clean_corpus(Corpus(folder / "corpus"), folder / "cleaned", pii="ip", jobs=1)
    return folder


@contextmanager
def opened(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> Iterator[Sources]:
    """The sources that the command would serve."""
    shown: list[Sources] = []
    with monkeypatch.context() as patch:
        patch.setattr("pilekit.explore.server.serve", lambda sources, announce: shown.append(sources))
        run("explore", *paths, exit_code=0)
    yield shown[-1]


def titles(sources: Sources) -> list[str]:
    return [one["title"] for one in sources.corpus()["results"]]


def test_runs_and_saved_outputs_stand_beside_a_corpus_or_alone(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, corpus = made / "stats.json", made / "corpus"
    with opened(monkeypatch, corpus, made / "run", saved, made / "cleaned") as sources:
        assert titles(sources) == ["Corpus", "Cleaning", "Training"]
        assert sources.corpus()["documents"] == 40
        assert sources.corpus()["shards"] == [str(corpus / "00.jsonl")]
        assert sources.trained(2) == {"corpus": str(corpus), "shards": 1}
        assert sources.trained(0) == {"corpus": None, "shards": 0}
    with opened(monkeypatch, made / "run", saved) as sources:
        assert titles(sources) == ["Corpus", "Training"]
        assert [sources.corpus()[name] for name in ("documents", "shards", "subsets")] == [None, [], []]
        assert sources.trained(1) == {"corpus": str(corpus), "shards": 0}
        with pytest.raises(Exception, match="no corpus was given; give its shards in addition to the results"):
            sources.documents(0)
    with opened(monkeypatch, made / "cleaned") as sources:
        assert (titles(sources), sources.corpus()["documents"]) == (["Cleaning"], 40)
    with opened(monkeypatch, corpus) as sources:
        assert titles(sources) == []


def test_a_result_opens_as_its_page_of_the_report(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(monkeypatch, made / "run", made / "stats.json") as sources:
        for place, path in enumerate([made / "stats.json", made / "run"]):
            [artefact], _ = sort_out([path], [])
            wanted, _ = report_page([artefact], load_manifest("pile"), title=str(path)[-80:], sampled_steps=40)
            shown = sources.result(place)
            start = shown.index("<main")
            assert shown[start : shown.index("</main>")] == wanted[wanted.index("<main") : wanted.index("</main>")]
        assert sources.result(1).count(" at 60") >= len(HOSTILE)  # samples of the last step


def test_a_run_that_is_damaged_or_has_no_step_says_so_on_its_page(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("damaged", b"{not json\n"), ("new", b"")):
        shutil.copytree(made / "run", tmp_path / name)
        (tmp_path / name / "metrics.jsonl").write_bytes(content)
    (tmp_path / "damaged" / "config.toml").write_bytes(b"not = [toml")
    with opened(monkeypatch, tmp_path / "damaged", tmp_path / "new") as sources:
        assert sources.trained(0) == {"corpus": None, "shards": 0}
        assert "metrics.jsonl" in sources.result(0)
        assert "no step is logged yet" in sources.result(1)


def test_a_report_stands_in_a_frame_of_the_page_alone_and_other_places_are_errors(made: Path) -> None:
    results, _ = sort_out([made / "run"], [])
    with served(Sources(None, results=results)) as address:
        status, headers, content = ask(address, "api/result?place=0")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert headers["content-security-policy"] == "frame-ancestors 'self'"
        assert {name: headers[name.lower()] for name in HEADERS if name[:7] != "Content"} == {
            name: value for name, value in HEADERS.items() if name[:7] != "Content"
        }
        assert b'http-equiv="Content-Security-Policy" content="default-src \'none\'' in content.replace(b"&#39;", b"'")
        for question in ("result?place=1", "result", "trained?place=9", "documents?start=0"):
            status, headers, content = ask(address, f"api/{question}")
            assert (status, [*json.loads(content)]) == (400, ["error"])
            assert headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


@pytest.mark.slow
def test_the_page_of_a_run_is_drawn_in_a_browser_and_nothing_runs(browser: Browser, made: Path) -> None:
    results, _ = sort_out([made / "run", made / "stats.json"], [])
    with served(Sources(made / "corpus", results=results)) as address:
        browser.look()
        browser.requests()
        browser.open(address)
        browser.wait(lambda: browser.all("#found li"))
        next(one for one in browser.all("#views button") if one.text == "Results").click()
        browser.wait(lambda: len(browser.all("#found li button")) == 2)
        browser.all("#found li button")[1].click()
        [frame] = browser.wait(lambda: browser.all("iframe"))
        browser.wait(lambda: "1 of its shards is here" in browser.all("#shown")[0].text)
        browser.driver.switch_to.frame(frame)
        browser.wait(lambda: browser.all("svg"))
        assert "Learning rate" in browser.all("body")[0].text
        assert browser.driver.execute_script("return window.hacked") is None
        browser.driver.switch_to.default_content()
        browser.all("#shown p button")[0].click()
        browser.wait(lambda: "1 to 40 of 40" in browser.all("#status")[0].text)
        assert browser.errors() == []
        assert [one for one in browser.requests() if not one.startswith(address)] == []
