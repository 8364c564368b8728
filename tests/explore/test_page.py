"""The page in Chromium: browses, searches, colours, shows pairs; nothing of a corpus runs, no error is logged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilekit.dedup.run import dedup_corpus
from pilekit.explore.sources import Sources
from tests.browser import Browser
from tests.explore.making import CLOSING, IMAGE, LABELS, SCRIPT, served, texts
from tests.pipeline.making import write_shard

pytestmark = pytest.mark.slow


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Browser]:
    """The page of everything. After the test: no error, no foreign request, nothing has run."""
    browser.look()
    browser.requests()
    browser.open(address)
    browser.wait(lambda: browser.all("#found li"))
    yield browser
    assert browser.errors() == []
    assert [one for one in browser.requests() if not one.startswith(address)] == []
    assert browser.driver.execute_script("return window.hacked") is None
    assert "hacked" not in browser.driver.title.replace(IMAGE, "").replace("onerror=hacked", "")
    assert browser.all("img, svg, #found script, #shown script") == []


def click(browser: Browser, selector: str, text: str) -> None:
    def matching() -> Any:
        return next((one for one in browser.all(selector) if text in one.text), None)

    browser.wait(matching).click()


def status(browser: Browser) -> str:
    return str(browser.all("#status")[0].text)


def search(browser: Browser, words: str) -> None:
    box = browser.all("#words")[0]
    box.clear()
    box.send_keys(words)
    browser.all("#search button")[0].click()
    browser.wait(lambda: "all searched" in status(browser))


def test_browses_by_subset_and_from_page_to_page(page: Browser) -> None:
    assert status(page) == f"1 to 50 of {len(texts())}"
    assert len(page.all("#subsets button")) == 1 + len(LABELS)
    click(page, "#more button", "Further")
    page.wait(lambda: status(page).startswith("51 to 100"))
    click(page, "#subsets button", "ArXiv")
    page.wait(lambda: status(page) == f"1 to {len(texts()[::4])} of {len(texts()[::4])}")
    assert all("ArXiv" in one.text for one in page.all("#found small"))


def test_finds_what_is_searched_and_shows_it(page: Browser) -> None:
    search(page, "zebra")
    assert status(page).startswith("1 found")
    assert [one.text for one in page.all("#found mark")] == ["ZEBRA"]
    click(page, "#found button", "ZEBRA")
    page.wait(lambda: "日本語 🙂" in page.all("#shown pre")[0].text)


def test_hostile_texts_labels_and_names_are_only_text(page: Browser) -> None:
    labels = {one.text.split("\n")[0] for one in page.all("#subsets button")}
    assert {SCRIPT, IMAGE, "\\u202eGitlab"} <= labels
    for words, shown in (
        (SCRIPT[:12], SCRIPT),
        ("onerror=", IMAGE),
        (CLOSING[:14], CLOSING),
        ("esrever", "\\u202eesrever\\u2069"),
    ):
        search(page, words)
        page.all("#found button")[0].click()
        page.wait(lambda shown=shown: shown in page.all("#shown pre")[0].text)
    assert "\\x1b[31mred\\x07 zero\\u200bwidth" in page.all("#shown pre")[0].text


def test_tokens_are_coloured_by_their_bits_per_byte(page: Browser) -> None:
    click(page, "#views button", "Scored")
    page.wait(lambda: "bits per byte" in page.all("#found small")[0].text)
    page.all("#found button")[0].click()
    spans = page.wait(lambda: page.all("#shown pre span[class^=bits]"))
    title = spans[0].get_attribute("title")
    rate = float(title.rsplit(", ", 1)[1].split()[0])
    assert spans[0].get_attribute("class").removesuffix(" part") == f"bits{min(9, int(rate))}"
    backgrounds = {
        one.get_attribute("class").removesuffix(" part"): one.value_of_css_property("background-color") for one in spans
    }
    assert len(set(backgrounds.values())) == len(backgrounds) > 1
    listed = page.all("#found small")[0].text.rsplit(", ", 1)[1].split()[0]
    shown = page.all("#shown p")[0].text.rsplit(" · ", 1)[1].split()[0]
    assert shown == listed


def test_duplicates_stand_side_by_side_with_their_differences_marked(page: Browser) -> None:
    click(page, "#views button", "Duplicates")
    page.wait(lambda: "removed documents" in status(page))
    page.all("#found button")[0].click()
    kept, removed = page.wait(lambda: page.all(".pair > h3"))
    assert (kept.text[:6], removed.text[:9]) == ("kept: ", "removed: ")
    cells = page.all(".pair > pre")
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        assert left.location["y"] == right.location["y"]
        assert left.location["x"] < right.location["x"]
    marks = page.all(".pair mark.only-removed, .pair mark.only-kept")
    assert any("changed" in one.text for one in marks)
    page.look(width=390)
    left, right = page.all(".pair > pre")[:2]
    assert left.location["y"] < right.location["y"]
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390


def test_a_document_shows_its_duplicates_and_cluster(page: Browser) -> None:
    click(page, "#views button", "Duplicates")
    click(page, "#found button", "similarity")
    page.wait(lambda: page.all(".pair"))
    click(page, ".pair h3 button", " ")  # the kept document
    said = page.wait(
        lambda: re.search(r"Kept: (\d+) documents? (was|were) removed for it\.", page.all("#shown")[0].text)
    )
    members = page.all(".fate")[0].find_elements("css selector", "li")
    assert [one.text.split()[0] for one in members] == ["kept:", *["removed,"] * int(said[1])]
    members[1].find_elements("css selector", "button")[0].click()
    page.wait(lambda: "Removed: it resembles a kept document" in page.all("#shown")[0].text)
    assert sum("removed, this document, " in one.text for one in page.all(".fate li")) == 1
    click(page, ".fate button", "Compare")
    page.wait(lambda: page.all(".pair"))


@pytest.mark.parametrize(("view", "source"), [("Decontaminated", "quiz record"), ("Repeated passages", ".jsonl")])
def test_cuts_stand_beside_their_source(page: Browser, view: str, source: str) -> None:
    click(page, "#views button", view)
    page.wait(lambda: "1 to" in status(page) and source in page.all("#found small")[0].text)
    for button in page.all("#found button")[:12]:
        number = button.text.rsplit(" ", 1)[1]
        button.click()

        def headings(number: str = number) -> list[str]:
            texts = [one.text for one in page.all(".pair > h3")]
            return texts if f" {number}, " in texts[1] else []

        stays, cut = page.wait(headings)
        assert stays.startswith("stays:")
        assert source in stays
        assert cut.startswith("cut:")
        assert page.all(".pair .around")
    click(page, ".pair h3:nth-child(2) button", "onerror")
    page.wait(lambda: f"{view}: " in page.all("#shown")[0].text)
    click(page, ".fate button", "Compare")
    page.wait(lambda: page.all(".pair"))


def test_a_traced_text_shows_its_passages_and_opens_their_documents(page: Browser) -> None:
    click(page, "#views button", "Traced")
    page.wait(lambda: status(page) == "1 to 4 of 4" and "100.00 % of" in page.all("#found small")[0].text)
    click(page, "#found button", "text 2 ")
    marks = page.wait(lambda: page.all("#shown pre mark"))
    colours = {one.get_attribute("class"): one.value_of_css_property("background-color") for one in marks}
    assert (set(colours), len(set(colours.values()))) == ({"", "copied"}, 2)
    click(page, ".fate button", "common")
    page.wait(lambda: "none is listed" in page.all("#passage")[0].text)
    marks[0].click()
    page.wait(lambda: "60 words in 2 documents" in page.all("#passage h3")[0].text)
    passage = marks[0].text
    assert [one.text for one in page.all("pre mark.current")] == [passage]
    documents = [one.text for one in page.all("#passage li button")]
    assert len(documents) == 2
    click(page, "#passage li button", documents[1])
    sought = page.wait(lambda: page.all("#shown pre mark.sought"))
    assert page.all("#shown h2")[0].text == documents[1]
    assert passage in sought[0].text
    click(page, "#shown > p button", "Back to text 2")
    page.wait(lambda: "60 words in 2 documents" in page.all("#passage h3")[0].text)
    click(page, "#found button", "text 1 ")
    page.wait(lambda: SCRIPT in page.all("#shown pre")[0].text and CLOSING in page.all("#shown pre")[0].text)
    click(page, ".fate button", "60 words in 1 document")
    page.wait(lambda: "other capitals or marks" in page.all("#passage")[0].text)
    click(page, "#found button", "text 0 ")
    page.wait(lambda: page.all("#shown h2")[0].text == "text 0")
    assert page.all("#shown mark, .fate") == []


def test_a_word_that_was_searched_is_scrolled_to(browser: Browser, tmp_path: Path) -> None:
    write_shard(tmp_path / "a.jsonl", [" ".join(["filler words"] * 3000 + ["needle"] + ["more"] * 3000)])
    with served(Sources(tmp_path / "a.jsonl")) as address:
        browser.look()
        browser.open(address)
        browser.wait(lambda: browser.all("#found li"))
        search(browser, "needle")
        browser.all("#found button")[0].click()
        mark = browser.wait(lambda: browser.all("#shown mark"))[0]
        place = "return arguments[0].getBoundingClientRect().top"
        browser.wait(lambda: 0 < browser.driver.execute_script(place, mark) < 900)


@pytest.fixture(scope="module")
def long_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The page of two documents of 100,000 words that differ at three places, and the removed one's own words."""
    folder, kept = tmp_path_factory.mktemp("long"), [f"w{place}" for place in range(100_000)]
    added = ["added<b>one</b>", "added<b>two</b>", "added<b>three</b>"]
    removed = [*kept[:500], added[0], *kept[500:700], added[1], *kept[700:99_000], added[2], *kept[99_001:]]
    write_shard(folder / "long.jsonl.zst", [" ".join(kept), " ".join(removed)])
    dedup_corpus(folder / "long.jsonl.zst", out=folder / "dedup", keep="first", write=False, jobs=1)
    with served(Sources(folder / "long.jsonl.zst", dedup=folder / "dedup")) as address:
        yield address, added


def test_equal_passages_are_folded_and_keys_jump_between_differences(
    browser: Browser, long_pair: tuple[str, list[str]]
) -> None:
    from selenium.webdriver.common.keys import Keys

    (address, added), script = long_pair, browser.driver.execute_script
    browser.look()
    browser.open(address)
    browser.wait(lambda: browser.all("#found li"))
    click(browser, "#views button", "Duplicates")
    click(browser, "#found button", "similarity")
    browser.wait(lambda: browser.all(".pair"))
    folds = [one.text for one in browser.all(".pair .fold")]
    assert folds == [f"⋯ {count} words alike ⋯" for count in (476, 176, "98,276", 975)]
    assert len(script("return document.querySelector('.pair').textContent")) < 3000
    assert "not compared" not in browser.all("#shown")[0].text

    def current() -> str:
        return str(script("return [...document.querySelectorAll('mark.current')].map(one => one.textContent).join('')"))

    body = browser.all("body")[0]
    assert browser.all("#place")[0].text == "3 differences"
    for key, place in (("n", 0), ("n", 1), ("n", 2), ("n", 0), ("p", 2), ("p", 1)):
        body.send_keys(key)
        assert browser.all("#place")[0].text == f"{place + 1} of 3 differences"
        assert added[place] in current()
    click(browser, "#jumps button", "Next difference")
    assert added[2] in current()
    mark = browser.all("mark.current")[0]
    top, bottom = (script(f"return arguments[0].getBoundingClientRect().{side}", mark) for side in ("top", "bottom"))
    assert 0 <= top < bottom <= 900

    fold = browser.all(".pair .fold")[1]
    fold.send_keys(Keys.ENTER)
    assert len(browser.all(".pair .fold")) == 3
    cells = [one.text for one in browser.all(".pair > pre")]
    assert sum(cell.split() == [f"w{place}" for place in range(512, 688)] for cell in cells) == 2
    assert browser.all("#shown b") == []
    assert browser.errors() == []


def test_light_and_dark_have_enough_contrast(page: Browser) -> None:
    def luminance(colour: str) -> float:
        channels = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for dark in (False, True):
        page.look(dark=dark)
        body = page.all("body")[0]
        back = luminance(body.value_of_css_property("background-color"))
        assert (back < 0.1) == dark
        for selector in ("body", "#status", "#found small"):
            text = luminance(page.all(selector)[0].value_of_css_property("color"))
            assert (max(back, text) + 0.05) / (min(back, text) + 0.05) >= 4.5


def test_a_corpus_alone_has_texts_without_tokens(browser: Browser, plain_address: str) -> None:
    browser.open(plain_address)
    browser.wait(lambda: browser.all("#found li"))
    assert [one.text for one in browser.all("#views button")] == ["Documents"]
    search(browser, "zebra")
    browser.all("#found button")[0].click()
    browser.wait(lambda: browser.all("#shown pre mark"))
    assert browser.all("#shown pre span") == []
    assert browser.errors() == []
