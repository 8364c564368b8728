"""verify of a corpus: sums, notes, several shards at a time, progress, URLs."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path

import fsspec
import pytest
import zstandard

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.shards.verify.verify import verify_corpus
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import record, some_lines, unzstd
from tests.shards.reading import value_and_memory
from tests.shards.verify.verified import (
    CHANGE,
    CUT,
    findings,
    flip,
    index,
    note,
    only,
    released,
    small,
    sums,
    verify,
    write,
)


def test_a_good_shard_is_all_right(shard: Path) -> None:
    found = verify(shard)
    assert found.ok
    assert (found.findings, found.notes, found.shards, found.stored_bytes) == ((), (), 1, shard.stat().st_size)
    index(shard)
    sums(shard)
    assert verify(shard).notes == (f"sums are taken from {shard.parent}/SHA256SUMS",)
    assert verify(shard.parent).ok


def test_a_wrong_sum(shard: Path) -> None:
    place = sums(shard, "elsewhere")
    assert verify(shard, sums=place).ok
    digits = hashlib.sha256(b"other").hexdigest()
    place.write_text(f"{digits}  {shard.name}\n")
    finding = only(shard, sums=place)
    assert (finding.shard, finding.frame, finding.line, finding.byte) == ("00.jsonl", None, None, None)
    assert digits[:12] in finding.problem
    assert hashlib.sha256(shard.read_bytes()).hexdigest()[:12] in finding.problem
    assert str(place) in finding.problem
    assert verify(shard).ok  # it is not in the root under a standard name
    place.rename(shard.parent / "SHA256SUMS.txt")
    assert "SHA256SUMS.txt" in only(shard).problem
    sums(shard)  # SHA256SUMS has priority over SHA256SUMS.txt
    assert verify(shard).ok


def test_unlisted_and_missing_files(shard: Path) -> None:
    write(shard.parent / "train" / "02.jsonl.zst", [record("text")])
    place = sums(shard)
    with place.open("a") as file:
        file.writelines(f"{'0' * 64}  {name}\n" for name in ("train/01.jsonl.zst", "README", "LICENSE"))
    (shard.parent / "README").write_text("text")
    found = verify(shard.parent)
    assert [finding.shard for finding in found.findings] == ["LICENSE", "train/01.jsonl.zst"]
    assert all("is not there" in finding.problem for finding in found.findings)
    assert f"train/02.jsonl: no sum in {place}" in found.notes
    assert "2 listed files are no shards and were not checked; sha256sum -c checks them" in found.notes
    assert verify(shard).ok, "nobody asked for the others"
    assert verify(str(shard.parent / "*.zst")).ok
    assert verify_corpus(Corpus(str(shard.parent)), jobs=1).ok


def test_sums_of_nothing_here_are_an_error(shard: Path) -> None:
    place = shard.parent / "sums"
    place.write_text(f"{'0' * 64}  corpus/00.jsonl.zst\n")
    with pytest.raises(PilekitError, match=r"names corpus/00\.jsonl\.zst, they are 00\.jsonl\.zst in"):
        verify(shard, sums=place)
    place.write_text("nonsense\n")
    with pytest.raises(PilekitError, match="sums, line 1"):
        verify(shard, sums=place)
    with pytest.raises(PilekitError, match="no such file"):
        verify(shard, sums=shard.parent / "none")


def test_sums_of_the_manifest(tmp_path: Path) -> None:
    path = small(tmp_path / "a.jsonl.zst")
    plain = tmp_path / "b.jsonl"
    plain.write_bytes(record("text") + b"\n")
    right = {"a": hashlib.sha256(path.read_bytes()).hexdigest(), "b": hashlib.sha256(plain.read_bytes()).hexdigest()}

    def manifest(digits: dict[str, str], size: int) -> Corpus:
        file = tmp_path / "own.toml"
        file.write_text(
            'name = "own"\n[release]\nfiles = [\n'
            f'{{ name = "a.jsonl.zst", bytes = {size}, sha256 = "{digits["a"]}" }},\n'
            f'{{ name = "b.jsonl.zst", bytes = 5, sha256 = "{"0" * 64}", uncompressed_sha256 = "{digits["b"]}" }},\n]\n'
        )
        return Corpus(str(tmp_path), str(file))

    size = path.stat().st_size
    assert verify_corpus(manifest(right, size), use_manifest_sums=True, jobs=1).ok
    wrong = dict.fromkeys("ab", "1" * 64)
    found = verify_corpus(manifest(wrong, size), use_manifest_sums=True, jobs=1).findings
    assert [finding.shard for finding in found] == ["a.jsonl", "b.jsonl"]
    assert all("the manifest own says 111111111111" in finding.problem for finding in found)
    # Without `use_manifest_sums`, only a file of exactly the released size counts as the released file.
    assert [finding.shard for finding in verify_corpus(manifest(wrong, size), jobs=1).findings] == ["a.jsonl"]
    assert verify_corpus(manifest(wrong, size + 1), jobs=1).ok
    # A sums file has priority over the manifest.
    sums(path)
    assert verify_corpus(manifest(wrong, size), jobs=1).ok


def test_a_changed_byte_of_a_released_shard_shows_against_sum_and_index_only(tmp_path: Path) -> None:
    path = released(tmp_path / "00.jsonl.zst", some_lines(100))
    whole, right = path.read_bytes(), unzstd(path)
    assert note(path, CUT)
    assert note(path, CHANGE)
    silent = None
    for position in range(len(whole)):
        flip(path, position)
        with contextlib.suppress(zstandard.ZstdError):
            if unzstd(path) != right and verify(path).ok:
                silent = path.read_bytes()
                break
        path.write_bytes(whole)
    assert silent is not None  # such bytes exist: the text is wrong, and nothing shows it
    path.write_bytes(whole)
    place = sums(path)
    assert verify(path).ok
    path.write_bytes(silent)
    assert "SHA-256" in only(path).problem
    place.unlink()
    path.write_bytes(whole)
    index(path)
    assert verify(path).notes == ()
    path.write_bytes(silent)
    pairs = zip(right.split(b"\n"), unzstd(path).split(b"\n"), strict=True)
    assert only(path).line == next(line for line, (here, there) in enumerate(pairs, 1) if here != there)


def test_damage_is_hashed_to_the_end(shard: Path) -> None:
    flip(shard, 100)
    sums(shard)
    [damage] = findings(shard)  # the sum is that of the damaged file
    assert damage.frame == 0


def test_a_shard_that_cannot_be_read_is_a_finding_and_the_others_go_on(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.jsonl.zst", some_lines(5))
    corpus = Corpus(str(tmp_path))
    (tmp_path / "b.jsonl.zst").unlink()
    flip(tmp_path / "c.jsonl.zst", 100)
    for jobs in (1, 3):
        found = verify_corpus(corpus, jobs=jobs).findings
        assert [(finding.shard, finding.frame) for finding in found] == [("b.jsonl", None), ("c.jsonl", 0)]
        assert found[0].problem == "no such file; check the path"


def test_the_result_does_not_depend_on_jobs(tmp_path: Path) -> None:
    for number in range(4):
        path = write(tmp_path / f"{number}.jsonl.zst", [*some_lines(100), b"bad", record("text", f"label {number}")])
        flip(path, 300 * number + 100)
    results = [verify_corpus(str(tmp_path), jobs=jobs) for jobs in (1, 2, 4)]
    assert results[0] == results[1] == results[2]
    assert len(results[0].findings) > 3


def test_progress_ends_at_the_size_whatever_is_wrong(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.jsonl.zst", some_lines(200))
    corpus = Corpus(str(tmp_path))
    flip(tmp_path / "1.jsonl.zst", 100)
    (tmp_path / "2.jsonl.zst").write_bytes((tmp_path / "2.jsonl.zst").read_bytes()[:1000])
    (tmp_path / "3.jsonl.zst").unlink()
    done: list[int] = []
    verify_corpus(corpus, jobs=1, advance=done.append)
    gone = corpus.shards[2].size - 1000  # type: ignore[operator]
    assert corpus.size is not None
    assert sum(done) == corpus.size - gone
    assert all(amount >= 0 for amount in done)


def test_remote_shards(tmp_path: Path) -> None:
    shard = write(tmp_path / "00.jsonl.zst", some_lines(100))
    root = f"memory://{tmp_path.name}"
    place = sums(shard)
    for file in (shard, place):
        with fsspec.open(f"{root}/{file.name}", "wb") as target:
            target.write(file.read_bytes())
    assert verify_corpus(root).notes == (f"sums are taken from {root}/SHA256SUMS",)
    flip(shard, 1000)
    with fsspec.open(f"{root}/{shard.name}", "wb") as target:
        target.write(shard.read_bytes())
    [damage, wrong_sum] = verify_corpus(root).findings
    assert damage.frame is not None
    assert "SHA-256" in wrong_sum.problem
    [damage] = verify_corpus(root, sums=sums(shard)).findings
    with pytest.raises(PilekitError, match="local folder"):
        verify_corpus(root, write_sums=True)


def test_standard_input_is_refused() -> None:
    with pytest.raises(PilekitError, match="standard input"):
        verify("-")


def test_real_text_is_all_right(real_corpus: Path, tmp_path: Path) -> None:
    for number in ("00", "01"):
        shutil.copy(real_corpus / f"minipile-{number}.jsonl.zst", tmp_path)
    found = verify(tmp_path)
    assert found.ok
    assert found.shards == 2


@pytest.mark.slow
def test_memory_does_not_depend_on_the_size(tmp_path: Path) -> None:
    memory = []
    for repeats in (20_000, 400_000):
        path = tmp_path / f"{repeats}.jsonl.zst"
        with ShardWriter(path) as writer:
            for _ in range(0, repeats, 1000):
                writer.write_lines([record("x" * 1000, label) for label in ("ArXiv", "Github") for _ in range(500)])
        index(path)
        sums(path, f"{repeats}")
        script = f"""
from pilekit.shards.verify.verify import verify_corpus
value = int(verify_corpus(sys.argv[1], sums="{tmp_path}/{repeats}", jobs=1).ok)
"""
        ok, grown = value_and_memory(script, path)
        assert ok
        memory.append(grown)
    assert memory[1] < memory[0] + (50 << 10)
