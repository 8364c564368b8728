"""Sums files: pilekit reads those of sha256sum, sha256sum accepts ours, and a hostile line is refused by number."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.corpus import Corpus, Shard
from pilekit.errors import PilekitError
from pilekit.shards.verify.sha256sums import below, find_sums, read_sums, stored_name, write_sums

DIGITS = hashlib.sha256(b"text").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


def sums_of(path: Path, content: bytes) -> dict[str, str]:
    path.write_bytes(content)
    return read_sums(str(path))


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_sha256sum_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    files = ["00.jsonl.zst", "a b", "train/x y\\z", "new\nline", "c\rd", "\\n", " space", " * a", "naïve“", "\udcff"]
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode(errors="surrogateescape"))
    expected = {name: hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest() for name in files}
    for options in ([], ["--binary"], ["--tag"]):
        theirs = subprocess.run(["sha256sum", *options, "--", *files], cwd=tmp_path, check=True, capture_output=True)
        assert sums_of(tmp_path / "theirs", theirs.stdout) == expected
        assert sums_of(tmp_path / "windows", theirs.stdout.replace(b"\n", b"\r\n")) == expected
    write_sums(tmp_path / "SHA256SUMS", expected)
    assert read_sums(str(tmp_path / "SHA256SUMS")) == expected
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)
    (tmp_path / "a b").write_bytes(b"changed")
    wrong = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path, capture_output=True)
    assert (wrong.returncode, wrong.stdout) == (1, b"a b: FAILED\n")
    content = f"# made by hand\n\n{DIGITS.upper()} *./train//00.jsonl.zst\r\n{OTHER} one-space"
    assert sums_of(tmp_path / "sums", content.encode()) == {"train/00.jsonl.zst": DIGITS, "one-space": OTHER}


@given(st.binary(max_size=200))
@example(b"\xff\xfe")
def test_any_bytes_are_sums_or_one_clear_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("sums") / "sums"
    try:
        sums = sums_of(path, content)
    except PilekitError as error:
        assert re.match(rf"{re.escape(str(path))}, line \d+: [^\n]+$", str(error))
    else:
        assert all(re.fullmatch("[0-9a-f]{64}", digits) for digits in sums.values())


def test_a_wrong_line_is_named_and_so_is_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "sums"
    for line, why in (
        ("what is this", "no line of a sums file: what is this"),
        (DIGITS[:-1] + "  a", "no line"),
        (DIGITS, "no line"),
        ("\x1b[31m" + DIGITS, r"\x1b[31m"),
        (DIGITS + "  /etc/passwd", '"/etc/passwd" is no path'),
        (DIGITS + "  a/../../b", '"a/../../b" is no path'),
        (DIGITS + "  .", "is no path"),
        (DIGITS + "  a\0b", r"a\x00b"),
        ("\\" + DIGITS + "  a\\tb", "unknown escape"),
        (OTHER + "  first", "a second sum of first"),
    ):
        with pytest.raises(PilekitError) as raised:
            sums_of(path, f"{DIGITS}  first\n{line}\n".encode())
        assert str(raised.value).startswith(f"{path}, line 2: ")
        assert why in str(raised.value)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    for name, why in (("none", "no such file"), (".", "is a folder"), ("large", "longer than 64 MiB")):
        with pytest.raises(PilekitError, match=why):
            read_sums(str(tmp_path / name))


def test_where_a_sums_file_lies(tmp_path: Path) -> None:
    assert find_sums(str(tmp_path)) is None
    (tmp_path / "SHA256SUMS").mkdir()
    (tmp_path / "SHA256SUMS.txt").write_text("")
    assert find_sums(str(tmp_path)) == str(tmp_path / "SHA256SUMS.txt")
    assert find_sums("unheard-of://root") is None
    for root, path in (
        ("data", "data/SHA256SUMS"),
        ("s3://bucket/pile/", "s3://bucket/pile/SHA256SUMS"),
        ("zip://train::data.zip", "zip://train/SHA256SUMS::data.zip"),
        ("simplecache::https://host/pile", "simplecache::https://host/pile/SHA256SUMS"),
        ("simplecache::/data/pile", "simplecache::/data/pile/SHA256SUMS"),
    ):
        assert below(root, "SHA256SUMS") == path


def test_the_name_of_a_shard_in_a_sums_file(tmp_path: Path) -> None:
    for name, path, stored in (
        ("00", "00.zstd", "00.zstd"),
        ("a.json", "s3://bucket/a.json.gz", "a.json.gz"),
        ("a.jsonl", "https://host/a.jsonl.zst?token=x.gz", "a.jsonl.zst"),
        ("a.jsonl", "zip://a.jsonl.zst::data.zip", "a.jsonl.zst"),
        ("a.jsonl", "simplecache::https://host/a.jsonl.zst", "a.jsonl.zst"),
    ):
        assert stored_name(Shard(name, path)) == stored
    files = ["train/00.jsonl.zst", "val.jsonl", "x/y.json.gz", "t.parquet", ".zst.jsonl.zst", "a.zst.json.zst"]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    corpus = Corpus([str(tmp_path / name) for name in files])
    assert {stored_name(shard) for shard in corpus} == {os.path.relpath(tmp_path / name, corpus.root) for name in files}
