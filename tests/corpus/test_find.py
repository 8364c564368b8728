"""The shards of a folder, a file, a glob, a list of paths, standard input and the default places."""

from __future__ import annotations

import glob
import os
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import read
from pilekit.corpus import Corpus, Shard, local, shard_of
from pilekit.corpus.shard import split_of
from pilekit.errors import PilekitError
from tests.corpus.making import Make, fill, names


def test_a_folder_gives_its_shards_with_size_and_split_in_the_order_of_names(make: Make) -> None:
    kept = ["val.jsonl.zst", "train/01.jsonl.gz", "train/00.jsonl", "test.json.zst", "a.json.gz", "b.parquet"]
    left = ["g.json", "i.zst", "SHA256SUMS.txt", "00.index.parquet", "j.jsonl.zst.partial", "k.zip", ".l.jsonl"]
    folder = make(*kept, *left)
    corpus = Corpus(folder)
    assert corpus.root == str(folder)
    assert corpus.shards == (
        Shard("a.json", f"{folder}/a.json.gz", 9),
        Shard("b.parquet", f"{folder}/b.parquet", 9),
        Shard("test.json", f"{folder}/test.json.zst", 13, "test"),
        Shard("train/00.jsonl", f"{folder}/train/00.jsonl", 14, "train"),
        Shard("train/01.jsonl", f"{folder}/train/01.jsonl.gz", 17, "train"),
        Shard("val.jsonl", f"{folder}/val.jsonl.zst", 13, "val"),
    )
    assert (corpus.size, len(corpus), corpus.manifest.name) == (75, 6, "pile")
    copy = pickle.loads(pickle.dumps(corpus))
    assert (copy.root, copy.shards, copy.manifest) == (corpus.root, corpus.shards, corpus.manifest)


def test_a_search_takes_regular_files_and_enters_no_hidden_or_symlinked_folders(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("00.jsonl", ".cache/01.jsonl", "real/02.jsonl", "real/.02.jsonl")
    outside = fill(tmp_path / "outside", ["03.jsonl", "blob"])
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    (folder / "itself").symlink_to("itself")
    (folder / "04.jsonl.zst").symlink_to(outside / "blob")
    os.mkfifo(folder / "05.jsonl")
    (folder / "06.jsonl").symlink_to("/dev/zero")
    for source in (folder, f"{folder}/**/*.jsonl*", f"{folder}/**", f"{folder}/**/**/0*"):
        assert names(Corpus(source)) == ["00.jsonl", "04.jsonl", "real/02.jsonl"]
    assert Corpus(folder).shards[1].size == len("blob")
    links = f"not searched, because they are links to folders: {folder}/link, {folder}/loop; name such a folder"
    assert [message.startswith(links) for message in caplog.messages] == [True] * 5
    caplog.clear()
    for source in (folder / "link", f"{folder}/link/*.jsonl", f"{folder}/*.jsonl"):
        assert names(Corpus(source))[-1].startswith("0")
    assert not caplog.messages
    monkeypatch.chdir(folder)
    assert names(Corpus()) == ["00.jsonl", "04.jsonl", "real/02.jsonl"]
    assert "links to folders: ./link, ./loop; name" in caplog.text
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/train").symlink_to(outside)
    for source in (tmp_path / "linked", f"{tmp_path}/linked/t*/*.jsonl"):
        with pytest.raises(PilekitError, match=r"not searched, because they are links .*: .*linked/train; name such"):
            Corpus(source)
    (folder / "07.jsonl").symlink_to("nowhere")
    with pytest.raises(PilekitError, match=r"07\.jsonl: cannot be read .*broken link"):
        Corpus(folder)


def test_names_are_relative_to_the_folder_or_the_common_parent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("a/00.jsonl", "b/00.jsonl", "b/c/01.jsonl", "val.jsonl", "train/00.jsonl.zst", "odd[1]*")
    one = Corpus(folder / "train/00.jsonl.zst")
    assert one.root == f"{folder}/train"
    assert one.shards == (Shard("00.jsonl", f"{folder}/train/00.jsonl.zst", 18, "train"),)
    assert one.shards[0] == shard_of(f"{folder}/train/00.jsonl.zst")
    assert names(Corpus(folder / "odd[1]*")) == ["odd[1]*"], "a path that exists is no pattern"
    assert Corpus([folder / "b", folder / "a"]).shards == Corpus([folder / "a", folder / "b"]).shards
    assert names(Corpus([folder / "b", folder / "a"])) == ["a/00.jsonl", "b/00.jsonl", "b/c/01.jsonl"]
    assert Corpus([folder / "b", folder / "a"]).root == str(folder)
    assert (Corpus(f"{folder}/b/*").root, names(Corpus(f"{folder}/b/*"))) == (f"{folder}/b", ["00.jsonl", "c/01.jsonl"])
    assert names(Corpus([folder / "b/c", folder / "b/00.jsonl"])) == ["00.jsonl", "c/01.jsonl"]
    monkeypatch.chdir(folder / "a")
    assert Corpus("00.jsonl").root == "."
    relative = ["00.jsonl", "../val.jsonl", f"{folder}/b/*.jsonl"]
    assert names(Corpus(relative)) == ["a/00.jsonl", "b/00.jsonl", "val.jsonl"]


part = st.text(alphabet="ab*?", min_size=1, max_size=3) | st.just("**")
plain = st.text(alphabet="ab", min_size=1, max_size=2)
tree = st.lists(st.lists(plain, min_size=1, max_size=4).map("/".join), max_size=8, unique=True)


@given(tree=tree, pattern=st.lists(part, min_size=1, max_size=4).map("/".join).map("{}*".format))
def test_globs_find_what_the_standard_library_finds(tree: list[str], pattern: str) -> None:
    with TemporaryDirectory() as root:
        folder = fill(Path(root), [f"{path}.jsonl" for path in tree])
        expected = set()
        for found in glob.glob(pattern, root_dir=folder, recursive=True):  # noqa: PTH207 (passes over hidden files, as a shell does)
            if (folder / found).is_file():
                expected.add(folder / found)
            elif "**" not in pattern.split("/"):
                expected.update(path for path in (folder / found).rglob("*") if path.is_file())
        try:
            found_here = {Path(path) for _, path, _ in local.search(f"{folder}/{pattern}").files}
        except PilekitError as error:
            assert "there is no folder" in str(error)
            found_here = set()
    assert found_here == expected


def test_errors_of_paths(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("a/00.jsonl", "b/note.txt", "c/00.jsonl")
    Path(os.fsdecode(os.fsencode(folder) + b"/c/\xff.jsonl")).write_text("x")
    (tmp_path / "empty").mkdir()
    wrong: list[tuple[object, str]] = [
        (f"{folder}/a/x*", r"no shards .* in .*/a/x\*"),
        (f"{folder}/missing/*", "there is no folder .*/missing;"),
        ("no/such\x1b/place.jsonl.zst", r"^no/such\\x1b/place\.jsonl\.zst: no such file or folder; check the path$"),
        (tmp_path / "empty", r"no shards \(\*\.jsonl\.zst .*\) in .*; .*`pilekit demo`"),
        ([folder / "a", folder / "b"], r"no shards .*/corpus/b;"),
        ([], "no path is given"),
        (folder / "c", r"udcff\.jsonl: its name is not valid UTF-8"),
        (["-", "x.jsonl"], "cannot be read together"),
        *((wrong, "a corpus is a path, glob or URL, or a list of them, not ") for wrong in (5, b"corpus", ["a", None])),
    ]
    for source, message in wrong:
        with pytest.raises(PilekitError, match=message) as failure:
            Corpus(source)  # type: ignore[arg-type]
        str(failure.value).encode()
    monkeypatch.chdir(folder)
    for path in (f"{folder}", f"{folder}/", "..", "a", "nowhere/"):
        with pytest.raises(PilekitError, match="is a folder, not a shard; name a file in it") as failure:
            shard_of(path)
        assert str(failure.value).startswith(f"{path}: ")
    with pytest.raises(PilekitError, match=r"^a\\x00\.jsonl: cannot be opened"):
        list(read("a\0.jsonl"))
    make("two/00.jsonl.zst", "two/00.jsonl")
    for source in (folder / "two", [folder / "a/00.jsonl", folder / "a/00.jsonl"]):
        with pytest.raises(PilekitError, match=r"two shards have the name 00\.jsonl: .*00\.jsonl.* and .*00\.jsonl"):
            Corpus(source)


def test_a_folder_that_cannot_be_read_is_reported(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("00.jsonl", "secret/01.jsonl")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PilekitError, match=r"secret: the folder cannot be read \(Permission denied\)"):
        Corpus(folder)


def test_the_default_is_the_environment_then_data_then_here(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("here.jsonl", "data/there.jsonl")
    elsewhere = fill(tmp_path / "elsewhere", ["other.jsonl"])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PILEKIT_DATA", str(elsewhere))
    assert names(Corpus()) == ["other.jsonl"]
    monkeypatch.setenv("PILEKIT_DATA", "")
    assert (names(Corpus()), Corpus().root) == (["there.jsonl"], "data")
    monkeypatch.delenv("PILEKIT_DATA")
    (folder / "data/there.jsonl").unlink()
    assert (names(Corpus()), Corpus().root) == (["here.jsonl"], ".")
    (folder / "here.jsonl").unlink()
    with pytest.raises(
        PilekitError, match=r"\$PILEKIT_DATA \(not set\), \./data, the current folder \(.*corpus\).*pilekit demo"
    ):
        Corpus()
    monkeypatch.setenv("PILEKIT_DATA", "/no/such/place")
    with pytest.raises(PilekitError, match=r"^\$PILEKIT_DATA: /no/such/place: no such file or folder"):
        Corpus()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PILEKIT_DATA", "~/elsewhere/*.jsonl")
    assert names(Corpus()) == names(Corpus("~/elsewhere")) == ["other.jsonl"]
    assert (Corpus("-").shards, Corpus("-").size) == ((Shard("(stdin)", "-", None, None),), None)


def test_the_name_of_a_shard_tells_its_split() -> None:
    for split, paths in {
        "train": ["train/00.jsonl.zst", "train-00001-of-00009.parquet", "train/test-00.jsonl", "train/trial.jsonl"],
        "val": ["val.jsonl.zst", "Valid/3.parquet", "train/val/00.jsonl", "train/val.jsonl.zst", "validation-00.jsonl"],
        "test": ["train/Test.parquet", "val/test.jsonl", "test/train.jsonl"],
        None: ["train-test.jsonl", "trainer.jsonl", "latest/evaluation.jsonl"],
    }.items():
        assert {split_of(path) for path in paths} == {split}


def test_the_name_of_the_root_tells_the_split_only_if_no_shard_does(tmp_path: Path) -> None:
    folder = fill(tmp_path / "test", ["00.jsonl", "01.jsonl"])
    for corpus in (Corpus(folder), Corpus(sorted(folder.iterdir())), Corpus(folder / "00.jsonl")):
        assert {shard.split for shard in corpus} == {"test"}
    assert shard_of(f"{folder}/00.jsonl").split == "test"
    fill(folder, ["val.jsonl"])
    assert [shard.split for shard in Corpus(folder)] == [None, None, "val"]
    assert names(Corpus(folder).split("train")) == ["00.jsonl", "01.jsonl"]


def test_splits_and_held_out_shards(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    corpus = Corpus(make("train/00.jsonl", "extra.jsonl", "val.jsonl", "test.jsonl"), manifest="demo")
    train, val = corpus.split("train"), corpus.split("val")
    assert names(train) == ["train/00.jsonl"]
    assert (val.manifest, val.root) == (corpus.manifest, corpus.root)
    with pytest.raises(PilekitError, match=r"has no test shards; .*test\.jsonl\.zst"):
        train.split("test")
    assert train.without_held_out().only_held_out() is train
    assert val.without_held_out().only_held_out() is val
    assert not caplog.text
    assert names(corpus.without_held_out()) == ["extra.jsonl", "train/00.jsonl"]
    assert names(corpus.only_held_out()) == ["test.jsonl", "val.jsonl"]
    assert caplog.text.count("test.jsonl, val.jsonl") == 2


@given(sizes=st.lists(st.integers(0, 60), max_size=12), count=st.integers(1, 15), random=st.randoms())
def test_parts_are_equally_large_and_alike_in_any_order(sizes: list[int], count: int, random: Random) -> None:
    shards = [Shard(f"{number:02}.jsonl", f"{number}.jsonl", size) for number, size in enumerate(sizes)]
    with TemporaryDirectory() as root:
        corpus = Corpus(fill(Path(root), ["only.jsonl"]))
    parts = [corpus._with_shards(tuple(shards)).part((number, count)) for number in range(1, count + 1)]
    assert sorted(name for part in parts for name in names(part)) == [shard.name for shard in shards]
    loads = [part.size or 0 for part in parts]
    assert max(loads) - min(loads) <= max(sizes, default=0)
    random.shuffle(shards)
    for number, part in enumerate(parts, start=1):
        assert sorted(names(part)) == sorted(names(corpus._with_shards(tuple(shards)).part((number, count))))
    unknown = corpus._with_shards(tuple(Shard(shard.name, shard.path, None) for shard in shards))
    counts = [len(unknown.part((number, count))) for number in range(1, count + 1)]
    assert max(counts) - min(counts) <= 1
    for wrong in ((0, count), (count + 1, count)):
        with pytest.raises(PilekitError, match="counted from 1"):
            corpus.part(wrong)


def test_a_corpus_that_was_sent_to_another_process_can_be_read_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    script = "import pickle, sys; print(*(document.text for document in pickle.load(sys.stdin.buffer).documents()))"
    sent = pickle.dumps(Corpus(tmp_path))
    assert subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True).stdout == b"a b\n"
