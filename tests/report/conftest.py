"""Artefacts and their report; made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilekit.report.page import write_report
from tests.report.artefacts import HOSTILE, artefacts


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hostile artefacts of every kind."""
    return artefacts(tmp_path_factory.mktemp("report"), [*HOSTILE, "ArXiv", "Github", "PubMed Central"])


@pytest.fixture(scope="session")
def page(made: Path) -> Path:
    """Their report; its name is hostile too."""
    path = made.parent / "<img src=x onerror=window.hacked=1>.html"
    write_report(made, path)
    return path
