"""Debian's Chromium, headless, for tests of pages: no page may log an error or run what a corpus holds.

    def test_page(browser: Browser) -> None:
        browser.open("file:///.../report.html")
        browser.driver.find_element(...)
        assert browser.errors() == []

Tests that ask for `browser` are skipped, and say so, where there is no Chromium with its driver.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

FLAGS = (
    *("--headless", "--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-quic", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@dataclass(frozen=True)
class Browser:
    """A window; `driver` is selenium's."""

    driver: Any

    def open(self, address: str) -> None:
        """Load the page; what was logged before is forgotten."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(address)
        # Seldom, a large page is not parsed to its end yet.
        self.wait(lambda: self.driver.execute_script("return document.readyState") == "complete")

    def errors(self) -> list[str]:
        """What the page's console has logged as an error or a warning since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def all(self, selector: str) -> list[Any]:
        """The elements of a CSS selector."""
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def wait(self, found: Callable[[], T], seconds: float = 30.0) -> T:
        """What `found` returns, as soon as it is true; it may fail while the page changes."""
        from selenium.common.exceptions import WebDriverException

        end, last = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            try:
                if value := found():
                    return value
            except (WebDriverException, IndexError) as error:
                last = str(error)
            time.sleep(0.05)
        raise AssertionError(f"not on the page within {seconds} s; {last}\n{self.driver.page_source[:4000]}")

    def look(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Show the page in this size, light or dark."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def requests(self) -> list[str]:
        """The addresses asked for since the last call, without data:, about:, and chrome: of the first tab."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        sent = (one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent")
        return [address for address in sent if not address.startswith(("data:", "about:", "chrome:"))]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile in that folder; skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
