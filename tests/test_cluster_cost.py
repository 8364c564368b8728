"""The cost table of docs/scale.md is what the rates on the other pages give."""

from __future__ import annotations

from tests.benchmarks.cluster_cost import DOCS, table


def test_the_page_shows_the_table_of_the_script() -> None:
    assert table() in (DOCS / "scale.md").read_text()
