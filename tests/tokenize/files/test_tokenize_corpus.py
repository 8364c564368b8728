"""Token files against `tokenizers` and readers of their own; cuts, errors, and runs that were killed."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import signal
import struct
import subprocess
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit import (
    Corpus,
    Deduplicated,
    NearDuplicates,
    PilekitError,
    TokenFile,
    corpus_stats,
    deduplicate,
    document_filter,
    load_tokenizer,
    tokenize_corpus,
)
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.engine import in_threads
from pilekit.pipeline import MinBytes
from pilekit.shards import processes
from tests.cli.running import PILEKIT
from tests.shards import making
from tests.small_disk import small_disk
from tests.stopping import kill, stop_when, tree
from tests.tokenize.files import readers
from tests.tokenize.making import byte_level_bpe, hard_texts, saved

Document = tuple[str, int, str, str]
"""Shard, number, text, subset."""

FORMATS = ("megatron", "npy", "ds", "llmc", "parquet")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(byte_level_bpe(700), tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def large_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose ids need 32 bits."""
    made = byte_level_bpe(300)
    content = json.loads(made.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"<{number}>": number for number in range(len(vocabulary), 70_277)}
    vocabulary["~"], vocabulary["<70276>"] = 70_276, vocabulary["~"]
    return saved(made, tmp_path_factory.mktemp("large") / "tokenizer.json", model=content["model"])


def shards_of(folder: Path, *contents: list[tuple[str, str]]) -> Path:
    """Shards `00.jsonl`, `01.jsonl`, ... of (text, subset)."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, documents in enumerate(contents):
        lines = [making.record(*document) for document in documents]
        (folder / f"{number:02}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def expected_ids(path: Path, documents: list[Document], eod: int | None = None, front: bool = False) -> Any:
    """The ids of each document by `tokenizers`, text by text; empty documents have none."""
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.encode_special_tokens = True
    ids = [reference.encode(text, add_special_tokens=False).ids for _, _, text, _ in documents]
    ends = [] if eod is None else [eod]
    return [(ends + one if front else one + ends) if one else [] for one in ids]


def cut(lengths: list[int], limit: int | None) -> list[int]:
    """The file of each document."""
    files, held = [], 0
    for length in lengths:
        new = bool(files) and limit is not None and held + length > limit
        held = length if new else held + length
        files.append((files[-1] if files else 0) + new)
    return files


def stem(prefix: Path, format: str) -> Path:
    return Path(f"{prefix}_text_document" if format == "megatron" else prefix)


def written(prefix: Path, format: str, limit: int | None, files: int, size: int) -> list[list[list[int]]]:
    """The documents of each file, by the readers."""
    names = [f"{prefix}-{number:05}" for number in range(files)]
    if format == "megatron":
        stems = [stem(prefix, format)] if limit is None else [Path(f"{name}_text_document") for name in names]
        found = [readers.megatron(one) for one in stems]
        assert [[document.tolist() for document in TokenFile(one)] for one in stems] == found
        return found
    if format == "npy":
        return [readers.npy(Path(name), size)[0] for name in names]
    if format == "ds":
        return [readers.ds(Path(name), size) for name in names]
    if format == "parquet":
        return [readers.parquet(Path(f"{name}.parquet"), size)[0] for name in names]
    return [[readers.llmc(Path(f"{prefix}_{number:06}.bin"), size)] for number in range(files)]


contents = st.lists(
    st.lists(
        st.tuples(st.one_of(hard_texts(["<|endoftext|>"]), st.just("")), st.sampled_from(["ArXiv", "Github"])),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=3,
)


@example(
    [[("\x01\x02\x03", "ArXiv"), ("\x01\x02\x03\x04", "ArXiv"), ("\x01", "ArXiv")]], "npy", 7, False
)  # a full file
@given(contents, st.sampled_from(FORMATS), st.sampled_from([None, 1, 7, 40, 1000]), st.booleans())
def test_ids_rows_and_cuts_are_those_of_tokenizers_and_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Path,
    contents: list[list[tuple[str, str]]],
    format: Any,
    limit: int | None,
    eod: bool,
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    shards_of(folder / "data", *contents)
    documents = [
        (f"{number:02}.jsonl", line, *document)
        for number, shard in enumerate(contents)
        for line, document in enumerate(shard)
    ]
    ids = expected_ids(tokenizer, documents, 0 if eod else None, format == "llmc")
    kept = [index for index, one in enumerate(ids) if one]
    options: dict[str, Any] = {"format": format, "append_eod": eod, "tokens_per_file": limit, "jobs": 1}
    prefix = folder / "out" / "pile"
    loaded = load_tokenizer(tokenizer)
    if not kept:
        with pytest.raises(PilekitError, match="nothing to write"):
            tokenize_corpus(folder / "data", prefix, loaded, **options)
        assert not list((folder / "out").iterdir())
        return
    with pytest.MonkeyPatch.context() as patch:  # pieces of a few, as of millions of documents
        for constant in ("documents.ROWS", "joined.ROWS", "formats._PIECE", "formats._ROW_GROUP_BYTES"):
            patch.setattr(f"pilekit.tokenize.files.{constant}", 3)
        result = tokenize_corpus(folder / "data", prefix, loaded, **options)
    files = cut([len(ids[index]) for index in kept], limit)
    found = written(prefix, format, limit, files[-1] + 1, 2)
    wanted = [[ids[index] for index, at in zip(kept, files, strict=True) if at == file] for file in range(len(found))]
    assert found == ([[list(chain(*file))] for file in wanted] if format == "llmc" else wanted)

    base = stem(prefix, format)
    table = pq.read_table(f"{base}{DOCUMENTS_SUFFIX}")
    names_type = pa.dictionary(pa.int32(), pa.string())
    assert table.schema.types == [names_type, pa.int64(), names_type, pa.int32(), pa.int32()]
    rows = [list(row.values()) for row in table.to_pylist()]
    assert rows == [
        [documents[index][0], documents[index][1], documents[index][3], len(ids[index]), file]
        for index, file in zip(kept, files, strict=True)
    ]
    sizes = {
        label: [[len(ids[index]), len(documents[index][2].encode())] for index in kept if documents[index][3] == label]
        for label in ("ArXiv", "Github")
    }
    told = result.to_dict()
    assert told["subsets"] == {
        label: {"documents": len(of), "tokens": sum(one for one, _ in of), "bytes": sum(one for _, one in of)}
        for label, of in sizes.items()
        if of
    }
    assert {row.pop("subset"): row for row in result.to_arrow().to_pylist()} == told["subsets"]
    assert (told["empty"], told["documents"]) == (len(ids) - len(kept), len(kept))
    names = {path.name for path in prefix.parent.iterdir()}
    assert names == {*(Path(path).name for path in told["files"]), f"{base.name}.json"}
    assert tokenize_corpus(folder / "data", prefix, loaded, **options).to_dict() == told
    header = json.loads(Path(f"{base}.json").read_text())
    assert (header["kind"], header["finished"]) == ("token file", True)
    assert header["results"]["tokenizer"]["vocabulary"] == loaded.vocab_size


def test_two_documents_of_three_and_two_tokens_make_an_index_of_82_bytes(tmp_path: Path, tokenizer: Path) -> None:
    shards_of(tmp_path / "data", [("\x01\x02\x03", "ArXiv"), ("\x01\x02", "ArXiv")])
    tokenize_corpus(tmp_path / "data", tmp_path / "two", tokenizer)
    index = (tmp_path / "two_text_document.idx").read_bytes()
    assert index == b"MMIDIDX\0\0" + struct.pack("<QBQQ2i2q3q", 1, 8, 2, 3, 3, 2, 0, 6, 0, 1, 2)
    assert len(index) == 82
    assert (tmp_path / "two_text_document.bin").stat().st_size == 10
    opened = TokenFile(tmp_path / "two")
    assert (len(opened), opened.tokens, opened.lengths.tolist(), opened.dtype) == (2, 5, [3, 2], "uint16")
    assert opened.tokenizer == load_tokenizer(tokenizer).fingerprint


def test_ids_past_16_bits_and_another_eod(tmp_path: Path, large_tokenizer: Path) -> None:
    texts = [("a ~~ b", "ArXiv"), ("", "ArXiv"), ("<|endoftext|>", "Github")]
    shards_of(tmp_path / "data", texts)
    documents = [("", 0, text, "") for text, _ in texts if text]
    loaded = load_tokenizer(large_tokenizer)
    for format in FORMATS:
        prefix = tmp_path / format / "pile"
        options: dict[str, Any] = {"format": format, "append_eod": True, "eod": "<69999>"}
        result = tokenize_corpus(tmp_path / "data", prefix, loaded, **options)
        assert result.dtype == ("int32" if format in ("megatron", "parquet") else "uint32")
        wanted = expected_ids(large_tokenizer, documents, 69_999, format == "llmc")
        assert wanted[0].count(70_276) == 2
        assert written(prefix, format, None, 1, 4) == [[list(chain(*wanted))] if format == "llmc" else wanted]
    rows = readers.npy(tmp_path / "npy" / "pile-00000", 4)[1]
    assert rows == [["00.jsonl:0", "00.jsonl", "1"], ["00.jsonl:2", "00.jsonl", "3"]]
    with pytest.raises(PilekitError, match=r"has no token 'none'; name one of its tokens with --eod"):
        tokenize_corpus(tmp_path / "data", tmp_path / "x", loaded, append_eod=True, eod="none")
    with pytest.raises(PilekitError, match="is not used without append_eod"):
        tokenize_corpus(tmp_path / "data", tmp_path / "x", loaded, eod="<1>")


def test_a_tokenizer_without_eod_and_files_without_it(
    tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards_of(tmp_path / "data", [("some words", "ArXiv")])
    content = json.loads(tokenizer.read_text())
    content["added_tokens"] = []
    (tmp_path / "plain.json").write_text(json.dumps(content))
    with pytest.raises(PilekitError, match="has no EOD token; name one of its tokens with --eod, or leave EOD out"):
        tokenize_corpus(tmp_path / "data", tmp_path / "x", tmp_path / "plain.json", format="npy")
    with caplog.at_level(logging.WARNING):
        tokenize_corpus(tmp_path / "data", tmp_path / "x", tmp_path / "plain.json", format="npy", append_eod=False)
    assert "without EOD, readers of npy files cannot tell documents apart" in caplog.text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of 200 documents, and a held-out one."""
    rng = random.Random(0)
    words = ["the", " quick", " fox\n", "läuft", "   ", "12345", "<|endoftext|>", "日本"]
    shards = [
        [("".join(rng.choices(words, k=rng.choice([0, 1, 5, 200]))), rng.choice(making.LABELS)) for _ in range(200)]
        for _ in range(4)
    ]
    folder = shards_of(tmp_path_factory.mktemp("corpus"), *shards)
    (folder / "val.jsonl").write_bytes(making.record("held out") + b"\n")
    return folder


def test_neither_processes_nor_threads_change_a_byte_and_held_out_shards_stay_out(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"append_eod": True, "tokens_per_file": 10_000}
    results, trees, loaded = [], [], load_tokenizer(tokenizer)
    for jobs, threads, alone in ((1, 0, 1 << 20), (1, 3, 1 << 20), (1, 3, 100), (2, 0, 1 << 20)):
        monkeypatch.setattr("pilekit.tokenize.files.tokenize_corpus.threads_of", lambda _, threads=threads: threads)
        monkeypatch.setattr(in_threads, "LARGE_BYTES", alone)
        prefix = tmp_path / f"{jobs}{threads}{alone}" / "pile"
        results.append(tokenize_corpus(corpus, prefix, loaded, jobs=jobs, **options).to_dict() | {"files": []})
        trees.append(tree(prefix.parent))
    assert trees[1:] == trees[:1] * 3
    assert results[1:] == results[:1] * 3
    assert len(trees[0]) > 10
    assert "left out, as held-out shards: val.jsonl" in caplog.text
    assert processes.processes_for(Corpus(corpus).shards, 2) == 2
    stats = corpus_stats([corpus / f"0{number}.jsonl" for number in range(4)]).to_dict()
    assert results[0]["bytes"] == stats["bytes"]
    assert results[0]["documents"] == stats["documents"] - results[0]["empty"]


FAILING = [False]


@document_filter
def fails_in_the_last_shard(document: Any) -> bool:
    """Keeps every document, or fails."""
    assert not (FAILING[0] and document.shard == "03.jsonl")
    return True


def test_subsets_stages_dedup_and_skipped_lines(tmp_path: Path, tokenizer: Path) -> None:
    data = shards_of(tmp_path / "data", [("one text of a few words " * 20, "ArXiv"), ("two", "Github")] * 2)
    with (data / "00.jsonl").open("ab") as file:
        file.write(b'{"text": 1}\n' + making.record("three", "Github") + b"\n")
    only: dict[str, Any] = {"on_error": "skip", "jobs": 1}
    loaded = load_tokenizer(tokenizer)

    def numbers(name: str, **options: Any) -> list[int]:
        tokenize_corpus(data, tmp_path / name, loaded, **(only | options))
        documents = TokenFile(tmp_path / name).documents
        assert documents is not None
        return documents["number"].to_pylist()

    assert numbers("all") == [0, 1, 2, 3, 5]
    assert numbers("subsets", subsets=["github"]) == [1, 3, 5]
    assert numbers("stages", stages=[MinBytes(4)]) == [0, 2, 5]
    deduplicate(data, out=tmp_path / "dedup", write=False, on_error="skip", jobs=1)
    assert numbers("unique", stages=[Deduplicated(tmp_path / "dedup")]) == [0, 1, 5]
    with pytest.raises(PilekitError, match=r'stages is \["[0-9a-f]+"\] there, \[\] here'):
        numbers("unique")
    with pytest.raises(PilekitError, match="run `pilekit dedup`"):
        numbers("x", stages=[NearDuplicates()])
    for name in ("all", "x"):  # what an earlier run skipped is an error now
        with pytest.raises(PilekitError, match=r'00\.jsonl, line 5: field "text" is a number'):
            numbers(name, on_error="raise")
    shutil.copy(data / "00.jsonl", data / "03.jsonl")
    FAILING[0] = True
    with pytest.raises(PilekitError, match=r"03\.jsonl: document 0"):
        numbers("y", stages=[fails_in_the_last_shard])
    FAILING[0] = False
    with pytest.raises(PilekitError, match=r"00\.jsonl, line 5"):
        numbers("y", stages=[fails_in_the_last_shard], on_error="raise")
    assert numbers("y", stages=[fails_in_the_last_shard]) == [0, 1, 2, 3, 5] * 2


def test_another_job_and_other_files_are_refused_and_stay(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    prefix, loaded = tmp_path / "out" / "pile", load_tokenizer(tokenizer)
    tokenize_corpus(corpus, prefix, loaded)
    (tmp_path / "out" / "photo.jpg").write_bytes(b"not to be lost")
    before = tree(tmp_path / "out")
    changes: list[tuple[dict[str, Any], str]] = [
        ({"append_eod": True}, "eod is null there, 0 here"),
        ({"subsets": ["ArXiv"]}, r'subsets is null there, \["ArXiv"\] here'),
        ({"tokens_per_file": 5}, "tokens_per_file is null there, 5 here"),
        ({"tokenizer": saved(byte_level_bpe(300), tmp_path / "other.json")}, "tokenizer is "),
        ({"corpus": corpus / "00.jsonl"}, "01.jsonl is not among them now"),
    ]
    for changed, message in changes:
        with pytest.raises(PilekitError, match=rf"pile_text_document\.json: was made .*{message}.*name another prefix"):
            tokenize_corpus(**({"corpus": corpus, "out": prefix, "tokenizer": loaded} | changed))
    assert tree(tmp_path / "out") == before
    for name in ("pile.json", "pile-00000.npy", f"pile{DOCUMENTS_SUFFIX}", "pile-00001.csv.gz"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(b"not ours")
        before = tree(tmp_path / name)
        (tmp_path / name / name).chmod(0o444)
        with pytest.raises(PilekitError, match=r"is there, and this job|is not a header of pilekit"):
            tokenize_corpus(corpus, tmp_path / name / "pile", loaded, format="npy", tokens_per_file=50_000)
        assert (tmp_path / name / name).read_bytes() == b"not ours"
        assert (tmp_path / name / "pile.unfinished").exists() == ("00001" in name)  # told before the work if possible
        (tmp_path / name / name).unlink()
        tokenize_corpus(corpus, tmp_path / name / "pile", loaded, format="npy", tokens_per_file=50_000)
        assert "pile.unfinished" not in {path.name for path in (tmp_path / name).iterdir()}
    (tmp_path / "out" / "pile_text_document.bin").write_bytes(b"short")
    with pytest.raises(PilekitError, match=r"pile_text_document\.bin is not there any more with [\d,]+ bytes"):
        tokenize_corpus(corpus, prefix, loaded)
    for bad in (tmp_path / "out", f"{tmp_path}/out/", tmp_path / "new" / "..", "/"):
        with pytest.raises(PilekitError, match="is a folder; name a prefix in it, such as tokens/pile"):
            tokenize_corpus(corpus, bad, loaded)
    for options, message in (
        ({"format": "csv"}, "format is one of megatron, npy"),
        ({"tokens_per_file": 0}, "at least 1 token"),
        ({"format": "llmc", "tokens_per_file": 1 << 31}, "less than 2"),
    ):
        with pytest.raises(PilekitError, match=message):
            tokenize_corpus(corpus, tmp_path / "new", loaded, **options)


def test_a_search_for_shards_passes_over_the_table_of_documents(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    shutil.copy(corpus / "00.jsonl", tmp_path)
    for format in ("megatron", "npy"):
        tokenize_corpus(corpus, tmp_path / "pile", tokenizer, format=format)  # type: ignore[arg-type]
        assert [shard.name for shard in Corpus(tmp_path)] == ["00.jsonl"]
    with pytest.raises(PilekitError, match="lists the documents of a token file, and is not a shard"):
        Corpus(tmp_path / "pile.documents.parquet")


# Below: killed runs.

KILLED = """
import itertools, json, os, signal, sys
from pathlib import Path
EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
corpus, tokenizer, out, format, step = sys.argv[1:]
from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus  # loads no tokenizer, so no threads
def run(place):
    options = {"format": format, "tokens_per_file": 20_000, "append_eod": True, "jobs": 1}
    return tokenize_corpus(corpus, place / "pile", tokenizer, **options)
def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
def child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]
whole = Path(out) / "whole"
assert child(lambda: run(whole)) == 0
expected = tree(whole)
for moment in itertools.count(0, int(step)):
    place = Path(out) / str(moment)
    def killed():
        counted = itertools.count()
        def hook(event, arguments):
            ours = any(isinstance(one, (str, Path)) and str(place) in str(one) for one in arguments)
            if event in EVENTS and (ours or event != "open") and next(counted) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        run(place)
    status = child(killed)
    found = tree(place) if place.exists() else {}
    for name, content in found.items():
        if "pile.unfinished" not in name and not name.endswith(".partial"):
            assert content == expected[name], (moment, name)
    if f"pile_text_document.json" in found:
        assert set(expected) <= set(found), moment
    assert child(lambda: run(place)) == 0, moment
    assert tree(place) == expected, (moment, set(tree(place)) ^ set(expected))
    if not os.WIFSIGNALED(status):
        assert status == 0
        break
print(moment)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("format", ["megatron", "parquet", "llmc"])
def test_killed_at_any_file_operation_and_run_again_the_bytes_are_the_same(
    tmp_path: Path, corpus: Path, tokenizer: Path, format: str
) -> None:
    arguments = [str(corpus / "0[01].jsonl"), str(tokenizer), str(tmp_path), format, "2"]
    done = subprocess.run([*PILEKIT[:1], "-c", KILLED, *arguments], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 60


def test_a_killed_command_resumes_and_does_no_finished_shard_again(
    tmp_path: Path, corpus: Path, tokenizer: Path
) -> None:
    tokenize_corpus(corpus, tmp_path / "whole" / "pile", tokenizer)
    command = [*PILEKIT, "tokenize", str(corpus), "--tokenizer", str(tokenizer), "--jobs", "1"]
    for number in count():
        out = tmp_path / str(number)
        joined = out / "pile.unfinished" / "joined"
        code, _ = stop_when([*command, "--out", str(out / "pile")], joined.exists, kill)
        notes = list((out / "pile.unfinished" / ".unfinished").glob("*.json"))
        if code == -signal.SIGKILL and 0 < len(notes) < 4:
            break
        assert number < 20, "was never stopped in the middle"
    before = {path.name: path.read_bytes() for path in notes}
    read: list[int] = []
    tokenize_corpus(corpus, out / "pile", tokenizer, advance=read.append)
    assert tree(out) == tree(tmp_path / "whole")
    assert before
    assert sum(read) == Corpus(corpus).without_held_out().size


def test_what_is_joined_is_not_done_again_unless_its_shard_was_touched(
    tmp_path: Path, corpus: Path, tokenizer: Path
) -> None:
    """A touched shard may have been written to; all from there on is done again."""
    data, loaded = Path(shutil.copytree(corpus, tmp_path / "data")), load_tokenizer(tokenizer)
    sizes = [(data / f"0{number}.jsonl").stat().st_size for number in range(4)]
    for format, touched, done in (("npy", None, 3), ("npy", 1, 1), ("parquet", 0, 0), ("llmc", 2, 2)):
        options: dict[str, Any] = {"format": format, "tokens_per_file": 20_000, "jobs": 1}
        out = tmp_path / f"{format}{touched}"
        options["stages"] = [fails_in_the_last_shard]
        tokenize_corpus(data, out / "whole" / "pile", loaded, **options)
        FAILING[0] = True
        with pytest.raises(PilekitError, match=r"03\.jsonl: document 0: the function fails_in_the_last"):
            tokenize_corpus(data, out / "again" / "pile", loaded, **options)
        FAILING[0] = False
        assert [path.name for path in (out / "again").iterdir()] == ["pile.unfinished"]
        if touched is not None:
            os.utime(data / f"0{touched}.jsonl")
        (out / "again" / "pile.unfinished" / "joined" / "half.idx").write_bytes(b"left over")
        read: list[int] = []
        tokenize_corpus(data, out / "again" / "pile", loaded, advance=read.append, **options)
        assert read[0] == sum(sizes[:done])
        assert tree(out / "again") == tree(out / "whole")


@pytest.mark.slow
def test_a_full_disk_is_one_clear_line_and_the_run_resumes(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    tokenize_corpus(corpus, tmp_path / "whole" / "pile", tokenizer)
    size = sum(map(len, tree(tmp_path / "whole").values()))
    with small_disk(tmp_path / "disk", size // 8192 * 4096) as disk:
        command = [*PILEKIT, "tokenize", str(corpus), "--tokenizer", str(tokenizer), "--out", str(disk.path / "pile")]

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=disk.limit)

        failed = run()
        assert (failed.returncode, failed.stdout) == (1, "")
        lines = [line for line in failed.stderr.splitlines() if not line.startswith("left out")]
        assert len(lines) == 1
        assert re.match(r"error: .*/pile\.unfinished/.*: cannot be written: ", lines[0])
        disk.grow()
        assert run().returncode == 0
        assert tree(disk.path) == tree(tmp_path / "whole")


# The writer and the index of fifty million documents of two tokens, with 1 GB of address space beyond the start.
MANY = """
import re, resource, sys
from pathlib import Path
import numpy as np
from pilekit import TokenFile, load_tokenizer
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Shard
from pilekit.tokenize.files.documents import RECORD, Cut
from pilekit.tokenize.files.formats import token_files
from pilekit.tokenize.files.joined import Joined
from pilekit.tokenize.files.tokenize_corpus import _finish

folder, tokenizer, documents = Path(sys.argv[1]), load_tokenizer(sys.argv[2]), int(sys.argv[3])
start = int(re.search(r"VmSize:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (start + (1 << 30), -1))
try:
    np.empty((3, documents), np.int64)  # three numbers for each document do not fit
except MemoryError:
    files = token_files(folder / "pile", "megatron", None, 700)
    output = Output(folder / "unfinished", False)
    part = output.path("shards/00.jsonl", "")
    part.parent.mkdir(parents=True)
    with Path(f"{part}.ids").open("wb") as ids, Path(f"{part}.records").open("wb") as records:
        for begin in range(0, documents, 1_000_000):
            piece = np.zeros(1_000_000, RECORD)
            piece["number"], piece["tokens"] = np.arange(begin, begin + 1_000_000), 2
            records.write(piece.data)
            ids.write((np.arange(2 * begin, 2 * begin + 2_000_000) % 60_000).astype("<u2").data)
    result = {"subsets": {"ArXiv": [documents, 2 * documents, 0]}, "empty": 0, "skipped": 0, "bad_lines": []}
    Joined(output.folder / "joined", files, Cut()).append(output, "00.jsonl", result)
    _finish(files, output, [Shard("00.jsonl", "00.jsonl")], tokenizer, None)
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))  # the reader maps the files: 1 GB of index
    opened = TokenFile(output.folder / "joined" / "pile")
    assert (len(opened), opened.tokens) == (documents, 2 * documents)
    for number in (0, 1, documents // 2, documents - 1):
        assert opened[number].tolist() == [2 * number % 60_000, (2 * number + 1) % 60_000]
    print("whole")
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_million_documents_in_a_gigabyte(tmp_path: Path, tokenizer: Path) -> None:
    command = [*PILEKIT[:1], "-c", MANY, str(tmp_path), str(tokenizer), "50000000"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout == "whole\n", done.stderr[-2000:]
