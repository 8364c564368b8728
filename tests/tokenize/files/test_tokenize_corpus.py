"""Token files against `tokenizers` and readers of their own; cuts, errors, and runs that were killed."""

from __future__ import annotations

import json
import logging
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from pilekit import (
    Corpus,
    DropDuplicates,
    NearDuplicates,
    PilekitError,
    TokenFile,
    corpus_stats,
    dedup_corpus,
    document_filter,
    load_tokenizer,
    merge_token_files,
    tokenize_corpus,
)
from pilekit.corpus.sidecar_files import DOCUMENTS_SUFFIX
from pilekit.pipeline.stages import MinBytes
from pilekit.shards.fingerprint import fingerprint
from pilekit.tokenize.files.formats import LIMITS
from tests.shards import making
from tests.stopping import tree
from tests.tokenize.files import readers
from tests.tokenize.files.conftest import shards_of
from tests.tokenize.making import byte_level_bpe, hard_texts, saved

Document = tuple[str, int, str, str]
"""Shard, number, text, subset."""


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
        opened = [TokenFile(one) for one in stems]
        assert [[document.tolist() for document in one] for one in opened] == found
        assert [one.lengths.tolist() for one in opened] == [[*map(len, file)] for file in found]
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
@given(contents, st.sampled_from(list(LIMITS)), st.sampled_from([None, 1, 7, 40, 1000]), st.booleans())
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
    result = tokenize_corpus(folder / "data", prefix, loaded, **options)
    files = cut([len(ids[index]) for index in kept], limit)
    found = written(prefix, format, limit, files[-1] + 1, 2)
    wanted = [[ids[index] for index, at in zip(kept, files, strict=True) if at == file] for file in range(len(found))]
    assert found == ([[list(chain(*file))] for file in wanted] if format == "llmc" else wanted)

    if format == "npy":
        lines = [readers.npy(Path(f"{prefix}-{file:05}"), 2)[1] for file in range(len(found))]
        places = [(documents[index][0], documents[index][1]) for index in kept]
        assert list(chain(*lines)) == [[f"{shard}:{line}", shard, str(line + 1)] for shard, line in places]
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
    assert header["parameters"]["tokenizer"] == loaded.fingerprint


@pytest.mark.parametrize(
    ("entries", "eod"), [*((entries, None) for entries in (65_499, 65_500, 65_535, 65_536, 65_537)), (70_277, "w69999")]
)
def test_every_id_reads_back_at_the_border_of_16_bits_from_every_format_and_from_a_merge(
    tmp_path: Path, entries: int, eod: str | None
) -> None:
    """The tokenizer's EOD is an added token with the largest id."""
    words = {f"w{number}": number for number in range(entries - 1)}
    made = tokenizers.Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    loaded = load_tokenizer(saved(made, tmp_path / "tokenizer.json"))
    item, end = 2 if entries < 65_500 else 4, entries - 1 if eod is None else int(eod[1:])
    documents = [[0, entries - 2, 1], [min(65_535, entries - 2), 65_498 - 1]]
    shards_of(tmp_path / "data", [(" ".join(f"w{number}" for number in ids), "ArXiv") for ids in documents])
    expected = [[*ids, end] for ids in documents]
    options: dict[str, Any] = {"append_eod": True, "eod": eod}
    tokenize_corpus(tmp_path / "data", tmp_path / "whole", loaded, **options)
    for format in LIMITS:
        result = tokenize_corpus(tmp_path / "data", tmp_path / format, loaded, format=format, **options)
        wide = "int32" if format in ("megatron", "parquet") else "uint32"
        assert result.summary["dtype"] == ("uint16" if item == 2 else wide)
        merge_token_files(tmp_path / "whole", tmp_path / f"merged-{format}", format=format)
        front = [[end, *documents[0], end, *documents[1]]]
        assert written(tmp_path / format, format, None, 1, item) == [front if format == "llmc" else expected]
        merged = [list(chain(*expected))] if format == "llmc" else expected
        assert written(tmp_path / f"merged-{format}", format, None, 1, item) == [merged]


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


def test_the_tokenizer_is_one_line_of_the_metadata_whatever_its_name(tmp_path: Path, tokenizer: Path) -> None:
    """A newline, and a byte that is not UTF-8."""
    shards_of(tmp_path / "data", [("some words", "ArXiv")])
    named = Path(shutil.copy(tokenizer, tmp_path / "new\nline\udcff.json"))
    tokenize_corpus(tmp_path / "data", tmp_path / "pile", named, format="ds")
    assert len(readers.ds(tmp_path / "pile-00000", 2)) == 1


def test_neither_processes_nor_threads_change_a_byte_and_held_out_shards_stay_out(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"append_eod": True, "tokens_per_file": 10_000}
    results, trees, loaded = [], [], load_tokenizer(tokenizer)
    for jobs, threads in ((1, 1), (1, 3), (2, 1)):
        monkeypatch.setattr("pilekit.shards.corpus_job.usable_cpus", lambda cpus=jobs * threads: cpus)
        prefix = tmp_path / f"{jobs}{threads}" / "pile"
        results.append(tokenize_corpus(corpus, prefix, loaded, jobs=jobs, **options).to_dict() | {"files": []})
        trees.append(tree(prefix.parent))
    assert trees[1:] == trees[:1] * 2
    assert results[1:] == results[:1] * 2
    assert len(trees[0]) > 10
    assert "left out, as held-out shards: val.jsonl" in caplog.text
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
    dedup_corpus(data, out=tmp_path / "dedup", write=False, on_error="skip", jobs=1)
    assert numbers("unique", stages=[DropDuplicates(tmp_path / "dedup")]) == [0, 1, 5]
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
        ({"append_eod": True}, "append_eod is not given there, id 0 here"),
        ({"tokens_per_file": 5}, "tokens_per_file is not given there, 5 here"),
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
        with pytest.raises(PilekitError, match=r"exists, and this job|is not a header of pilekit"):
            tokenize_corpus(corpus, tmp_path / name / "pile", loaded, format="npy", tokens_per_file=50_000)
        assert (tmp_path / name / name).read_bytes() == b"not ours"
        assert (tmp_path / name / "pile.unfinished").exists() == ("00001" in name)  # told before the work if possible
        (tmp_path / name / name).unlink()
        if "00001" in name:  # The files before it have their names already.
            published = (tmp_path / name / "pile-00000.npy").rename(tmp_path / "moved")
            with pytest.raises(PilekitError, match=r"pile-00000\.npy: is gone; put it back, or remove .*unfinished"):
                tokenize_corpus(corpus, tmp_path / name / "pile", loaded, format="npy", tokens_per_file=50_000)
            published.rename(tmp_path / name / "pile-00000.npy")
        tokenize_corpus(corpus, tmp_path / name / "pile", loaded, format="npy", tokens_per_file=50_000)
        assert "pile.unfinished" not in {path.name for path in (tmp_path / name).iterdir()}
    (tmp_path / "out" / "pile_text_document.bin").write_bytes(b"short")
    with pytest.raises(PilekitError, match=r"pile_text_document\.bin no longer exists with [\d,]+ bytes"):
        tokenize_corpus(corpus, prefix, loaded)
    for bad in (tmp_path / "out", f"{tmp_path}/out/", tmp_path / "new" / "..", "/"):
        with pytest.raises(PilekitError, match="is a folder; name a prefix in it, such as tokens/pile"):
            tokenize_corpus(corpus, bad, loaded)
    with pytest.raises(PilekitError, match=r"new\\udcff: its name is not valid UTF-8; name another prefix"):
        tokenize_corpus(corpus, tmp_path / "new\udcff", loaded)
    for options, message in (
        ({"format": "csv"}, "format is one of megatron, npy"),
        ({"tokens_per_file": 0}, "at least 1 token"),
        ({"format": "llmc", "tokens_per_file": 1 << 31}, r"less than 2\^31, not 2,147,483,648"),
        ({"append_eod": True, "eod": "none"}, "has no token 'none'; name one of its tokens with --eod"),
        ({"eod": "none"}, "is not used without append_eod"),
    ):
        with pytest.raises(PilekitError, match=message):
            tokenize_corpus(corpus, tmp_path / "new", loaded, **options)


def test_a_part_leaves_the_lock_of_another_part_that_begins_at_the_same_moment(
    tmp_path: Path, corpus: Path, tokenizer: Path
) -> None:
    lock = tmp_path / "x.unfinished/.lock"
    lock.parent.mkdir()
    lock.write_text("the same file")  # The other part has made it, but not locked it.
    tokenize_corpus(corpus, tmp_path / "x", tokenizer, part=(1, 2))
    assert lock.read_text() == "the same file"
    tokenize_corpus(corpus, tmp_path / "x", tokenizer)
    assert not lock.parent.exists()


def test_a_search_for_shards_passes_over_the_table_of_documents(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    shutil.copy(corpus / "00.jsonl", tmp_path)
    for format in ("megatron", "npy"):
        tokenize_corpus(corpus, tmp_path / "pile", tokenizer, format=format)  # type: ignore[arg-type]
        assert [shard.name for shard in Corpus(tmp_path)] == ["00.jsonl"]
    with pytest.raises(PilekitError, match="lists the documents of a token file, and is not a shard"):
        Corpus(tmp_path / "pile.documents.parquet")


def test_nothing_is_written_through_a_link_in_place_of_the_jobs_folder(
    tmp_path: Path, corpus: Path, tokenizer: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t.unfinished").symlink_to("elsewhere")
    with pytest.raises(PilekitError, match=r"t.unfinished: is a link"):
        tokenize_corpus(corpus, tmp_path / "t", tokenizer)
    assert not any((tmp_path / "elsewhere").iterdir())


def test_token_files_of_a_shard_that_was_changed_in_place_are_not_called_done(tmp_path: Path, tokenizer: Path) -> None:
    """The fingerprint, a sample of the shard, shows nothing of it."""
    corpus = shards_of(tmp_path / "corpus", [("word " * 100, "ArXiv")] * 1500)
    path, prefix = corpus / "00.jsonl", tmp_path / "out" / "pile"
    loaded, before = load_tokenizer(tokenizer), fingerprint(str(path))
    tokenize_corpus(corpus, prefix, loaded)
    tokenize_corpus(corpus, prefix, loaded)
    made = tree(tmp_path / "out")
    content = bytearray(path.read_bytes())
    content[content.index(b"word", 30_000)] = ord("W")
    path.write_bytes(content)
    assert fingerprint(str(path)) == before
    with pytest.raises(PilekitError, match=r"text_document\.json: 00\.jsonl was changed after these files were made; "):
        tokenize_corpus(corpus, prefix, loaded)
    assert tree(tmp_path / "out") == made
