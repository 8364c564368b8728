from __future__ import annotations

import click
import pytest

from pilekit.cli.options import ByteSize, Lanes, Repeats, Similarity


def test_sizes_as_people_type_them() -> None:
    expected = {
        "200MB": 200_000_000,
        "1.5GB": 1_500_000_000,
        "64MiB": 64 << 20,
        "512 kib": 512 << 10,
        "1.5MiB": 3 << 19,
    }
    expected |= {"3k": 3_000, "1T": 10**12, "10b": 10, "65536": 65536}
    assert {typed: ByteSize().convert(typed, None, None) for typed in expected} == expected


def test_wrong_values_are_refused_and_reach_no_terminal() -> None:
    wrong: dict[click.ParamType, tuple[str, ...]] = {
        ByteSize(4096): ("", "much", "MiB", "-5MB", "1 MiB 2", "1,5M", "1e9", "١M", "9" * 40, "\x1b[2J", "4kB"),
        Repeats(): ("ArXiv", "=2", "", "ArXiv=\x1b", "ArXiv=2,x"),
        Lanes(): ("8", "8,", "8,x", "8,2,1", "١,2", "-1,2"),
        Similarity(0, 1): ("nan", "-0.1", "1.1", "much"),
    }
    for kind, texts in wrong.items():
        for typed in texts:
            with pytest.raises(click.BadParameter) as raised:
                kind.convert(typed, None, None)
            assert "\x1b" not in raised.value.message


def test_repeats_and_lanes() -> None:
    assert Repeats().convert("ArXiv=2, Wikipedia (en)=3.5", None, None) == {"ArXiv": 2.0, "Wikipedia (en)": 3.5}
    assert Lanes().convert("32, 4", None, None) == (32, 4)
