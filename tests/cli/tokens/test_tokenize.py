"""`pilekit tokenize`, `show` and `verify` of what it wrote, and `pilekit train-tokenizer`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pilekit import TokenFile
from pilekit.tokenize import load_tokenizer
from tests.cli.running import cells, refused, run, run_json
from tests.dedup.checking import write_corpus
from tests.pipeline.making import write_shard
from tests.shards import making
from tests.tokenize.making import byte_level_bpe, saved


@pytest.fixture
def data(tmp_path: Path) -> Path:
    texts = [("abcabc" * 30, "Github"), ("", "ArXiv"), ("abcabc" * 30, "ArXiv"), ("é", "ArXiv")]
    saved(byte_level_bpe(300), tmp_path / "tokenizer.json")
    return write_corpus(tmp_path / "data", {"00": [*(making.record(*document) for document in texts), b"bad\x1b"]})


def test_the_table_json_and_files(data: Path, tmp_path: Path) -> None:
    common = ("tokenize", data, "--tokenizer", tmp_path / "tokenizer.json", "--on-error", "skip")
    result = run(*common, "--out", tmp_path / "tokens" / "pile", exit_code=0)  # type: ignore[arg-type]
    rows = cells(result.stdout)
    assert rows[0] == ["Subset", "Documents", "Tokens", "Text"]
    assert [rows[2][:2], rows[3][:2], rows[5][:2]] == [["ArXiv", "2"], ["Github", "1"], ["Total", "3"]]
    assert result.stdout.splitlines()[-2:] == [
        "1 document without tokens left out",
        f"uint16 ids in {tmp_path / 'tokens/pile_text_document.bin'}",
    ]
    assert result.stderr.startswith(f"skipped: {data / '00.jsonl.zst'}, line 5: is not JSON")
    told = run_json(*common, "--out", tmp_path / "tokens" / "pile")
    subsets = told.pop("subsets")
    tokens = TokenFile(tmp_path / "tokens" / "pile").tokens
    files = [str(tmp_path / "tokens" / f"pile_text_document.{end}") for end in ("bin", "documents.parquet", "idx")]
    counts = {"documents": 3, "tokens": tokens, "bytes": 362}
    assert told == {**counts, "empty": 1, "skipped": 1, "dtype": "uint16", "files": files}
    assert subsets["ArXiv"] == {"documents": 2, "tokens": tokens - subsets["Github"]["tokens"], "bytes": 182}

    run("dedup", data, "--out", tmp_path / "unique", "--no-write", "--on-error", "skip", "--jobs", "1")
    options = ("--dedup", tmp_path / "unique", "--append-eod", "--subsets", "arxiv,github", "--format", "npy")
    told = run_json(*common, *options, "--out", tmp_path / "unique-tokens")
    assert {name: one["documents"] for name, one in told["subsets"].items()} == {"Github": 1, "ArXiv": 1}


def test_show_and_verify_of_token_files(data: Path, tmp_path: Path) -> None:
    tokenizer, index = tmp_path / "tokenizer.json", tmp_path / "pile_text_document.idx"
    run("tokenize", data, "--tokenizer", tokenizer, "--on-error", "skip", "--append-eod", "--out", tmp_path / "pile")
    shown = run_json("show", index, "2", "--tokenizer", tokenizer)
    assert shown == {"shard": "00.jsonl", "number": 3, "subset": "ArXiv", "tokens": 3, "text": "é<|endoftext|>"}
    told = run("show", index, "2", "--tokenizer", tokenizer)
    assert (told.stdout, told.stderr) == ("é<|endoftext|>", "00.jsonl, document 3, ArXiv\n")
    tokens = TokenFile(index).tokens
    assert run("verify", index).stdout == f"{index}: 3 documents, {tokens:,} tokens: all right\n"
    assert run_json("verify", index)["vocabulary"] == 300
    assert "verified alone" in run("verify", index, data, exit_code=2).stderr
    assert "--tokenizer" in run("show", index, "2", exit_code=2).stderr
    other = saved(byte_level_bpe(400), tmp_path / "other.json")
    for number, file, message in ((3, tokenizer, "has 3 documents, and no number 3"), (0, other, "another tokenizer")):
        refused(message, "show", index, number, "--tokenizer", file)
    with (tmp_path / "pile_text_document.bin").open("rb+") as file:
        file.seek(-4, 2)
        file.write(b"\x2c\x01")
    refused(rf"the id 300 at token {tokens - 2:,}, but the vocabulary has 300", "verify", index)
    (tmp_path / "pile_text_document.json").unlink()
    assert run("verify", index).stdout.endswith("no header tells the vocabulary, so ids were not compared with it\n")
    assert run("show", index, "0", "--tokenizer", other, exit_code=0).stdout


def test_what_is_wrong_is_refused(data: Path, tmp_path: Path) -> None:
    common = ("tokenize", data, "--tokenizer", tmp_path / "tokenizer.json")
    for prefix in (tmp_path, f"{tmp_path}/new/", ""):
        errors = run(*common, "--out", prefix, exit_code=2).stderr  # type: ignore[arg-type]
        assert "name a prefix in it, such as tokens/pile" in " ".join(errors.split())
    assert "not in the range" in run(*common, "--out", "x", "--tokens-per-file", "0", exit_code=2).stderr  # type: ignore[arg-type]
    for options, message in (
        ((), r"line 5: is not JSON"),
        (("--dedup", tmp_path), "was not written by pilekit"),
        (("--on-error", "skip", "--append-eod", "--eod", "<none>\x1b"), r"has no token '<none>\\x1b'"),
    ):
        refused(message, *common, "--out", tmp_path / "new" / "pile", *options)  # type: ignore[arg-type]
        assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "00.jsonl.zst"
    rng = np.random.default_rng(0)
    words = ["one", "two", "three", "fourteen", "fifteen", "hundred"]
    texts = [" ".join(rng.choice(words, 200)) + f" {i}" for i in range(300)]
    subsets = ["ArXiv", "Github", "\x1b[31m[red]label[/red]"] * 100
    return write_shard(path, texts, subsets)


def test_train_tokenizer(shard: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "tokenizer.json"
    result = run("train-tokenizer", shard, "--vocab-size", 300, "--out", out, exit_code=0)
    assert load_tokenizer(out).vocab_size == 300
    assert f"wrote {out}: 300 ids" in result.stdout

    options = ("--subsets", "arxiv", "--bytes", "5kB", "--seed", 1)
    run("train-tokenizer", shard, "--vocab-size", 300, "--out", tmp_path / "1.json", *options, exit_code=0)
    assert (tmp_path / "1.json").read_bytes() != out.read_bytes()

    result = run("train-tokenizer", shard, "--vocab-size", 50_000, "--out", tmp_path / "2.json")
    assert "instead of 50,000" in result.stderr
    refused("at least 258", "train-tokenizer", shard, "--vocab-size", 10, "--out", tmp_path / "3.json")
    run("train-tokenizer", shard, "--vocab-size", 300, exit_code=2)
    assert not (tmp_path / "3.json").exists()
