"""`merge_token_files` against lists that are joined one after another."""

from __future__ import annotations

import gzip
import logging
import os
import resource
import shutil
import struct
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError, TokenFile, merge_token_files, tokenize_corpus
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.tokenize.files.formats import LIMITS
from pilekit.tokenize.files.growing_output import GrowingOutput
from pilekit.tokenize.files.token_documents import ROWS
from tests.cli.running import refused, run, run_json
from tests.stopping import tree
from tests.tokenize.files import readers
from tests.tokenize.files.conftest import shards_of
from tests.tokenize.files.test_token_file import index
from tests.tokenize.making import byte_level_bpe, saved

Document = list[list[int]]
"""Its sequences."""


def write(stem: Path, documents: list[Document], item: int = 2, parts: int = 0) -> Path:
    """A token file without header and table; its `.bin` whole or in parts."""
    sequences = [sequence for document in documents for sequence in document]
    firsts = [0, *accumulate(map(len, documents))]
    stem.parent.mkdir(exist_ok=True)
    Path(f"{stem}.idx").write_bytes(index([len(sequence) for sequence in sequences], firsts, item))
    ids = [*chain(*sequences)]
    data = struct.pack(f"<{len(ids)}{'H' if item == 2 else 'i'}", *ids)
    if not parts:
        Path(f"{stem}.bin").write_bytes(data)
    for part in range(parts):
        name = f"{stem}-{part:05}-of-{parts - 1:05}.bin"
        Path(name).write_bytes(data[len(data) * part // parts : len(data) * (part + 1) // parts])
    return stem


ids = st.lists(st.integers(0, 60_000), max_size=4)
documents = st.lists(st.lists(ids, max_size=3), max_size=6)


@given(st.lists(st.tuples(documents, st.sampled_from([0, 2])), min_size=1, max_size=4), st.sampled_from([2, 4]))
def test_no_document_and_no_sequence_is_lost_in_any_format(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[list[Document], int]], item: int
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    inputs = [write(folder / f"{number}", *file[:1], item, file[1]) for number, file in enumerate(files)]
    whole = [document for file, _ in files for document in file]
    joined = [[*chain(*document)] for document in whole]
    if not any(joined):
        with pytest.raises(PilekitError, match="nothing to write: "):
            merge_token_files(inputs, folder / "out" / "all")
        return
    merged = merge_token_files(inputs, folder / "out" / "all")
    assert (merged.summary["documents"], merged.summary["sequences"]) == (len(whole), sum(map(len, whole)))
    stem = folder / "out" / "all_text_document"
    write(folder / "wanted", whole, item)
    for end in (".idx", ".bin"):
        assert Path(f"{stem}{end}").read_bytes() == Path(f"{folder}/wanted{end}").read_bytes()
    assert readers.megatron(stem) == joined == [document.tolist() for document in TokenFile(stem)]
    assert not Path(f"{stem}{DOCUMENTS_SUFFIX}").exists()
    merge_token_files(inputs, folder / "npy" / "all", format="npy")
    found, rows = readers.npy(folder / "npy" / "all-00000", item)
    places = [(str(number), line) for number, (file, _) in enumerate(files) for line in range(1, len(file) + 1)]
    assert (found, [(row[1], int(row[2])) for row in rows]) == (joined, places)
    merge_token_files(inputs, folder / "ds" / "all", format="ds")
    assert readers.ds(folder / "ds" / "all-00000", item) == joined
    merge_token_files(inputs, folder / "parquet" / "all", format="parquet")
    assert readers.parquet(folder / "parquet" / "all-00000.parquet", item)[0] == joined
    merge_token_files(inputs, folder / "llmc" / "all", format="llmc")
    assert readers.llmc(folder / "llmc" / "all_000000.bin", item) == [*chain(*joined)]


def test_files_of_more_documents_and_tokens_than_a_piece_holds(tmp_path: Path) -> None:
    """Pieces are of documents (`ROWS`), of ids that are copied, and of ids in a row group."""
    sizes = [np.array(lengths, np.int32) for lengths in ([1] * ROWS, [2] * (ROWS + 1), [2_500_000, 0, 5, 2_500_000])]
    ids = np.random.default_rng(0).integers(0, 60_000, sum(map(np.sum, sizes)), "<u2")
    begin = 0
    for name, lengths in (*zip("abc", sizes, strict=True), ("wanted", np.concatenate(sizes))):
        begin = 0 if name == "wanted" else begin
        end, firsts = begin + int(lengths.sum()), np.arange(len(lengths) + 1)
        pointers = 2 * (np.cumsum(lengths, dtype=np.int64) - lengths)
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(firsts))
        content = head + lengths.tobytes() + pointers.tobytes() + firsts.tobytes()
        (tmp_path / f"{name}.idx").write_bytes(content)
        (tmp_path / f"{name}.bin").write_bytes(ids[begin:end].tobytes())
        begin = end
    for format in LIMITS:
        merge_token_files([tmp_path / name for name in "abc"], tmp_path / format / "all", format=format)
    for suffix in ("idx", "bin"):
        expected = (tmp_path / f"wanted.{suffix}").read_bytes()
        assert (tmp_path / f"megatron/all_text_document.{suffix}").read_bytes() == expected
    lengths, ends = np.concatenate(sizes), np.cumsum(np.concatenate(sizes))
    for name, head in (("npy/all-00000.npy", 0), ("ds/all-00000.ds", 0), ("llmc/all_000000.bin", 1024)):
        assert np.array_equal(np.fromfile(tmp_path / name, "<u2", offset=head), ids)
    assert np.array_equal(np.fromfile(tmp_path / "ds/all-00000.ds.index", "<u8"), ends)
    with gzip.open(tmp_path / "npy/all-00000.csv.gz", "rt") as file:
        assert [int(line.split(",")[1]) for line in file] == ends.tolist()
    table = pq.ParquetFile(tmp_path / "parquet/all-00000.parquet")
    column = table.read(["input_ids"])["input_ids"].combine_chunks()
    assert np.array_equal(column.values.to_numpy(), ids)
    assert np.array_equal(column.value_lengths().to_numpy(), lengths)
    assert table.num_row_groups > 3


def test_there_may_be_more_files_than_descriptors(tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{number:03}", [[[number]]]) for number in range(200)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 100, hard))
    try:
        merge_token_files(inputs, tmp_path / "out" / "all")
        opened = [TokenFile(one) for one in inputs]
        assert [file[0].tolist() for file in opened] == [[number] for number in range(200)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert TokenFile(tmp_path / "out" / "all").lengths.tolist() == [1] * 200


def test_token_files_of_shards_are_those_of_the_corpus(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    """One per shard, merged, are byte for byte the token file of all shards; of merged files too."""
    shards = sorted(corpus.glob("0?.jsonl"))
    for format, names in (("megatron", ("bin", "idx")), ("npy", ("npy", "csv.gz")), ("parquet", ())):
        options: dict[str, Any] = {"append_eod": True}
        tokenize_corpus(shards, tmp_path / format / "all", tokenizer, format=format, **options)  # type: ignore[arg-type]
        parts = [tmp_path / "parts" / shard.stem for shard in shards]
        for part, shard in zip(parts, shards, strict=True):
            tokenize_corpus(shard, part, tokenizer, tokens_per_file=5_000, **options)
        half = tmp_path / "half" / "half"
        merged = merge_token_files(parts[:2], half)
        assert sum(merged.to_arrow().column("tokens").to_pylist()) == merged.summary["tokens"]
        twice = merge_token_files([half, half], tmp_path / "twice" / "twice")
        assert twice.to_arrow().column("tokens").to_pylist() == [2 * merged.summary["tokens"]]
        merge_token_files([half, *map(str, parts[2:])], tmp_path / "merged" / "all", format=format)  # type: ignore[arg-type]
        wanted, found = tree(tmp_path / format), tree(tmp_path / "merged")
        assert wanted.keys() == found.keys()
        for name in wanted:
            if name.endswith(names):
                assert found[name] == wanted[name], name
            elif name.endswith(".parquet"):
                tables = [pq.read_table(tmp_path / folder / name) for folder in ("merged", format)]
                assert tables[0].to_pylist() == tables[1].to_pylist()
        for folder in ("parts", "half", "twice", "merged"):
            shutil.rmtree(tmp_path / folder)


def test_files_that_do_not_fit_are_errors_that_name_both_values(
    tmp_path: Path, corpus: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    other = saved(byte_level_bpe(300), tmp_path / "other.json")
    for name, used, eod in (("a", tokenizer, False), ("b", tokenizer, True), ("c", other, False)):
        tokenize_corpus(corpus / "00.jsonl", tmp_path / name, used, append_eod=eod)
    write(tmp_path / "foreign", [[[1, 2], [3]], [[4]]])
    write(tmp_path / "wide", [[[1]]], item=4)
    before = tree(tmp_path)
    for sources, message in (
        (["a", "b"], r"b_text_document\.idx: eod is 0, but None in .*a_text_document\.idx"),
        (["a", "c"], r"c_text_document\.idx: tokenizer is [0-9a-f]{64}, but [0-9a-f]{64} in "),
        (["foreign", "wide"], r"wide\.idx: dtype is int32, but uint16 in .*foreign\.idx"),
        (["foreign", "none"], r"none: there is no token file "),
        ([], "no token file is given"),
    ):
        with pytest.raises(PilekitError, match=message):
            merge_token_files([tmp_path / source for source in sources], tmp_path / "out")
    with pytest.raises(PilekitError, match=r"a_text_document\.(idx|bin): is an input and the output; name another"):
        merge_token_files([tmp_path / "a"], tmp_path / "a")
    assert tree(tmp_path) == before

    caplog.clear()
    merged = merge_token_files([tmp_path / "a", tmp_path / "foreign"], tmp_path / "mixed")
    assert merged.summary["documents"] == len(TokenFile(tmp_path / "a")) + 2
    assert (TokenFile(tmp_path / "mixed").tokenizer, TokenFile(tmp_path / "mixed").documents) == (None, None)
    assert [record.getMessage().replace(str(tmp_path), "") for record in caplog.records] == [
        "/foreign.idx: has no header, so its tokenizer is not known",
        "no table of documents is written, because there is none for /foreign.idx",
    ]
    merge_token_files([tmp_path / name for name in ("foreign", "a", "mixed")], tmp_path / "three")
    named = f"{tmp_path}/foreign.idx, {tmp_path}/mixed_text_document.idx"
    assert caplog.records[-1].getMessage().endswith(f"there is none for {named}")
    with pytest.raises(PilekitError, match=r"mixed_text_document\.json: was made from other shards"):
        merge_token_files([tmp_path / "foreign"], tmp_path / "mixed")
    caplog.clear()
    merge_token_files([tmp_path / "a"], tmp_path / "without", format="npy")
    assert "without EOD, readers of npy files cannot tell documents apart" in caplog.text


def test_a_doc_idx_that_another_merge_left_behind(tmp_path: Path) -> None:
    """GPT-NeoX's merge appends the sizes and leaves doc_idx as it was."""
    write(tmp_path / "x", [[[1, 2]], [[3]], [[4, 5, 6]]])
    good = (tmp_path / "x.idx").read_bytes()
    (tmp_path / "x.idx").write_bytes(index([2, 1, 3], [0, 1]))
    message = r"doc_idx from and to is \[0, 1\], not \[0, 3\]; .* --sequences-are-documents` mends it"
    with pytest.raises(PilekitError, match=message):
        run("merge", tmp_path / "x", "--out", tmp_path / "y")
    merged = run_json("merge", tmp_path / "x", "--out", tmp_path / "y", "--sequences-are-documents")
    assert (merged["documents"], merged["tokens"], len(merged["files"])) == (3, 6, 2)
    assert (tmp_path / "y_text_document.idx").read_bytes() == good
    opened = TokenFile(tmp_path / "x", sequences_are_documents=True)
    assert [document.tolist() for document in opened] == [[1, 2], [3], [4, 5, 6]]


def test_more_labels_than_a_corpus_may_have(tmp_path: Path, tokenizer: Path) -> None:
    for name in ("a", "b"):
        shards_of(tmp_path / name, [("text", f"{name}{number}") for number in range(3000)])
        tokenize_corpus(tmp_path / name, tmp_path / "tokens" / name, tokenizer)
    files = [tmp_path / "tokens" / name for name in ("a", "b")]
    with pytest.raises(PilekitError, match="more than 4,096 different subset labels"):
        TokenCorpus(files)


def test_a_table_that_is_not_that_of_the_file(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    for name in ("00", "01"):
        tokenize_corpus(corpus / f"{name}.jsonl", tmp_path / name, tokenizer)
    index, table = tmp_path / "00_text_document.idx", tmp_path / f"00_text_document{DOCUMENTS_SUFFIX}"
    own, other = table.read_bytes(), (tmp_path / f"01_text_document{DOCUMENTS_SUFFIX}").read_bytes()
    renamed = pq.read_table(table).rename_columns(["shard", "number", "label", "tokens", "file"])
    pq.write_table(renamed, tmp_path / "renamed")
    for content, message in (
        (own[:200], "Error creating dataset"),
        ((tmp_path / "renamed").read_bytes(), "its columns are not shard, number, subset, tokens, file"),
        (other, "its tokens are not those of the index, in the "),
    ):
        table.write_bytes(content)
        with pytest.raises(PilekitError, match=rf"00_text.*its table of documents does not fit: {message}"):
            merge_token_files([tmp_path / "00", tmp_path / "01"], tmp_path / "out" / "all")
        with pytest.raises(PilekitError, match=message):
            _ = TokenFile(index).documents
        refused(message, "show", index, 3, "--tokenizer", tokenizer)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and "unfinished" not in str(path)]


def test_an_input_that_becomes_shorter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an index, which is mapped into memory: reading past its end would kill the process."""
    inputs = [write(tmp_path / name, [[[1, 2]]] * 3000) for name in ("a", "b")]
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    really_copy = GrowingOutput._copy
    for name in ("b.idx", "b.bin"):

        def copy(self: GrowingOutput, *arguments: Any, name: str = name) -> bool:
            os.truncate(tmp_path / name, 1000)
            return really_copy(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(GrowingOutput, "_copy", copy)
            child = os.fork()
            if not child:
                try:
                    merge_token_files(inputs, tmp_path / "out/all")
                except PilekitError as error:
                    os._exit(7 if f"{tmp_path / name}: was changed while it was read; run again" in str(error) else 1)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert not (tmp_path / "out/all_text_document.idx").exists()
        (tmp_path / name).write_bytes(kept[tmp_path / name])
    merge_token_files(inputs, tmp_path / "out/all")
    assert len(TokenFile(tmp_path / "out/all")) == 6000


def test_another_table_of_documents_is_another_input(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    tokenize_corpus(corpus / "00.jsonl", tmp_path / "00", tokenizer)
    merge_token_files(tmp_path / "00", tmp_path / "all")
    os.truncate(tmp_path / "00_text_document.documents.parquet", 100)
    with pytest.raises(PilekitError, match=r"00_text_document\.documents\.parquet is not the same any more"):
        merge_token_files(tmp_path / "00", tmp_path / "all")
