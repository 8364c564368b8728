"""Files and folders that pilekit wrote: a search leaves them out, and the folder of a finished job is its shards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilekit.artifacts.header import write_header
from pilekit.corpus import Corpus, shard_of
from pilekit.corpus.job_shards import IN_CLEAN
from pilekit.errors import PilekitError
from tests.corpus.making import Make, names


def test_folders_that_pilekit_wrote_are_searched_only_when_given(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("00.jsonl", "clean/00.jsonl", "clean/deeper/01.jsonl", "plain/02.jsonl")
    write_header(folder / "clean", kind="clean shards", parameters={}, inputs={})
    for source, expected in [
        (folder, ["00.jsonl", "plain/02.jsonl"]),
        (f"{folder}/**/*.jsonl", ["00.jsonl", "plain/02.jsonl"]),
        (folder / "clean", ["00.jsonl", "deeper/01.jsonl"]),
        (f"{folder}/clean/*.jsonl", ["00.jsonl"]),
        ([folder / "clean/00.jsonl", folder / "00.jsonl"], ["00.jsonl", "clean/00.jsonl"]),
    ]:
        assert names(Corpus(source)) == expected  # type: ignore[arg-type]
    (folder / "00.jsonl").unlink()
    (folder / "plain/02.jsonl").unlink()
    with pytest.raises(PilekitError, match=r"no shards .*not searched, .*pilekit wrote them: .*corpus/clean"):
        Corpus(folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PILEKIT_DATA", raising=False)
    with pytest.raises(PilekitError, match=r"pilekit wrote them: \./clean;"):
        Corpus()


def test_tables_of_token_ids_are_no_shards(make: Make) -> None:
    """Finished and unfinished; a shard of such a name beside token files in another format is one."""
    folder = make("00.jsonl", "a-00000.parquet", "b-00000.parquet", "b-00001.parquet", "c-00000.parquet")
    for name, of in (("a.json", "parquet"), ("b.unfinished/pilekit.json", "parquet"), ("c.json", "npy")):
        write_header(folder, kind="token file", parameters={"format": of}, inputs={}, name=name)
    for source in (folder, f"{folder}/*", folder.parent):
        assert [Path(shard.path).name for shard in Corpus(source)] == ["00.jsonl", "c-00000.parquet"]


@pytest.mark.parametrize("kind", IN_CLEAN)
def test_the_folder_of_a_finished_job_is_its_shards(
    make: Make, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In each way to name it, with one line that says so; never by a search of a folder above."""
    folder = make("unique/clean/train/00.jsonl", "unique/clean/val.jsonl", "unique/removed.parquet", "other/00.jsonl")
    unique, clean = folder / "unique", Corpus(folder / "unique/clean")
    write_header(unique, kind=kind, parameters={"write": True}, inputs={}, finished=True)
    (folder / "link").symlink_to(unique)
    for source in (unique, f"{unique}/", str(unique), [unique], f"file://{unique}"):
        corpus = Corpus(source)
        assert (names(corpus), corpus.held_out) == (["train/00.jsonl", "val.jsonl"], clean.held_out)
        assert [Path(shard.path) for shard in corpus] == [unique / "clean/train/00.jsonl", unique / "clean/val.jsonl"]
    assert Corpus(unique).shards == clean.shards
    told = f"{unique}: was written by `pilekit {IN_CLEAN[kind]}`; its shards, in clean/, are read"
    assert caplog.messages.count(told) == 1
    assert names(Corpus(folder / "link")) == ["train/00.jsonl", "val.jsonl"]
    assert names(Corpus([unique, folder / "other"])) == [
        "other/00.jsonl",
        "unique/clean/train/00.jsonl",
        "unique/clean/val.jsonl",
    ]
    assert names(Corpus(folder)) == ["other/00.jsonl"], "output is no input by accident"
    monkeypatch.setenv("PILEKIT_DATA", str(unique))
    assert Corpus().shards == clean.shards
    monkeypatch.chdir(unique)
    monkeypatch.delenv("PILEKIT_DATA")
    assert names(Corpus()) == names(Corpus(".")) == ["train/00.jsonl", "val.jsonl"]


@pytest.mark.parametrize("kind", IN_CLEAN)
def test_a_job_without_shards_says_how_to_get_them(make: Make, kind: str) -> None:
    folder = make("out/removed.parquet", "elsewhere/00.jsonl")
    out = folder / "out"
    write_header(out, kind=kind, parameters={"write": False}, inputs={}, finished=True)
    remedy = f"run `pilekit {IN_CLEAN[kind]}` without --no-write into another folder"
    if kind == "dedup":
        remedy = f"give `stream`, `tokenize` or `substrings` the corpus that it read, with --dedup {out}, or {remedy}"
    with pytest.raises(PilekitError) as refused:
        Corpus(out)
    assert str(refused.value) == f"{out}: holds no shards, as it was made with --no-write; {remedy}"
    write_header(out, kind=kind, parameters={"write": True}, inputs={}, finished=True)
    with pytest.raises(PilekitError, match=r"out/clean: is gone; run the command that wrote it again$"):
        Corpus(out)
    (out / "clean").symlink_to(folder / "elsewhere")
    with pytest.raises(PilekitError, match=r"out/clean: is a link and is not searched; name it to read it$"):
        Corpus(out)
    assert names(Corpus(out / "clean")) == ["00.jsonl"]


def test_a_header_that_this_pilekit_cannot_read_is_an_error(make: Make) -> None:
    folder = make("out/00.jsonl", "out/clean/01.jsonl")
    write_header(folder / "out", kind="dedup", parameters={}, inputs={}, finished=True)
    header = folder / "out/pilekit.json"
    for content, why in (
        (header.read_text().replace('"format":1', '"format":0').replace('"format": 1', '"format": 0'), "has format 0"),
        ("{}", "is not a header of pilekit"),
        ("[" * 100_000, "is not a header of pilekit"),
    ):
        header.write_text(content)
        with pytest.raises(PilekitError, match=rf"out/pilekit\.json: {why}.*; run its command into another folder, or"):
            Corpus(folder / "out")
        assert names(Corpus(f"{folder}/out/*.jsonl")) == ["00.jsonl"]
    header.unlink()
    os.mkfifo(header)
    with pytest.raises(PilekitError, match=r"out/pilekit\.json: cannot be read: is a device or a pipe"):
        Corpus(folder / "out")


@pytest.mark.parametrize("kind", ["selection", *IN_CLEAN])
def test_an_unfinished_output_folder_is_refused_and_its_shards_give_a_warning(
    make: Make, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make("out/00.jsonl", "out/01.jsonl", "out/clean/02.jsonl", "other/03.jsonl")
    for finished in (True, False, None):
        write_header(folder / "out", kind=kind, parameters={}, inputs={}, finished=finished)
        told = [f"{folder}/out: is not finished, so shards may be missing"] if finished is False else []
        if told:
            with pytest.raises(PilekitError, match="so shards may be missing; run the command that wrote it again"):
                Corpus(folder / "out")
        else:
            assert len(Corpus(folder / "out")) == (3 if kind == "selection" else 1)
        for source in (folder / "out/clean", f"{folder}/out/*", list((folder / "out").glob("*.jsonl"))):
            caplog.clear()
            Corpus(source)
            assert [message.partition(";")[0] for message in caplog.messages] == told
        caplog.clear()
        Corpus(folder / "other")
        Corpus(folder / "out/00.jsonl")
        assert not caplog.messages


def test_files_that_pilekit_writes_beside_shards_are_dropped_from_a_list(make: Make) -> None:
    ours = {
        "a.jsonl.zst.index.parquet": "is the index of a.jsonl.zst, not a shard; give a.jsonl.zst itself",
        ".b.parquet.index": "is the index of b.parquet, not a shard; give b.parquet itself",
        "pilekit.json": "says how its folder was made, and is not a shard; give the folder",
        "SHA256SUMS": "holds the sums of shards, and is not one; give the shards or their folder",
    }
    folder = make("a.jsonl.zst", "b.parquet", *ours)
    assert names(Corpus(sorted(map(str, folder.iterdir())))) == ["a.jsonl", "b.parquet"]
    for name, what in ours.items():
        for make_it in (Corpus, lambda path: Corpus([path]), lambda path: shard_of(str(path))):
            with pytest.raises(PilekitError) as refused:
                make_it(folder / name)
            assert str(refused.value) == f"{folder / name}: {what}"
    with pytest.raises(PilekitError, match=r"is the index of a\.jsonl\.zst"):
        Corpus("https://host/a.jsonl.zst.index.parquet?token=1")
