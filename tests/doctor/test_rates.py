"""The ratios of `pilekit doctor` are those of docs/benchmarks.md, and an estimate is the formula of that page."""

from __future__ import annotations

import pytest

from pilekit.doctor.rates import ESTIMATES, STORED, TRAINING, expected
from tests.benchmarks.cluster_cost import figure


def of(pattern: str) -> float:
    return figure("benchmarks.md", pattern)


def test_the_ratios_are_those_of_the_page_of_benchmarks() -> None:
    cores = 2
    loop = of(r"zstandard \+ orjson loop, one core \| \d+ \(\d+\) \| [0-9.]+ \| (\d+) ")
    stats = of(r"pilekit \| \d+ \(\d+\) \| [0-9.]+ \([0-9.]+\) \| ([0-9,]+) ") / cores
    zstd = of(r"`zstd -3`, one core \| (\d+) ")
    reframe = of(r"pilekit `reframe`, one core (?:\| [0-9.]+ ){2}\| (\d+) \|")
    of_reframe = {
        name: of(rf"× those of `reframe` (?:\| [0-9.]+ ){{{place}}}\| ([0-9.]+) ")
        for place, name in enumerate(("stats", "verify", "index", "select"))
    }
    dedup = of(r"dedup --no-write` \| \d+ \| (\d+)")
    bare, tokenize = of(r"bare loop, no index, one core \| ([0-9.]+)"), of(r"two cores, two shards \| ([0-9.]+)")
    computed = {
        "stats": stats / loop,
        "grep": stats / loop * of(r"500 MB of real text at ([0-9.]+) of the speed"),
        "verify": stats / loop * of_reframe["stats"] / of_reframe["verify"],
        "index": stats / loop * of_reframe["stats"] / of_reframe["index"],
        "select": reframe / zstd / of_reframe["select"],
        "reframe": reframe / zstd,
        "assemble": reframe / zstd * of(r"16 shards \| [0-9. /]+ \| [0-9.]+ \| [0-9. /]+ \| ([0-9.]+)"),
        "clean --report": of(r"`clean --report`: reading, rules, counting (?:\| [0-9.]+ ){3}\| ([0-9.]+) \|"),
        "decontaminate --no-write": 1 / of(r"takes ([0-9.]+) to 2 times the CPU seconds of `stats --tokenizer`"),
        "substrings --no-write": of(r"250 MB \| [0-9.]+ \| ([0-9.]+)") / of(r"fastokens, the same documents \| (\d+)"),
        "tokenize": tokenize / cores / bare,
        "stream": of(r"the raw shard in turn, `best_fit` \| [0-9.]+ \| ([0-9.]+)"),
        "dedup": ESTIMATES["dedup --no-write"].ratio * of(r"clean shards written \| \d+ \| (\d+)") / dedup,
    }
    for command, ratio in computed.items():
        assert ESTIMATES[command].ratio == pytest.approx(ratio, rel=0.03), command
    assert {*computed, "dedup --no-write"} == set(ESTIMATES)


def test_an_estimate_is_the_ratio_of_its_work_on_all_cores_and_at_most_the_disks() -> None:
    rates = {"decode": 1200.0, "parse": 600.0, "minhash": 400.0, "compress": 200.0, "tokenize": 100.0}
    disk = {"disk read": 1e6, "disk write": 1e6}
    found = expected({**rates, **disk, "multiply": 100.0}, 8, gpu=False)
    read = 1 / (1 / 1200 + 1 / 600)
    assert found["stats"] == (pytest.approx(8 * 1.17 * read), "MB/s", "CPU")
    assert found["reframe"].rate == pytest.approx(8 * 0.69 * 200)
    assert found["dedup --no-write"].rate == pytest.approx(8 * 0.45 / (1 / read + 1 / 400))
    assert found["stream"].rate == pytest.approx(0.74 / (1 / read + 1 / 100))
    assert found["train"] == (pytest.approx(8 * 0.45 * 100e9 / 50.5e6), "tokens/s", "CPU")

    slow = expected({**rates, "disk read": 30.0, "disk write": 1e6}, 8, gpu=True)
    assert slow["stats"] == (pytest.approx(30 / STORED), "MB/s", "disk")
    assert not set(TRAINING) & set(slow)


def test_work_that_could_not_be_measured_leaves_its_commands_out() -> None:
    found = expected({"decode": 1200.0, "parse": "cannot be measured: no orjson", "compress": 200.0}, 2, gpu=False)
    assert set(found) == {"select", "reframe", "assemble"}
