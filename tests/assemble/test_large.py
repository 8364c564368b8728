"""Many documents: a uniform shuffle, and memory that does not grow with the sources."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from math import sqrt
from pathlib import Path
from random import Random

import orjson
import pytest

from pilekit import read
from pilekit.assemble import assemble_corpus
from tests.cli.running import PILEKIT

pytestmark = pytest.mark.slow

HEADER = '# mine.toml\nname = "mine"\n[assemble]\nshards = {shards}\n'
SUBSET = '[[subsets]]\nname = "{name}"\nepochs = {epochs}\nsources = ["{name}.jsonl"]\n'


def test_every_tenth_of_every_shard_is_a_sample_of_the_whole(tmp_path: Path) -> None:
    """100,000 documents, which stand in the sources one subset after the other."""
    epochs, manifest = {"a": 1.0, "b": 0.5, "c": 2.5, "d": 1.0}, HEADER.format(shards=4)
    for name, times in epochs.items():
        manifest += SUBSET.format(name=name, epochs=times)
        lines = (orjson.dumps({"text": f"{name} {number}"}) for number in range(25_000))
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "mine.toml").write_text(manifest)
    made = assemble_corpus(tmp_path / "mine.toml", tmp_path / "out")
    share = {name: row["train"] / made.summary["train"] for name, row in made.summary["subsets"].items()}
    for shard in range(4):
        labels, quarters = [], Counter[int]()
        for batch in read(tmp_path / "out" / "train" / f"{shard:02}.jsonl.zst"):
            labels += batch.subsets
            quarters.update(int(text.split()[1]) // 6250 for text in batch.texts)
        assert max(abs(count - len(labels) / 4) for count in quarters.values()) < 5 * sqrt(len(labels) * 3 / 16)
        tenth = len(labels) // 10
        for begin in range(0, 10 * tenth, tenth):
            found = Counter(labels[begin : begin + tenth])
            for name, part in share.items():
                assert abs(found[name] - part * tenth) < 5 * sqrt(tenth * part * (1 - part))


def test_eight_times_the_sources_need_the_same_memory(tmp_path: Path) -> None:
    noise = Random(1).randbytes(1 << 20).hex()
    peaks = []
    for megabytes in (60, 480):
        folder = tmp_path / str(megabytes)
        folder.mkdir()
        manifest, random = HEADER.format(shards=3), Random(megabytes)
        for name in "ab":
            manifest += SUBSET.format(name=name, epochs=1.5)
            with (folder / f"{name}.jsonl").open("wb") as file:
                for number in range(megabytes * 125):  # 4 kB each on average
                    begin = random.randrange(1 << 20)
                    text = f"{number} {noise[begin : begin + random.randrange(8000)]}"
                    file.write(orjson.dumps({"text": text}) + b"\n")
        (folder / "mine.toml").write_text(manifest)
        peaks.append(peak(folder))
    assert peaks[1] < peaks[0] + (32 << 20), peaks


def test_many_copies_of_small_documents_need_the_same_memory(tmp_path: Path) -> None:
    """One batch of the source makes 2.4 million lines, of which the memory given holds a fifteenth."""
    peaks = []
    for epochs in (2, 40):
        folder = tmp_path / str(epochs)
        folder.mkdir()
        (folder / "a.jsonl").write_bytes(b"".join(b'{"text":"%d"}\n' % number for number in range(60_000)))
        (folder / "mine.toml").write_text(HEADER.format(shards=3) + SUBSET.format(name="a", epochs=epochs))
        peaks.append(peak(folder))
    assert peaks[1] < peaks[0] + (64 << 20), peaks


def peak(folder: Path) -> int:
    """The most resident bytes of an `assemble` of the folder's manifest in 64 MB."""
    command = [*PILEKIT, "assemble", str(folder / "mine.toml"), "--out", str(folder / "out"), "--memory", "64MB"]
    with subprocess.Popen([*command, "--jobs", "1"], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024
