"""Small corpora made for the stream's tests, each with a list of its documents.

Texts have realistic lengths: many are short, a few far longer than a row, some empty. Lines are written as in the Pile
and also listed as `Line`s, so that no test has to read a shard with the code that it tests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import zstandard

from tests.stream.reference import Line

Form = Literal["frames", "single", "plain"]

SUBSETS = ["ArXiv", "Github", "Pile-CC", "Wikipedia (en)"]
_WORDS = [
    "the",
    "quick",
    "brown fox",
    "läuft über die Straße\n\t",
    "12345",
    "日本語",
    "<|endoftext|>",
    "def f(x):",
    "a",
]


@dataclass(frozen=True)
class Made:
    """A corpus: its folder, its shards' names, its good documents, all in order; bad lines as (shard, line number)."""

    folder: Path
    shards: tuple[str, ...]
    lines: tuple[Line, ...]
    bad: tuple[tuple[str, int], ...] = ()


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def some_text(rng: random.Random) -> str:
    """A text of realistic length; one in thirty is empty, one in five longer than 64 tokens."""
    return text(rng, int(min(150, rng.lognormvariate(1.2, 1.2))) if rng.random() > 0.03 else 0)


def record(text: str, subset: str | None) -> bytes:
    return json.dumps({"text": text, "meta": {} if subset is None else {"pile_set_name": subset}}).encode()


def write_shard(path: Path, lines: Sequence[bytes], form: Form) -> str:
    """Write the lines, each ended by a newline, and return the shard's name in a corpus that is `path`'s folder.

    frames   `.jsonl.zst` in frames of about 2 kB, cut without regard for lines
    single   `.jsonl.zst` in one frame that does not state its size, like the Pile's shards
    plain    `.jsonl`
    """
    data = b"".join(line + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "plain":
        path.with_suffix(".jsonl").write_bytes(data)
    elif form == "single":
        stream = zstandard.ZstdCompressor().compressobj()
        path.with_suffix(".jsonl.zst").write_bytes(stream.compress(data) + stream.flush())
    else:
        compressor = zstandard.ZstdCompressor(write_checksum=True)
        frames = [compressor.compress(data[begin : begin + 2000]) for begin in range(0, len(data), 2000)]
        path.with_suffix(".jsonl.zst").write_bytes(b"".join(frames))
    return path.with_suffix(".jsonl").name


def made(
    folder: Path,
    counts: Sequence[int],
    *,
    form: Form = "frames",
    seed: int = 0,
    subsets: Sequence[str | None] = SUBSETS,
    blank: float = 0.02,
    bad: float = 0.0,
    text_of: Callable[[random.Random], str] = some_text,
) -> Made:
    """Shards `00`, `01`, ... of `counts` documents; about a fraction `blank` and `bad` of other lines among them."""
    rng = random.Random(seed)
    documents: list[Line] = []
    bad_lines = []
    for index, count in enumerate(counts):
        lines: list[bytes] = []
        shard = f"{index:02d}.jsonl"
        for _ in range(count):
            while rng.random() < blank:
                lines.append(rng.choice([b"", b"  \t"]))
            while rng.random() < bad:
                bad_lines.append((shard, len(lines)))
                lines.append(rng.choice(BAD_LINES))
            content, subset = text_of(rng), rng.choice(subsets)
            documents.append(Line(shard, len(lines), "(none)" if subset is None else subset, content))
            lines.append(record(content, subset))
        assert write_shard(folder / f"{index:02d}", lines, form) == shard
    names = tuple(f"{index:02d}.jsonl" for index in range(len(counts)))
    return Made(folder, names, tuple(documents), tuple(bad_lines))


BAD_LINES = [
    b"not json",
    b'{"text": 5, "meta": {}}',
    b'{"meta": {"pile_set_name": "ArXiv"}}',
    b'{"text": "\xff\xfe"}',
    b'{"text": "\\ud800"}',
    b'{"text": "cut off in the mid',
    b"[1, 2]",
]


def mixed(folder: Path, documents: int = 1200) -> Made:
    """Four shards of about equal size; documents of four subsets, of one that no manifest has, and without label."""
    sizes = [documents // 4 + change for change in (0, 37, -37, 0)]
    return made(folder, sizes, subsets=[*SUBSETS, "Recipes", None])


def uneven(folder: Path) -> Made:
    """Shards of 1, 250, 2, 0 and 40 documents, the empty one of blank lines."""
    found = made(folder, [1, 250, 2, 0, 40], seed=1)
    write_shard(folder / "03", [b"", b" "], "frames")
    return found


def few(folder: Path) -> Made:
    """Fewer documents than most plans have lanes."""
    return made(folder, [3, 2], seed=2)


def with_bad_lines(folder: Path) -> Made:
    """One line in twelve is bad, in every way that a line can be."""
    return made(folder, [150, 150], seed=3, bad=0.08)
