"""Shared fixtures: the folder of real text, and process groups."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pilekit.shards.index.format import INDEX_SUFFIX
from tests.browser import Browser, chromium
from tests.process_groups import ProcessGroups

# One thread for torch: on tiny models two threads only wait for each other, many times longer on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# On the CPU a test computes the same on each machine. tests/gpu/ needs a GPU, and says how to get one.
if os.environ.get("PILEKIT_TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Write bytecode, even if the environment forbids it. Without it each start of the suite parses all tests again, and so
# does each process that a test starts with the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadlines: machines are shared, and the first call of a kernel compiles it. CI uses the same examples in each run,
# other machines use new ones.
for _name, _examples in (("fast", 20), ("slow", 100)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=os.environ.get("CI") == "true",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A skipped test says why."""
    for item in items:
        for mark in item.iter_markers("skip"):
            if not (mark.args or mark.kwargs.get("reason")):
                raise pytest.UsageError(f"{item.nodeid}: is skipped without a reason")


def _skip_is_wanted(reason: str) -> bool:
    """Whether a test may be skipped for this reason: any, or in `.ci/run` only the named ones."""
    allowed = os.environ.get("PILEKIT_TEST_SKIPS")
    return allowed is None or any(part in reason for part in filter(None, allowed.split("|")))


def _no_silent_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a skipped test fail, unless the skip is wanted."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not _skip_is_wanted(reason):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid} was skipped, which PILEKIT_TEST_SKIPS forbids: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _no_silent_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _no_silent_skip(report)
    return report


def pytest_configure(config: pytest.Config) -> None:
    """The fast suite tries 20 examples of a property, the slow one (`-m 'slow or hypothesis'`) tries 100."""
    settings.load_profile("slow" if "hypothesis" in config.option.markexpr else "fast")


@pytest.fixture(scope="session", autouse=True)
def cache_folder_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or leaves anything in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PILEKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def real_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to the files in PILEKIT_REAL_CORPUS, so that indexes are written beside the links and not there.

    Without it, tests that need real text are skipped.
    """
    folder = os.environ.get("PILEKIT_REAL_CORPUS")
    if not folder:
        pytest.skip("PILEKIT_REAL_CORPUS is not set: no real text to test on")
    linked = tmp_path_factory.mktemp("real")
    for path in Path(folder).resolve().iterdir():
        if not path.name.endswith(INDEX_SUFFIX):
            (linked / path.name).symlink_to(path)
    return linked


@pytest.fixture(scope="session")
def process_group() -> Iterator[ProcessGroups]:
    """`process_group(2).run(function, ...)`: a function in every rank of a real process group, one per world size."""
    groups = ProcessGroups()
    yield groups
    groups.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Debian's Chromium, one for all tests; they are skipped without it."""
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found
