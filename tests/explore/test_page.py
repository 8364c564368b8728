"""The page in Chromium: browses, searches, colours, shows pairs; nothing of a corpus runs, no error is logged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser
from tests.explore.making import CLOSING, IMAGE, LABELS, SCRIPT, texts

pytestmark = pytest.mark.slow

SHOTS = os.environ.get("PILEKIT_SCREENSHOTS")
"""A folder for pictures of the page, to look at."""


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


def shot(browser: Browser, name: str) -> None:
    if SHOTS:
        for look, width, dark in (("light", 1280, False), ("dark", 1280, True), ("phone", 390, False)):
            browser.look(dark=dark, width=width, height=850)
            browser.driver.save_screenshot(str(Path(SHOTS) / f"{name}-{look}.png"))
        browser.look()


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
    shot(page, "browse")


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
    shot(page, "hostile")


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
    shot(page, "bits")


def test_duplicates_stand_side_by_side_with_their_differences_marked(page: Browser) -> None:
    click(page, "#views button", "Duplicates")
    page.wait(lambda: "removed documents" in status(page))
    page.all("#found button")[0].click()
    kept, removed = page.wait(lambda: page.all(".pair > div"))
    assert kept.location["y"] == removed.location["y"]
    assert kept.location["x"] < removed.location["x"]
    assert "changed" in removed.text or "changed" in kept.text
    marks = page.all(".pair mark.only-removed, .pair mark.only-kept")
    assert any("changed" in one.text for one in marks)
    shot(page, "pair")
    page.look(width=390)
    kept, removed = page.all(".pair > div")
    assert kept.location["y"] < removed.location["y"]
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390


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
