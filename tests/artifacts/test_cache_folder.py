from __future__ import annotations

from pathlib import Path

import pytest

from pilekit.artifacts.cache_folder import cache_folder


def test_the_first_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    monkeypatch.setenv("PILEKIT_CACHE", "mine")
    assert cache_folder() == Path("mine")
    monkeypatch.setenv("PILEKIT_CACHE", "")
    assert cache_folder() == Path("/shared/pilekit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/somebody/.cache/pilekit")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/somebody/.cache/pilekit")
