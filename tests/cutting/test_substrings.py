"""What is cut is what an earlier document has, by a reference in plain Python; all other bytes stay."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit import cut_substrings
from pilekit.cutting import windows
from tests.shards import making

Cut = tuple[int, int, int, int, int]
"""Document, start, end, the earliest document, and where it holds the longest part."""


def reference(texts: Sequence[str], length: int) -> list[Cut]:
    seen: dict[bytes, tuple[int, int]] = {}
    cuts = []
    for number, text in enumerate(texts):
        data = text.encode()
        windows = [data[at : at + length] for at in range(len(data) - length + 1)]
        runs: list[list[tuple[int, tuple[int, int]]]] = []
        for at, window in enumerate(windows):
            if window in seen:
                if not runs or at > runs[-1][-1][0] + length:
                    runs.append([])
                runs[-1].append((at, seen[window]))
        places = [0, *itertools.accumulate(len(character.encode()) for character in text)]
        for run in runs:
            begin, end = run[0][0], run[-1][0] + length
            words = [match.span() for match in re.finditer(r"\S+", text)]
            inside = [span for span in words if begin <= places[span[0]] and places[span[1]] <= end]
            if inside:
                start, stop = inside[0][0], inside[-1][1]
                parts = [[run[0]]]
                for one in run[1:]:
                    at, (document, byte) = parts[-1][-1]
                    parts[-1].append(one) if one == (at + 1, (document, byte + 1)) else parts.append([one])
                at, (document, byte) = max(parts, key=len)[0]
                skipped = sum(1 for character in range(start) if places[character] >= at)
                before = sum(byte & 0xC0 != 0x80 for byte in texts[document].encode()[:byte])
                cuts.append((number, start, stop, document, before + skipped))
        for at, window in enumerate(windows):
            seen.setdefault(window, (number, at))
    return cuts


def write_shards(folder: Path, shards: Sequence[Sequence[str]]) -> list[list[bytes]]:
    folder.mkdir()
    lines = [[making.record(text) for text in texts] for texts in shards]
    for number, of in enumerate(lines):
        (folder / f"{number:02}.jsonl").write_bytes(b"".join(line + b"\n" for line in of))
    return lines


def check(folder: Path, shards: Sequence[Sequence[str]], length: int, **options: Any) -> list[Cut]:
    """The table, the counts and the clean shards are the reference's; returns the reference's cuts."""
    lines = write_shards(folder / "data", shards)
    found = cut_substrings(folder / "data", min_bytes=length, out=folder / "out", **{"jobs": 1, **options})
    places = [(f"{shard:02}.jsonl", number) for shard, of in enumerate(shards) for number in range(len(of))]
    texts = [text for of in shards for text in of]
    cuts = reference(texts, length)
    expected = [(*places[number], start, end, *places[first], at) for number, start, end, first, at in cuts]
    names = ("shard", "number", "start", "end", "first_shard", "first_number", "first_start")
    rows = found.repeats.to_pylist()
    assert [tuple(row[name] for name in names) for row in rows] == expected
    assert [row["bytes"] for row in rows] == [len(texts[cut[0]][cut[1] : cut[2]].encode()) for cut in cuts]
    counts, removed = Counter[str](), 0
    for shard, of in enumerate(lines):
        path = folder / f"out/clean/{shard:02}.jsonl.zst"
        written = iter(making.unzstd(path).split(b"\n") if path.exists() else [])
        for number, line in enumerate(of):
            text = texts[places.index((f"{shard:02}.jsonl", number))]
            spans = [row for row in rows if (row["shard"], row["number"]) == (f"{shard:02}.jsonl", number)]
            left = list(text)
            for row in spans:
                left[row["start"] : row["end"]] = [""] * (row["end"] - row["start"])
            kept = not spans or any(character.isalnum() for character in "".join(left))
            counts["dropped" if not kept else "cut" if spans else "untouched"] += 1
            removed += len(text.encode()) - kept * len("".join(left).encode())
            if kept:
                assert (line if not spans else "".join(left)) == (
                    next(written) if not spans else json.loads(next(written))["text"]
                )
        assert next(written, b"") == b""
    assert {name: found.summary[name] for name in counts} == counts
    assert (found.summary["read"], found.summary["bytes_removed"]) == (len(texts), removed)
    most = Counter((row["first_shard"], row["first_number"], row["first_start"]) for row in rows).most_common(10)
    assert [passage["count"] for passage in found.summary["passages"]] == [count + 1 for _, count in most]
    return cuts


@given(
    st.lists(
        st.lists(st.text(st.sampled_from("aaab bé "), max_size=80), min_size=1, max_size=6), min_size=1, max_size=3
    )
)
@settings(max_examples=40)
def test_cuts_are_the_references(shards: list[list[str]]) -> None:
    for length, at_a_time in ((8, 4), (13, 1 << 18)):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(windows, "AT_A_TIME", at_a_time)
            check(Path(folder), shards, length)
