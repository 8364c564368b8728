"""Every row of docs/features.md names tests that exist, or sections of pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilekit.cli.main import COMMANDS
from pilekit.train.config.sections import SECTIONS, fields

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.split("## Out of scope")[0].splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| capability"))
]
"""Capability, how, and what shows it."""


def anchors(page: Path, level: str = "#+") -> set[str]:
    """The anchors that mkdocs makes of the headings."""
    titles = re.findall(rf"^{level} (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


def test_there_is_no_row_without_its_test_or_page() -> None:
    assert len(ROWS) > 50
    for row in ROWS:
        assert len(row) == 3, row
        capability, how, shown = row
        assert capability, row
        assert how, row
        tests, links = re.findall(r"`([^`]*)`", shown), re.findall(r"\]\(([^)]*)\)", shown)
        assert tests or links, row
        for test in tests:
            file, _, function = test.partition("::")
            assert file.startswith("tests/"), row
            source = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {function or 'test_'}", source, re.MULTILINE), row
        for link in links:
            name, _, anchor = link.partition("#")
            assert anchor in anchors(ROOT / "docs" / name), row


def test_commands_and_settings_that_rows_name_exist() -> None:
    names = {f"{section}.{field}" for section in SECTIONS for field in fields(section)}
    for _, how, _ in ROWS:
        for command in re.findall(r"`pilekit ([\w-]+)", how):
            assert command in COMMANDS, how
        for setting in re.findall(r"`([a-z]+\.[a-z_]+)(?= =|`)", how):
            assert setting in names or setting.split(".")[0] in ("stream", "transformers"), how
        for section in re.findall(r"`\[(\w+)\]`", how):
            assert section in SECTIONS, how
        for notebook in re.findall(r"`(notebooks/[^`]*)`", how):
            assert (ROOT / notebook).is_file(), how


def test_what_is_out_of_scope_has_another_tool() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", PAGE.split("## Out of scope")[1], re.MULTILINE)[2:]
    assert len(rows) >= 6
    assert all(capability and tool for capability, tool in rows)


@pytest.mark.parametrize("page", ["frameworks.md", "hand-over.md"])
def test_sections_of_the_pages_that_hand_over_are_in_the_table(page: str) -> None:
    linked = {*re.findall(rf"\]\({page}#([^)]*)\)", PAGE)}
    linked |= {"pytorch", "statefuldataloader", "accelerate", "lightning"}
    assert anchors(ROOT / "docs" / page, "##") <= linked
