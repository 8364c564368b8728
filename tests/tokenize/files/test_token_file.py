"""`TokenFile` on files of other tools, files in parts, and files that contradict themselves."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pilekit import PilekitError, TokenFile, merge_token_files, tokenize_corpus
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.tokenize.files.token_file import index_paths
from tests.shards import making
from tests.tokenize.making import byte_level_bpe, saved


def index(sizes: list[int], firsts: list[int], item: int = 2) -> bytes:
    pointers = [sum(sizes[:at]) * item for at in range(len(sizes))]
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, {2: 8, 4: 4}[item], len(sizes), len(firsts))
    return head + struct.pack(f"<{len(sizes)}i{len(sizes)}q{len(firsts)}q", *sizes, *pointers, *firsts)


@pytest.mark.parametrize("item", [2, 4])
def test_documents_of_several_sequences_and_of_none_and_a_bin_in_parts(tmp_path: Path, item: int) -> None:
    (tmp_path / "x.idx").write_bytes(index([3, 0, 4, 1], [0, 2, 2, 3, 4], item))
    ids = np.arange(8, dtype=f"<i{item}")
    wanted = [[0, 1, 2], [], [3, 4, 5, 6], [7]]
    for parts in ([], [0, 8], [0, 4, 8], [0, 1, 2, 5, 5, 8]):
        for old in tmp_path.glob("*.bin"):
            old.unlink()
        if not parts:
            (tmp_path / "x.bin").write_bytes(ids.tobytes())
        for number, (begin, end) in enumerate(pairwise(parts)):
            name = f"x-{number:05}-of-{len(parts) - 2:05}.bin"
            (tmp_path / name).write_bytes(ids[begin:end].tobytes())
        opened = TokenFile(tmp_path / "x")
        assert [document.tolist() for document in opened] == wanted
        assert opened[-1].tolist() == [7]
        assert (opened.sequences, opened.tokens, opened.lengths.tolist()) == (4, 8, [3, 0, 4, 1])
        assert (opened.documents, opened.tokenizer, opened.dtype.itemsize) == (None, None, item)
        with pytest.raises(IndexError, match="4 documents"):
            opened[4]
    for number, part in enumerate((ids.tobytes()[:5], ids.tobytes()[5:])):
        (tmp_path / f"y-{number:05}-of-00001.bin").write_bytes(part)
    (tmp_path / "y.idx").write_bytes((tmp_path / "x.idx").read_bytes())
    opened = TokenFile(tmp_path / "y")  # its first part ends inside an id
    assert [document.tolist() for document in opened] == wanted
    assert all(document.flags.aligned for document in opened)
    with pytest.raises(PilekitError, match="has the id 7 at token 7, but the vocabulary has 7"):
        opened.check_ids(7)
    merge_token_files(tmp_path / "y", tmp_path / "z")
    assert [document.tolist() for document in TokenFile(tmp_path / "z")] == wanted
    (tmp_path / "x-00002-of-00004.bin").unlink()
    with pytest.raises(PilekitError, match=r"its \.bin has 5 parts, but 4 are there; put the others beside them$"):
        TokenFile(tmp_path / "x.idx")


def test_every_contradiction_is_an_error_that_names_the_field(tmp_path: Path) -> None:
    good = index([3, 2], [0, 1, 2])
    (tmp_path / "x.bin").write_bytes(bytes(10))

    def changed(at: int, format: str, *values: int) -> bytes:
        return good[:at] + struct.pack(format, *values) + good[at + struct.calcsize(format) :]

    cases = [
        (b"TNTIDX\0\0" + good[8:], r"magic is b'TNTIDX.*not b'MMIDIDX"),
        (b"", "magic is b''"),
        (good[:20], "is cut off: it has 20 bytes"),
        (changed(9, "<Q", 2), "version is 2, not 1"),
        (changed(17, "<B", 7), r"dtype has the code 7; ids are 8 \(uint16\) or 4 \(int32\)"),
        (changed(17, "<B", 4), "pointers at 1 is 6, not 12"),
        (changed(18, "<Q", 3), "its size with 3 sequences and 3 entries of doc_idx is 82, not 94"),
        (changed(18, "<Q", 2**63), "its size with .* is 82, not"),
        (changed(26, "<Q", 2**40), "its size with .* is 82, not"),
        (good + b"\0", "its size with .* is 83, not 82"),
        (changed(34, "<i", -1), "sizes has -1 at 0"),
        (changed(34, "<i", 4), "pointers at 1 is 6, not 8"),
        (changed(38, "<i", 3), r"the size of its \.bin is 10, not 12"),
        (changed(42, "<q", 2), "pointers at 0 is 2, not 0"),
        (changed(58, "<q", 1), r"doc_idx from and to is \[1, 2\], not \[0, 2\]"),
        (changed(74, "<q", 1), r"doc_idx from and to is \[0, 1\], not"),
        (changed(66, "<q", 3), "doc_idx falls behind 1"),
        (index([3, 2], []), r"doc_idx from and to is \[\], not"),
    ]
    for content, message in cases:
        (tmp_path / "x.idx").write_bytes(content)
        with pytest.raises(PilekitError, match=rf"{re.escape(str(tmp_path))}/x\.idx: {message}") as error:
            TokenFile(tmp_path / "x")
        assert "\n" not in str(error.value)
    (tmp_path / "x.idx").write_bytes(good)
    assert len(TokenFile(tmp_path / "x")) == 2
    (tmp_path / "x.bin").unlink()
    for path, message in (
        ("x", r"x\.bin is not there; put it beside the index$"),
        ("y", r"there is no token file .*y_text_document\.idx or "),
    ):
        with pytest.raises(PilekitError, match=message):
            TokenFile(tmp_path / path)
    for name, why in (("y.idx", "No such file"), ("\udcff.idx", "'utf-8' codec can't encode")):
        with pytest.raises(PilekitError, match=rf"\.idx: cannot be read: {why}"):
            TokenFile(tmp_path / name)


def test_a_file_of_several_has_its_own_rows_of_the_table(tmp_path: Path) -> None:
    lines = [making.record(f"document {number}", making.LABELS[number % 2]) for number in range(9)]
    (tmp_path / "00.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    tokenizer = saved(byte_level_bpe(300), tmp_path / "tokenizer.json")
    tokenize_corpus(tmp_path / "00.jsonl", tmp_path / "pile", tokenizer, tokens_per_file=40)
    files = [TokenFile(path) for path in sorted(tmp_path.glob("pile-*.idx"))]
    assert len(files) > 1
    numbers: list[int] = []
    for number, file in enumerate(files):
        assert file.documents is not None
        assert file.documents["tokens"].to_pylist() == file.lengths.tolist()
        assert set(file.documents["file"].to_pylist()) == {number}
        assert file.tokenizer == files[0].tokenizer is not None
        numbers += file.documents["number"].to_pylist()
    assert numbers == list(range(9))
    assert index_paths(tmp_path / "pile_text_document") == index_paths(tmp_path / "pile") == [one.path for one in files]
    assert repr(files[0]).startswith("TokenFile(")
    for header in (True, False):
        for missing in files[: len(files) - (not header)]:  # The numbers of the others do not miss the last.
            missing.path.rename(tmp_path / "elsewhere")
            for reading in (TokenCorpus, lambda prefix: merge_token_files(prefix, tmp_path / "merged")):
                with pytest.raises(PilekitError, match=rf"{missing.path.name}: is not there; put it beside the other"):
                    reading(tmp_path / "pile")
            (tmp_path / "elsewhere").rename(missing.path)
        (tmp_path / "pile_text_document.json").unlink(missing_ok=True)


def test_a_file_that_becomes_shorter_is_named(tmp_path: Path) -> None:
    """Its files are mapped, and reading past their end would kill the process."""

    def in_a_child(changed: str, read: Callable[[TokenFile], object]) -> int:
        (tmp_path / "x.idx").write_bytes(index([3] * 6000, list(range(6001))))
        (tmp_path / "x.bin").write_bytes(bytes(36_000))
        opened = TokenFile(tmp_path / "x")
        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        opened[0]
        os.truncate(tmp_path / changed, 100)
        try:
            read(opened)
        except PilekitError as error:
            os._exit(7 if f"{tmp_path / changed}: was changed while it was read; run again" in str(error) else 1)
        os._exit(0)

    for read in (lambda file: file[5000].sum(), lambda file: file.lengths, lambda file: file.check_ids(9)):
        for changed in ("x.idx", "x.bin"):
            assert in_a_child(changed, read) == 7


def test_any_damage_of_the_table_of_documents_is_named(tmp_path: Path) -> None:
    (tmp_path / "00.jsonl").write_bytes(making.record("a document", making.LABELS[0]) + b"\n")
    tokenize_corpus(tmp_path / "00.jsonl", tmp_path / "x", saved(byte_level_bpe(300), tmp_path / "tokenizer.json"))
    table, refused = tmp_path / "x_text_document.documents.parquet", 0
    content = table.read_bytes()
    for at in range(0, len(content), 3):
        table.write_bytes(content[:at] + bytes([content[at] ^ 0x08]) + content[at + 1 :])
        try:
            TokenCorpus(tmp_path / "x")
        except PilekitError as error:
            assert str(error).isprintable()
            refused += 1
    assert refused > len(content) // 6


@pytest.mark.parametrize("item", [2, 4])
def test_documents_past_two_to_the_32_tokens(tmp_path: Path, item: int) -> None:
    """Three documents of 2^31 - 1 zeros take no disk, and nothing reads them."""
    sizes = [5, (1 << 31) - 1, 7, (1 << 31) - 1, 9, (1 << 31) - 1, 11]
    (tmp_path / "x.idx").write_bytes(index(sizes, list(range(8)), item))
    with (tmp_path / "x.bin").open("wb") as file:
        for document in range(0, 7, 2):
            file.seek(sum(sizes[:document]) * item)
            file.write(np.arange(document, document + sizes[document], dtype=f"<u{item}").tobytes())
    read = TokenFile(tmp_path / "x")
    assert (read.tokens, read.lengths.tolist()) == (sum(sizes), sizes)
    for document in range(0, 7, 2):
        assert read[document].tolist() == [*range(document, document + sizes[document])]
    assert [len(ids) for ids in read] == sizes
