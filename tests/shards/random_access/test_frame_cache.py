"""The frame cache: bounded, shared, least recently used first, and never wrong, even after damage."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
import xxhash

from pilekit.artifacts.file_lock import locked
from pilekit.errors import PilekitError
from pilekit.shards.random_access.frame_cache import FrameCache
from tests.shards.making import flipped


def frame(number: int, size: int = 984) -> bytes:
    return random.Random(number).randbytes(size)


def held(folder: Path) -> int:
    total = 0
    for path in folder.glob("*.frame"):
        with suppress(FileNotFoundError):  # removed in the meantime
            total += path.stat().st_size
    return total


def test_the_least_recently_used_frame_goes_first(tmp_path: Path) -> None:
    """Frames of 1,000 bytes with their sums: 10 fit, and the 11th makes room for itself in a tenth of the bound."""
    cache = FrameCache.at(tmp_path, 10_000)
    now = time.time_ns()
    for number in range(10):
        cache.used(str(number), frame(number))
        age = (100 - number) * 10**9
        os.utime(cache._path(str(number)), ns=(now, now - age))
    assert held(tmp_path) == 10_000
    cache.used("0", frame(0))  # used again, so 1 is the oldest
    cache.used("10", frame(10))
    assert [number for number in range(11) if cache.get(str(number), 984) is None] == [1]
    cache.used("large", frame(11, 5000))
    assert [number for number in range(11) if cache.get(str(number), 984) is None] == [1, 2, 3, 4, 5, 6, 7]
    assert cache.get("large", 5000) == frame(11, 5000)
    cache.used("too large", frame(12, 10_000))
    assert cache.get("too large", 10_000) is None
    assert held(tmp_path) <= 10_000


def test_random_use_against_a_dict_and_damaged_frames(tmp_path: Path) -> None:
    rng = random.Random(1)
    wanted = {str(number): frame(number, rng.randrange(1, 3000)) for number in range(60)}
    hits = 0
    for most in (4000, 20_000):
        cache = FrameCache.at(tmp_path, most)
        assert held(tmp_path) <= most
        for _ in range(300):
            key = rng.choice(list(wanted))
            found = cache.get(key, len(wanted[key]))
            assert found in (None, wanted[key])
            hits += found is not None
            cache.used(key, wanted[key])
            assert held(tmp_path) <= most
            assert cache.get(key, len(wanted[key])) == wanted[key]
    assert hits > 50
    path, data = cache._path(key), wanted[key]
    stored = path.read_bytes()
    for damaged in [bytes(stored[:end]) for end in range(0, len(stored), 97)] + [
        *(flipped(stored, place) for place in range(0, len(stored), 97)),
        stored + b"x",
    ]:
        path.write_bytes(damaged)
        assert cache.get(key, len(data)) is None
        assert not path.exists()
    cache.used(key, data)
    assert cache.get(key, len(data) - 1) is None


def test_no_other_file_is_touched_or_reached_by_a_link(tmp_path: Path) -> None:
    folder, victim = tmp_path / "cache", tmp_path / "victim"
    folder.mkdir()
    others = {"notes.txt": b"1" * 5000, "a.frame": b"2" * 5000, f"{'0' * 32}.frame.bak": b"3" * 5000}
    for name, data in others.items():
        (folder / name).write_bytes(data)
    cache = FrameCache.at(folder, 3000)
    for number in range(20):
        cache.used(str(number), frame(number))
    assert {name: (folder / name).read_bytes() for name in others} == others
    assert sum(cache.get(str(number), 984) is not None for number in range(20)) >= 2
    victim.write_bytes(xxhash.xxh3_128_digest(frame(1)) + frame(1))
    before = victim.read_bytes(), victim.stat().st_mtime_ns
    cache._path("a").symlink_to(victim)
    assert cache.get("a", 984) is None
    for name in ("partial", "size"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
        cache.used(name, frame(2))
        cache.used("a", frame(1))
        (folder / name).unlink(missing_ok=True)
    assert (victim.read_bytes(), victim.stat().st_mtime_ns) == before


def test_a_wrong_count_is_corrected(tmp_path: Path) -> None:
    for count in (b"", b"abc", b"1" * 20, b"-5", b"\xff" * 40):
        cache = FrameCache.at(tmp_path, 10_000)
        for number in range(5):
            cache.used(str(number), frame(number))
        (tmp_path / "size").write_bytes(count)
        cache.used(repr(count), frame(5))
        assert all(cache.get(str(number), 984) == frame(number) for number in range(5))
        assert int((tmp_path / "size").read_bytes()) == held(tmp_path) == 6000
        cache._path(repr(count)).unlink()


def test_a_held_lock_or_a_full_disk_stops_no_reader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "cache"
    cache = FrameCache.at(folder, 10_000)
    cache.used("a", frame(1))
    with locked(folder / "lock"):
        assert cache.get("a", 984) == frame(1)
        cache.used("a", frame(1))
        cache.used("b", frame(2))
        assert cache.get("b", 984) is None
    assert not caplog.records
    (folder / "partial").mkdir()  # nothing can be written there
    cache.used("b", frame(2))
    assert cache.get("b", 984) is None
    assert "a frame cannot be kept: " in caplog.text
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PilekitError, match=r"file: cannot be a cache: .*; name a folder that can be written"):
        FrameCache.at(tmp_path / "file", 10_000)
    with pytest.raises(PilekitError, match="whole number of bytes from 1 on"):
        FrameCache.at(tmp_path, 0)


def _write_on(folder: Path, seed: int) -> None:
    cache, rng = FrameCache.at(folder, 200_000), random.Random(seed)
    while True:
        number = rng.randrange(100)
        if cache.get(str(number), 9000) not in (None, frame(number, 9000)):
            os._exit(3)
        cache.used(str(number), frame(number, 9000))


def test_killed_writers_leave_the_bound_and_the_frames_right(tmp_path: Path) -> None:
    rng, fork = random.Random(3), multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write_on, args=(tmp_path, seed)) for seed in range(8)]
    try:
        for turn, writer in enumerate(writers):
            writer.start()
            for _ in range(10 if turn else 0):
                time.sleep(rng.random() * 0.01)
                assert held(tmp_path) <= 200_000
            if turn:
                assert writers[turn - 1].exitcode is None, "a frame was wrong"
                writers[turn - 1].kill()
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    cache = FrameCache.at(tmp_path, 200_000)
    found = [cache.get(str(number), 9000) for number in range(100)]
    assert sum(one is not None for one in found) > 5
    assert all(one in (None, frame(number, 9000)) for number, one in enumerate(found))
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".frame"} <= {"size", "partial", "lock"}
