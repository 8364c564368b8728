from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilekit.explore.sources import Sources

# Without the extra there is nothing to test.
collect_ignore_glob = [] if importlib.util.find_spec("starlette") else ["test_*.py"]


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make` fills."""
    from tests.explore.making import make

    folder = tmp_path_factory.mktemp("explored")
    make(folder)
    return folder


def everything(given: Path) -> Sources:
    cuts = [given / "dec", given / "sub"]
    traces = [given / "traces.parquet"]
    return Sources(given / "corpus", dedup=given / "dedup", cuts=cuts, traces=traces, bpb=given / "scores")


@pytest.fixture(scope="session")
def sources(given: Path) -> Sources:
    return everything(given)


@pytest.fixture(scope="session")
def address(given: Path) -> Iterator[str]:
    """The page of everything."""
    from tests.explore.making import served

    with served(everything(given)) as found:
        yield found


@pytest.fixture(scope="session")
def plain_address(given: Path) -> Iterator[str]:
    """The page of the corpus alone."""
    from tests.explore.making import served

    with served(Sources(given / "corpus")) as found:
        yield found
